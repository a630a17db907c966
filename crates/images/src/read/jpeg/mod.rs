//! JPEG: baseline, extended and progressive, with Huffman coding and 8 bits a sample.
//!
//! No library gives the pixels of libjpeg-turbo, which Pillow and transformers read: others differ by up to four levels
//! in pictures with halved chroma. So the arithmetic here is libjpeg's (`jidctint.c`, `jdsample.c`, `jdcolor.c`): its
//! accurate inverse DCT, its triangle filter for chroma, and its tables of colours. Damaged entropy-coded
//! data are refused, where libjpeg warns. Progressive pictures without their last scans are not smoothed
//! (`jdcoefct.c`).

mod bits;
mod blocks;
mod colour;
mod frame;
mod huffman;
mod idct;
mod progressive;
mod scan;
mod segments;
mod sequential;
mod upsample;

use super::header::{File, Header};
use crate::limits::{ImageError, Kind};
use crate::picture::Orientation;
use blocks::Planes;
use segments::{Segments, Walk};

pub(super) fn header(bytes: &[u8], max_scans: u32) -> Result<Header, ImageError> {
    let file = file(bytes);
    let mut found = Segments::default();
    let mut n_scans = 0;
    for segment in Walk::new(file) {
        if found.read(&file, segment?)? {
            n_scans += 1;
        }
        if n_scans > max_scans {
            return Err(ImageError::TooManyScans { limit: max_scans });
        }
    }
    let orientation = found.orientation.unwrap_or(Orientation::UPRIGHT);
    let frame = match &found.frame {
        Some(frame) if n_scans > 0 => frame,
        _ => return Err(file.damaged("it has no picture")),
    };
    colour::Space::of(&found, frame)?;
    Ok(Header {
        kind: Kind::Jpeg,
        orientation,
        stored: frame.size,
        decoder_bytes: frame.decoder_bytes(),
    })
}

/// The pixels as RGB.
pub(super) fn pixels(bytes: &[u8], header: &Header) -> Result<Vec<u8>, ImageError> {
    let file = file(bytes);
    let mut found = Segments::default();
    let mut planes: Option<Planes> = None;
    for segment in Walk::new(file) {
        let segment = segment?;
        if !found.read(&file, segment)? {
            continue;
        }
        let Some(frame) = &found.frame else {
            return Err(file.damaged("a scan comes before the frame"));
        };
        let planes = planes.get_or_insert_with(|| Planes::new(frame));
        scan::read(&file, segment, &found, frame, planes)?;
    }
    let (Some(frame), Some(planes)) = (&found.frame, planes) else {
        return Err(file.damaged("it has no picture"));
    };
    if frame.size != header.stored {
        return Err(file.damaged("its headers give different sizes"));
    }
    let space = colour::Space::of(&found, frame)?;
    let samples = planes.samples(&file, frame)?;
    Ok(colour::rgb(frame, &samples, space))
}

fn file(bytes: &[u8]) -> File<'_> {
    File {
        kind: Kind::Jpeg,
        bytes,
    }
}
