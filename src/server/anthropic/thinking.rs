//! Parses the fields of a Messages call for thinking, effort and output format.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::reasoning::valid_effort;
use crate::openai::json_values::{missing, must_be, object, optional_text, text};
use crate::raw::Raw;
use souffleur_base::field::{Field, Shallow};

pub(super) const SCHEMA: &str = "output_config.format.schema";

/// Reads `thinking`, sets it in `template_kwargs` unless it is set there already, and returns whether the text of
/// thoughts is sent. Without the field, the template decides on thinking. A budget is a hint: no thought is cut off.
pub(super) fn read(
    fields: &mut Fields,
    template_kwargs: &mut Map<String, Value>,
) -> Result<bool, ApiError> {
    const NAME: &str = "thinking";
    let spec = match fields.take_tree(NAME)? {
        None => return Ok(true),
        Some(spec) => object(NAME, spec)?,
    };
    let is_enabled = match text(&spec, NAME, "type")? {
        "enabled" | "adaptive" | "between_tools" => true,
        "disabled" => false,
        _ => {
            let wanted = "enabled, disabled, adaptive or between_tools";
            return Err(must_be(&format!("{NAME}.type"), &spec["type"], wanted));
        }
    };
    if let Some(budget) = spec.get("budget_tokens").filter(|budget| !budget.is_null()) {
        let path = format!("{NAME}.budget_tokens");
        Field::new(&path, &Shallow::of(budget)).token_limit()?;
    }
    for name in ["thinking", "enable_thinking"] {
        template_kwargs.entry(name).or_insert(is_enabled.into());
    }
    match optional_text(&spec, NAME, "display")? {
        // The full thoughts are sent in place of a summary or updates.
        None | Some("summarized" | "updates") => Ok(true),
        Some("omitted") => Ok(false),
        Some(_) => {
            let wanted = "summarized, updates or omitted";
            Err(must_be(
                &format!("{NAME}.display"),
                &spec["display"],
                wanted,
            ))
        }
    }
}

/// Reads `output_config`: passes the effort to the template, and returns the schema of the answer, if there is one.
/// `output_format` is the older name of `output_config.format`.
pub(super) fn read_output(
    fields: &mut Fields,
    template_kwargs: &mut Map<String, Value>,
) -> Result<Option<Raw>, ApiError> {
    const NAME: &str = "output_config";
    let old = fields.take_raw("output_format");
    let old = match old {
        Some(raw) => schema_of(fields, "output_format", &raw)?,
        None => None,
    };
    let mut config = fields.object(NAME)?;
    if let Some(raw) = config.take_raw("effort") {
        let path = format!("{NAME}.effort");
        let value = raw.shallow(&path)?;
        let Some(effort) = value.as_str() else {
            return Err(Field::new(&path, &value).must_be("a string").into());
        };
        let effort = valid_effort(&path, effort)?;
        template_kwargs
            .entry("reasoning_effort")
            .or_insert(effort.into());
    }
    match config.take_raw("format") {
        Some(raw) => schema_of(fields, "output_config.format", &raw),
        None => Ok(old),
    }
}

fn schema_of(fields: &Fields, path: &str, raw: &Raw) -> Result<Option<Raw>, ApiError> {
    let mut format = fields.nested(path, raw)?;
    match format.text("type").as_deref() {
        Some("json_schema") => {
            let schema = format.take_raw("schema");
            let schema_path = format!("{path}.schema");
            schema
                .map(Some)
                .ok_or_else(|| missing(schema_path, "a JSON schema"))
        }
        _ => {
            let kind = format.take("type")?.unwrap_or(Shallow::Null);
            let path = format!("{path}.type");
            Err(Field::new(&path, &kind).must_be("json_schema").into())
        }
    }
}
