//! Reads system prompts, and removes Claude Code's billing header, which changes with every request.

use metrics::counter;
use serde_json::Value;

use crate::error::ApiError;
use crate::openai::json_values::{must_be, object, text};
use souffleur_base::field::Cut;

/// The header that Claude Code puts before its instructions. It has a hash of the request, so prompts with the header
/// share no cached prefix beyond it.
const HEADER: &str = "x-anthropic-billing-header:";

pub(super) const SEPARATOR: &str = "\n\n";

/// Removes headers that change with every request from system prompts, and counts them.
pub(super) struct HeaderFilter {
    is_on: bool,
    dropped: u64,
}

impl HeaderFilter {
    pub(super) fn new(is_on: bool) -> Self {
        Self { is_on, dropped: 0 }
    }

    /// Removes the header's line from the beginning of a text.
    fn clean(&mut self, text: String) -> String {
        if !self.is_on || !text.trim_start().starts_with(HEADER) {
            return text;
        }
        self.dropped += 1;
        let rest = text.trim_start().split_once('\n');
        rest.map_or("", |(_, rest)| rest)
            .trim_start_matches(['\r', '\n'])
            .to_owned()
    }

    pub(super) fn count(self) {
        if self.is_on {
            counter!("souffleur_changing_headers_dropped_total").increment(self.dropped);
        }
    }
}

/// Reads a system prompt: a text or a list of text blocks; `None` if it is empty without the header.
pub(super) fn read(
    path: &str,
    content: Value,
    filter: &mut HeaderFilter,
) -> Result<Option<String>, ApiError> {
    let texts = match content {
        Value::String(text) => vec![text],
        Value::Array(blocks) => texts_of(path, blocks)?,
        other => return Err(must_be(path, &other, "a string or a list of text blocks")),
    };
    let texts = texts.into_iter().map(|text| filter.clean(text));
    let texts: Vec<String> = texts.filter(|text| !text.is_empty()).collect();
    Ok((!texts.is_empty()).then(|| texts.join(SEPARATOR)))
}

/// The texts of blocks, all of which must be text blocks.
pub(super) fn texts_of(path: &str, blocks: Vec<Value>) -> Result<Vec<String>, ApiError> {
    let blocks = blocks.into_iter().enumerate();
    blocks
        .map(|(index, block)| {
            let path = format!("{path}[{index}]");
            let mut block = object(&path, block)?;
            match block.get("type").and_then(Value::as_str) {
                Some("text") => {
                    text(&block, &path, "text")?;
                    let text = block.get_mut("text").map(Value::take);
                    Ok(text.and_then(into_text).unwrap_or_default())
                }
                kind => Err(unknown_block(&path, kind, "\"text\"")),
            }
        })
        .collect()
}

pub(super) fn unknown_block(path: &str, kind: Option<&str>, known: &str) -> ApiError {
    let kind = kind.map_or_else(|| "missing".to_owned(), |kind| Cut(kind).to_string());
    let path = format!("{path}.type");
    let text = format!("{path} is {kind}, must be {known}");
    ApiError::field(path, text)
}

pub(super) fn into_text(value: Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text),
        _ => None,
    }
}
