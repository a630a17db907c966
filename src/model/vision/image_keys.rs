//! The settings of the image processor in the metadata of a GGUF file with a vision tower (mmproj).

use std::path::Path;

use crate::gguf::keys::Keys;
use crate::gguf::{Gguf, Metadata};
use souffleur_base::error::LoadError;

use super::from_gguf::ARCHITECTURE;
use super::from_json::IMAGES;

/// A picture of so many pixels takes 192 MiB.
const MAX_PIXELS: usize = 1 << 26;
/// The filters' names, and their numbers in Pillow.
const FILTERS: [(&str, u64); 3] = [("lanczos", 1), ("bilinear", 2), ("bicubic", 3)];

/// `None` if the file has no such key: the processor's own default applies then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ImageKeys {
    /// Side in pixels: of every scaled picture, or the longest of one, or of the square that positions were learned for.
    pub image_size: Option<u32>,
    /// Of each channel, in the range 0 to 1 of samples; finite.
    pub mean: Option<[f32; 3]>,
    /// Likewise; above 0.
    pub std: Option<[f32; 3]>,
    /// Of a scaled picture.
    pub min_pixels: Option<u32>,
    pub max_pixels: Option<u32>,
    /// The filter that scales pictures, by Pillow's number.
    pub filter: Option<u64>,
}

impl ImageKeys {
    /// Reads the metadata of a file.
    ///
    /// # Errors
    /// [`LoadError::Io`]; [`LoadError::Format`] naming key, value and limit.
    pub fn open(file: &Path) -> Result<Self, LoadError> {
        Self::read(Gguf::open(file)?.metadata())
    }

    fn read(metadata: Metadata<'_>) -> Result<Self, LoadError> {
        let keys = Keys {
            metadata,
            architecture: ARCHITECTURE,
        };
        let size = |name: &str, most: usize| -> Result<Option<u32>, LoadError> {
            let size = metadata.size(&keys.key(name), 1..=most)?;
            // The limits fit 32 bits.
            Ok(size.map(|size| size as u32))
        };
        Ok(Self {
            image_size: size("vision.image_size", *IMAGES.end())?,
            mean: channels(
                &keys,
                "vision.image_mean",
                |x| x.is_finite(),
                "finite numbers",
            )?,
            std: channels(
                &keys,
                "vision.image_std",
                |x| x.is_finite() && x > 0.0,
                "numbers above 0",
            )?,
            min_pixels: size("vision.image_min_pixels", MAX_PIXELS)?,
            max_pixels: size("vision.image_max_pixels", MAX_PIXELS)?,
            filter: filter(&keys)?,
        })
    }
}

/// Three numbers, one for each channel.
fn channels(
    keys: &Keys<'_>,
    name: &str,
    fits: fn(f32) -> bool,
    expected: &str,
) -> Result<Option<[f32; 3]>, LoadError> {
    let Some(numbers) = keys.metadata.numbers(&keys.key(name))? else {
        return Ok(None);
    };
    if !numbers.iter().all(|number| fits(*number)) {
        let shown = &numbers[..numbers.len().min(3)];
        let reason =
            format!("begins with {shown:?}, expected three {expected}: convert the model again");
        return Err(keys.error(name, reason));
    }
    let channels = <[f32; 3]>::try_from(numbers.as_slice());
    channels.map(Some).map_err(|_| {
        let reason = format!(
            "has {} numbers, expected three, one for each channel: convert the model again",
            numbers.len()
        );
        keys.error(name, reason)
    })
}

fn filter(keys: &Keys<'_>) -> Result<Option<u64>, LoadError> {
    const KEY: &str = "vision.image_resize_algo";
    let Some(name) = keys.text(KEY)? else {
        return Ok(None);
    };
    let found = FILTERS.iter().find(|(known, _)| *known == name);
    found.map(|(_, number)| Some(*number)).ok_or_else(|| {
        let names = FILTERS.map(|(name, _)| name).join(", ");
        keys.error(KEY, format!("is {name:?}, supported: {names}"))
    })
}
