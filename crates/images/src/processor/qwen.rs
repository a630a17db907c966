//! Qwen-VL's processor: sizes that keep the aspect ratio, and patches in blocks that the tower merges.

use super::fields::{CLIP, Fields, HALVES, SettingsError};
use super::layout::{Grid, Layout, View};
use super::normalise::Normalisation;
use super::rounding::{Bounds, round_to};
use crate::limits::ImageError;
use crate::resample::Filter;

const MAX_ASPECT_RATIO: u32 = 200;
pub(super) const MAX_PIXELS: u32 = 1 << 26;

/// The settings of `Qwen2VLImageProcessor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Qwen {
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Frames of a patch; a picture is repeated.
    pub frames: u32,
    /// Side of a block of patches that become one token.
    pub merge: u32,
    /// The least pixels of a scaled picture.
    pub min_pixels: u32,
    /// The most pixels of a scaled picture.
    pub max_pixels: u32,
    /// The most tokens of a picture, which the rounding of its sides does not exceed either; `u32::MAX` for none.
    pub max_tokens: u32,
    /// The filter.
    pub filter: Filter,
    /// The floats.
    pub normalisation: Normalisation,
}

impl Qwen {
    pub(super) fn read(fields: &Fields, model_type: &str) -> Result<Self, SettingsError> {
        // Without a file, the settings that all checkpoints of Qwen3-VL and Qwen3.5 have; else the class's defaults.
        let is_third = fields.is_empty() && model_type.starts_with("qwen3");
        let (patch, min, max, channels) = if is_third {
            (16, 65_536, 16_777_216, HALVES)
        } else {
            (14, 56 * 56, 28 * 28 * 1280, CLIP)
        };
        let pixels = |inner, outer, default| -> Result<u32, SettingsError> {
            let default = fields
                .inner_number(("size", inner), MAX_PIXELS)?
                .unwrap_or(default);
            fields.number(outer, default, MAX_PIXELS)
        };
        let min_pixels = pixels("shortest_edge", "min_pixels", min)?;
        let max_pixels = pixels("longest_edge", "max_pixels", max)?;
        let settings = Self {
            patch: fields.number("patch_size", patch, 256)?,
            frames: fields.number("temporal_patch_size", 2, 16)?,
            merge: fields.number("merge_size", 2, 16)?,
            min_pixels,
            max_pixels,
            max_tokens: u32::MAX,
            filter: fields.filter(Filter::Bicubic)?,
            normalisation: fields.normalisation(true, channels)?,
        };
        if min_pixels > max_pixels {
            let expected = format!("at most longest_edge, {max_pixels}");
            return Err(SettingsError::bad_value(
                "shortest_edge",
                min_pixels,
                expected,
            ));
        }
        Ok(settings)
    }

    pub(super) fn layout(&self, width: u32, height: u32) -> Result<Layout, ImageError> {
        let (long, short) = (width.max(height), width.min(height));
        if u64::from(long) > u64::from(short) * u64::from(MAX_ASPECT_RATIO) {
            return Err(ImageError::TooNarrow {
                width,
                height,
                limit: MAX_ASPECT_RATIO,
            });
        }
        let bounds = Bounds {
            unit: self.patch * self.merge,
            min_pixels: self.min_pixels,
            max_pixels: self.max_pixels,
        };
        let rounded = (round_to(width, bounds.unit), round_to(height, bounds.unit));
        let (width, height) = bounds.fit_tokens((width, height), rounded, self.max_tokens);
        let grid = Grid::of(width, height, self.patch);
        let view = View {
            width,
            height,
            grid,
            tokens: grid.n_patches() / (self.merge * self.merge),
        };
        // The marks around it are in the templates.
        Ok(Layout::single(view, &[], &[]))
    }

    pub(super) fn limit_tokens(&mut self, max_tokens: u32) -> Result<(), SettingsError> {
        let unit = self.patch * self.merge;
        let pixels = u64::from(max_tokens) * u64::from(unit) * u64::from(unit);
        if pixels == 0 {
            let expected = "at least 1";
            return Err(SettingsError::bad_value("tokens", max_tokens, expected));
        }
        let pixels = u32::try_from(pixels).unwrap_or(u32::MAX);
        self.max_tokens = self.max_tokens.min(max_tokens);
        self.max_pixels = self.max_pixels.min(pixels);
        self.min_pixels = self.min_pixels.min(self.max_pixels);
        Ok(())
    }
}
