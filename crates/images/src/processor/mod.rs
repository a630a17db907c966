//! From pictures to patches: the image processors of vision models, with the numbers of transformers' PIL processors.
//!
//! [`Processor::layout`] needs only a picture's size, so that tokens are counted without decoding. Pixels stay 8-bit
//! until [`Processor::patches`] makes the tower's input: a view's patches take 4 to 8 times the memory of its pixels.

mod digest;
mod fields;
mod gemma3;
mod gemma4;
mod layout;
mod lfm2;
mod mmproj;
mod normalise;
mod patches;
mod pixtral;
mod qwen;
mod rounding;

pub use fields::SettingsError;
pub use gemma3::Gemma3;
pub use gemma4::Gemma4;
pub use layout::{Grid, Layout, Part, View};
pub use lfm2::Lfm2;
pub use mmproj::MmprojSettings;
pub use normalise::Normalisation;
pub use patches::{Order, Patches};
pub use pixtral::Pixtral;
pub use qwen::Qwen;

use serde_json::Value;

use crate::limits::ImageError;
use crate::picture::Picture;
use crate::resample::resize;
use fields::Fields;

/// A model's image processor, with its settings.
#[derive(Debug, Clone, PartialEq)]
pub enum Processor {
    /// Qwen2-VL, Qwen2.5-VL, Qwen3-VL, Qwen3.5.
    Qwen(Qwen),
    /// Gemma 3.
    Gemma3(Gemma3),
    /// Gemma 4.
    Gemma4(Gemma4),
    /// Pixtral, Mistral 3, Ministral 3.
    Pixtral(Pixtral),
    /// LFM2-VL.
    Lfm2(Lfm2),
}

/// A picture that is scaled and cut for a model, in 8-bit RGB.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prepared {
    /// Its views, and their place in the prompt.
    pub layout: Layout,
    /// The pixels of each view.
    pub views: Vec<Picture>,
}

impl Processor {
    /// Reads a model's `preprocessor_config.json` and `processor_config.json`, either of which may be missing.
    /// `model_type` is that of its `config.json`.
    ///
    /// # Errors
    /// [`SettingsError`] if a file is not JSON, a setting is out of bounds or not supported, or no processor is known
    /// for the model.
    pub fn from_files(
        preprocessor: Option<&str>,
        processor: Option<&str>,
        model_type: &str,
    ) -> Result<Self, SettingsError> {
        let parse = |text: Option<&str>| match text {
            None => Ok(Value::Null),
            Some(text) => serde_json::from_str(text).map_err(|error| SettingsError::NotJson {
                error: error.to_string(),
            }),
        };
        let (preprocessor, processor): (Value, Value) = (parse(preprocessor)?, parse(processor)?);
        // Newer checkpoints have all in one file.
        let nested = processor.get("image_processor");
        let image = nested.filter(|value| value.is_object());
        let fields = Fields {
            image: image.unwrap_or(&preprocessor),
            processor: &processor,
        };
        let class = fields.class();
        let Some(family) = family(class.as_deref(), model_type) else {
            return Err(SettingsError::UnknownProcessor {
                name: class.unwrap_or_else(|| format!("of {model_type}")),
            });
        };
        fields.check_common(&family)?;
        Ok(match family {
            Family::Qwen => Self::Qwen(Qwen::read(&fields, model_type)?),
            Family::Gemma3 => Self::Gemma3(Gemma3::read(&fields)?),
            Family::Gemma4 => Self::Gemma4(Gemma4::read(&fields)?),
            Family::Pixtral => Self::Pixtral(Pixtral::read(&fields)?),
            Family::Lfm2 => Self::Lfm2(Lfm2::read(&fields)?),
        })
    }

    /// The views and tokens of a picture of `width` x `height` pixels.
    ///
    /// # Errors
    /// [`ImageError::TooNarrow`] and [`ImageError::ScaledTooLarge`].
    ///
    /// # Panics
    /// If a side is 0.
    pub fn layout(&self, width: u32, height: u32) -> Result<Layout, ImageError> {
        assert!(width > 0 && height > 0, "a picture has pixels");
        match self {
            Self::Qwen(settings) => settings.layout(width, height),
            Self::Gemma3(settings) => Ok(settings.layout()),
            Self::Gemma4(settings) => settings.layout(width, height),
            Self::Pixtral(settings) => Ok(settings.layout(width, height)),
            Self::Lfm2(settings) => settings.layout(width, height),
        }
    }

    /// Scales and cuts a picture.
    ///
    /// # Errors
    /// Those of [`Processor::layout`], before memory is allocated.
    pub fn prepare(&self, picture: &Picture) -> Result<Prepared, ImageError> {
        let layout = self.layout(picture.width(), picture.height())?;
        let views = match self {
            Self::Lfm2(settings) => settings.cut(picture, &layout),
            _ => {
                let filter = self.filter();
                let views = layout.views.iter();
                let scaled = views.map(|view| resize(picture, view.width, view.height, filter));
                scaled.collect()
            }
        };
        Ok(Prepared { layout, views })
    }

    /// Bounds the tokens of a picture: larger pictures are scaled down to fit, with fewer tiles.
    ///
    /// # Errors
    /// [`SettingsError::BadValue`] if the model's pictures cannot have so few.
    pub fn limit_tokens(&mut self, max_tokens: u32) -> Result<(), SettingsError> {
        match self {
            Self::Qwen(settings) => settings.limit_tokens(max_tokens),
            Self::Gemma3(settings) => settings.limit_tokens(max_tokens),
            Self::Gemma4(settings) => settings.limit_tokens(max_tokens),
            Self::Pixtral(settings) => settings.limit_tokens(max_tokens),
            Self::Lfm2(settings) => settings.limit_tokens(max_tokens),
        }
    }
}

enum Family {
    Qwen,
    Gemma3,
    Gemma4,
    Pixtral,
    Lfm2,
}

/// Whether a model is of LFM2-VL; the older name has a hyphen.
fn is_lfm2(model_type: &str) -> bool {
    matches!(model_type, "lfm2_vl" | "lfm2-vl")
}

/// The family of a processor's class, or else of a model's type.
fn family(class: Option<&str>, model_type: &str) -> Option<Family> {
    match class {
        Some("Qwen2VLImageProcessor") => return Some(Family::Qwen),
        Some("Gemma3ImageProcessor") => return Some(Family::Gemma3),
        Some("Gemma4ImageProcessor") => return Some(Family::Gemma4),
        Some("PixtralImageProcessor") => return Some(Family::Pixtral),
        Some("Lfm2VlImageProcessor") => return Some(Family::Lfm2),
        // That of the tower, which some published files of LFM2-VL name.
        Some("Siglip2ImageProcessor") if is_lfm2(model_type) => return Some(Family::Lfm2),
        Some(_) => return None,
        None => {}
    }
    match model_type {
        "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe" => {
            Some(Family::Qwen)
        }
        "gemma3" => Some(Family::Gemma3),
        "gemma4" => Some(Family::Gemma4),
        "pixtral" | "mistral3" => Some(Family::Pixtral),
        model_type if is_lfm2(model_type) => Some(Family::Lfm2),
        _ => None,
    }
}
