//! Image files as hostile input: the header is read and checked against the limits first, then the pixels are decoded.
//!
//! Headers are parsed here and not by the decoders, so that sizes, scans and the place of EXIF are known before a
//! decoder allocates for them. Colour profiles are ignored. Alpha is composed on white, in Pillow's integers.

mod alpha;
mod exif;
mod from_gif;
mod from_png;
mod from_webp;
mod header;
mod jpeg;
mod lossless;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use header::Header;

use crate::limits::{ImageError, Kind, Limits};
use crate::picture::Picture;

/// The format whose first bytes these are.
///
/// # Errors
/// [`ImageError::UnknownFormat`].
pub fn kind_of(bytes: &[u8]) -> Result<Kind, ImageError> {
    if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        return Ok(Kind::Png);
    }
    if bytes.starts_with(b"\xff\xd8\xff") {
        return Ok(Kind::Jpeg);
    }
    if bytes.starts_with(b"GIF87a") || bytes.starts_with(b"GIF89a") {
        return Ok(Kind::Gif);
    }
    if bytes.starts_with(b"RIFF") && bytes.get(8..12) == Some(b"WEBP") {
        return Ok(Kind::Webp);
    }
    let start = bytes.iter().take(12);
    let start: Vec<String> = start.map(|byte| format!("{byte:02x}")).collect();
    Err(ImageError::UnknownFormat {
        start: start.join(" "),
    })
}

/// Reads a file's header: its format, and the size of the upright picture. Allocates nothing that grows with the size
/// that the header claims, so it is also the way to count an image's tokens.
///
/// # Errors
/// All of [`ImageError`] that a header shows: unknown and unsupported formats, files that end too early, and pictures
/// above the limits.
pub fn inspect(bytes: &[u8], limits: &Limits) -> Result<Header, ImageError> {
    let kind = kind_of(bytes)?;
    let header = match kind {
        Kind::Png => from_png::header(bytes),
        Kind::Jpeg => jpeg::header(bytes, limits.max_scans),
        Kind::Webp => from_webp::header(bytes, limits.max_bytes),
        Kind::Gif => from_gif::header(bytes),
    }?;
    limits.check(kind, header.stored, header.decoder_bytes)?;
    Ok(header)
}

/// Reads a picture: decoded, opaque, and upright.
///
/// # Errors
/// [`ImageError`], most of them before memory is allocated for the pixels.
pub fn read(bytes: &[u8], limits: &Limits) -> Result<Picture, ImageError> {
    let header = inspect(bytes, limits)?;
    let kind = header.kind;
    // A file may find a panic in a decoder: that file is damaged, and nothing else.
    let decoded = catch_unwind(AssertUnwindSafe(|| match kind {
        Kind::Png => from_png::pixels(bytes, &header),
        Kind::Jpeg => jpeg::pixels(bytes, &header),
        Kind::Webp => from_webp::pixels(bytes, &header),
        Kind::Gif => from_gif::pixels(bytes, &header),
    }));
    let pixels =
        decoded.unwrap_or_else(|_| Err(ImageError::damaged(kind, "its decoder panicked")))?;
    let (width, height) = header.stored;
    let stored = Picture::new(width, height, pixels).ok_or_else(|| {
        ImageError::damaged(kind, "its decoder returned a wrong number of pixels")
    })?;
    Ok(header.orientation.upright(stored))
}
