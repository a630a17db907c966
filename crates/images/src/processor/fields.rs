//! The settings in a processor's files.

use serde_json::Value;

use super::Family;
use super::normalise::Normalisation;
use crate::resample::Filter;

/// OpenAI CLIP's mean and standard deviation of each channel.
pub(super) const CLIP: ([f64; 3], [f64; 3]) = (
    [0.48145466, 0.4578275, 0.40821073],
    [0.26862954, 0.26130258, 0.27577711],
);
/// Mean and standard deviation of one half for every channel.
pub(super) const HALVES: ([f64; 3], [f64; 3]) = ([0.5; 3], [0.5; 3]);

/// A processor's file that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A file is not JSON.
    #[error("the image processor's file is not JSON: {error}")]
    NotJson {
        /// The parser's message.
        error: String,
    },
    /// No such processor is built in.
    #[error(
        "the image processor {name} is not supported: use a model of Qwen-VL, Qwen3.5, Gemma 3 or 4, Pixtral, Mistral 3 or LFM2-VL"
    )]
    UnknownProcessor {
        /// The class in the file, or the model's type.
        name: String,
    },
    /// A setting is out of bounds, or not supported.
    #[error("the image processor's {key} is {value}, and has to be {expected}")]
    BadValue {
        /// The key in the file.
        key: String,
        /// Its value, as JSON.
        value: String,
        /// The values that are supported.
        expected: String,
    },
}

impl SettingsError {
    pub(super) fn bad_value(key: &str, value: impl ToString, expected: impl Into<String>) -> Self {
        Self::BadValue {
            key: key.to_owned(),
            value: value.to_string(),
            expected: expected.into(),
        }
    }
}

/// The settings of the image processor, and of the processor that contains it. Keys that are null count as missing.
pub(super) struct Fields<'a> {
    pub(super) image: &'a Value,
    pub(super) processor: &'a Value,
}

fn present<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get(key).filter(|value| !value.is_null())
}

fn number(key: &str, value: &Value, max: u32) -> Result<u32, SettingsError> {
    let number = value.as_u64().and_then(|number| u32::try_from(number).ok());
    let number = number.filter(|number| (1..=max).contains(number));
    number.ok_or_else(|| {
        SettingsError::bad_value(key, value, format!("a whole number from 1 to {max}"))
    })
}

impl Fields<'_> {
    /// The class of the image processor, without the suffix of its implementation.
    pub(super) fn class(&self) -> Option<String> {
        let class = present(self.image, "image_processor_type")?.as_str()?;
        let class = class.strip_suffix("Fast").unwrap_or(class);
        Some(class.strip_suffix("Pil").unwrap_or(class).to_owned())
    }

    /// Whether there are settings at all.
    pub(super) fn is_empty(&self) -> bool {
        self.image.is_null()
    }

    /// A whole number from 1 to `max`.
    pub(super) fn number(&self, key: &str, default: u32, max: u32) -> Result<u32, SettingsError> {
        present(self.image, key).map_or(Ok(default), |value| number(key, value, max))
    }

    /// A whole number from 1 to `max` among the settings of the enclosing processor.
    pub(super) fn outer_number(
        &self,
        key: &str,
        default: u32,
        max: u32,
    ) -> Result<u32, SettingsError> {
        present(self.processor, key).map_or(Ok(default), |value| number(key, value, max))
    }

    /// A number in an object, such as `longest_edge` in `size`. `None` if it is not there.
    pub(super) fn inner_number(
        &self,
        (object, key): (&str, &str),
        max: u32,
    ) -> Result<Option<u32>, SettingsError> {
        let value = present(self.image, object).and_then(|object| present(object, key));
        value.map(|value| number(key, value, max)).transpose()
    }

    /// A number, or an object whose height and width are the same number.
    pub(super) fn square(&self, key: &str, default: u32, max: u32) -> Result<u32, SettingsError> {
        let Some(value) = present(self.image, key) else {
            return Ok(default);
        };
        let (Some(height), Some(width)) = (value.get("height"), value.get("width")) else {
            return number(key, value, max);
        };
        if height != width {
            return Err(SettingsError::bad_value(key, value, "a square"));
        }
        number(key, height, max)
    }

    pub(super) fn bool(&self, key: &str, default: bool) -> Result<bool, SettingsError> {
        let value = present(self.image, key);
        value.map_or(Ok(default), |value| {
            let is_true = value.as_bool();
            is_true.ok_or_else(|| SettingsError::bad_value(key, value, "true or false"))
        })
    }

    fn positive(&self, key: &str, default: f64) -> Result<f64, SettingsError> {
        let value = present(self.image, key);
        value.map_or(Ok(default), |value| {
            let number = value.as_f64().filter(|number| *number > 0.0);
            number.ok_or_else(|| SettingsError::bad_value(key, value, "a number above 0"))
        })
    }

    /// A factor of at least 1.
    pub(super) fn factor(&self, key: &str, default: f64) -> Result<f64, SettingsError> {
        let factor = self.positive(key, default)?;
        if factor < 1.0 {
            return Err(SettingsError::bad_value(key, factor, "at least 1"));
        }
        Ok(factor)
    }

    /// Three numbers, or one for all channels.
    fn channels(&self, key: &str, default: [f64; 3]) -> Result<[f64; 3], SettingsError> {
        let Some(value) = present(self.image, key) else {
            return Ok(default);
        };
        let numbers: Option<Vec<f64>> = match value.as_array() {
            Some(array) => array.iter().map(Value::as_f64).collect(),
            None => value.as_f64().map(|number| vec![number; 3]),
        };
        let numbers = numbers.and_then(|numbers| <[f64; 3]>::try_from(numbers).ok());
        numbers.ok_or_else(|| SettingsError::bad_value(key, value, "three numbers"))
    }

    pub(super) fn filter(&self, default: Filter) -> Result<Filter, SettingsError> {
        let Some(value) = present(self.image, "resample") else {
            return Ok(default);
        };
        let filter = value.as_u64().and_then(Filter::from_pillow);
        filter.ok_or_else(|| {
            SettingsError::bad_value(
                "resample",
                value,
                "1 (Lanczos), 2 (bilinear) or 3 (bicubic)",
            )
        })
    }

    /// Mean and standard deviation, unless `do_normalize` is off.
    pub(super) fn normalisation(
        &self,
        normalises: bool,
        (mean, std): ([f64; 3], [f64; 3]),
    ) -> Result<Normalisation, SettingsError> {
        let scale = self.positive("rescale_factor", 1.0 / 255.0)?;
        if !self.bool("do_normalize", normalises)? {
            return Ok(Normalisation::Scale { scale });
        }
        let (mean, std) = (
            self.channels("image_mean", mean)?,
            self.channels("image_std", std)?,
        );
        if std.iter().any(|std| *std <= 0.0) {
            let value = format!("{std:?}");
            return Err(SettingsError::bad_value("image_std", value, "above 0"));
        }
        Ok(Normalisation::Rescaled { scale, mean, std })
    }

    /// Refuses settings that no processor here follows.
    pub(super) fn check_common(&self, family: &Family) -> Result<(), SettingsError> {
        // LFM2-VL's scales in any case, and published files have false.
        if !matches!(family, Family::Lfm2) {
            self.check_flag("do_resize", true)?;
        }
        for (key, needed) in [
            ("do_rescale", true),
            ("do_center_crop", false),
            ("do_pan_and_scan", false),
        ] {
            self.check_flag(key, needed)?;
        }
        Ok(())
    }

    fn check_flag(&self, key: &str, needed: bool) -> Result<(), SettingsError> {
        if self.bool(key, needed)? == needed {
            return Ok(());
        }
        Err(SettingsError::bad_value(key, !needed, needed.to_string()))
    }
}
