//! WebP: lossy, lossless, and the first frame of an animation.

use std::io::Cursor;

use image_webp::{DecodingError, WebPDecoder};

use super::header::{File, Header};
use super::{alpha, exif, lossless};
use crate::limits::{ImageError, Kind};
use crate::picture::Orientation;

/// The first chunk, after RIFF's header.
const FIRST_CHUNK: usize = 12;
/// Bytes that the decoder takes for each pixel, including its output: planes of luma and chroma, and RGB.
const LOSSY_BYTES: u64 = 5;
/// As [`LOSSY_BYTES`], with alpha, which is decoded as a lossless picture of four channels.
const LOSSY_ALPHA_BYTES: u64 = 11;
/// Four channels, the pixels of transforms, and the three channels of the output.
const LOSSLESS_BYTES: u64 = 8;
/// A frame with alpha, the canvas and the output.
const ANIMATED_BYTES: u64 = 15;
/// Bits of the header of lossless WebP: signature, width, height, alpha flag and version.
const LOSSLESS_HEADER_BITS: usize = 8 + 28 + 4;

/// A chunk: its name, and the place and length of its data.
struct Chunk<'a> {
    name: &'a [u8],
    at: usize,
    length: usize,
}

fn chunk<'a>(file: &File<'a>, at: usize) -> Result<Chunk<'a>, ImageError> {
    let length = file.u32_le(at + 4)? as usize;
    file.at(at + 8, length)?;
    Ok(Chunk {
        name: file.at(at, 4)?,
        at: at + 8,
        length,
    })
}

impl Chunk<'_> {
    /// The place of the next chunk: data is padded to an even length.
    fn end(&self) -> usize {
        self.at + self.length.next_multiple_of(2)
    }
}

/// The size of a lossy picture, from its bitstream.
fn lossy_size(file: &File, at: usize) -> Result<(u32, u32), ImageError> {
    if file.at(at + 3, 3)? != [0x9d, 0x01, 0x2a] {
        return Err(file.damaged("its bitstream is not VP8's"));
    }
    let (width, height) = (file.u16_le(at + 6)?, file.u16_le(at + 8)?);
    Ok((u32::from(width & 0x3fff), u32::from(height & 0x3fff)))
}

/// The size of a lossless picture, from its bitstream.
fn lossless_size(file: &File, at: usize) -> Result<(u32, u32), ImageError> {
    if file.byte(at)? != 0x2f {
        return Err(file.damaged("its bitstream is not VP8L's"));
    }
    let bits = file.u32_le(at + 1)?;
    let size = (1 + (bits & 0x3fff), 1 + ((bits >> 14) & 0x3fff));
    Ok(size)
}

/// Checks that the bitstream in `chunk`, if it is one, has the size of its frame: the decoder allocates by either.
/// Returns the bytes that its prefix codes take in the decoder.
fn check_bitstream(
    file: &File,
    chunk: &Chunk,
    size: (u32, u32),
    max_bytes: u64,
) -> Result<u64, ImageError> {
    let data = file.at(chunk.at, chunk.length)?;
    let (found, code_bytes) = match chunk.name {
        b"VP8 " => (lossy_size(file, chunk.at)?, 0),
        b"VP8L" => {
            let header_bits = LOSSLESS_HEADER_BITS;
            let code_bytes = lossless::code_bytes(data, header_bits, size, max_bytes);
            (lossless_size(file, chunk.at)?, code_bytes)
        }
        // Alpha is a lossless picture without a header, after a byte that says so.
        b"ALPH" if data.first().is_some_and(|flags| flags & 3 == 1) => {
            return Ok(lossless::code_bytes(data, 8, size, max_bytes));
        }
        _ => return Ok(0),
    };
    if found == size {
        return Ok(code_bytes);
    }
    let ((width, height), (found_width, found_height)) = (size, found);
    Err(file.damaged(format!(
        "its frame is {width} x {height}, and the picture in it {found_width} x {found_height}"
    )))
}

/// Counts bitstreams: a picture has one, and one for its alpha.
fn count_bitstream(file: &File, chunk: &Chunk, n: &mut u32) -> Result<(), ImageError> {
    *n += u32::from(matches!(chunk.name, b"VP8 " | b"VP8L" | b"ALPH"));
    if *n > 2 {
        return Err(file.damaged("it has several pictures"));
    }
    Ok(())
}

/// Checks the first frame of an animation. Returns the bytes that its prefix codes take in the decoder.
fn check_frame(
    file: &File,
    frame: &Chunk,
    canvas: (u32, u32),
    max_bytes: u64,
) -> Result<u64, ImageError> {
    let field = |at: usize| file.u24_le(frame.at + at);
    let (x, y) = (field(0)? * 2, field(3)? * 2);
    let size = (field(6)? + 1, field(9)? + 1);
    if x + size.0 > canvas.0 || y + size.1 > canvas.1 {
        return Err(file.damaged("its first frame is not within its canvas"));
    }
    let mut code_bytes = 0;
    let mut n_bitstreams = 0;
    let mut follows_alpha = false;
    let mut at = frame.at + 16;
    while at + 8 <= frame.at + frame.length {
        let inner = chunk(file, at)?;
        // The decoder takes what follows alpha for a lossy picture, whatever its name.
        if follows_alpha && inner.name != b"VP8 " {
            return Err(file.damaged("its alpha chunk is not followed by a lossy picture"));
        }
        follows_alpha = inner.name == b"ALPH";
        count_bitstream(file, &inner, &mut n_bitstreams)?;
        code_bytes += check_bitstream(file, &inner, size, max_bytes)?;
        at = inner.end();
    }
    Ok(code_bytes)
}

/// The header of a file of one chunk, or of an extended file's canvas.
struct Canvas {
    size: (u32, u32),
    bytes_of_pixel: u64,
    is_animated: bool,
}

fn canvas(file: &File, first: &Chunk) -> Result<Canvas, ImageError> {
    let (size, bytes_of_pixel, is_animated) = match first.name {
        b"VP8 " => (lossy_size(file, first.at)?, LOSSY_BYTES, false),
        b"VP8L" => (lossless_size(file, first.at)?, LOSSLESS_BYTES, false),
        b"VP8X" => {
            let flags = file.byte(first.at)?;
            let size = (
                file.u24_le(first.at + 4)? + 1,
                file.u24_le(first.at + 7)? + 1,
            );
            let (has_alpha, is_animated) = (flags & 0x10 != 0, flags & 0x02 != 0);
            let bytes_of_pixel = match (is_animated, has_alpha) {
                (true, _) => ANIMATED_BYTES,
                (_, true) => LOSSY_ALPHA_BYTES,
                _ => LOSSLESS_BYTES,
            };
            (size, bytes_of_pixel, is_animated)
        }
        name => {
            let name = name.escape_ascii();
            return Err(file.damaged(format!("its first chunk is {name}")));
        }
    };
    Ok(Canvas {
        size,
        bytes_of_pixel,
        is_animated,
    })
}

/// Reads the header, and counts the memory of a lossless bitstream's prefix codes, no further than `max_bytes`.
pub(super) fn header(bytes: &[u8], max_bytes: u64) -> Result<Header, ImageError> {
    let file = File {
        kind: Kind::Webp,
        bytes,
    };
    let end = (file.u32_le(4)? as usize).saturating_add(8);
    if end > bytes.len() {
        return Err(ImageError::Cut {
            kind: Kind::Webp,
            length: bytes.len(),
        });
    }
    let canvas = canvas(&file, &chunk(&file, FIRST_CHUNK)?)?;
    let mut orientation = None;
    let mut code_bytes = 0;
    let mut has_frame = false;
    let mut n_bitstreams = 0;
    let mut at = FIRST_CHUNK;
    while at + 8 <= end {
        let chunk = chunk(&file, at)?;
        match chunk.name {
            b"ANMF" if canvas.is_animated && !has_frame => {
                has_frame = true;
                code_bytes += check_frame(&file, &chunk, canvas.size, max_bytes)?;
            }
            b"EXIF" if orientation.is_none() => {
                orientation = Some(exif::orientation(file.at(chunk.at, chunk.length)?));
            }
            _ if canvas.is_animated => {}
            _ => {
                count_bitstream(&file, &chunk, &mut n_bitstreams)?;
                code_bytes += check_bitstream(&file, &chunk, canvas.size, max_bytes)?;
            }
        }
        at = chunk.end();
    }
    let n_pixels = u64::from(canvas.size.0) * u64::from(canvas.size.1);
    Ok(Header {
        kind: Kind::Webp,
        orientation: orientation.unwrap_or(Orientation::UPRIGHT),
        stored: canvas.size,
        decoder_bytes: n_pixels * canvas.bytes_of_pixel + code_bytes,
    })
}

fn error(bytes: &[u8], error: &DecodingError) -> ImageError {
    match error {
        DecodingError::IoError(_) => ImageError::Cut {
            kind: Kind::Webp,
            length: bytes.len(),
        },
        other => ImageError::damaged(Kind::Webp, other),
    }
}

/// The end that the RIFF header gives.
fn end_of(bytes: &[u8]) -> usize {
    let size = bytes.get(4..8).and_then(|size| size.try_into().ok());
    let size = size.map_or(0, u32::from_le_bytes) as usize;
    size.saturating_add(8).min(bytes.len())
}

/// The pixels as RGB.
pub(super) fn pixels(bytes: &[u8], header: &Header) -> Result<Vec<u8>, ImageError> {
    // The decoder looks for chunks beyond the end that the file gives, where no header was checked.
    let bytes = &bytes[..end_of(bytes)];
    let mut decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(|e| error(bytes, &e))?;
    if decoder.dimensions() != header.stored {
        return Err(ImageError::damaged(
            Kind::Webp,
            "its headers give different sizes",
        ));
    }
    let channels = if decoder.has_alpha() { 4 } else { 3 };
    let mut pixels = vec![0; header.pixels() * channels];
    let read = decoder.read_image(&mut pixels);
    read.map_err(|e| error(bytes, &e))?;
    Ok(match channels {
        4 => alpha::compose(pixels),
        _ => pixels,
    })
}
