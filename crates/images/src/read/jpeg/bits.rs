//! Reads the bits of a scan's entropy-coded data.

use super::huffman::Huffman;
use crate::limits::{ImageError, Kind};
use crate::read::header::File;

/// Bits, the first in a byte's highest. Zeros follow the last, and [`Bits::check`] tells whether they were read.
pub struct Bits<'a> {
    file: File<'a>,
    /// The next byte. It stays at a marker.
    at: usize,
    /// The next bits, at the upper end.
    next: u64,
    n_next: u32,
    /// Zeros that were put after the last byte.
    n_zeros: u32,
}

impl<'a> Bits<'a> {
    pub fn new(file: File<'a>, at: usize) -> Self {
        Self {
            file,
            at,
            next: 0,
            n_next: 0,
            n_zeros: 0,
        }
    }

    /// Makes at least 56 bits ready.
    fn refill(&mut self) {
        while self.n_next <= 56 {
            let byte = match self.file.bytes.get(self.at..) {
                Some([0xff, 0, ..]) => {
                    self.at += 2;
                    0xff
                }
                Some([byte, ..]) if *byte != 0xff => {
                    self.at += 1;
                    *byte
                }
                _ => {
                    self.n_zeros += 8;
                    0
                }
            };
            self.next |= u64::from(byte) << (56 - self.n_next);
            self.n_next += 8;
        }
    }

    fn drop(&mut self, n: u32) {
        self.next <<= n;
        self.n_next -= n;
    }

    /// The next `n` bits, 0 to 16 of them.
    pub fn take(&mut self, n: u32) -> i32 {
        if n == 0 {
            return 0;
        }
        if self.n_next < n {
            self.refill();
        }
        let bits = (self.next >> (64 - n)) as i32;
        self.drop(n);
        bits
    }

    /// The next `n` bits as a number whose highest bit is 0 if it is negative, 0 to 16 of them.
    pub fn take_signed(&mut self, n: u32) -> i32 {
        if n == 0 {
            return 0;
        }
        let bits = self.take(n);
        if bits >> (n - 1) == 0 {
            bits - (1 << n) + 1
        } else {
            bits
        }
    }

    /// Reads the next Huffman code, and returns its symbol.
    ///
    /// # Errors
    /// The table has no such code.
    pub fn symbol(&mut self, table: &Huffman) -> Result<u8, ImageError> {
        if self.n_next < 16 {
            self.refill();
        }
        let Some((length, symbol)) = table.find((self.next >> 48) as u32) else {
            return Err(self.file.damaged("a Huffman code is not in its table"));
        };
        self.drop(length);
        Ok(symbol)
    }

    /// Checks that no zeros after the last byte were read.
    ///
    /// # Errors
    /// [`ImageError::Damaged`], or [`ImageError::Cut`] at the file's end.
    pub fn check(&self) -> Result<(), ImageError> {
        if self.n_zeros <= self.n_next {
            return Ok(());
        }
        if self.at >= self.file.bytes.len() {
            return Err(ImageError::Cut {
                kind: Kind::Jpeg,
                length: self.file.bytes.len(),
            });
        }
        Err(self.file.damaged("a scan ends before its last block"))
    }

    /// Skips to the data after the next restart marker, which must have this number.
    ///
    /// # Errors
    /// Another marker is there.
    pub fn restart(&mut self, number: u8) -> Result<(), ImageError> {
        let rest = self.file.bytes.get(self.at..).unwrap_or_default();
        // Bytes that fill the space before a marker are allowed.
        let fill = rest.iter().take_while(|byte| **byte == 0xff).count();
        let marker = self.at + fill;
        if fill == 0 || self.file.byte(marker)? != 0xd0 + number {
            let reason = format!("restart marker {number} is missing");
            return Err(self.file.damaged(reason));
        }
        *self = Self::new(self.file, marker + 1);
        Ok(())
    }
}
