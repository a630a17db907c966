//! Parses a call's fields for the model's reasoning.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::json_values::{must_be, optional_flag, optional_text};
use souffleur_base::field::{Field, Shallow};

/// The efforts of reasoning, in ascending order.
pub(crate) const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// How an answer presents its reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reasoning {
    /// The text contains the reasoning, as the model writes it.
    InText,
    /// A separate field has the reasoning; it is streamed as it is generated.
    Streamed,
    /// A separate field has the reasoning; it is sent at once when it has ended.
    Whole,
    /// The answer has no reasoning.
    Hidden,
}

impl Reasoning {
    /// Reads the fields of a call. Adds thinking and effort to `template_kwargs`, unless set there already.
    pub(crate) fn read(
        fields: &mut Fields,
        template_kwargs: &mut Map<String, Value>,
    ) -> Result<Self, ApiError> {
        let nested = ReasoningFields::read(fields)?;
        let effort = effort(fields, "reasoning_effort")?.or(nested.effort);
        let is_enabled = match effort.as_deref() {
            Some("none") => Some(false),
            Some(_) => Some(nested.is_enabled.unwrap_or(true)),
            None => nested.is_enabled,
        };
        let mut set_default = |name: &str, value: Value| {
            template_kwargs.entry(name).or_insert(value);
        };
        if let Some(is_enabled) = is_enabled {
            set_default("thinking", is_enabled.into());
            set_default("enable_thinking", is_enabled.into());
        }
        if let Some(effort) = effort.filter(|effort| effort != "none") {
            set_default("reasoning_effort", effort.into());
        }
        let is_separate = fields.optional_flag("separate_reasoning")?.unwrap_or(true);
        let is_streamed = fields.optional_flag("stream_reasoning")?.unwrap_or(true);
        let is_included = fields.optional_flag("include_reasoning")?.unwrap_or(true);
        Ok(
            match (is_included && !nested.is_excluded, is_separate, is_streamed) {
                (false, _, _) => Self::Hidden,
                (true, false, _) => Self::InText,
                (true, true, true) => Self::Streamed,
                (true, true, false) => Self::Whole,
            },
        )
    }
}

#[derive(Default)]
struct ReasoningFields {
    effort: Option<String>,
    is_enabled: Option<bool>,
    is_excluded: bool,
}

impl ReasoningFields {
    fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        const NAME: &str = "reasoning";
        let object = match fields.take_tree(NAME)? {
            None => return Ok(Self::default()),
            Some(Value::Object(object)) => object,
            Some(other) => return Err(must_be(NAME, &other, "an object")),
        };
        if object.get("max_tokens").is_some_and(|most| !most.is_null()) {
            return Err(ApiError::unsupported("reasoning.max_tokens"));
        }
        let path = format!("{NAME}.effort");
        let effort = optional_text(&object, NAME, "effort")?;
        Ok(Self {
            effort: effort
                .map(|effort| valid_effort(&path, effort))
                .transpose()?,
            is_enabled: optional_flag(&object, NAME, "enabled")?,
            is_excluded: optional_flag(&object, NAME, "exclude")?.unwrap_or(false),
        })
    }
}

fn effort(fields: &mut Fields, name: &str) -> Result<Option<String>, ApiError> {
    let effort = fields.string(name)?;
    effort.map(|effort| valid_effort(name, &effort)).transpose()
}

pub(crate) fn valid_effort(path: &str, effort: &str) -> Result<String, ApiError> {
    if EFFORTS.contains(&effort) {
        Ok(effort.to_owned())
    } else {
        let wanted = format!("one of {}", EFFORTS.join(", "));
        let value = Shallow::Text(effort.to_owned());
        Err(Field::new(path, &value).must_be(&wanted).into())
    }
}
