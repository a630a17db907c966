//! The first frame of a GIF. Where it does not cover the screen there is colour 0 of its table, as in Pillow, or white if
//! it has a transparent colour. The screen's own background colour is used by neither.

use std::io::Cursor;
use std::num::NonZeroU64;

use gif::{ColorOutput, DecodeOptions, DecodingError, Frame, MemoryLimit};

use super::header::{File, Header};
use crate::limits::{ImageError, Kind};
use crate::picture::Orientation;

/// The first block, or the table of colours before it.
const FIRST_BLOCK: usize = 13;
/// Memory of the decoder's LZW and colour tables.
const DECODER_BYTES: u64 = 256 << 10;

/// The place of a table of colours' end, by the flags that announce it.
fn end_of_colours(at: usize, flags: u8) -> usize {
    if flags & 0x80 == 0 {
        return at;
    }
    at + (3 << ((flags & 7) + 1))
}

/// The place of the first frame.
fn first_frame(file: &File) -> Result<usize, ImageError> {
    let mut at = end_of_colours(FIRST_BLOCK, file.byte(10)?);
    loop {
        match file.byte(at)? {
            b',' => return Ok(at),
            b'!' => {
                at += 2;
                loop {
                    let length = usize::from(file.byte(at)?);
                    at += 1 + length;
                    if length == 0 {
                        break;
                    }
                }
            }
            b';' => return Err(file.damaged("it has no frame")),
            other => return Err(file.damaged(format!("a block begins with {other:#04x}"))),
        }
    }
}

pub(super) fn header(bytes: &[u8]) -> Result<Header, ImageError> {
    let file = File {
        kind: Kind::Gif,
        bytes,
    };
    let side = |at: usize| file.u16_le(at).map(u32::from);
    let stored = (side(6)?, side(8)?);
    let at = first_frame(&file)?;
    let (width, height) = (side(at + 5)?, side(at + 7)?);
    if width == 0 || height == 0 {
        return Err(ImageError::NoPixels {
            kind: Kind::Gif,
            width,
            height,
        });
    }
    let screen_bytes = u64::from(stored.0) * u64::from(stored.1) * 3;
    Ok(Header {
        kind: Kind::Gif,
        orientation: Orientation::UPRIGHT,
        stored,
        decoder_bytes: screen_bytes + u64::from(width) * u64::from(height) + DECODER_BYTES,
    })
}

fn error(bytes: &[u8], error: &DecodingError) -> ImageError {
    match error {
        DecodingError::UnexpectedEof => ImageError::Cut {
            kind: Kind::Gif,
            length: bytes.len(),
        },
        other => ImageError::damaged(Kind::Gif, other),
    }
}

/// Draws a frame on the screen.
fn draw(frame: &Frame, palette: &[u8], (width, height): (usize, usize), rgb: &mut [u8]) {
    let (left, top) = (usize::from(frame.left), usize::from(frame.top));
    let rows = frame.buffer.chunks_exact(usize::from(frame.width).max(1));
    for (y, row) in rows.enumerate().take(height.saturating_sub(top)) {
        for (x, index) in row.iter().enumerate().take(width.saturating_sub(left)) {
            if frame.transparent == Some(*index) {
                continue;
            }
            let colour = usize::from(*index) * 3;
            let colour = palette.get(colour..colour + 3).unwrap_or(&[0; 3]);
            let at = ((top + y) * width + left + x) * 3;
            rgb[at..at + 3].copy_from_slice(colour);
        }
    }
}

/// The pixels as RGB.
pub(super) fn pixels(bytes: &[u8], header: &Header) -> Result<Vec<u8>, ImageError> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    let limit = NonZeroU64::new(header.decoder_bytes).unwrap_or(NonZeroU64::MIN);
    options.set_memory_limit(MemoryLimit::Bytes(limit));
    let decoder = options.read_info(Cursor::new(bytes));
    let mut decoder = decoder.map_err(|e| error(bytes, &e))?;
    let screen_palette = decoder.global_palette().map(<[u8]>::to_vec);
    let frame = decoder.read_next_frame().map_err(|e| error(bytes, &e))?;
    let frame = frame.ok_or_else(|| ImageError::damaged(Kind::Gif, "it has no frame"))?;
    let palette = frame.palette.as_deref().or(screen_palette.as_deref());
    let palette = palette.unwrap_or_default();
    let open = match frame.transparent {
        Some(_) => [255; 3],
        None => *palette.first_chunk().unwrap_or(&[0; 3]),
    };
    let mut rgb = open.repeat(header.pixels());
    let size = (header.stored.0 as usize, header.stored.1 as usize);
    draw(frame, palette, size, &mut rgb);
    Ok(rgb)
}
