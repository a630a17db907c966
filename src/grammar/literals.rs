//! The words that a grammar dictates, as a text in which drafts are searched: names of properties and tools, values of
//! enumerations, tags.
//!
//! A schema becomes an example of its values, `{"name": "", "size": 0}`, since an output has the same tokens between
//! two values. Nothing depends on the text but the speed of outputs.

use std::io;
use std::sync::{Arc, Mutex};

use serde_json::{Map, Value};

use super::GrammarWish;
use super::cache::lock;
use super::source::quoted;
use super::tools::trigger;
use souffleur_state::grammar::{Constraint, JsonWhitespace};

/// Longest text. Its tokens take a few milliseconds.
const MAX_BYTES: usize = 16 << 10;
/// The deepest value of an example. Schemas may refer to themselves.
const MAX_DEPTH: usize = 12;
/// Parts of a structural tag that are text of the output.
const TAG_TEXTS: [&str; 3] = ["begin", "end", "value"];

/// The most tokens of a text.
const MAX_TOKENS: usize = 4096;
/// Number of texts whose tokens are kept, of at most 32 KiB each.
const MAX_KEPT: usize = 64;

/// The tokens of the last texts.
#[derive(Default)]
pub(super) struct Encoded(Mutex<Vec<(String, Arc<[u32]>)>>);

impl Encoded {
    /// The tokens of a text, which `encode` makes if the text is new.
    pub(super) fn tokens(
        &self,
        text: String,
        encode: impl FnOnce(&str) -> Option<Vec<u32>>,
    ) -> Arc<[u32]> {
        if text.is_empty() {
            return Arc::default();
        }
        let known = |kept: &[(String, Arc<[u32]>)]| {
            let found = kept.iter().find(|(known, _)| *known == text);
            found.map(|(_, tokens)| tokens.clone())
        };
        if let Some(tokens) = known(lock(&self.0).as_slice()) {
            return tokens;
        }
        let mut tokens = encode(&text).unwrap_or_default();
        tokens.truncate(MAX_TOKENS);
        let tokens: Arc<[u32]> = tokens.into();
        let mut kept = lock(&self.0);
        if kept.len() >= MAX_KEPT {
            kept.remove(0);
        }
        kept.push((text, tokens.clone()));
        tokens
    }
}

/// The words of a grammar, one example or text in a line; empty if it dictates none.
pub(super) fn text(wish: &GrammarWish) -> String {
    let mut writer = Writer::default();
    if let Some(constraint) = wish.constraint.as_deref() {
        writer.constraint(constraint);
    }
    let tools = wish.tools.iter().flat_map(|tools| &tools.tools);
    for tool in tools {
        if writer.is_full {
            break;
        }
        if let Some(format) = wish.tool_format {
            writer.push(trigger(format));
            writer.push("\n");
        }
        let name = quoted(&tool.name);
        writer.push(&format!("{{\"name\": {name}, \"arguments\": "));
        match &tool.parameters {
            Some(schema) => writer.schema(schema),
            None => writer.push("{}"),
        }
        writer.push("}");
        writer.end_line();
    }
    writer.text
}

#[derive(Default)]
struct Writer {
    text: String,
    /// A part did not fit, so the text has ended. Otherwise small parts after it would make the walk over a large schema
    /// long.
    is_full: bool,
    /// There is no space after commas and colons.
    is_compact: bool,
}

/// A schema in its document.
#[derive(Clone, Copy)]
struct Place<'a> {
    root: &'a Value,
    depth: usize,
}

impl Writer {
    fn push(&mut self, text: &str) {
        self.is_full |= text.len() > MAX_BYTES - self.text.len();
        if !self.is_full {
            self.text.push_str(text);
        }
    }

    fn end_line(&mut self) {
        self.push("\n");
    }

    fn separator(&mut self, sign: &str) {
        self.push(sign);
        if !self.is_compact {
            self.push(" ");
        }
    }

    fn constraint(&mut self, constraint: &Constraint) {
        match constraint {
            Constraint::JsonSchema {
                schema, whitespace, ..
            } => {
                self.is_compact = *whitespace == JsonWhitespace::Compact;
                self.schema(schema);
                self.end_line();
            }
            Constraint::Choice(texts) => {
                for text in texts.iter() {
                    if self.is_full {
                        break;
                    }
                    self.push(text);
                    self.end_line();
                }
            }
            Constraint::StructuralTag(tag) => self.tag(tag, 0),
            Constraint::JsonObject(_) | Constraint::Regex(_) | Constraint::Ebnf(_) => (),
        }
        self.is_compact = false;
    }

    fn tag(&mut self, tag: &Value, depth: usize) {
        if depth > MAX_DEPTH {
            return;
        }
        match tag {
            Value::Array(items) => {
                for item in items {
                    if self.is_full {
                        break;
                    }
                    self.tag(item, depth + 1);
                }
            }
            Value::Object(fields) => {
                for (name, value) in fields {
                    if self.is_full {
                        break;
                    }
                    match value {
                        Value::String(text) if TAG_TEXTS.contains(&name.as_str()) => {
                            self.push(text);
                            self.end_line();
                        }
                        Value::Object(_) if name == "schema" || name == "json_schema" => {
                            self.schema(value);
                            self.end_line();
                        }
                        _ => self.tag(value, depth + 1),
                    }
                }
            }
            _ => (),
        }
    }

    fn schema(&mut self, schema: &Value) {
        let place = Place {
            root: schema,
            depth: 0,
        };
        self.example(schema, place);
    }

    /// Writes an example of a schema's values.
    fn example(&mut self, schema: &Value, place: Place<'_>) {
        let place = Place {
            depth: place.depth + 1,
            ..place
        };
        let Some(fields) = schema.as_object().filter(|_| place.depth <= MAX_DEPTH) else {
            return self.push("null");
        };
        if self.is_full {
            return;
        }
        if let Some(target) = referred(fields, place.root) {
            return self.example(target, place);
        }
        let of_choice = ["anyOf", "oneOf", "allOf"].into_iter();
        let mut of_choice = of_choice.filter_map(|name| fields.get(name)?.as_array());
        if let Some(value) = fields.get("const") {
            self.value(value);
        } else if let Some(Value::Array(values)) = fields.get("enum") {
            self.list(values, "|", |writer, value| writer.value(value));
        } else if let Some(Value::Object(properties)) = fields.get("properties") {
            self.object(properties, place);
        } else if let Some(choices) = of_choice.next() {
            self.list(choices, "|", |writer, choice| writer.example(choice, place));
        } else if let Some(items) = fields.get("items") {
            self.push("[");
            self.example(items, place);
            self.push("]");
        } else {
            self.push(example_of_type(fields));
        }
    }

    fn object(&mut self, properties: &Map<String, Value>, place: Place<'_>) {
        self.push("{");
        for (index, (name, schema)) in properties.iter().enumerate() {
            if self.is_full {
                return;
            }
            if index > 0 {
                self.separator(",");
            }
            self.push(&quoted(name));
            self.separator(":");
            self.example(schema, place);
        }
        self.push("}");
    }

    fn list<T>(&mut self, items: &[T], sign: &str, mut write: impl FnMut(&mut Self, &T)) {
        for (index, item) in items.iter().enumerate() {
            if self.is_full {
                return;
            }
            if index > 0 {
                self.push(sign);
            }
            write(self, item);
        }
    }

    fn value(&mut self, value: &Value) {
        let mut json = Limited {
            bytes: Vec::new(),
            limit: MAX_BYTES - self.text.len(),
        };
        match serde_json::to_writer(&mut json, value) {
            Ok(()) => self.push(&String::from_utf8_lossy(&json.bytes)),
            Err(_) => self.is_full = true,
        }
    }
}

/// Takes bytes up to a limit, and refuses those beyond it.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The schema that a reference within the document names.
fn referred<'a>(fields: &Map<String, Value>, root: &'a Value) -> Option<&'a Value> {
    let pointer = fields.get("$ref")?.as_str()?.strip_prefix('#')?;
    root.pointer(pointer)
}

fn example_of_type(fields: &Map<String, Value>) -> &'static str {
    let kind = match fields.get("type") {
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str),
        kind => kind.and_then(Value::as_str),
    };
    match kind {
        Some("string") => "\"\"",
        Some("integer" | "number") => "0",
        Some("boolean") => "true",
        Some("array") => "[]",
        Some("object") => "{}",
        _ => "null",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use souffleur_state::output::{Tool, ToolChoice, ToolFormat, ToolUse};

    fn of(constraint: Constraint) -> String {
        text(&GrammarWish {
            constraint: Some(Arc::new(constraint)),
            ..GrammarWish::default()
        })
    }

    fn of_schema(schema: Value, whitespace: JsonWhitespace) -> String {
        of(Constraint::JsonSchema {
            schema: Arc::new(schema),
            whitespace,
            is_strict: false,
        })
    }

    #[test]
    fn a_schema_becomes_an_example_of_its_values() {
        let schema = json!({
            "type": "object",
            "properties": {
                "na\"me": {"type": "string"},
                "unit": {"enum": ["C", "F"]},
                "points": {"type": "array", "items": {"$ref": "#/$defs/point"}},
            },
            "$defs": {"point": {"type": "object", "properties": {"x": {"type": "number"}}}},
        });
        let spaced = "{\"na\\\"me\": \"\", \"unit\": \"C\"|\"F\", \"points\": [{\"x\": 0}]}\n";
        assert_eq!(of_schema(schema.clone(), JsonWhitespace::Bounded), spaced);
        let compact = "{\"na\\\"me\":\"\",\"unit\":\"C\"|\"F\",\"points\":[{\"x\":0}]}\n";
        assert_eq!(of_schema(schema, JsonWhitespace::Compact), compact);
    }

    #[test]
    fn schemas_that_refer_to_themselves_and_large_ones_have_a_bounded_text() {
        let tree = json!({"properties": {"next": {"$ref": "#"}, "name": {"type": "string"}}});
        let text = of_schema(tree, JsonWhitespace::Bounded);
        assert!(text.contains("{\"next\": {\"next\": "), "{text}");
        let values: Vec<String> = (0..10_000).map(|n| format!("value {n}")).collect();
        let text = of_schema(json!({ "enum": values }), JsonWhitespace::Bounded);
        assert!(text.len() <= MAX_BYTES && text.len() > MAX_BYTES / 2);
    }

    #[test]
    fn the_walk_over_a_schema_ends_at_the_first_part_that_does_not_fit() {
        let large = Value::from("a".repeat(100_000));
        for large in [json!({ "const": large }), json!({ "enum": [[1, large]] })] {
            let names = (0..10_000).map(|n| n.to_string());
            let refs: Map<String, Value> = names
                .map(|name| (name, json!({"$ref": "#/$defs/large"})))
                .collect();
            let schema = json!({"properties": refs, "$defs": {"large": large}});
            let text = of_schema(schema, JsonWhitespace::Bounded);
            assert_eq!(text, "{\"0\": ", "a second reference is not followed");
        }
    }

    #[test]
    fn choices_tags_and_tools_are_written_out() {
        let choice = ["yes".to_owned(), "no".to_owned()];
        assert_eq!(of(Constraint::Choice(choice.into())), "yes\nno\n");
        let tag = json!({
            "structures": [{"begin": "<a>", "schema": {"type": "object"}, "end": "</a>"}],
            "triggers": ["<a"],
        });
        let tag = of(Constraint::StructuralTag(Arc::new(tag)));
        assert_eq!(tag, "<a>\n{}\n</a>\n");
        let tool = Tool {
            name: "look".to_owned(),
            description: None,
            parameters: Some(json!({"properties": {"at": {"type": "string"}}})),
            strict: false,
        };
        let tools = ToolUse {
            tools: vec![tool],
            choice: ToolChoice::Required,
            parallel: false,
        };
        let wish = GrammarWish {
            tools: Some(Arc::new(tools)),
            tool_format: Some(ToolFormat::Hermes),
            ..GrammarWish::default()
        };
        let call = "{\"name\": \"look\", \"arguments\": {\"at\": \"\"}}\n";
        let written = text(&wish);
        assert!(written.ends_with(call), "{written}");
    }

    #[test]
    fn a_text_is_encoded_once() {
        let encoded = Encoded::default();
        let first = encoded.tokens("a".to_owned(), |_| Some(vec![5; MAX_TOKENS + 1]));
        assert_eq!(first.len(), MAX_TOKENS);
        let again = encoded.tokens("a".to_owned(), |_| None);
        assert!(Arc::ptr_eq(&first, &again));
        assert!(encoded.tokens("b".to_owned(), |_| None).is_empty());
        assert!(encoded.tokens(String::new(), |_| Some(vec![1])).is_empty());
    }

    #[test]
    fn other_grammars_dictate_no_words() {
        assert_eq!(of(Constraint::Regex("a+".into())), "");
        assert_eq!(text(&GrammarWish::default()), "");
    }
}
