//! A decoded picture, and its orientation.

use std::fmt;

/// A picture of 8-bit RGB pixels, row by row from the top left.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    /// Shape: (height, width, 3).
    pixels: Vec<u8>,
}

impl Picture {
    /// Makes a picture of pixels of shape (height, width, 3). `None` if their number does not match, or a side is 0.
    pub fn new(width: u32, height: u32, pixels: Vec<u8>) -> Option<Self> {
        let length = (width as usize)
            .checked_mul(height as usize)?
            .checked_mul(3)?;
        (length > 0 && pixels.len() == length).then_some(Self {
            width,
            height,
            pixels,
        })
    }

    /// The width in pixels, at least 1.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The height in pixels, at least 1.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// The bytes, of shape (height, width, 3).
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// The part of `width` x `height` pixels whose top left corner is at `left`, `top`.
    ///
    /// # Panics
    /// If the part is empty, or not within the picture.
    pub fn part(&self, (left, top): (u32, u32), (width, height): (u32, u32)) -> Self {
        assert!(left + width <= self.width && top + height <= self.height);
        let stride = self.width as usize * 3;
        let columns = left as usize * 3..(left + width) as usize * 3;
        let rows = self.pixels.chunks_exact(stride);
        let rows = rows.skip(top as usize).take(height as usize);
        let pixels = rows.flat_map(|row| &row[columns.clone()]).copied();
        Self::new(width, height, pixels.collect()).expect("the part has pixels")
    }
}

impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Picture({} x {})", self.width, self.height)
    }
}

/// EXIF's orientation, 1 to 8: how the stored picture has to be turned and mirrored to be upright.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Orientation(u8);

impl Orientation {
    /// The orientation of pictures that are stored upright.
    pub const UPRIGHT: Self = Self(1);

    /// Reads EXIF's number. Numbers other than 1 to 8 are undefined, and count as upright.
    pub fn from_exif(value: u16) -> Self {
        match value {
            1..=8 => Self(value as u8),
            _ => Self::UPRIGHT,
        }
    }

    /// Whether width and height of the stored picture are swapped to make it upright.
    pub fn swaps_sides(self) -> bool {
        self.0 >= 5
    }

    /// The size of the upright picture; sizes are (width, height).
    pub fn upright_size(self, (width, height): (u32, u32)) -> (u32, u32) {
        if self.swaps_sides() {
            (height, width)
        } else {
            (width, height)
        }
    }

    /// The upright picture.
    pub fn upright(self, stored: Picture) -> Picture {
        if self == Self::UPRIGHT {
            return stored;
        }
        let (width, height) = self.upright_size((stored.width, stored.height));
        let mut pixels = Vec::with_capacity(stored.pixels.len());
        let (stored_width, last_column, last_row) = (
            stored.width as usize,
            stored.width as usize - 1,
            stored.height as usize - 1,
        );
        for y in 0..height as usize {
            for x in 0..width as usize {
                let (column, row) = match self.0 {
                    2 => (last_column - x, y),
                    3 => (last_column - x, last_row - y),
                    4 => (x, last_row - y),
                    5 => (y, x),
                    6 => (y, last_row - x),
                    7 => (last_column - y, last_row - x),
                    8 => (last_column - y, x),
                    _ => (x, y),
                };
                let at = (row * stored_width + column) * 3;
                pixels.extend_from_slice(&stored.pixels[at..at + 3]);
            }
        }
        Picture {
            width,
            height,
            pixels,
        }
    }
}
