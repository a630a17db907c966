//! Parses `image_data`: the images of a prompt of text, or of each prompt of a list.

use serde_json::Value;

use crate::call::Prompts;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::images::{Wanted, url_of};
use crate::openai::json_values::text;
use crate::raw::Raw;
use souffleur_base::field::{self, Field, check_count};
use souffleur_media::{MediaError, MediaUrl, decode_base64, decode_data_url, is_data_url};
use souffleur_request::{ImageFile, Prompt, TextImages};
use souffleur_state::prompt_images::MAX_IMAGES;

const NAME: &str = "image_data";
const REMEDY: &str = "send base64, a data: URL, or a URL of a host of --allowed-media-domains; the server reads no paths";

/// Adds the images to the prompts, if there are any. Those with URLs are empty, and are added to `wanted`.
pub(super) fn read(
    fields: &mut Fields,
    prompts: Prompts,
    wanted: &mut Vec<Wanted>,
) -> Result<Prompts, ApiError> {
    let Some(raw) = fields.take_raw(NAME) else {
        return Ok(prompts);
    };
    let mut reader = Reader { fields, wanted };
    let prompts = match prompts {
        Prompts::One(prompt) => {
            return reader.with_images(NAME, &raw, prompt).map(Prompts::One);
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
            reader.with_images(&format!("{NAME}[{index}]"), item, prompt)
        })
        .collect();
    prompts.map(Prompts::List)
}

struct Reader<'a> {
    fields: &'a mut Fields,
    wanted: &'a mut Vec<Wanted>,
}

impl Reader<'_> {
    /// The images of one prompt: one, or a list.
    fn with_images(&mut self, name: &str, raw: &Raw, prompt: Prompt) -> Result<Prompt, ApiError> {
        let images = if raw.is_list() {
            let (items, n_images) = raw.items(name, MAX_IMAGES)?;
            check_count(name, n_images, MAX_IMAGES, "images")?;
            let given = items.iter().enumerate();
            let given = given.filter(|(_, item)| !item.is_null());
            let images: Result<Vec<ImageFile>, ApiError> = given
                .map(|(index, item)| self.image(&format!("{name}[{index}]"), item))
                .collect();
            images?
        } else if raw.is_null() {
            Vec::new()
        } else {
            vec![self.image(name, raw)?]
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

    /// An image as base64, in a `data:` URL, or with another URL. Paths are none of these.
    fn image(&mut self, place: &str, raw: &Raw) -> Result<ImageFile, ApiError> {
        let source = self.source(place, raw)?;
        let limit = source.len() as u64;
        let decoded = if is_data_url(&source) {
            decode_data_url(&source, limit)
        } else if source.contains("://") {
            MediaUrl::parse(&source).map(|url| {
                let index = self.wanted.len();
                self.wanted.push(Wanted {
                    index,
                    url,
                    place: place.into(),
                });
                Vec::new()
            })
        } else {
            decode_base64(&source, limit)
        };
        let bytes = decoded.map_err(|error: MediaError| {
            let text = format!("{place}: {error}: {REMEDY}");
            ApiError::field(place, text)
        })?;
        self.fields.charge_request_bytes(bytes.len())?;
        Ok(ImageFile {
            bytes: bytes.into(),
            field: place.into(),
        })
    }

    /// The text of an image, or of an object: `{"url": …}`, or OpenAI's `{"type": "image_url", "image_url": …}`.
    fn source(&mut self, place: &str, raw: &Raw) -> Result<String, ApiError> {
        if !raw.is_object() {
            return Ok(field::text(place, raw.shallow(place)?)?);
        }
        let Value::Object(mut object) = self.fields.tree(place, raw)? else {
            return Ok(String::new());
        };
        if object.contains_key("image_url") {
            return url_of(&mut object, place);
        }
        Ok(text(&object, place, "url")?.to_owned())
    }
}
