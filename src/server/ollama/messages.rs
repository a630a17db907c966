//! Converts Ollama's messages to OpenAI's: thoughts and names of tools have other fields, and calls have no ids.

use std::collections::VecDeque;

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::images::{Content, Encoding, image_part};
use crate::openai::chat::messages::read_adapted;
use crate::openai::json_values::{must_be, optional_text};
use souffleur_media::is_data_url;

const IMAGES: &str = "images";

/// Reads `messages`, at least one.
pub(super) fn read(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let mut calls = Calls::default();
    let mut images = Vec::new();
    let mut messages = read_adapted(fields, |path, message| {
        images.push(take_images(path, message)?);
        adapt(path, message)?;
        match message.get("role").and_then(Value::as_str) {
            Some("assistant") => calls.begin(message),
            Some("tool") => return calls.end(path, message),
            _ => (),
        }
        Ok(())
    })?;
    for (message, images) in messages.iter_mut().zip(images) {
        put_images(message, images);
    }
    Ok(messages)
}

/// Takes the images of a plain prompt.
pub(super) fn images_of(fields: &mut Fields) -> Result<Vec<Value>, ApiError> {
    let raw = fields.take_raw(IMAGES).filter(|raw| !raw.has_no_effect());
    let images = raw.map(|raw| fields.tree(IMAGES, &raw)).transpose()?;
    parts_of(IMAGES, images)
}

/// Takes a message's images.
fn take_images(path: &str, message: &mut Map<String, Value>) -> Result<Vec<Value>, ApiError> {
    parts_of(&format!("{path}.{IMAGES}"), message.shift_remove(IMAGES))
}

/// Parts of a message for images: base64, or `data:` URLs.
fn parts_of(path: &str, images: Option<Value>) -> Result<Vec<Value>, ApiError> {
    let images = match images {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(images)) => images,
        Some(other) => return Err(must_be(path, &other, "a list of base64 texts")),
    };
    let refusal = format!("{path} is not supported: the model reads text only, send no images");
    let images = images.into_iter().enumerate();
    let part = |(index, image): (usize, Value)| {
        let place = format!("{path}[{index}]");
        let encoding = match image {
            Value::String(text) if is_data_url(&text) => Encoding::Url(text),
            Value::String(text) => Encoding::Base64(text),
            other => return Err(must_be(&place, &other, "base64 text")),
        };
        Ok(image_part(
            &place,
            encoding,
            (path.to_owned(), refusal.clone()),
        ))
    };
    images.map(part).collect()
}

/// Puts images before a message's text.
fn put_images(message: &mut Value, images: Vec<Value>) {
    let Some(text) = message.get_mut("content").filter(|_| !images.is_empty()) else {
        return;
    };
    let of_message = match text.take() {
        Value::String(text) => text,
        // Ollama's contents are texts.
        other => other.to_string(),
    };
    *text = content_of(images, of_message);
}

/// The content of a message: images before the text, as Ollama's templates have them.
pub(super) fn content_of(images: Vec<Value>, text: String) -> Value {
    let mut content = Content::default();
    for image in images {
        content.push_image(image);
    }
    if !text.is_empty() {
        content.push_text(text);
    }
    content.into_value(" ")
}

fn adapt(path: &str, message: &mut Map<String, Value>) -> Result<(), ApiError> {
    if let Some(Value::String(role)) = message.get_mut("role") {
        role.make_ascii_lowercase();
    }
    let content = message.entry("content").or_insert(Value::Null);
    if content.is_null() {
        *content = Value::String(String::new());
    }
    optional_text(message, path, "thinking")?;
    if let Some(thinking) = message.shift_remove("thinking") {
        message.entry("reasoning_content").or_insert(thinking);
    }
    Ok(())
}

/// Gives ids to calls and to their results, which templates may need. Ollama's clients send a result with the name of
/// the tool, or with nothing.
#[derive(Default)]
struct Calls {
    /// Id and name of each call without a result, in order.
    open: VecDeque<(String, String)>,
    count: usize,
}

impl Calls {
    fn begin(&mut self, message: &mut Map<String, Value>) {
        self.open.clear();
        let Some(Value::Array(calls)) = message.get_mut("tool_calls") else {
            return;
        };
        for call in calls.iter_mut().filter_map(Value::as_object_mut) {
            let function = call.get_mut("function").and_then(Value::as_object_mut);
            let Some(function) = function else {
                continue;
            };
            function.shift_remove("index");
            let name = function.get("name").and_then(Value::as_str);
            let name = name.unwrap_or_default().to_owned();
            let id = match call.get("id") {
                Some(Value::String(id)) if !id.is_empty() => id.clone(),
                None | Some(Value::Null | Value::String(_)) => {
                    let id = format!("call_{}", self.count);
                    call.insert("id".to_owned(), id.as_str().into());
                    id
                }
                // An id of another type is refused later.
                Some(_) => continue,
            };
            self.count += 1;
            self.open.push_back((id, name));
        }
    }

    fn end(&mut self, path: &str, message: &mut Map<String, Value>) -> Result<(), ApiError> {
        let tool = optional_text(message, path, "tool_name")?.map(str::to_owned);
        message.shift_remove("tool_name");
        let id = optional_text(message, path, "tool_call_id")?.filter(|id| !id.is_empty());
        let is_of = |(call, name): &(String, String)| match (id, &tool) {
            (Some(id), _) => call == id,
            (None, Some(tool)) => name == tool,
            (None, None) => true,
        };
        let place = self.open.iter().position(is_of);
        let Some((id, name)) = place.and_then(|place| self.open.remove(place)) else {
            if let Some(tool) = tool {
                message.insert("name".to_owned(), tool.into());
            }
            return Ok(());
        };
        message.insert("tool_call_id".to_owned(), id.into());
        message.insert("name".to_owned(), tool.unwrap_or(name).into());
        Ok(())
    }
}
