//! PNG. Samples of 16 bits are read as Pillow reads them: those of colours, and grey ones with alpha, lose their lower 8
//! bits, while those that are grey alone keep their value up to 255, and all above are white.

use std::io::Cursor;

use png::{ColorType, Decoder, InterlaceInfo, Limits, Transformations, expand_interlaced_row};

use super::header::{File, Header};
use super::{alpha, exif};
use crate::limits::{ImageError, Kind};
use crate::picture::Orientation;

/// The first chunk, after the signature of 8 bytes.
const FIRST_CHUNK: usize = 8;
/// A chunk's length, name and checksum.
const CHUNK_FRAME: usize = 12;
/// The decoder's window and its buffers for other chunks.
const DECODER_BYTES: u64 = 512 << 10;

/// Bits of a sample and colour type, at [`FORMAT`] in a file, of grey samples of 16 bits without alpha.
const DEEP_GREY: [u8; 2] = [16, 0];
const FORMAT: std::ops::Range<usize> = 24..26;

/// Where the rows and columns of Adam7's passes begin, and how far apart they are: x, dx, y, dy.
const PASSES: [(u32, u32, u32, u32); 7] = [
    (0, 8, 0, 8),
    (4, 8, 0, 8),
    (0, 4, 4, 8),
    (2, 4, 0, 4),
    (0, 2, 2, 4),
    (1, 2, 0, 2),
    (0, 1, 1, 2),
];

/// Walks over the chunks, to the last.
pub(super) fn header(bytes: &[u8]) -> Result<Header, ImageError> {
    let file = File {
        kind: Kind::Png,
        bytes,
    };
    if file.u32_be(FIRST_CHUNK)? != 13 || file.at(FIRST_CHUNK + 4, 4)? != b"IHDR" {
        return Err(file.damaged("its first chunk is not IHDR"));
    }
    let (width, height) = (file.u32_be(16)?, file.u32_be(20)?);
    if width > 1 << 31 || height > 1 << 31 {
        return Err(file.damaged("a side is above 2^31"));
    }
    let (depth, colour) = (file.byte(24)?, file.byte(25)?);
    let samples = match colour {
        0 | 3 => 1,
        2 => 3,
        4 => 2,
        6 => 4,
        _ => return Err(file.damaged(format!("its colour type is {colour}"))),
    };
    let row_bytes = u64::from(width) * samples * u64::from(depth).div_ceil(8);
    let rgb_bytes = u64::from(width) * u64::from(height) * 3;
    Ok(Header {
        kind: Kind::Png,
        orientation: walk(&file)?,
        stored: (width, height),
        // The decoder holds a few rows while it undoes their filters.
        decoder_bytes: rgb_bytes
            .saturating_add(row_bytes.saturating_mul(6))
            .saturating_add(DECODER_BYTES),
    })
}

/// The orientation in the chunk eXIf, in a file whose chunks reach to IEND.
fn walk(file: &File) -> Result<Orientation, ImageError> {
    let mut found = None;
    let mut at = FIRST_CHUNK;
    let mut has_pixels = false;
    loop {
        let length = file.u32_be(at)? as usize;
        let name = file.at(at + 4, 4)?;
        let data = file.at(at + 8, length)?;
        // The decoder checks the last chunk of pixels only after the last row.
        if crc32fast::hash(file.at(at + 4, length + 4)?) != file.u32_be(at + 8 + length)? {
            let name = name.escape_ascii();
            return Err(file.damaged(format!("the checksum of its chunk {name} is wrong")));
        }
        match name {
            b"IEND" if has_pixels => return Ok(found.unwrap_or(Orientation::UPRIGHT)),
            b"IEND" => return Err(file.damaged("it has no IDAT")),
            b"IDAT" => has_pixels = true,
            b"eXIf" if found.is_none() => found = Some(exif::orientation(data)),
            _ => {}
        }
        at += CHUNK_FRAME + length;
    }
}

fn error(bytes: &[u8], error: &png::DecodingError) -> ImageError {
    match error {
        png::DecodingError::IoError(_) => ImageError::Cut {
            kind: Kind::Png,
            length: bytes.len(),
        },
        other => ImageError::damaged(Kind::Png, other),
    }
}

/// Appends a row of grey samples of 16 bits to `rgb`, clipped to 8. The decoder adds an alpha of 0 or 65,535 to each if
/// the file names a transparent grey, which is white here.
fn append_deep_grey(row: &[u8], has_alpha: bool, rgb: &mut Vec<u8>) {
    for pixel in row.chunks_exact(if has_alpha { 4 } else { 2 }) {
        let is_clear = has_alpha && pixel[2] == 0;
        let is_white = is_clear || pixel[0] > 0;
        rgb.extend([if is_white { 255 } else { pixel[1] }; 3]);
    }
}

/// Appends a row of 8-bit samples, or of [`DEEP_GREY`] ones, to `rgb`.
fn append_row(row: &[u8], (colour, is_deep_grey): (ColorType, bool), rgb: &mut Vec<u8>) {
    match colour {
        ColorType::Grayscale | ColorType::GrayscaleAlpha if is_deep_grey => {
            append_deep_grey(row, colour == ColorType::GrayscaleAlpha, rgb);
        }
        ColorType::Grayscale | ColorType::Indexed => {
            rgb.extend(row.iter().flat_map(|grey| [*grey; 3]));
        }
        ColorType::Rgb => rgb.extend_from_slice(row),
        ColorType::GrayscaleAlpha => alpha::append_grey_alpha(row, rgb),
        ColorType::Rgba => alpha::append_rgba(row, rgb),
    }
}

/// The rows that a file stores. Passes without columns have none.
fn n_rows((width, height): (u32, u32), is_interlaced: bool) -> u32 {
    if !is_interlaced {
        return height;
    }
    let passes = PASSES.iter().filter(|(x, ..)| width > *x);
    let rows = passes.map(|(_, _, y, dy)| height.saturating_sub(*y).div_ceil(*dy));
    rows.sum()
}

/// The pixels as RGB. Rows are converted one by one: the picture exists once.
pub(super) fn pixels(bytes: &[u8], header: &Header) -> Result<Vec<u8>, ImageError> {
    // It holds other chunks for a while, which are parts of the file.
    let limits = Limits {
        bytes: header.decoder_bytes as usize + bytes.len(),
    };
    let mut decoder = Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let is_deep_grey = bytes.get(FORMAT) == Some(&DEEP_GREY[..]);
    decoder.set_transformations(if is_deep_grey {
        Transformations::EXPAND
    } else {
        Transformations::EXPAND | Transformations::STRIP_16
    });
    let mut reader = decoder.read_info().map_err(|e| error(bytes, &e))?;
    let info = reader.info();
    let is_interlaced = info.interlaced;
    let frame = info.frame_control.as_ref();
    if frame.is_some_and(|frame| (frame.width, frame.height) != header.stored) {
        let variant = "an animation whose first frame does not fill it";
        return Err(ImageError::unsupported(Kind::Png, variant));
    }
    let samples = (reader.output_color_type().0, is_deep_grey);
    let stride = header.stored.0 as usize * 3;
    let mut rgb = Vec::with_capacity(header.pixels() * 3);
    if is_interlaced {
        rgb.resize(header.pixels() * 3, 0);
    }
    let mut row_rgb = Vec::new();
    // The last row ends the picture: the decoder would inflate all that a file has after it.
    for _ in 0..n_rows(header.stored, is_interlaced) {
        let row = reader.next_interlaced_row().map_err(|e| error(bytes, &e))?;
        let row = row.ok_or_else(|| ImageError::damaged(Kind::Png, "it has too few rows"))?;
        match row.interlace() {
            InterlaceInfo::Null(_) => append_row(row.data(), samples, &mut rgb),
            InterlaceInfo::Adam7(pass) => {
                row_rgb.clear();
                append_row(row.data(), samples, &mut row_rgb);
                expand_interlaced_row(&mut rgb, stride, &row_rgb, pass, 24);
            }
        }
    }
    Ok(rgb)
}
