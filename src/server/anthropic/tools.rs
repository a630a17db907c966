//! Parses the tools of an Anthropic Messages call.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::tool_choice::{Choice, Mode};
use crate::openai::chat::tools::{CallTools, ToolList, as_function, read_list};
use crate::openai::json_values::{missing, must_be, object, optional_flag, text};

const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";

pub(super) fn read(fields: &mut Fields) -> Result<CallTools, ApiError> {
    let raw = fields.take_raw(TOOLS);
    let raw = raw.filter(|raw| !raw.has_no_effect());
    let (choice, parallel) = read_choice(fields)?;
    if choice == Choice::None {
        return Ok(CallTools::default());
    }
    let mut list = ToolList::default();
    if let Some(raw) = &raw {
        for (index, (item, sent)) in read_list(fields, TOOLS, raw)?.into_iter().enumerate() {
            if let Some((path, function)) = function(index, item)? {
                let name = function.get("name").and_then(Value::as_str);
                let json = as_function(name.unwrap_or_default(), &sent, "input_schema");
                list.add(&path, &function, json)?;
            }
        }
    }
    CallTools::of(list, choice, CHOICE, parallel)
}

/// A function's path in the body, and the function.
type FunctionWithPath = (String, Map<String, Value>);

/// Converts an entry to OpenAI's form of a function. `None` for Anthropic's built-in tools, which agents send to any
/// server: other models cannot call them, as Anthropic runs them or trained its models on them.
fn function(index: usize, item: Value) -> Result<Option<FunctionWithPath>, ApiError> {
    let path = format!("{TOOLS}[{index}]");
    let mut entry = object(&path, item)?;
    match entry.get("type") {
        None | Some(Value::Null) => (),
        Some(Value::String(kind)) if kind == "custom" => (),
        Some(Value::String(_)) => return Ok(None),
        Some(other) => return Err(must_be(&format!("{path}.type"), other, "a string")),
    }
    let schema_path = format!("{path}.input_schema");
    let schema = match entry.get_mut("input_schema").map(Value::take) {
        Some(schema @ Value::Object(_)) => schema,
        Some(other) => return Err(must_be(&schema_path, &other, "a JSON schema: an object")),
        None => return Err(missing(schema_path, "a JSON schema")),
    };
    let mut function = Map::new();
    for name in ["name", "description", "strict"] {
        if let Some(value) = entry.get_mut(name) {
            function.insert(name.to_owned(), value.take());
        }
    }
    function.insert("parameters".to_owned(), schema);
    Ok(Some((path, function)))
}

/// Reads the tool choice, and whether an answer may have more than one call.
fn read_choice(fields: &mut Fields) -> Result<(Choice, bool), ApiError> {
    let automatic = Choice::Mode(Mode::Auto);
    let choice = match fields.take_tree(CHOICE)? {
        None => return Ok((automatic, true)),
        Some(choice) => object(CHOICE, choice)?,
    };
    let single = optional_flag(&choice, CHOICE, "disable_parallel_tool_use")?.unwrap_or(false);
    let choice = match text(&choice, CHOICE, "type")? {
        "auto" => automatic,
        "any" => Choice::Mode(Mode::Required),
        "none" => Choice::None,
        "tool" => Choice::Named {
            name: text(&choice, CHOICE, "name")?.to_owned(),
            path: format!("{CHOICE}.name"),
        },
        _ => {
            let wanted = "auto, any, tool or none";
            return Err(must_be(&format!("{CHOICE}.type"), &choice["type"], wanted));
        }
    };
    Ok((choice, !single))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::raw::Raw;

    #[test]
    fn tool_schemas_reach_the_template_as_they_were_sent() {
        let schema = r#"{"type":"object", "required": ["z","a"],"properties":{"z":{"maximum":12345678901234567890123},"a":{"minimum":1.10,"maximum":1E5}}}"#;
        for (sent, expected) in [
            (
                format!(r#""name": "f", "description": "d", "input_schema": {schema}"#),
                format!(r#""name": "f", "description": "d", "parameters": {schema}"#),
            ),
            (
                format!(
                    r#""type": "custom", "input_schema": {schema}, "name": "f", "description": null, "strict": true"#
                ),
                format!(
                    r#""parameters": {schema}, "name": "f", "description": null, "strict": true"#
                ),
            ),
            (
                r#""name": "f", "parameters": {"a": 1}, "input_schema": {}, "cache_control": {"type": "ephemeral"}"#
                    .to_owned(),
                r#""name": "f", "parameters": {}"#.to_owned(),
            ),
        ] {
            let mut fields = Fields::of(&json!({}));
            fields.put_raw(TOOLS, Raw::in_text(&format!("[{{{sent}}}]")));
            let tools = read(&mut fields).unwrap_or_else(|error| panic!("{error}"));
            let prompt = tools.prompt.expect("there are tools");
            let expected = format!(r#"[{{"type": "function", "function": {{{expected}}}}}]"#);
            assert_eq!(prompt.get(), expected);
        }
    }
}
