//! Extracts the texts of content blocks in user messages and tool results.

use serde_json::{Map, Value};

use super::system::{into_text, texts_of, unknown_block};
use crate::error::ApiError;
use crate::images::{Content, Encoding, image_part};
use crate::openai::json_values::{missing, must_be, object, optional_text, text};

/// The supported types of blocks in tool results, for errors.
const IN_RESULTS: &str = "text, tool_reference, search_result or document, with text only: the model reads no images or files";

/// Reads the blocks of a tool result.
pub(super) fn of_result(
    path: &str,
    blocks: Vec<Value>,
    content: &mut Content,
) -> Result<(), ApiError> {
    for (index, block) in blocks.into_iter().enumerate() {
        let path = format!("{path}[{index}]");
        let mut block = object(&path, block)?;
        let kind = block.get("type").and_then(Value::as_str);
        let text = match kind.map(str::to_owned).as_deref() {
            Some("text") => take_text(&mut block, &path, "text")?,
            Some("image") => {
                content.push_image(image(block, &path, IN_RESULTS)?);
                continue;
            }
            // The result of a tool search. The tool's description is in the prompt already, with the other tools.
            Some("tool_reference") => {
                let name = text(&block, &path, "tool_name")?;
                format!("The tool {name} is available.")
            }
            Some("search_result") => search_result(&mut block, &path)?,
            Some("document") => document(&mut block, &path)?,
            kind => return Err(unknown_block(&path, kind, IN_RESULTS)),
        };
        content.push_text(text);
    }
    Ok(())
}

/// The part of an image block. `known` lists the types of blocks that a model without images takes there.
pub(super) fn image(
    mut block: Map<String, Value>,
    path: &str,
    known: &str,
) -> Result<Value, ApiError> {
    let source_path = format!("{path}.source");
    let source = block.get_mut("source").map(Value::take);
    let source = source.ok_or_else(|| missing(source_path.clone(), "an object"))?;
    let mut source = object(&source_path, source)?;
    let kind = source.get("type").and_then(Value::as_str);
    let encoding = match kind.map(str::to_owned).as_deref() {
        Some("base64") => Encoding::Base64(take_text(&mut source, &source_path, "data")?),
        Some("url") => Encoding::Url(take_text(&mut source, &source_path, "url")?),
        kind => return Err(unknown_block(&source_path, kind, "base64 or url")),
    };
    let field = format!("{path}.type");
    let refusal = format!("{field} is \"image\", must be {known}");
    Ok(image_part(path, encoding, (field, refusal)))
}

pub(super) fn take_text(
    block: &mut Map<String, Value>,
    path: &str,
    name: &str,
) -> Result<String, ApiError> {
    text(block, path, name)?;
    let taken = block.get_mut(name).map(Value::take);
    Ok(taken.and_then(into_text).unwrap_or_default())
}

/// The text of a search result, after its title and source.
pub(super) fn search_result(
    block: &mut Map<String, Value>,
    path: &str,
) -> Result<String, ApiError> {
    let mut parts = vec![
        take_text(block, path, "title")?,
        take_text(block, path, "source")?,
    ];
    let path = format!("{path}.content");
    match block.get_mut("content").map(Value::take) {
        Some(Value::Array(blocks)) => parts.extend(texts_of(&path, blocks)?),
        Some(other) => return Err(must_be(&path, &other, "a list of blocks")),
        None => return Err(missing(path, "a list of blocks")),
    }
    Ok(parts.join("\n"))
}

/// The text of a document, after its title and context.
pub(super) fn document(block: &mut Map<String, Value>, path: &str) -> Result<String, ApiError> {
    let mut parts = Vec::new();
    for name in ["title", "context"] {
        parts.extend(optional_text(block, path, name)?.map(str::to_owned));
    }
    let path = format!("{path}.source");
    let source = block.get_mut("source").map(Value::take);
    let source = source.ok_or_else(|| missing(path.clone(), "an object"))?;
    let mut source = object(&path, source)?;
    let kind = source.get("type").and_then(Value::as_str);
    match kind.map(str::to_owned).as_deref() {
        Some("text") => parts.push(take_text(&mut source, &path, "data")?),
        Some("content") => {
            let path = format!("{path}.content");
            match source.get_mut("content").map(Value::take) {
                Some(Value::String(text)) => parts.push(text),
                Some(Value::Array(blocks)) => parts.extend(texts_of(&path, blocks)?),
                Some(other) => return Err(must_be(&path, &other, "a string or a list of blocks")),
                None => return Err(missing(path, "a string or a list of blocks")),
            }
        }
        kind => return Err(unknown_block(&path, kind, "text or content")),
    }
    Ok(parts.join("\n"))
}
