//! A file's header, and the bytes of a file at an offset.

use crate::limits::{ImageError, Kind};
use crate::picture::Orientation;

/// A file's header, read before its pixels are decoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The format.
    pub kind: Kind,
    /// How the stored picture is turned.
    pub orientation: Orientation,
    /// Width and height as stored.
    pub(super) stored: (u32, u32),
    /// The most memory that decoding takes, the picture included.
    pub(super) decoder_bytes: u64,
}

impl Header {
    /// Width and height of the upright picture.
    pub fn size(&self) -> (u32, u32) {
        self.orientation.upright_size(self.stored)
    }

    /// The number of pixels.
    pub(super) fn pixels(&self) -> usize {
        self.stored.0 as usize * self.stored.1 as usize
    }
}

/// A file, whose bytes are read at offsets that the file itself gives.
#[derive(Clone, Copy)]
pub(super) struct File<'a> {
    pub(super) kind: Kind,
    pub(super) bytes: &'a [u8],
}

impl<'a> File<'a> {
    /// The `length` bytes at `at`.
    ///
    /// # Errors
    /// [`ImageError::Cut`] if the file ends before.
    pub(super) fn at(&self, at: usize, length: usize) -> Result<&'a [u8], ImageError> {
        let end = at.checked_add(length);
        let found = end.and_then(|end| self.bytes.get(at..end));
        found.ok_or(ImageError::Cut {
            kind: self.kind,
            length: self.bytes.len(),
        })
    }

    pub(super) fn byte(&self, at: usize) -> Result<u8, ImageError> {
        Ok(self.at(at, 1)?[0])
    }

    pub(super) fn u16_be(&self, at: usize) -> Result<u16, ImageError> {
        let bytes = self.at(at, 2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    pub(super) fn u16_le(&self, at: usize) -> Result<u16, ImageError> {
        Ok(self.u16_be(at)?.swap_bytes())
    }

    pub(super) fn u32_be(&self, at: usize) -> Result<u32, ImageError> {
        let bytes = self.at(at, 4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(super) fn u32_le(&self, at: usize) -> Result<u32, ImageError> {
        Ok(self.u32_be(at)?.swap_bytes())
    }

    /// Three bytes, the lowest first.
    pub(super) fn u24_le(&self, at: usize) -> Result<u32, ImageError> {
        let bytes = self.at(at, 3)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], 0]))
    }

    pub(super) fn damaged(&self, reason: impl std::fmt::Display) -> ImageError {
        ImageError::damaged(self.kind, reason)
    }
}
