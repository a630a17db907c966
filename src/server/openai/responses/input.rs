//! Parses `input`, the items that continue a conversation.

use serde_json::{Map, Value, json};

use super::ids::{ItemKind, ResponseId};
use super::messages::Messages;
use super::reasoning;
use super::store::{Owner, ResponseStore, StoredItem};
use super::tools::name_in;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::images::{Content, Encoding, image_part, url_of};
use crate::openai::chat::history;
use crate::openai::json_values::{must_be, object, optional_text, text};
use souffleur_base::field::Cut;

const NAME: &str = "input";
/// The type of a part that is an image.
const IMAGE: &str = "input_image";

/// The stored responses to which a request may refer: those of any client, and those of `owner`.
pub(super) struct StoreView<'a> {
    pub(super) store: &'a ResponseStore,
    pub(super) owner: Owner,
}

pub(super) struct Input {
    pub(super) messages: Vec<Value>,
    /// The items with their ids, if the response will be stored.
    pub(super) items: Vec<StoredItem>,
}

/// Reads `input`: a text, or a list of items. `keep` is the id of the response if it will be stored.
pub(super) fn read(
    fields: &mut Fields,
    view: &StoreView<'_>,
    keep: Option<&ResponseId>,
) -> Result<Input, ApiError> {
    let items = match fields.take_tree(NAME)? {
        None => Vec::new(),
        Some(Value::Array(items)) => items,
        Some(Value::String(text)) => vec![json!({"role": "user", "content": text})],
        Some(other) => return Err(must_be(NAME, &other, "a string or a list of items")),
    };
    let mut parser = InputParser {
        fields,
        view,
        messages: Messages::default(),
    };
    let mut kept = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        let path = format!("{NAME}[{index}]");
        let item = parser.item(&path, item)?;
        parser.add(&path, &item)?;
        if let Some(id) = keep {
            let stored = listed(id, index, item);
            parser.fields.charge_request_bytes(stored.json.len())?;
            kept.push(stored);
        }
    }
    Ok(Input {
        messages: parser.messages.finish(),
        items: kept,
    })
}

struct InputParser<'a> {
    fields: &'a mut Fields,
    view: &'a StoreView<'a>,
    messages: Messages,
}

impl InputParser<'_> {
    /// The item that was sent, or the stored item to which the sent item refers.
    fn item(&mut self, path: &str, value: Value) -> Result<Map<String, Value>, ApiError> {
        let item = object(path, value)?;
        let is_reference = match item.get("type").and_then(Value::as_str) {
            Some(kind) => kind == "item_reference",
            // A reference may have no type.
            None => item.contains_key("id") && !item.contains_key("role"),
        };
        if !is_reference {
            return Ok(item);
        }
        let id = text(&item, path, "id")?;
        let Some(json) = self.view.store.find_item(id, &self.view.owner) else {
            return Err(ApiError::no_such_item(
                format!("{path}.id"),
                id,
                "send the whole item",
            ));
        };
        object(path, self.fields.kept_tree(path, json.as_bytes())?)
    }

    fn add(&mut self, path: &str, item: &Map<String, Value>) -> Result<(), ApiError> {
        match optional_text(item, path, "type")? {
            None | Some("message") => self.add_message(path, item),
            Some("reasoning") => self.add_reasoning(path, item),
            Some("function_call") => {
                let arguments = optional_text(item, path, "arguments")?.unwrap_or_default();
                let arguments_path = format!("{path}.arguments");
                let arguments =
                    history::arguments(self.fields, &arguments_path, arguments.to_owned())?;
                self.add_call(path, item, arguments)
            }
            Some("custom_tool_call") => {
                let input = json!({ "input": text(item, path, "input")? });
                self.add_call(path, item, input)
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let call_id = text(item, path, "call_id")?;
                let output = content(&format!("{path}.output"), item.get("output"))?;
                self.messages.result(call_id, output);
                Ok(())
            }
            Some("computer_call_output") => {
                // It has a screenshot of the client's, so that leaving it out would blind the model.
                let path = format!("{path}.type");
                let text = format!(
                    "{path} is \"computer_call_output\", which is not supported: send the screenshot as input_image in a \
                     function_call_output or a message"
                );
                Err(ApiError::field(path, text))
            }
            Some(kind) if is_of_a_service(kind) => Ok(()),
            Some(kind) => {
                let known = "message, reasoning, function_call, function_call_output, custom_tool_call, \
                             custom_tool_call_output or item_reference";
                let path = format!("{path}.type");
                let text = format!("{path} is {}, must be {known}", Cut(kind));
                Err(ApiError::field(path, text))
            }
        }
    }

    fn add_message(&mut self, path: &str, item: &Map<String, Value>) -> Result<(), ApiError> {
        let (path_of_content, sent) = (format!("{path}.content"), item.get("content"));
        match text(item, path, "role")? {
            "assistant" => self.messages.answer(&texts(&path_of_content, sent)?),
            role @ ("user" | "system" | "developer") => {
                let content = content(&path_of_content, sent)?;
                self.messages.push_message(role, content);
            }
            _ => {
                let wanted = "user, assistant, system or developer";
                return Err(must_be(&format!("{path}.role"), &item["role"], wanted));
            }
        }
        Ok(())
    }

    fn add_reasoning(&mut self, path: &str, item: &Map<String, Value>) -> Result<(), ApiError> {
        let path_of = |name: &str| format!("{path}.{name}");
        let mut thought = optional_texts(&path_of("content"), item.get("content"))?;
        if thought.is_empty() {
            let blob = optional_text(item, path, "encrypted_content")?;
            thought = blob.and_then(reasoning::decode).unwrap_or_default();
        }
        if thought.is_empty() {
            thought = optional_texts(&path_of("summary"), item.get("summary"))?;
        }
        if !thought.is_empty() {
            self.messages.push_reasoning(&thought);
        }
        Ok(())
    }

    fn add_call(
        &mut self,
        path: &str,
        item: &Map<String, Value>,
        arguments: Value,
    ) -> Result<(), ApiError> {
        let namespace = optional_text(item, path, "namespace")?;
        let name = name_in(namespace, text(item, path, "name")?);
        self.messages
            .call(text(item, path, "call_id")?, &name, arguments);
        Ok(())
    }
}

/// Returns whether an item belongs to a tool that runs at OpenAI or is a compacted conversation. Both are ignored.
fn is_of_a_service(kind: &str) -> bool {
    let ends = ["_call", "_call_output", "_search_output"];
    let begins = ["mcp_", "compaction", "context_compaction"];
    ends.iter().any(|end| kind.ends_with(end)) || begins.iter().any(|start| kind.starts_with(start))
}

fn optional_texts(path: &str, value: Option<&Value>) -> Result<String, ApiError> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        value => texts(path, value),
    }
}

/// A text, or the texts of a list of parts, joined with spaces as in chats, or without spaces if the model wrote them.
fn texts(path: &str, value: Option<&Value>) -> Result<String, ApiError> {
    const WANTED: &str = "a string or a list of text parts";
    match value {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(Value::Array(parts)) => {
            let gap = match parts.first().and_then(|part| part["type"].as_str()) {
                Some("output_text" | "reasoning_text" | "summary_text") => "",
                _ => " ",
            };
            let parts = parts.iter().enumerate();
            let texts: Result<Vec<&str>, ApiError> = parts
                .map(|(index, part)| text_of(&format!("{path}[{index}]"), part))
                .collect();
            Ok(texts?.join(gap))
        }
        value => Err(must_be(path, value.unwrap_or(&Value::Null), WANTED)),
    }
}

/// A text, or a list of texts and images. Texts are joined as by [`texts`].
fn content(path: &str, value: Option<&Value>) -> Result<Value, ApiError> {
    let parts = value
        .and_then(Value::as_array)
        .map_or(&[][..], Vec::as_slice);
    if !parts.iter().any(|part| part["type"] == IMAGE) {
        return texts(path, value).map(Value::String);
    }
    let mut content = Content::default();
    for (index, part) in parts.iter().enumerate() {
        let path = format!("{path}[{index}]");
        if part["type"] != IMAGE {
            content.push_text(text_of(&path, part)?.to_owned());
            continue;
        }
        let mut part = object(&path, part.clone())?;
        if optional_text(&part, &path, "file_id")?.is_some() {
            let text = format!(
                "{path}.file_id is not supported: send the image as a data: URL in image_url"
            );
            return Err(ApiError::field(format!("{path}.file_id"), text));
        }
        let url = Encoding::Url(url_of(&mut part, &path)?);
        let field = format!("{path}.type");
        let refusal = format!("{field} is \"{IMAGE}\", only text is supported: send input_text");
        content.push_image(image_part(&path, url, (field, refusal)));
    }
    Ok(content.into_value(" "))
}

fn text_of<'a>(path: &str, part: &'a Value) -> Result<&'a str, ApiError> {
    let Value::Object(part) = part else {
        return Err(must_be(path, part, "an object"));
    };
    let key = match optional_text(part, path, "type")? {
        Some("input_text" | "output_text" | "reasoning_text" | "summary_text" | "text") => "text",
        Some("refusal") => "refusal",
        kind => {
            let kind = kind.map_or_else(|| "missing".to_owned(), |kind| Cut(kind).to_string());
            let path = format!("{path}.type");
            let text = format!("{path} is {kind}, only text is supported: send input_text");
            return Err(ApiError::field(path, text));
        }
    };
    text(part, path, key)
}

/// Converts an item to the form in which it is listed: with an id, and with a message's content as a list of parts.
fn listed(response: &ResponseId, index: usize, mut item: Map<String, Value>) -> StoredItem {
    item.entry("type").or_insert_with(|| "message".into());
    if item["type"] == "message" {
        let kind = match item.get("role").and_then(Value::as_str) {
            Some("assistant") => "output_text",
            _ => "input_text",
        };
        if let Some(Value::String(text)) = item.get("content") {
            let part = match kind {
                "output_text" => json!({"type": kind, "text": text, "annotations": []}),
                _ => json!({"type": kind, "text": text}),
            };
            item.insert("content".to_owned(), json!([part]));
        }
        item.entry("status").or_insert_with(|| "completed".into());
    }
    let id = match item.get("id").and_then(Value::as_str) {
        Some(id) => id.to_owned(),
        None => response.item(ItemKind::Input, index),
    };
    item.insert("id".to_owned(), id.as_str().into());
    StoredItem {
        id,
        json: Value::Object(item).to_string().into(),
    }
}

pub(super) fn append_earlier(
    fields: &mut Fields,
    messages: &[u8],
    all: &mut Vec<Value>,
) -> Result<(), ApiError> {
    if let Value::Array(messages) = fields.kept_tree("previous_response_id", messages)? {
        all.extend(messages);
    }
    Ok(())
}
