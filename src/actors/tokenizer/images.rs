//! Prepares prompts of token ids with images: checks them, and puts keys at the positions of images.

use std::sync::Arc;

use super::TokenizerSettings;
use super::prepare::check_prompt;
use crate::pictures::ImageReader;
use souffleur_base::error::{FieldError, RequestError};
use souffleur_metrics::images_received;
use souffleur_model::text::TextModel;
use souffleur_request::{ChatPrompt, ImageFile, ImagePrompt, ImageSupport, TextImages};
use souffleur_state::prompt_images::{ImageSpan, PromptImages};
use souffleur_state::tiers::{ImageKeys, Secret};

/// The most images of a prompt at whose ends recurrent states are saved.
const MAX_ANCHORS: usize = 8;

#[derive(Clone, Debug)]
pub struct ImageSettings {
    pub support: ImageSupport,
    /// Makes the keys of images: the KV store's secret, so that keys are the same after a restart, or a random one.
    /// `None` if the operating system has no random bytes.
    pub secret: Option<Secret>,
    /// The executor has a vision tower, which computes missing vectors.
    pub encodes: bool,
    /// The most tokens of a prefill in a step; `None` with chunked prefill off.
    pub chunk_tokens: Option<usize>,
    /// Reads the images of chats; `None` if nothing encodes them.
    pub reader: Option<Arc<ImageReader>>,
}

/// Returns the prompt's tokens, with keys at the positions of images, and the images' table.
pub(super) fn prepare(
    prompt: &ImagePrompt,
    settings: &TokenizerSettings,
) -> Result<(Arc<[u32]>, Arc<PromptImages>), RequestError> {
    let ImageSettings {
        support,
        secret,
        encodes,
        chunk_tokens,
        ..
    } = &settings.images;
    let missing = match (support, secret, settings.hidden_size) {
        (ImageSupport::Missing(part), _, _) => *part,
        (_, None, _) => "the operating system gave no random bytes",
        (_, _, None) => "its executor takes no vectors",
        (_, Some(secret), Some(hidden_size)) => {
            check_prompt(&prompt.tokens, settings.vocab_size)?;
            let images = PromptImages::new(&prompt.tokens, &prompt.images)?;
            for (index, image) in images.spans().iter().enumerate() {
                let wrong = |reason: String| refused(format!("images[{index}] {reason}"));
                let width = support.vector_width(hidden_size);
                check(image, *support, (width, *encodes)).map_err(wrong)?;
            }
            let images = match support {
                ImageSupport::Bidirectional => kept_whole(images, *chunk_tokens)?,
                _ => images,
            };
            let of_image = |image: &ImageSpan| {
                let mut keys = ImageKeys::new(secret, image);
                move |offset: u32, mark: Option<u32>| keys.at(offset, mark)
            };
            let keyed = images.keyed(&prompt.tokens, of_image);
            images_received(images.spans().len());
            return Ok((keyed, Arc::new(images)));
        }
    };
    Err(refused(format!(
        "images are not supported by this engine: {missing}; send text alone"
    )))
}

/// A chat, rendered and encoded.
pub(super) struct PreparedChat {
    /// The text that the template has rendered.
    pub(super) text: String,
    pub(super) tokens: Arc<[u32]>,
    /// `None` without images.
    pub(super) images: Option<Arc<PromptImages>>,
}

/// Reads the images of a chat that has some, and encodes it.
pub(super) fn prepare_chat(
    text: &TextModel,
    chat: &ChatPrompt,
    settings: &TokenizerSettings,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<PreparedChat, RequestError> {
    let Some(reader) = &settings.images.reader else {
        return Err(no_reader(first_field(&chat.images), settings));
    };
    let limit = settings.limits.max_prompt_tokens();
    let read = reader.read(text, chat, limit, is_cancelled)?;
    let (tokens, images) = prepare(&read.prompt, settings)?;
    Ok(PreparedChat {
        text: read.text,
        tokens,
        images: Some(images),
    })
}

/// Reads the images of a text, and encodes it.
pub(super) fn prepare_text(
    text: &TextModel,
    prompt: &TextImages,
    settings: &TokenizerSettings,
    is_cancelled: &dyn Fn() -> bool,
) -> Result<(Arc<[u32]>, Arc<PromptImages>), RequestError> {
    let Some(reader) = &settings.images.reader else {
        return Err(no_reader(first_field(&prompt.images), settings));
    };
    let limit = settings.limits.max_prompt_tokens();
    let read = reader.read_text(text, prompt, limit, is_cancelled)?;
    prepare(&read.prompt, settings)
}

fn first_field(images: &[ImageFile]) -> &str {
    images.first().map_or("images", |image| &*image.field)
}

fn no_reader(field: &str, settings: &TokenizerSettings) -> RequestError {
    let reason = match settings.images.support {
        ImageSupport::Missing(part) => part,
        _ if settings.images.encodes => {
            "the images of chats cannot be read; the server's log says why"
        }
        ImageSupport::Sequence
        | ImageSupport::Grid
        | ImageSupport::Bidirectional
        | ImageSupport::Deepstack(_) => "no vision tower is loaded",
    };
    let text = format!("{field} is an image, and the model takes text only ({reason}): send text");
    FieldError::new(field, text).into()
}

fn refused(reason: String) -> RequestError {
    FieldError::new("images", reason).into()
}

/// The images of a model that attends to them in both directions: no chunk cuts a run of their vectors.
///
/// Each image is one run, which no other image shares. Otherwise its K/V would depend on more than its keys.
fn kept_whole(
    images: PromptImages,
    chunk_tokens: Option<usize>,
) -> Result<PromptImages, RequestError> {
    let touches = |image: &ImageSpan| images.cuts_run(image.positions().start);
    if let Some(index) = images.spans().iter().position(touches) {
        return Err(refused(format!(
            "images[{index}] directly follows the vectors of images[{}], and this model would attend to both as one \
             image: send a mark or text between them",
            index.saturating_sub(1)
        )));
    }
    let images = images.kept_whole();
    let runs = images.whole().into_iter().flat_map(|runs| runs.iter());
    let longest = runs.map(|run| run.len()).max().unwrap_or(0);
    match chunk_tokens {
        Some(limit) if longest > limit => Err(refused(format!(
            "an image has {longest} tokens that attend to each other, but a step computes at most {limit}: send a \
             smaller one, or start the engine with --chunked-prefill-size {longest} or more"
        ))),
        _ => Ok(images),
    }
}

fn check(
    image: &ImageSpan,
    support: ImageSupport,
    (wanted, encodes): (usize, bool),
) -> Result<(), String> {
    let width = image.vectors().map(|vectors| vectors.width());
    match (width, image.input()) {
        (Some(width), _) if width != wanted => {
            return Err(format!(
                "has vectors of {width} values, but the model's have {wanted}"
            ));
        }
        (Some(_), _) => {}
        (None, Some(_)) if encodes => {}
        (None, None) if encodes => return Err("has neither vectors nor an input".to_owned()),
        (None, _) => {
            return Err(
                "has no vectors: send them, as this engine does not encode images".to_owned(),
            );
        }
    }
    let is_one_run = support.rotates_by_grid() || support == ImageSupport::Bidirectional;
    if is_one_run && !image.is_contiguous() {
        return Err(
            "has a mark between its pad tokens, but this model's images are contiguous".to_owned(),
        );
    }
    Ok(())
}

/// The positions at which to save recurrent states: the ends of the last images, so that another question about them
/// starts there, and the last token.
pub(super) fn anchors(images: &PromptImages, n_tokens: usize) -> Vec<u32> {
    let spans = images.spans();
    let last = spans[spans.len().saturating_sub(MAX_ANCHORS)..].iter();
    let mut anchors: Vec<u32> = last.map(|image| image.positions().end).collect();
    let last_token = n_tokens as u32 - 1;
    if anchors.last().is_none_or(|end| *end < last_token) {
        anchors.push(last_token);
    }
    anchors
}
