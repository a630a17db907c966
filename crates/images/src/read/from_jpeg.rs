//! JPEG: baseline and progressive, grey or in colour.

use zune_jpeg::JpegDecoder;
use zune_jpeg::errors::DecodeErrors;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use super::exif;
use super::header::{File, Header};
use crate::limits::{ImageError, Kind};
use crate::picture::Orientation;

/// Rows of blocks that the decoder holds, in bytes for each column of pixels.
const ROW_BYTES: u64 = 256;
const MAX_SIDE: usize = 65_535;

/// A frame's header.
struct Frame {
    size: (u32, u32),
    is_progressive: bool,
    /// The names of its components: 1 to 4 of them.
    names: Vec<u8>,
    /// The bytes of all coefficients, two each.
    coefficient_bytes: u64,
}

/// The findings of the walk over a file's segments.
#[derive(Default)]
struct Found {
    frame: Option<Frame>,
    orientation: Option<Orientation>,
    /// The transform in Adobe's segment.
    transform: Option<u8>,
    n_scans: u32,
    /// Whether a scan lacks some of the components.
    has_partial_scans: bool,
}

/// The frame in the segment whose length is at `at`.
fn frame(file: &File, at: usize, is_progressive: bool) -> Result<Frame, ImageError> {
    let precision = file.byte(at + 2)?;
    if precision != 8 {
        let variant = format!("one of {precision} bits a sample");
        return Err(ImageError::unsupported(Kind::Jpeg, variant));
    }
    let (height, width) = (file.u16_be(at + 3)?, file.u16_be(at + 5)?);
    let n_components = usize::from(file.byte(at + 7)?);
    if !(1..=4).contains(&n_components) {
        return Err(file.damaged(format!("it has {n_components} components")));
    }
    let mut names = Vec::new();
    let mut factors = Vec::new();
    for component in file.at(at + 8, n_components * 3)?.chunks_exact(3) {
        names.push(component[0]);
        factors.push((u64::from(component[1] >> 4), u64::from(component[1] & 15)));
    }
    let is_factor = |factor: u64| (1..=4).contains(&factor);
    if !factors.iter().all(|(h, v)| is_factor(*h) && is_factor(*v)) {
        return Err(file.damaged("a sampling factor is not 1 to 4"));
    }
    let widest = factors.iter().map(|(h, _)| *h).max().unwrap_or(1);
    let highest = factors.iter().map(|(_, v)| *v).max().unwrap_or(1);
    let n_columns = u64::from(width).div_ceil(8 * widest);
    let n_rows = u64::from(height).div_ceil(8 * highest);
    let blocks_of_unit: u64 = factors.iter().map(|(h, v)| h * v).sum();
    Ok(Frame {
        size: (u32::from(width), u32::from(height)),
        is_progressive,
        names,
        coefficient_bytes: n_columns * n_rows * blocks_of_unit * 64 * 2,
    })
}

/// The place of the next marker at or after `at`. In entropy-coded data 0xff is followed by 0, or is a restart marker.
fn next_marker(file: &File, mut at: usize) -> Result<usize, ImageError> {
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

/// Reads the segment with this marker, whose length is at `at`.
fn segment(file: &File, marker: u8, at: usize, found: &mut Found) -> Result<(), ImageError> {
    let length = usize::from(file.u16_be(at)?);
    if length < 2 {
        return Err(file.damaged(format!("a segment's length is {length}")));
    }
    let data = file.at(at + 2, length - 2)?;
    let unsupported = |variant: &str| Err(ImageError::unsupported(Kind::Jpeg, variant));
    match marker {
        0xc0..=0xc2 if found.frame.is_some() => return Err(file.damaged("it has two frames")),
        0xc0..=0xc2 => found.frame = Some(frame(file, at, marker == 0xc2)?),
        0xc3 | 0xc5..=0xc7 => return unsupported("lossless or hierarchical"),
        0xc9..=0xcf => return unsupported("one with arithmetic codes"),
        0xe1 if found.orientation.is_none() && data.starts_with(exif::MARK) => {
            found.orientation = Some(exif::orientation(data));
        }
        0xee if data.starts_with(b"Adobe") => found.transform = data.get(11).copied(),
        _ => {}
    }
    Ok(())
}

/// Walks over the segments and scans, to the end marker.
fn walk(file: &File, max_scans: u32) -> Result<Found, ImageError> {
    let mut found = Found::default();
    let mut at = 2;
    loop {
        at = next_marker(file, at)?;
        let marker = file.byte(at + 1)?;
        at += 2;
        match marker {
            0xd9 => return Ok(found),
            // Marks without a length.
            0x01 | 0xd8 => continue,
            _ => segment(file, marker, at, &mut found)?,
        }
        if marker == 0xda {
            let Some(frame) = &found.frame else {
                return Err(file.damaged("a scan comes before the frame"));
            };
            let is_partial = usize::from(file.byte(at + 2)?) != frame.names.len();
            found.has_partial_scans |= is_partial;
            found.n_scans += 1;
            if found.n_scans > max_scans {
                return Err(ImageError::TooManyScans { limit: max_scans });
            }
        }
        at += usize::from(file.u16_be(at)?);
    }
}

/// Refuses colours that the decoder would show wrongly.
fn check_colours(names: &[u8], transform: Option<u8>) -> Result<(), ImageError> {
    let variant = match (names.len(), transform) {
        (1, _) | (3, None | Some(1 | 2)) => return Ok(()),
        (3, Some(0)) if names == b"RGB" => return Ok(()),
        (3, _) => "one whose colours are not YCbCr",
        (4, Some(2)) => "in YCCK colours",
        (4, _) => "in CMYK colours",
        _ => "one of two components",
    };
    Err(ImageError::unsupported(Kind::Jpeg, variant))
}

pub(super) fn header(bytes: &[u8], max_scans: u32) -> Result<Header, ImageError> {
    let file = File {
        kind: Kind::Jpeg,
        bytes,
    };
    let found = walk(&file, max_scans)?;
    let frame = match found.frame {
        Some(frame) if found.n_scans > 0 => frame,
        _ => return Err(file.damaged("it has no picture")),
    };
    check_colours(&frame.names, found.transform)?;
    let (width, height) = (u64::from(frame.size.0), u64::from(frame.size.1));
    // Coefficients of scans that wait for others are kept until the last.
    let coefficient_bytes = if frame.is_progressive || found.has_partial_scans {
        frame.coefficient_bytes
    } else {
        0
    };
    Ok(Header {
        kind: Kind::Jpeg,
        orientation: found.orientation.unwrap_or(Orientation::UPRIGHT),
        stored: frame.size,
        decoder_bytes: width * height * 3 + coefficient_bytes + width * ROW_BYTES,
    })
}

/// The pixels as RGB.
pub(super) fn pixels(bytes: &[u8], header: &Header) -> Result<Vec<u8>, ImageError> {
    let damaged = |error: DecodeErrors| ImageError::damaged(Kind::Jpeg, error);
    let options = DecoderOptions::default()
        .set_max_width(MAX_SIDE)
        .set_max_height(MAX_SIDE)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(damaged)?;
    let size = (header.stored.0 as usize, header.stored.1 as usize);
    if decoder.dimensions() != Some(size) {
        return Err(ImageError::damaged(Kind::Jpeg, "it has two sizes"));
    }
    let mut rgb = vec![0; header.pixels() * 3];
    decoder.decode_into(&mut rgb).map_err(damaged)?;
    Ok(rgb)
}
