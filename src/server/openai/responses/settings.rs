//! The fields of a request that its response repeats.

use serde::Serialize;
use serde_json::value::RawValue;

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::Common;
use crate::openai::json_values::must_be;
use crate::raw::Raw;

/// Maximum bytes of JSON of a field that is only repeated in the response, such as `metadata` or `user`.
const MAX_REPEATED_BYTES: usize = 16 << 10;

/// Maximum number of tools that are repeated. A request with more tools is refused.
const MAX_TOOLS: usize = 1024;

#[derive(Serialize)]
pub(super) struct Settings {
    pub(super) model: String,
    background: bool,
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<u32>,
    max_tool_calls: Option<Box<RawValue>>,
    metadata: Box<RawValue>,
    parallel_tool_calls: bool,
    pub(super) previous_response_id: Option<String>,
    prompt_cache_key: Option<Box<RawValue>>,
    reasoning: ReasoningSettings,
    safety_identifier: Option<Box<RawValue>>,
    service_tier: &'static str,
    pub(super) store: bool,
    pub(super) temperature: f32,
    text: TextSettings,
    tool_choice: Box<RawValue>,
    tools: Box<RawValue>,
    pub(super) top_logprobs: u32,
    pub(super) top_p: f32,
    truncation: &'static str,
    user: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct ReasoningSettings {
    effort: Option<Box<RawValue>>,
    summary: Option<()>,
}

#[derive(Serialize)]
struct TextSettings {
    format: Box<RawValue>,
    verbosity: Box<RawValue>,
}

impl Settings {
    /// Reads the fields to repeat, and charges the copies. Leaves fields in place that other code parses later.
    pub(super) fn read(fields: &mut Fields, model: &str) -> Result<Self, ApiError> {
        check_truncation(fields)?;
        let text = fields.peek("text").cloned();
        let text = Nested::of(fields, "text", text)?;
        let reasoning = fields.peek("reasoning").cloned();
        let reasoning = Nested::of(fields, "reasoning", reasoning)?;
        let tools = tools(fields)?;
        let choice = peek_repeated(fields, "tool_choice")?;
        let parallel = fields.peek("parallel_tool_calls");
        let is_parallel = parallel.is_none_or(|raw| raw.bytes().as_ref() != b"false");
        let instructions = fields.string("instructions")?;
        fields.charge_request_bytes(instructions.as_ref().map_or(0, String::len))?;
        Ok(Self {
            model: model.to_owned(),
            background: false,
            instructions,
            max_output_tokens: fields.token_limit("max_output_tokens")?,
            max_tool_calls: take_repeated(fields, "max_tool_calls")?,
            metadata: take_repeated(fields, "metadata")?.unwrap_or_else(|| literal("{}")),
            parallel_tool_calls: is_parallel,
            previous_response_id: fields.string("previous_response_id")?,
            prompt_cache_key: take_repeated(fields, "prompt_cache_key")?,
            reasoning: ReasoningSettings {
                effort: reasoning.peek(fields, "effort")?,
                summary: None,
            },
            safety_identifier: take_repeated(fields, "safety_identifier")?,
            service_tier: "default",
            store: fields.optional_flag("store")?.unwrap_or(true),
            temperature: 1.0,
            text: TextSettings {
                format: text
                    .peek(fields, "format")?
                    .unwrap_or_else(|| literal(r#"{"type":"text"}"#)),
                verbosity: text
                    .peek(fields, "verbosity")?
                    .unwrap_or_else(|| literal("\"medium\"")),
            },
            tool_choice: choice.unwrap_or_else(|| literal("\"auto\"")),
            tools: tools.unwrap_or_else(|| literal("[]")),
            top_logprobs: 0,
            top_p: 1.0,
            truncation: "disabled",
            user: take_repeated(fields, "user")?,
        })
    }

    pub(super) fn set_sampling(&mut self, common: &Common) {
        self.temperature = common.sampling.temperature;
        self.top_p = common.sampling.top_p;
    }
}

/// An object with fields to repeat, which other code parses later.
struct Nested(Option<Fields>);

impl Nested {
    fn of(fields: &Fields, name: &str, raw: Option<Raw>) -> Result<Self, ApiError> {
        let nested = raw.map(|raw| fields.nested(name, &raw));
        nested.transpose().map(Self)
    }

    fn peek(&self, fields: &mut Fields, name: &str) -> Result<Option<Box<RawValue>>, ApiError> {
        let raw = self.0.as_ref().and_then(|nested| nested.peek(name));
        raw.map(|raw| repeated(fields, raw)).transpose()
    }
}

/// A field to repeat, which is left in place for other code to parse.
fn peek_repeated(fields: &mut Fields, name: &str) -> Result<Option<Box<RawValue>>, ApiError> {
    let raw = fields.peek(name).cloned();
    raw.map(|raw| repeated(fields, &raw)).transpose()
}

fn take_repeated(fields: &mut Fields, name: &str) -> Result<Option<Box<RawValue>>, ApiError> {
    let Some(raw) = fields.take_raw(name) else {
        return Ok(None);
    };
    let bytes = raw.bytes().len();
    if bytes > MAX_REPEATED_BYTES {
        let text = format!("{name} has {bytes} bytes, limit is {MAX_REPEATED_BYTES}: shorten it");
        return Err(ApiError::field(name, text));
    }
    repeated(fields, &raw).map(Some)
}

/// Copies a field, because the response repeats it after the body's memory is freed.
fn repeated(fields: &mut Fields, raw: &Raw) -> Result<Box<RawValue>, ApiError> {
    fields.charge_request_bytes(raw.bytes().len())?;
    raw.parse("body")
}

/// Tools to repeat. Fields of functions that clients expect are added if they were not sent.
fn tools(fields: &mut Fields) -> Result<Option<Box<RawValue>>, ApiError> {
    const NAME: &str = "tools";
    let Some(raw) = fields.peek(NAME).cloned() else {
        return Ok(None);
    };
    if raw.has_no_effect() {
        return Ok(None);
    }
    let unchanged = repeated(fields, &raw)?;
    if !raw.is_list() {
        return Ok(Some(unchanged));
    }
    let (tools, n_tools) = raw.items(NAME, MAX_TOOLS)?;
    // A list that is too long, or an invalid tool, is refused where tools are parsed.
    if n_tools > MAX_TOOLS {
        return Ok(Some(unchanged));
    }
    let tools = tools.iter().map(|tool| with_defaults(fields, tool));
    let tools = format!("[{}]", tools.collect::<Vec<String>>().join(","));
    Ok(Some(RawValue::from_string(tools).unwrap_or(unchanged)))
}

fn with_defaults(fields: &Fields, tool: &Raw) -> String {
    let mut json = String::from_utf8_lossy(tool.bytes()).into_owned();
    let Ok(nested) = fields.nested("tools", tool) else {
        return json;
    };
    if nested.text("type").as_deref() != Some("function") {
        return json;
    }
    for (name, value) in [("parameters", "null"), ("strict", "false")] {
        if nested.peek(name).is_none() {
            json.truncate(json.len() - 1);
            json.push_str(&format!(",\"{name}\":{value}}}"));
        }
    }
    json
}

fn literal(json: &str) -> Box<RawValue> {
    RawValue::from_string(json.to_owned()).expect("it is JSON")
}

/// Checks `truncation`. No conversation is truncated: one that is too long is refused, as `disabled` requires.
fn check_truncation(fields: &mut Fields) -> Result<(), ApiError> {
    const NAME: &str = "truncation";
    match fields.string(NAME)?.as_deref() {
        None | Some("disabled" | "auto") => Ok(()),
        Some(other) => Err(must_be(NAME, &other.into(), "disabled or auto")),
    }
}
