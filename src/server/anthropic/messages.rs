//! Converts Anthropic's messages to those of a chat: tool results become separate messages, calls and thoughts become
//! parts of the assistant's message, and system messages between the turns stay in place.

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use super::system::{self, HeaderFilter, SEPARATOR, unknown_block};
use super::texts::{self, take_text};
use crate::digits;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::images::Content;
use crate::openai::json_values::{missing, must_be, object, optional_flag};
use crate::raw::Raw;

const ROLES: &str = "user, assistant or system";
/// The types of blocks in a user's message that every model reads, for errors.
const IN_USER: &str = "text, tool_result, search_result or document";
const CONTENT: &str = "a string or a list of at least one block";

pub(super) struct Conversation {
    messages: Vec<Value>,
    /// The names of the tools that were called, by the ids of the calls.
    tools: FxHashMap<String, String>,
    takes_late_system: bool,
}

/// Reads `system` and `messages`.
///
/// A system message after the first message stays in place. It becomes a user message if the template takes no system
/// message there. Moving it to the front would change the beginning of the prompt, and so invalidate the cached prefix.
pub(super) fn read(
    fields: &mut Fields,
    takes_late_system: bool,
    filter: &mut HeaderFilter,
) -> Result<Conversation, ApiError> {
    const NAME: &str = "messages";
    let mut conversation = Conversation {
        messages: Vec::new(),
        tools: FxHashMap::default(),
        takes_late_system,
    };
    if let Some(content) = fields.take_tree("system")?
        && let Some(text) = system::read("system", content, filter)?
    {
        conversation.push_text("system", text);
    }
    let raw = fields.peek(NAME).cloned();
    let items = match fields.take_tree(NAME)? {
        Some(Value::Array(items)) => items,
        Some(other) => return Err(must_be(NAME, &other, "a list of messages")),
        None => return Err(missing(NAME.to_owned(), "a list")),
    };
    if items.is_empty() {
        let text = "messages is empty: send at least one message";
        return Err(ApiError::field(NAME, text));
    }
    let raw = digits::texts_of(raw.as_ref(), &items);
    for (index, item) in items.into_iter().enumerate() {
        let path = format!("{NAME}[{index}]");
        conversation.read_message(&path, item, raw.get(index), filter)?;
    }
    if conversation.messages.is_empty() {
        let text = "messages holds no text: send at least one message with text";
        return Err(ApiError::field(NAME, text));
    }
    Ok(conversation)
}

impl Conversation {
    pub(super) fn into_messages(self) -> Vec<Value> {
        self.messages
    }

    pub(super) fn ends_with_assistant(&self) -> bool {
        let last = self.messages.last();
        last.is_some_and(|last| last["role"] == "assistant")
    }

    pub(super) fn ends_with_calls(&self) -> bool {
        let last = self.messages.last();
        last.is_some_and(|last| last.get("tool_calls").is_some())
    }

    /// Reads a message. `raw` is the message's JSON text, if parsing it to `item` may have changed digits of numbers.
    fn read_message(
        &mut self,
        path: &str,
        item: Value,
        raw: Option<&Raw>,
        filter: &mut HeaderFilter,
    ) -> Result<(), ApiError> {
        let mut message = object(path, item)?;
        let content = message.get_mut("content").map(Value::take);
        let path_of_content = format!("{path}.content");
        let content = content.filter(|content| !content.is_null());
        let content = content.ok_or_else(|| missing(path_of_content.clone(), CONTENT))?;
        match message.get("role").and_then(Value::as_str) {
            Some("user") => self.read_user(&path_of_content, content),
            Some("assistant") => {
                let raw = raw.and_then(|raw| raw.field("content"));
                self.read_assistant(&path_of_content, content, raw.as_ref())
            }
            Some("system") => {
                if let Some(text) = system::read(&path_of_content, content, filter)? {
                    self.push_system(text);
                }
                Ok(())
            }
            _ => match message.get("role") {
                Some(role) => Err(must_be(&format!("{path}.role"), role, ROLES)),
                None => Err(missing(format!("{path}.role"), ROLES)),
            },
        }
    }

    /// Reads a user message. Tool results come before the text, as templates write results right after their calls.
    fn read_user(&mut self, path: &str, content: Value) -> Result<(), ApiError> {
        let blocks = match content {
            Value::String(text) => {
                self.push_text("user", text);
                return Ok(());
            }
            Value::Array(blocks) if !blocks.is_empty() => blocks,
            other => return Err(must_be(path, &other, CONTENT)),
        };
        let mut user = Content::default();
        for (index, block) in blocks.into_iter().enumerate() {
            let path = format!("{path}[{index}]");
            let mut block = object(&path, block)?;
            match block.get("type").and_then(Value::as_str) {
                Some("text") => user.push_text(take_text(&mut block, &path, "text")?),
                Some("document") => user.push_text(texts::document(&mut block, &path)?),
                Some("search_result") => user.push_text(texts::search_result(&mut block, &path)?),
                Some("tool_result") => self.push_result(&path, block)?,
                Some("image") => user.push_image(texts::image(block, &path, IN_USER)?),
                kind => return Err(unknown_block(&path, kind, IN_USER)),
            }
        }
        if !user.is_empty() {
            self.push_content("user", user.into_value(SEPARATOR));
        }
        Ok(())
    }

    fn push_result(&mut self, path: &str, mut block: Map<String, Value>) -> Result<(), ApiError> {
        let id = take_text(&mut block, path, "tool_use_id")?;
        let failed = optional_flag(&block, path, "is_error")?.unwrap_or(false);
        let path = format!("{path}.content");
        let mut result = Content::default();
        match block.get_mut("content").map(Value::take) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => result.push_text(text),
            Some(Value::Array(blocks)) => texts::of_result(&path, blocks, &mut result)?,
            Some(other) => return Err(must_be(&path, &other, CONTENT)),
        }
        // Templates have no field that marks a result as failed.
        let content = match result.into_value("\n") {
            Value::String(text) if failed => format!("Error: {text}").into(),
            Value::Array(mut parts) if failed => {
                parts.insert(0, json!({"type": "text", "text": "Error: "}));
                Value::Array(parts)
            }
            content => content,
        };
        let mut message = json!({"role": "tool", "tool_call_id": id, "content": content});
        if let Some(name) = self.tools.get(&id) {
            message["name"] = name.as_str().into();
        }
        self.messages.push(message);
        Ok(())
    }

    fn read_assistant(
        &mut self,
        path: &str,
        content: Value,
        raw: Option<&Raw>,
    ) -> Result<(), ApiError> {
        let blocks = match content {
            Value::String(text) => {
                self.push_assistant(text, Vec::new(), Vec::new());
                return Ok(());
            }
            Value::Array(blocks) => blocks,
            other => return Err(must_be(path, &other, CONTENT)),
        };
        let raw = digits::texts_of(raw, &blocks);
        let (mut text, mut thoughts, mut calls) = (String::new(), Vec::new(), Vec::new());
        for (index, block) in blocks.into_iter().enumerate() {
            let path = format!("{path}[{index}]");
            let mut block = object(&path, block)?;
            match block.get("type").and_then(Value::as_str) {
                Some("text") => text.push_str(&take_text(&mut block, &path, "text")?),
                Some("thinking") => thoughts.push(take_text(&mut block, &path, "thinking")?),
                // Only Anthropic can decrypt this block.
                Some("redacted_thinking") => (),
                Some("tool_use") => {
                    let input = raw.get(index).and_then(|raw| raw.field("input"));
                    calls.push(self.read_call(&path, block, input)?);
                }
                kind => {
                    let known = "text, thinking, redacted_thinking or tool_use";
                    return Err(unknown_block(&path, kind, known));
                }
            }
        }
        thoughts.retain(|thought| !thought.is_empty());
        self.push_assistant(text, thoughts, calls);
        Ok(())
    }

    /// Extends the last message if it is the assistant's; otherwise adds a message of the assistant.
    fn push_assistant(&mut self, text: String, thoughts: Vec<String>, calls: Vec<Value>) {
        if !text.is_empty() || !self.ends_with_assistant() {
            self.push_text("assistant", text);
        }
        let Some(message) = self.messages.last_mut() else {
            return;
        };
        if !thoughts.is_empty() {
            let before = message.get("reasoning_content").and_then(Value::as_str);
            let before = before.into_iter().map(str::to_owned);
            let all: Vec<String> = before.chain(thoughts).collect();
            message["reasoning_content"] = all.join("\n").into();
        }
        if !calls.is_empty() {
            match message.get_mut("tool_calls") {
                Some(Value::Array(before)) => before.extend(calls),
                _ => message["tool_calls"] = calls.into(),
            }
        }
    }

    fn read_call(
        &mut self,
        path: &str,
        mut block: Map<String, Value>,
        raw: Option<Raw>,
    ) -> Result<Value, ApiError> {
        let id = take_text(&mut block, path, "id")?;
        let name = take_text(&mut block, path, "name")?;
        let input = match block.get_mut("input").map(Value::take) {
            None | Some(Value::Null) => json!({}),
            Some(input @ Value::Object(_)) => digits::arguments(input, raw),
            Some(other) => return Err(must_be(&format!("{path}.input"), &other, "an object")),
        };
        self.tools.insert(id.clone(), name.clone());
        let function = json!({"name": name, "arguments": input});
        Ok(json!({"id": id, "type": "function", "function": function}))
    }

    /// Adds a system message, as a user message where the template takes no system message.
    fn push_system(&mut self, text: String) {
        let is_first = self
            .messages
            .iter()
            .all(|message| message["role"] == "system");
        if is_first || self.takes_late_system {
            self.push_text("system", text)
        } else {
            self.push_text("user", text)
        }
    }

    fn push_text(&mut self, role: &str, text: String) {
        self.push_content(role, Value::String(text));
    }

    /// Extends the last message if it has this role; otherwise adds a message. Many templates refuse two consecutive
    /// messages of one role. The content is a text, or a list of texts and images.
    fn push_content(&mut self, role: &str, content: Value) {
        let last = self.messages.last_mut();
        let last = last.filter(|last| last["role"] == role);
        let Some(before) = last.and_then(|last| last.get_mut("content")) else {
            self.messages
                .push(json!({"role": role, "content": content}));
            return;
        };
        if let (Value::String(before), Value::String(text)) = (&mut *before, &content) {
            if !before.is_empty() {
                before.push_str(SEPARATOR);
            }
            before.push_str(text);
            return;
        }
        let mut parts = parts_of(before.take());
        let end = parts.last_mut().and_then(|part| part.get_mut("text"));
        if let Some(Value::String(end)) = end
            && !begins_with_image(&content)
        {
            end.push_str(SEPARATOR);
        }
        parts.extend(parts_of(content));
        *before = Value::Array(parts);
    }
}

/// A content as a list of parts.
fn parts_of(content: Value) -> Vec<Value> {
    match content {
        Value::Array(parts) => parts,
        Value::String(text) if text.is_empty() => Vec::new(),
        text => vec![json!({"type": "text", "text": text})],
    }
}

fn begins_with_image(content: &Value) -> bool {
    content.get(0).is_some_and(|part| part["type"] == "image")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_with(body: Value, takes_late_system: bool) -> Value {
        let mut filter = HeaderFilter::new(true);
        let read = read(&mut Fields::of(&body), takes_late_system, &mut filter);
        let conversation = read.unwrap_or_else(|error| panic!("{error}"));
        Value::Array(conversation.into_messages())
    }

    #[test]
    fn system_messages_stay_in_place_in_a_role_that_the_template_takes() {
        let body = json!({"system": "a", "messages": [
            {"role": "system", "content": "b"},
            {"role": "user", "content": "c"},
            {"role": "system", "content": [{"type": "text", "text": "d"}]},
            {"role": "assistant", "content": "e"},
            {"role": "system", "content": "f"},
            {"role": "user", "content": "g"},
        ]});
        let message = |role: &str, content: &str| json!({"role": role, "content": content});
        let in_place = json!([
            message("system", "a\n\nb"),
            message("user", "c"),
            message("system", "d"),
            message("assistant", "e"),
            message("system", "f"),
            message("user", "g"),
        ]);
        assert_eq!(read_with(body.clone(), true), in_place);
        let as_user = json!([
            message("system", "a\n\nb"),
            message("user", "c\n\nd"),
            message("assistant", "e"),
            message("user", "f\n\ng"),
        ]);
        assert_eq!(read_with(body, false), as_user);
    }

    #[test]
    fn the_texts_of_result_blocks_are_read() {
        let result = |content: Value| {
            let body = json!({"messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": content}]},
            ]});
            let read = read(&mut Fields::of(&body), true, &mut HeaderFilter::new(true));
            read.map(|read| read.into_messages()[0]["content"].clone())
                .map_err(|error| error.to_string())
        };
        let found = json!([
            {"type": "tool_reference", "tool_name": "seat"},
            {"type": "text", "text": "found"},
            {"type": "search_result", "title": "Seats", "source": "book", "content": [{"type": "text", "text": "row 4"}]},
            {"type": "document", "title": "Plan", "source": {"type": "text", "media_type": "text/plain", "data": "row 5"}},
            {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "row 6"}]}},
        ]);
        let expected = "The tool seat is available.\nfound\nSeats\nbook\nrow 4\nPlan\nrow 5\nrow 6";
        assert_eq!(result(found), Ok(json!(expected)));
        for (block, expected) in [
            (
                json!({"type": "tool_reference"}),
                "messages[0].content[0].content[0].tool_name is missing",
            ),
            (
                json!({"type": "image", "source": {}}),
                "messages[0].content[0].content[0].source.type is missing, must be base64 or url",
            ),
            (
                json!({"type": "video"}),
                "messages[0].content[0].content[0].type is \"video\", must be text, tool_reference",
            ),
            (
                json!({"type": "document", "source": {"type": "base64", "data": "JVBE"}}),
                "messages[0].content[0].content[0].source.type is \"base64\", must be text or content",
            ),
        ] {
            let error = result(json!([block])).expect_err("is refused");
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn consecutive_messages_of_one_role_are_merged() {
        let call = |id: &str| json!({"type": "tool_use", "id": id, "name": "f", "input": {"x": 1}});
        let body = json!({"messages": [
            {"role": "user", "content": "a"},
            {"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}, call("1")]},
            {"role": "assistant", "content": [{"type": "text", "text": "d"}, call("2")]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": "r"},
                {"type": "tool_result", "tool_use_id": "2", "is_error": true, "content": "no"},
            ]},
        ]});
        let function = json!({"name": "f", "arguments": {"x": 1}});
        let expected = json!([
            {"role": "user", "content": "a\n\nb\n\nc"},
            {"role": "assistant", "content": "d", "reasoning_content": "t", "tool_calls": [
                {"id": "1", "type": "function", "function": function},
                {"id": "2", "type": "function", "function": function},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "r", "name": "f"},
            {"role": "tool", "tool_call_id": "2", "content": "Error: no", "name": "f"},
        ]);
        assert_eq!(read_with(body, true), expected);
    }

    #[test]
    fn images_of_results_stay_between_their_texts() {
        let image = |url: &str| {
            let source = json!({"type": "url", "url": url});
            json!({"type": "image", "source": source, "cache_control": {"type": "ephemeral"}})
        };
        let text = |text: &str| json!({"type": "text", "text": text});
        let body = json!({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "1", "content": [text("a"), text("b"), image("x"), text("c"), image("y")]},
            {"type": "tool_result", "tool_use_id": "2", "is_error": true, "content": [image("z")]},
            image("u"),
            text("d"),
        ]}]});
        let messages = read_with(body, true);
        let shown = |message: &Value| {
            let parts = message["content"].as_array().expect("parts").iter();
            let shown = parts.map(|part| part["text"].as_str().or_else(|| part["url"].as_str()));
            shown
                .map(|it| it.expect("a text or a URL").to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(shown(&messages[0]), ["a\nb", "x", "c", "y"]);
        assert_eq!(shown(&messages[1]), ["Error: ", "z"]);
        assert_eq!(shown(&messages[2]), ["u", "d"]);
        let place = &messages[0]["content"][3]["at"];
        assert_eq!(place, "messages[0].content[0].content[4]");
    }
}
