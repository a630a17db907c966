//! Gemma 4's processor: the largest picture of the same aspect ratio within a budget of tokens.
//!
//! The processor scales samples to 0 to 1, which the tower itself maps to -1 to 1.

use super::fields::{Fields, HALVES, SettingsError};
use super::layout::{Grid, Layout, Part, View};
use super::normalise::Normalisation;
use super::rounding::floor_to;
use crate::limits::ImageError;
use crate::resample::Filter;

/// The budgets that the model was trained with.
const BUDGETS: [u32; 5] = [70, 140, 280, 560, 1120];

/// The settings of `Gemma4ImageProcessor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gemma4 {
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Side of a block of patches that are pooled to one token.
    pub pool: u32,
    /// The most tokens of a picture: 70, 140, 280, 560 or 1120.
    pub max_tokens: u32,
    /// The filter.
    pub filter: Filter,
    /// The floats.
    pub normalisation: Normalisation,
}

impl Gemma4 {
    pub(super) fn read(fields: &Fields) -> Result<Self, SettingsError> {
        let max_tokens = fields.number("max_soft_tokens", 280, 1120)?;
        if !BUDGETS.contains(&max_tokens) {
            let expected = format!("one of {BUDGETS:?}");
            let key = "max_soft_tokens";
            return Err(SettingsError::bad_value(key, max_tokens, expected));
        }
        Ok(Self {
            patch: fields.number("patch_size", 16, 256)?,
            pool: fields.number("pooling_kernel_size", 3, 16)?,
            max_tokens,
            filter: fields.filter(Filter::Bicubic)?,
            normalisation: fields.normalisation(false, HALVES)?,
        })
    }

    pub(super) fn layout(&self, width: u32, height: u32) -> Result<Layout, ImageError> {
        let unit = self.pool * self.patch;
        let max_pixels = u64::from(self.max_tokens) * u64::from(unit) * u64::from(unit);
        let area = f64::from(width) * f64::from(height);
        let factor = (max_pixels as f64 / area).sqrt();
        let scaled = (
            floor_to(factor * f64::from(width), unit),
            floor_to(factor * f64::from(height), unit),
        );
        let longest = self.max_tokens * unit;
        let strip = |long: u32, short: u32| (long / short).saturating_mul(unit).min(longest);
        let (scaled_width, scaled_height) = match scaled {
            (0, 0) => (0, 0),
            (_, 0) => (strip(width, height), unit),
            (0, _) => (unit, strip(height, width)),
            sides => sides,
        };
        let pixels = u64::from(scaled_width) * u64::from(scaled_height);
        if pixels == 0 || pixels > max_pixels {
            return Err(ImageError::ScaledTooLarge {
                width: scaled_width,
                height: scaled_height,
                pixels,
                limit: max_pixels,
            });
        }
        let grid = Grid::of(scaled_width, scaled_height, self.patch);
        let view = View {
            width: scaled_width,
            height: scaled_height,
            grid,
            tokens: grid.n_patches() / (self.pool * self.pool),
        };
        Ok(Layout::single(view, &[Part::Begin], &[Part::End]))
    }

    pub(super) fn limit_tokens(&mut self, max_tokens: u32) -> Result<(), SettingsError> {
        if max_tokens >= self.max_tokens {
            return Ok(());
        }
        let budget = BUDGETS.iter().rfind(|budget| **budget <= max_tokens);
        let budget = budget.ok_or_else(|| {
            SettingsError::bad_value("tokens", max_tokens, format!("at least {}", BUDGETS[0]))
        })?;
        self.max_tokens = *budget;
        Ok(())
    }
}
