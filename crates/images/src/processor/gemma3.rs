//! Gemma 3's processor: one square, whatever the picture's shape. Pan and scan is off in all published checkpoints, and
//! refused.

use super::fields::{Fields, HALVES, SettingsError};
use super::layout::{Grid, Layout, Part, View};
use super::normalise::Normalisation;
use crate::resample::Filter;

const BLANK_LINE: Part = Part::Text("\n\n");

/// The settings of `Gemma3ImageProcessor`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gemma3 {
    /// Width of the scaled picture.
    pub width: u32,
    /// Height of the scaled picture.
    pub height: u32,
    /// Side of a patch in pixels, which the model's `vision_config` has, and not the processor's file.
    pub patch: u32,
    /// The vectors of a picture, whose patches the model pools.
    pub tokens: u32,
    /// The filter.
    pub filter: Filter,
    /// The floats.
    pub normalisation: Normalisation,
}

impl Gemma3 {
    pub(super) fn read(fields: &Fields) -> Result<Self, SettingsError> {
        let side = |key| fields.inner_number(("size", key), 8192);
        let tokens = fields.number("image_seq_length", 256, 65_536)?;
        Ok(Self {
            // The class's default is 224, and that of all checkpoints 896.
            width: side("width")?.unwrap_or(if fields.is_empty() { 896 } else { 224 }),
            height: side("height")?.unwrap_or(if fields.is_empty() { 896 } else { 224 }),
            patch: 14,
            tokens: fields.outer_number("image_seq_length", tokens, 65_536)?,
            filter: fields.filter(Filter::Bilinear)?,
            normalisation: fields.normalisation(true, HALVES)?,
        })
    }

    pub(super) fn layout(&self) -> Layout {
        let view = View {
            width: self.width,
            height: self.height,
            grid: Grid::of(self.width, self.height, self.patch),
            tokens: self.tokens,
        };
        Layout::single(view, &[BLANK_LINE, Part::Begin], &[Part::End, BLANK_LINE])
    }

    pub(super) fn limit_tokens(&self, max_tokens: u32) -> Result<(), SettingsError> {
        if max_tokens >= self.tokens {
            return Ok(());
        }
        let expected = format!("at least {}, the tokens of each picture", self.tokens);
        Err(SettingsError::bad_value("tokens", max_tokens, expected))
    }
}
