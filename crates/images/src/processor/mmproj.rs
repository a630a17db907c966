//! Processors of models whose vision tower is a GGUF file (mmproj). Such files have fewer settings than a folder; the
//! other settings are taken from the family's published checkpoints.

use super::fields::SettingsError;
use super::normalise::Normalisation;
use super::qwen::MAX_PIXELS;
use super::{Gemma3, Gemma4, Lfm2, Pixtral, Processor, Qwen};
use crate::resample::Filter;

/// Limits of settings, the same as for processors' files.
const MAX_PATCH: u32 = 256;
const MAX_MERGE: u32 = 16;
const MAX_SIDE: u32 = 8192;
const MAX_TOKENS: u32 = 4096;
/// Gemma 4's largest token budget of a picture.
const MAX_BUDGET: u32 = 1120;

/// The settings in a file; `None` where it has no key.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MmprojSettings<'a> {
    /// `clip.projector_type`.
    pub projector_type: &'a str,
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Side of a block of patches that become one token.
    pub merge: u32,
    /// `clip.vision.image_size` in pixels: Gemma 3's side, and Pixtral's longest side.
    pub image_size: Option<u32>,
    /// Mean of each channel.
    pub mean: Option<[f32; 3]>,
    /// Standard deviation of each channel.
    pub std: Option<[f32; 3]>,
    /// The least pixels of a scaled picture.
    pub min_pixels: Option<u32>,
    /// The most pixels of a scaled picture.
    pub max_pixels: Option<u32>,
    /// The filter.
    pub filter: Option<Filter>,
}

impl Processor {
    /// The processor of a GGUF file with a vision tower.
    ///
    /// # Errors
    /// [`SettingsError`] if a setting is out of bounds, or no processor is known for the projector.
    pub fn from_mmproj(settings: &MmprojSettings<'_>) -> Result<Self, SettingsError> {
        settings.check()?;
        // The checkpoints with these towers.
        let model_type = match settings.projector_type {
            "qwen3vl_merger" => "qwen3_5",
            "gemma3" => "gemma3",
            "gemma4v" => "gemma4",
            "pixtral" => "mistral3",
            "lfm2" => "lfm2_vl",
            other => {
                return Err(SettingsError::UnknownProcessor {
                    name: format!("of {other}"),
                });
            }
        };
        Ok(match Self::from_files(None, None, model_type)? {
            Self::Qwen(usual) => Self::Qwen(settings.qwen(usual)?),
            Self::Gemma3(usual) => Self::Gemma3(settings.gemma3(usual)?),
            Self::Gemma4(usual) => Self::Gemma4(settings.gemma4(usual)?),
            Self::Pixtral(usual) => Self::Pixtral(settings.pixtral(usual)),
            Self::Lfm2(usual) => Self::Lfm2(settings.lfm2(usual)?),
        })
    }
}

impl MmprojSettings<'_> {
    fn check(&self) -> Result<(), SettingsError> {
        let sizes = [
            ("patch_size", Some(self.patch), MAX_PATCH),
            ("spatial_merge_size", Some(self.merge), MAX_MERGE),
            ("image_size", self.image_size, MAX_SIDE),
            ("image_min_pixels", self.min_pixels, MAX_PIXELS),
            ("image_max_pixels", self.max_pixels, MAX_PIXELS),
        ];
        for (key, value, most) in sizes {
            if let Some(value) = value.filter(|value| !(1..=most).contains(value)) {
                return Err(wrong(
                    key,
                    value,
                    format!("a whole number from 1 to {most}"),
                ));
            }
        }
        let mean = self.mean.unwrap_or([0.0; 3]);
        if !mean.iter().all(|x| x.is_finite()) {
            return Err(wrong("image_mean", format!("{mean:?}"), "finite"));
        }
        let std = self.std.unwrap_or([1.0; 3]);
        if !std.iter().all(|x| x.is_finite() && *x > 0.0) {
            return Err(wrong("image_std", format!("{std:?}"), "above 0"));
        }
        Ok(())
    }

    /// Side of a block of patches in pixels.
    fn unit(&self) -> u32 {
        self.patch * self.merge
    }

    fn normalisation(&self, usual: Normalisation) -> Normalisation {
        let (scale, mean, std) = match usual {
            Normalisation::Scale { .. } => return usual,
            Normalisation::Rescaled { scale, mean, std }
            | Normalisation::Fused { scale, mean, std } => (scale, mean, std),
        };
        Normalisation::Rescaled {
            scale,
            mean: self.mean.map_or(mean, |own| own.map(f64::from)),
            std: self.std.map_or(std, |own| own.map(f64::from)),
        }
    }

    /// The minimum and maximum pixels in the file, or else the family's defaults.
    fn pixels(&self, (least, most): (u32, u32)) -> Result<(u32, u32), SettingsError> {
        let most = self.max_pixels.unwrap_or(most);
        // A usual bound yields to one of the file.
        let least = self.min_pixels.unwrap_or(least.min(most));
        if least > most {
            let expected = format!("at most image_max_pixels, {most}");
            return Err(wrong("image_min_pixels", least, expected));
        }
        Ok((least, most))
    }

    fn qwen(&self, usual: Qwen) -> Result<Qwen, SettingsError> {
        let (min_pixels, max_pixels) = self.pixels((usual.min_pixels, usual.max_pixels))?;
        Ok(Qwen {
            patch: self.patch,
            merge: self.merge,
            min_pixels,
            max_pixels,
            filter: self.filter.unwrap_or(usual.filter),
            normalisation: self.normalisation(usual.normalisation),
            ..usual
        })
    }

    fn gemma3(&self, usual: Gemma3) -> Result<Gemma3, SettingsError> {
        let side = self.image_size.unwrap_or(usual.width);
        if !side.is_multiple_of(self.unit()) {
            let expected = format!("a multiple of a block's side, {} pixels", self.unit());
            return Err(wrong("image_size", side, expected));
        }
        Ok(Gemma3 {
            width: side,
            height: side,
            patch: self.patch,
            tokens: (side / self.unit()).pow(2),
            filter: self.filter.unwrap_or(usual.filter),
            normalisation: self.normalisation(usual.normalisation),
        })
    }

    /// Scales samples to 0 to 1 and ignores the file's mean, since the tower itself maps them to -1 to 1.
    fn gemma4(&self, usual: Gemma4) -> Result<Gemma4, SettingsError> {
        let mut own = Gemma4 {
            patch: self.patch,
            pool: self.merge,
            filter: self.filter.unwrap_or(usual.filter),
            ..usual
        };
        if let Some(pixels) = self.max_pixels {
            own.max_tokens = MAX_BUDGET;
            own.limit_tokens(pixels / self.unit().pow(2))?;
        }
        Ok(own)
    }

    fn pixtral(&self, usual: Pixtral) -> Pixtral {
        Pixtral {
            patch: self.patch,
            merge: self.merge,
            longest_edge: self.image_size.unwrap_or(usual.longest_edge),
            filter: self.filter.unwrap_or(usual.filter),
            normalisation: self.normalisation(usual.normalisation),
        }
    }

    fn lfm2(&self, usual: Lfm2) -> Result<Lfm2, SettingsError> {
        let unit = self.unit();
        if !usual.tile.is_multiple_of(unit) {
            let expected = format!("a divisor of a tile's side, {} pixels", usual.tile);
            return Err(wrong("patch_size times scale_factor", unit, expected));
        }
        let area = unit.pow(2);
        let usual_pixels = (usual.min_tokens * area, usual.max_tokens * area);
        let (least, most) = self.pixels(usual_pixels)?;
        let max_tokens = most / area;
        if !(1..=MAX_TOKENS).contains(&max_tokens) {
            let expected = format!("the pixels of 1 to {MAX_TOKENS} tokens of {area} pixels");
            return Err(wrong("image_max_pixels", most, expected));
        }
        Ok(Lfm2 {
            patch: self.patch,
            merge: self.merge,
            min_tokens: (least / area).max(1),
            max_tokens,
            filter: self.filter.unwrap_or(usual.filter),
            normalisation: self.normalisation(usual.normalisation).fused(),
            ..usual
        })
    }
}

fn wrong(key: &str, value: impl ToString, expected: impl Into<String>) -> SettingsError {
    SettingsError::bad_value(&format!("clip.vision.{key}"), value, expected)
}
