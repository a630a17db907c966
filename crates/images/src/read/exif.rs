//! The orientation in a block of EXIF: the tag 0x0112 of a TIFF structure's first directory.

use crate::picture::Orientation;

/// The signature of EXIF in a JPEG's APP1 segment, which some writers of WebP keep.
pub(super) const MARK: &[u8] = b"Exif\0\0";

const ORIENTATION: u16 = 0x0112;
/// TIFF's type of 16-bit numbers.
const SHORT: u16 = 3;

fn u16_at(tiff: &[u8], at: usize, is_big: bool) -> Option<u16> {
    let bytes: [u8; 2] = tiff.get(at..at.checked_add(2)?)?.try_into().ok()?;
    Some(if is_big {
        u16::from_be_bytes(bytes)
    } else {
        u16::from_le_bytes(bytes)
    })
}

fn u32_at(tiff: &[u8], at: usize, is_big: bool) -> Option<u32> {
    let first = u32::from(u16_at(tiff, at, is_big)?);
    let second = u32::from(u16_at(tiff, at.checked_add(2)?, is_big)?);
    Some(if is_big {
        (first << 16) | second
    } else {
        (second << 16) | first
    })
}

fn found(tiff: &[u8]) -> Option<Orientation> {
    let is_big = match tiff.get(..4)? {
        b"MM\0*" => true,
        b"II*\0" => false,
        _ => return None,
    };
    let directory = u32_at(tiff, 4, is_big)? as usize;
    let n_entries = u16_at(tiff, directory, is_big)?;
    // An entry has 12 bytes: tag, type, count, and the value if it fits into 4 bytes.
    let entries = (0..usize::from(n_entries)).map(|i| directory + 2 + i * 12);
    for at in entries {
        if u16_at(tiff, at, is_big)? == ORIENTATION {
            let is_short = u16_at(tiff, at + 2, is_big)? == SHORT;
            let value = u16_at(tiff, at + 8, is_big)?;
            return is_short.then(|| Orientation::from_exif(value));
        }
    }
    None
}

/// The orientation that a block of EXIF gives. A damaged block, as one without the tag, leaves the picture upright.
pub(super) fn orientation(block: &[u8]) -> Orientation {
    let tiff = block.strip_prefix(MARK).unwrap_or(block);
    found(tiff).unwrap_or(Orientation::UPRIGHT)
}
