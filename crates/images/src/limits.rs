//! The limits of a picture, and the errors of all that this crate refuses.

use std::fmt;

/// An image file's format, recognised by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// PNG. Of an animated one, the default image is read.
    Png,
    /// JPEG with Huffman coding and 8 bits a sample, grey or in colour.
    Jpeg,
    /// WebP, lossy or lossless. Of an animated one, the first frame is read.
    Webp,
    /// GIF, of which the first frame is read.
    Gif,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::Webp => "WebP",
            Self::Gif => "GIF",
        })
    }
}

/// Bounds that are checked against a file's header, before memory is allocated for its pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The most pixels of a picture: width times height.
    pub max_pixels: u64,
    /// The most pixels of a side. Scaling a long side takes additional memory.
    pub max_side: u32,
    /// The most bytes that decoding may take, the decoded picture included.
    pub max_bytes: u64,
    /// The most scans of a JPEG. Encoders write about ten; each costs a pass over the whole picture.
    pub max_scans: u32,
}

impl Limits {
    /// The limits for pictures of at most `max_pixels`. Decoding may take the memory of two such pictures in 8-bit RGB.
    /// Formats that take more than 6 bytes a pixel are therefore refused above fewer pixels: JPEGs that are progressive
    /// without halved colours, or CMYK, and WebPs but those with losses alone.
    pub fn of_pixels(max_pixels: u64) -> Self {
        Self {
            max_pixels,
            max_side: 65_535,
            // Small pictures need a decoder's tables too.
            max_bytes: max_pixels.saturating_mul(6).saturating_add(4 << 20),
            max_scans: 32,
        }
    }

    /// Checks the size of a picture and the memory that its decoder takes.
    ///
    /// # Errors
    /// [`ImageError::NoPixels`], [`ImageError::TooLong`], [`ImageError::TooManyPixels`] and
    /// [`ImageError::TooMuchMemory`].
    pub(crate) fn check(
        &self,
        kind: Kind,
        (width, height): (u32, u32),
        bytes: u64,
    ) -> Result<(), ImageError> {
        let pixels = u64::from(width) * u64::from(height);
        if pixels == 0 {
            return Err(ImageError::NoPixels {
                kind,
                width,
                height,
            });
        }
        if width.max(height) > self.max_side {
            return Err(ImageError::TooLong {
                width,
                height,
                limit: self.max_side,
            });
        }
        if pixels > self.max_pixels {
            return Err(ImageError::TooManyPixels {
                width,
                height,
                pixels,
                limit: self.max_pixels,
            });
        }
        if bytes > self.max_bytes {
            return Err(ImageError::TooMuchMemory {
                kind,
                width,
                height,
                bytes,
                limit: self.max_bytes,
            });
        }
        Ok(())
    }
}

impl Default for Limits {
    /// The limits for 16 Mi pixels, such as 4096 x 4096.
    fn default() -> Self {
        Self::of_pixels(16 << 20)
    }
}

/// A picture that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The file begins like no known format.
    #[error(
        "the image's first bytes ({start}) are those of no known format: send PNG, JPEG, WebP or GIF"
    )]
    UnknownFormat {
        /// At most the first 12 bytes, in hexadecimal digits.
        start: String,
    },
    /// The file ends before its picture does.
    #[error("the {kind} image ends after {length} bytes, before its end: send the whole file")]
    Cut {
        /// The file's format.
        kind: Kind,
        /// Its length.
        length: usize,
    },
    /// The file contradicts its format.
    #[error("the {kind} image is damaged: {reason}: send an undamaged file")]
    Damaged {
        /// The file's format.
        kind: Kind,
        /// The contradiction, in a few words.
        reason: String,
    },
    /// A variant of the format that is not read.
    #[error(
        "the {kind} image is {variant}, which is not supported: convert it to PNG or to RGB JPEG"
    )]
    Unsupported {
        /// The file's format.
        kind: Kind,
        /// The variant's name.
        variant: String,
    },
    /// A side has no pixels.
    #[error("the {kind} image is {width} x {height}: send one with at least one pixel")]
    NoPixels {
        /// The file's format.
        kind: Kind,
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
    },
    /// A side with more pixels than [`Limits::max_side`].
    #[error(
        "the image is {width} x {height}, and the limit of a side is {limit}: send a smaller one"
    )]
    TooLong {
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
        /// The limit.
        limit: u32,
    },
    /// More pixels than [`Limits::max_pixels`].
    #[error(
        "the image is {width} x {height}, {pixels} pixels, and the limit is {limit}: send a smaller one"
    )]
    TooManyPixels {
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
        /// Width times height.
        pixels: u64,
        /// The limit.
        limit: u64,
    },
    /// More memory than [`Limits::max_bytes`].
    #[error(
        "decoding this {kind} of {width} x {height} takes {bytes} bytes, and the limit is {limit}: send a smaller image, or an opaque one as PNG or baseline JPEG"
    )]
    TooMuchMemory {
        /// The file's format.
        kind: Kind,
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
        /// The estimate, from the header.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// More scans than [`Limits::max_scans`].
    #[error(
        "the JPEG image has more than {limit} scans, which is the limit: save it as a baseline JPEG"
    )]
    TooManyScans {
        /// The limit.
        limit: u32,
    },
    /// The sides differ too much for the model.
    #[error(
        "the image is {width} x {height}, and the model takes sides that differ by a factor of at most {limit}: crop it"
    )]
    TooNarrow {
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
        /// The limit.
        limit: u32,
    },
    /// The size to which the model's settings scale the picture has too many pixels.
    #[error(
        "the model's settings scale the image to {width} x {height}, {pixels} pixels, and the limit is {limit}: send one with another aspect ratio"
    )]
    ScaledTooLarge {
        /// In pixels.
        width: u32,
        /// In pixels.
        height: u32,
        /// Width times height.
        pixels: u64,
        /// The limit.
        limit: u64,
    },
}

impl ImageError {
    /// A stable name for responses and metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::UnknownFormat { .. } => "image_format_unknown",
            Self::Cut { .. } => "image_cut",
            Self::Damaged { .. } => "image_damaged",
            Self::Unsupported { .. } => "image_unsupported",
            Self::NoPixels { .. } => "image_empty",
            Self::TooLong { .. } | Self::TooManyPixels { .. } => "image_too_large",
            Self::ScaledTooLarge { .. } => "image_scaled_too_large",
            Self::TooMuchMemory { .. } => "image_too_costly",
            Self::TooManyScans { .. } => "image_scans",
            Self::TooNarrow { .. } => "image_aspect_ratio",
        }
    }

    /// Whether the picture is refused for its size, as by HTTP's status 413, and not for its content.
    pub fn is_too_large(&self) -> bool {
        matches!(
            self,
            Self::TooLong { .. } | Self::TooManyPixels { .. } | Self::TooMuchMemory { .. }
        )
    }

    pub(crate) fn damaged(kind: Kind, reason: impl fmt::Display) -> Self {
        Self::Damaged {
            kind,
            reason: reason.to_string(),
        }
    }

    pub(crate) fn unsupported(kind: Kind, variant: impl Into<String>) -> Self {
        Self::Unsupported {
            kind,
            variant: variant.into(),
        }
    }
}
