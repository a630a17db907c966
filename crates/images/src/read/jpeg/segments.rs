//! The segments of a file: tables, frames, and where the scans are.

use super::frame::Frame;
use super::huffman::Huffman;
use crate::limits::{ImageError, Kind};
use crate::picture::Orientation;
use crate::read::exif;
use crate::read::header::File;

/// The positions of a block's coefficients, in the order in which files have them.
pub const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// A segment with a length.
#[derive(Debug, Clone, Copy)]
pub struct Segment {
    pub marker: u8,
    /// Where its length is.
    pub at: usize,
    /// Where it ends. After a scan's header, its entropy-coded data begin there.
    pub end: usize,
}

/// The segments of a file, up to its end marker.
pub struct Walk<'a> {
    file: File<'a>,
    at: usize,
    is_over: bool,
}

impl<'a> Walk<'a> {
    pub fn new(file: File<'a>) -> Self {
        Self {
            file,
            at: 2,
            is_over: false,
        }
    }

    fn step(&mut self) -> Result<Option<Segment>, ImageError> {
        loop {
            let found = next_marker(&self.file, self.at)?;
            let marker = self.file.byte(found + 1)?;
            let at = found + 2;
            self.at = at;
            match marker {
                0xd9 => return Ok(None),
                // Markers without a length.
                0x01 | 0xd8 => continue,
                _ => {}
            }
            let length = usize::from(self.file.u16_be(at)?);
            if length < 2 {
                let reason = format!("a segment's length is {length}");
                return Err(self.file.damaged(reason));
            }
            self.file.at(at, length)?;
            self.at = at + length;
            return Ok(Some(Segment {
                marker,
                at,
                end: self.at,
            }));
        }
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<Segment, ImageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let step = self.step().transpose();
        self.is_over = !matches!(step, Some(Ok(_)));
        step
    }
}

/// The place of the next marker at or after `at`. In entropy-coded data 0xff is followed by 0, or is a restart marker.
pub fn next_marker(file: &File, mut at: usize) -> Result<usize, ImageError> {
    loop {
        let rest = file.bytes.get(at..).unwrap_or_default();
        let Some(distance) = rest.iter().position(|byte| *byte == 0xff) else {
            return Err(ImageError::Cut {
                kind: Kind::Jpeg,
                length: file.bytes.len(),
            });
        };
        at += distance;
        match file.byte(at + 1)? {
            0 | 0xd0..=0xd7 => at += 2,
            0xff => at += 1,
            _ => return Ok(at),
        }
    }
}

/// The tables and facts of the segments so far.
#[derive(Default)]
pub struct Segments {
    pub frame: Option<Frame>,
    pub orientation: Option<Orientation>,
    /// Whether it has JFIF's segment, whose pictures are YCbCr.
    pub is_jfif: bool,
    /// The transform in Adobe's segment.
    pub transform: Option<u8>,
    /// Units between two restart markers; 0 for no such markers.
    pub restart: usize,
    /// Quantisation tables, in the order of a block's rows.
    pub quantisation: [Option<[u16; 64]>; 4],
    /// Huffman tables: of DC coefficients, then of AC coefficients.
    pub huffman: [[Option<Box<Huffman>>; 4]; 2],
}

impl Segments {
    /// Reads a segment. Returns whether it begins a scan.
    ///
    /// # Errors
    /// It is cut or damaged, or of a variant that is not read.
    pub fn read(&mut self, file: &File, segment: Segment) -> Result<bool, ImageError> {
        let Segment { marker, at, end } = segment;
        let data = file.at(at + 2, end - at - 2)?;
        let unsupported = |variant: &str| Err(ImageError::unsupported(Kind::Jpeg, variant));
        match marker {
            0xc0..=0xc2 if self.frame.is_some() => return Err(file.damaged("it has two frames")),
            0xc0..=0xc2 => self.frame = Some(Frame::read(file, at, marker == 0xc2)?),
            0xc3 | 0xc5..=0xc7 => return unsupported("lossless or hierarchical"),
            0xc9..=0xcb | 0xcd..=0xcf => return unsupported("arithmetic-coded"),
            0xc4 => self.read_huffman(file, data)?,
            0xdb => self.read_quantisation(file, data)?,
            0xdd => self.restart = usize::from(file.u16_be(at + 2)?),
            0xda if self.frame.is_none() => {
                return Err(file.damaged("a scan comes before the frame"));
            }
            0xda => return Ok(true),
            0xe0 if data.starts_with(b"JFIF\0") => self.is_jfif = true,
            0xe1 if self.orientation.is_none() && data.starts_with(exif::MARK) => {
                self.orientation = Some(exif::orientation(data));
            }
            0xee if data.starts_with(b"Adobe") => self.transform = data.get(11).copied(),
            _ => {}
        }
        Ok(false)
    }

    fn read_huffman(&mut self, file: &File, mut data: &[u8]) -> Result<(), ImageError> {
        while let Some((class, rest)) = data.split_first() {
            let (of, number) = (usize::from(class >> 4), usize::from(class & 15));
            if of > 1 || number > 3 {
                return Err(file.damaged(format!(
                    "a Huffman table has the invalid class and number {class:#04x}"
                )));
            }
            let Some((counts, rest)) = rest.split_first_chunk::<16>() else {
                return Err(file.damaged("a Huffman table is cut off"));
            };
            let n_symbols = counts.iter().map(|count| usize::from(*count)).sum();
            let Some((symbols, rest)) = rest.split_at_checked(n_symbols) else {
                return Err(file.damaged("a Huffman table is cut off"));
            };
            let Some(table) = Huffman::new(counts, symbols) else {
                return Err(file.damaged("a Huffman table has more codes than their lengths allow"));
            };
            self.huffman[of][number] = Some(Box::new(table));
            data = rest;
        }
        Ok(())
    }

    fn read_quantisation(&mut self, file: &File, mut data: &[u8]) -> Result<(), ImageError> {
        while let Some((class, rest)) = data.split_first() {
            let (width, number) = (usize::from(class >> 4) + 1, usize::from(class & 15));
            if width > 2 || number > 3 {
                return Err(file.damaged(format!(
                    "a quantisation table has the invalid precision and number {class:#04x}"
                )));
            }
            let Some((values, rest)) = rest.split_at_checked(64 * width) else {
                return Err(file.damaged("a quantisation table is cut off"));
            };
            let mut table = [0; 64];
            for (value, place) in values.chunks_exact(width).zip(ZIGZAG) {
                let value = value
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | u16::from(*byte));
                table[usize::from(place)] = value;
            }
            self.quantisation[number] = Some(table);
            data = rest;
        }
        Ok(())
    }
}
