//! Pixtral's processor, which Mistral 3 and Ministral 3 use too: it bounds the longer side, and puts a special token
//! (`[IMG_BREAK]`) after each row of vectors but the last, and `[IMG_END]` after the image.

use super::fields::{CLIP, Fields, SettingsError};
use super::layout::{Grid, Layout, Part, View};
use super::normalise::Normalisation;
use crate::resample::Filter;

/// The settings of `PixtralImageProcessor`, and those of the processor around it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pixtral {
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Side of a block of patches that become one token.
    pub merge: u32,
    /// The longest side of a scaled picture, before it is rounded up to whole blocks.
    pub longest_edge: u32,
    /// The filter.
    pub filter: Filter,
    /// The floats.
    pub normalisation: Normalisation,
}

impl Pixtral {
    pub(super) fn read(fields: &Fields) -> Result<Self, SettingsError> {
        let patch = fields.square("patch_size", 16, 256)?;
        let longest_edge = fields.inner_number(("size", "longest_edge"), 8192)?;
        Ok(Self {
            patch: fields.outer_number("patch_size", patch, 256)?,
            merge: fields.outer_number("spatial_merge_size", 1, 16)?,
            longest_edge: longest_edge.unwrap_or(1024),
            filter: fields.filter(Filter::Bicubic)?,
            normalisation: fields.normalisation(true, CLIP)?,
        })
    }

    pub(super) fn layout(&self, width: u32, height: u32) -> Layout {
        let unit = self.patch * self.merge;
        let edge = f64::from(self.longest_edge);
        let ratio = (f64::from(height) / edge).max(f64::from(width) / edge);
        let scaled = |side: u32| {
            let side = if ratio > 1.0 {
                (f64::from(side) / ratio).floor() as u32
            } else {
                side
            };
            // A side of 0 pixels gets a block too.
            side.max(1).next_multiple_of(unit)
        };
        let (width, height) = (scaled(width), scaled(height));
        let (columns, rows) = (width / unit, height / unit);
        let view = View {
            width,
            height,
            grid: Grid::of(width, height, self.patch),
            tokens: columns * rows,
        };
        let row = [Part::Vectors(columns), Part::RowBreak];
        let mut parts = row.repeat(rows as usize);
        parts.pop();
        parts.push(Part::End);
        Layout {
            views: vec![view],
            parts,
        }
    }

    pub(super) fn limit_tokens(&mut self, max_tokens: u32) -> Result<(), SettingsError> {
        let unit = self.patch * self.merge;
        let blocks = max_tokens.isqrt();
        if blocks == 0 {
            let expected = "at least 1";
            return Err(SettingsError::bad_value("tokens", max_tokens, expected));
        }
        self.longest_edge = self.longest_edge.min(blocks.saturating_mul(unit));
        Ok(())
    }
}
