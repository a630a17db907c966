//! The blocks of progressive pictures: each scan tells some bits of some coefficients (ITU-T T.81, annex G).

use super::bits::Bits;
use super::scan::{Member, Scan};
use super::segments::ZIGZAG;
use super::sequential;
use crate::limits::ImageError;
use crate::read::header::File;

/// The largest shift of a coefficient.
const MAX_SHIFT: u8 = 13;

pub struct Progressive {
    /// The first and the last coefficient of the scan.
    band: (usize, usize),
    /// Whether higher bits of the coefficients are known.
    is_refinement: bool,
    /// The value of the bit that the scan tells.
    bit: i16,
    shift: u8,
    /// The rest of an end-of-band run: blocks for which the scan has no further codes.
    n_ended: u32,
}

impl Progressive {
    /// # Errors
    /// The scan's header contradicts itself.
    pub fn new(file: &File, scan: &Scan, n_members: usize) -> Result<Self, ImageError> {
        let (first, last) = scan.band;
        let (known, shift) = scan.bits;
        let is_band = if first == 0 {
            last == 0
        } else {
            first <= last && last < 64 && n_members == 1
        };
        if !is_band || shift > MAX_SHIFT || (known > 0 && known != shift + 1) {
            let reason = format!(
                "a progressive scan has an invalid range: coefficients {first} to {last}, bits {known} to {shift}, \
                 {n_members} components"
            );
            return Err(file.damaged(reason));
        }
        Ok(Self {
            band: scan.band,
            is_refinement: known > 0,
            bit: 1 << shift,
            shift,
            n_ended: 0,
        })
    }

    pub fn restart(&mut self) {
        self.n_ended = 0;
    }

    /// Reads the scan's bits of a block.
    ///
    /// # Errors
    /// A code is not in its table, or belongs to no coefficient.
    pub fn read(
        &mut self,
        file: &File,
        bits: &mut Bits,
        member: &mut Member,
        block: &mut [i16; 64],
    ) -> Result<(), ImageError> {
        match (self.band.0, self.is_refinement) {
            (0, false) => {
                let value = sequential::first(file, bits, member)?;
                block[0] = value.wrapping_shl(u32::from(self.shift)) as i16;
                Ok(())
            }
            (0, true) => {
                if bits.take(1) == 1 {
                    block[0] |= self.bit;
                }
                Ok(())
            }
            (_, false) => self.read_others(file, bits, member, block),
            (_, true) => self.refine_others(file, bits, member, block),
        }
    }

    /// The length in blocks of an end-of-band run, this block included.
    fn ended(bits: &mut Bits, n_bits: usize) -> u32 {
        (1 << n_bits) + bits.take(n_bits as u32) as u32
    }

    fn read_others(
        &mut self,
        file: &File,
        bits: &mut Bits,
        member: &Member,
        block: &mut [i16; 64],
    ) -> Result<(), ImageError> {
        if self.n_ended > 0 {
            self.n_ended -= 1;
            return Ok(());
        }
        let codes = member.codes(file, 1)?;
        let mut at = self.band.0;
        while at <= self.band.1 {
            let symbol = bits.symbol(codes)?;
            let (n_zeros, n_bits) = (usize::from(symbol >> 4), u32::from(symbol & 15));
            if n_bits == 0 {
                if n_zeros < 15 {
                    self.n_ended = Self::ended(bits, n_zeros) - 1;
                    break;
                }
                at += 16;
                continue;
            }
            at += n_zeros;
            let value = bits.take_signed(n_bits);
            let Some(place) = ZIGZAG.get(at) else {
                return Err(file.damaged("a block has more than 64 coefficients"));
            };
            block[usize::from(*place)] = value.wrapping_shl(u32::from(self.shift)) as i16;
            at += 1;
        }
        Ok(())
    }

    /// Reads a bit for each known coefficient from `at` on, up to one that is 0 after `n_zeros` others. Returns its
    /// place.
    fn refine(
        &self,
        bits: &mut Bits,
        block: &mut [i16; 64],
        mut at: usize,
        mut n_zeros: usize,
    ) -> usize {
        while at <= self.band.1 {
            let value = &mut block[usize::from(ZIGZAG[at])];
            if *value == 0 {
                if n_zeros == 0 {
                    break;
                }
                n_zeros -= 1;
            } else if bits.take(1) == 1 && *value & self.bit == 0 {
                let step = if *value < 0 { -self.bit } else { self.bit };
                *value = value.wrapping_add(step);
            }
            at += 1;
        }
        at
    }

    fn refine_others(
        &mut self,
        file: &File,
        bits: &mut Bits,
        member: &Member,
        block: &mut [i16; 64],
    ) -> Result<(), ImageError> {
        let mut at = self.band.0;
        if self.n_ended == 0 {
            let codes = member.codes(file, 1)?;
            while at <= self.band.1 {
                let symbol = bits.symbol(codes)?;
                let (n_zeros, n_bits) = (usize::from(symbol >> 4), symbol & 15);
                if n_bits == 0 && n_zeros < 15 {
                    self.n_ended = Self::ended(bits, n_zeros);
                    break;
                }
                let sign = if n_bits == 0 { 0 } else { 2 * bits.take(1) - 1 };
                at = self.refine(bits, block, at, n_zeros);
                if sign != 0 && at <= self.band.1 {
                    block[usize::from(ZIGZAG[at])] = self.bit * sign as i16;
                }
                at += 1;
            }
        }
        if self.n_ended > 0 {
            self.refine(bits, block, at, usize::MAX);
            self.n_ended -= 1;
        }
        Ok(())
    }
}
