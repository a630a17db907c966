//! Parses `image_data`: the images of a prompt of text, or of each prompt of a list.

use crate::call::Prompts;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::raw::Raw;
use souffleur_base::field::{self, Field, check_count};
use souffleur_media::{MediaError, decode_base64, decode_data_url, is_data_url};
use souffleur_request::{ImageFile, Prompt, TextImages};
use souffleur_state::prompt_images::MAX_IMAGES;

const NAME: &str = "image_data";

/// Adds the images to the prompts, if there are any.
pub(super) fn read(fields: &mut Fields, prompts: Prompts) -> Result<Prompts, ApiError> {
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(prompts);
    };
    let prompts = match prompts {
        Prompts::One(prompt) => {
            return with_images(fields, NAME, &raw, prompt).map(Prompts::One);
        }
        Prompts::List(prompts) => prompts,
    };
    if !raw.is_list() {
        let value = raw.shallow(NAME)?;
        let wanted = "a list of images for each prompt";
        return Err(Field::new(NAME, &value).must_be(wanted).into());
    }
    let (items, found) = raw.items(NAME, prompts.len())?;
    if found != prompts.len() {
        let text = format!("{NAME} has {found} entries, must have {}", prompts.len());
        return Err(ApiError::field(NAME, format!("{text}, one per prompt")));
    }
    let each = items.iter().zip(prompts).enumerate();
    let prompts: Result<Vec<Prompt>, ApiError> = each
        .map(|(index, (item, prompt))| {
            with_images(fields, &format!("{NAME}[{index}]"), item, prompt)
        })
        .collect();
    prompts.map(Prompts::List)
}

/// The images of one prompt: one, or a list.
fn with_images(
    fields: &mut Fields,
    name: &str,
    raw: &Raw,
    prompt: Prompt,
) -> Result<Prompt, ApiError> {
    let images = if raw.is_list() {
        let (items, n_images) = raw.items(name, MAX_IMAGES)?;
        check_count(name, n_images, MAX_IMAGES, "images")?;
        let given = items.iter().enumerate();
        let given = given.filter(|(_, item)| !item.is_null());
        let images: Result<Vec<ImageFile>, ApiError> = given
            .map(|(index, item)| image(fields, &format!("{name}[{index}]"), item))
            .collect();
        images?
    } else if raw.is_null() {
        Vec::new()
    } else {
        vec![image(fields, name, raw)?]
    };
    match prompt {
        prompt if images.is_empty() => Ok(prompt),
        Prompt::Text(text) => Ok(TextImages { text, images }.into()),
        _ => {
            let text = format!(
                "{NAME} needs text: send the prompt as text, with the model's placeholder for each image"
            );
            Err(ApiError::field(NAME, text))
        }
    }
}

/// An image as base64 or in a `data:` URL. Paths and other URLs are no base64.
fn image(fields: &mut Fields, place: &str, raw: &Raw) -> Result<ImageFile, ApiError> {
    let text = field::text(place, raw.shallow(place)?)?;
    let limit = text.len() as u64;
    let decoded = if is_data_url(&text) {
        decode_data_url(&text, limit)
    } else {
        decode_base64(&text, limit)
    };
    let bytes = decoded.map_err(|error: MediaError| {
        let text =
            format!("{place}: {error}: send base64 or a data: URL, no path and no other URL");
        ApiError::field(place, text)
    })?;
    fields.charge_request_bytes(bytes.len())?;
    Ok(ImageFile {
        bytes: bytes.into(),
        field: place.into(),
    })
}
