//! Parses `tool_choice` of a chat completion.

use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::json_values::{missing, must_be, object, text};
use souffleur_base::field::{Field, Shallow};

const WANTED: &str = "none, auto, required, or an object that names a function";

#[derive(Debug, PartialEq)]
pub(crate) enum Choice {
    /// The model does not see the tools.
    None,
    Mode(Mode),
    Named {
        name: String,
        path: String,
    },
    Allowed {
        mode: Mode,
        /// The path in the body and the name of each allowed tool.
        names: Vec<(String, String)>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mode {
    Auto,
    Required,
}

impl Choice {
    /// Reads `field`, which is `tool_choice` or `function_call`; if it is absent, the choice is automatic.
    pub(crate) fn read(fields: &mut Fields, field: &str) -> Result<Self, ApiError> {
        let raw = fields.take_raw(field);
        let Some(raw) = raw.filter(|raw| !raw.has_no_effect()) else {
            return Ok(Self::Mode(Mode::Auto));
        };
        if raw.is_object() {
            let Value::Object(choice) = fields.tree(field, &raw)? else {
                return Err(Field::new(field, &raw.shallow(field)?)
                    .must_be(WANTED)
                    .into());
            };
            return Self::of_object(field, choice);
        }
        let value = raw.shallow(field)?;
        match value.as_str() {
            Some("none") => Ok(Self::None),
            Some("auto") => Ok(Self::Mode(Mode::Auto)),
            Some("required") => Ok(Self::Mode(Mode::Required)),
            _ => Err(Field::new(field, &value).must_be(WANTED).into()),
        }
    }

    fn of_object(field: &str, mut choice: Map<String, Value>) -> Result<Self, ApiError> {
        match choice.get("type") {
            // `function_call` has only a name.
            None if choice.contains_key("name") => Self::named(field, &choice),
            Some(Value::String(kind)) if kind == "function" => {
                let path = format!("{field}.function");
                match choice.get_mut("function").map(Value::take) {
                    Some(function) => Self::named(&path, &object(&path, function)?),
                    None if choice.contains_key("name") => Self::named(field, &choice),
                    None => Err(missing(path, "an object with a name")),
                }
            }
            // The Responses API has the name next to the type, not in a nested object.
            Some(Value::String(kind)) if kind == "custom" && choice.contains_key("name") => {
                Self::named(field, &choice)
            }
            Some(Value::String(kind)) if kind == "allowed_tools" && choice.contains_key("mode") => {
                Self::allowed(field, choice)
            }
            Some(Value::String(kind)) if kind == "allowed_tools" => {
                let path = format!("{field}.allowed_tools");
                match choice.get_mut("allowed_tools") {
                    Some(allowed) => Self::allowed(&path, object(&path, allowed.take())?),
                    None => Err(missing(path, "an object with mode and tools")),
                }
            }
            kind => {
                let kind = kind.unwrap_or(&Value::Null);
                let wanted = "function or allowed_tools";
                Err(must_be(&format!("{field}.type"), kind, wanted))
            }
        }
    }

    fn named(path: &str, function: &Map<String, Value>) -> Result<Self, ApiError> {
        Ok(Self::Named {
            name: text(function, path, "name")?.to_owned(),
            path: format!("{path}.name"),
        })
    }

    fn allowed(path: &str, mut allowed: Map<String, Value>) -> Result<Self, ApiError> {
        let mode = match text(&allowed, path, "mode")? {
            "auto" => Mode::Auto,
            "required" => Mode::Required,
            _ => {
                let mode = &allowed["mode"];
                return Err(must_be(&format!("{path}.mode"), mode, "auto or required"));
            }
        };
        let path = format!("{path}.tools");
        let tools = match allowed.get_mut("tools").map(Value::take) {
            Some(Value::Array(tools)) if !tools.is_empty() => tools,
            Some(other) => return Err(must_be(&path, &other, "a list with at least one tool")),
            None => return Err(missing(path, "a list of tools")),
        };
        let name = |(index, tool)| {
            let path = format!("{path}[{index}]");
            let mut tool = object(&path, tool)?;
            let (path, function) = match tool.get_mut("function") {
                Some(function) => {
                    let path = format!("{path}.function");
                    (path.clone(), object(&path, function.take())?)
                }
                None => (path, tool),
            };
            let name = text(&function, &path, "name")?.to_owned();
            Ok((format!("{path}.name"), name))
        };
        let names: Result<Vec<_>, ApiError> = tools.into_iter().enumerate().map(name).collect();
        Ok(Self::Allowed {
            mode,
            names: names?,
        })
    }

    /// Refuses a choice that needs tools. Called if there are no tools.
    pub(crate) fn check_without_tools(&self, field: &str) -> Result<(), ApiError> {
        let shown = match self {
            Self::None | Self::Mode(Mode::Auto) => return Ok(()),
            Self::Mode(Mode::Required) => Shallow::Text("required".to_owned()),
            Self::Named { name, .. } => Shallow::Text(name.clone()),
            Self::Allowed { .. } => Shallow::Text("allowed_tools".to_owned()),
        };
        let text = format!("{field} is {shown}, but there are no tools: send tools or no {field}");
        Err(ApiError::field(field, text))
    }
}
