//! Passes the tools of a request to templates that do not read the variable `tools`.

use serde_json::{Map, Value};

use crate::jinja::{Fault, Value as TemplateValue};
use crate::refusal::invalid;
use souffleur_base::error::RequestError;

/// The variable in which SmolLM3's template looks for functions.
pub(super) const XML_TOOLS: &str = "xml_tools";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ToolPlace {
    Variable,
    /// The variable [`XML_TOOLS`], a list of the tools' `function` objects (SmolLM3).
    XmlTools,
    /// The field `tools` of the system message, as a JSON string (Phi-4-mini).
    FirstMessage,
}

impl ToolPlace {
    pub(super) fn of(template: &str) -> Self {
        let source: String = template.split_whitespace().collect();
        match () {
            () if source.contains(XML_TOOLS) => Self::XmlTools,
            () if source.contains("'tools'inmessage") => Self::FirstMessage,
            () => Self::Variable,
        }
    }
}

pub(super) fn functions(tools: &TemplateValue) -> Result<TemplateValue, Fault> {
    let TemplateValue::List(tools) = tools else {
        return TemplateValue::list(Vec::new());
    };
    let tools = tools.iter();
    let functions = tools.map(|tool| tool.field("function").unwrap_or(tool).clone());
    TemplateValue::list(functions.collect())
}

/// Puts tools into the system message, which is added if it is missing.
pub(super) fn put_into_messages(
    messages: &mut Vec<Value>,
    tools: &TemplateValue,
) -> Result<(), RequestError> {
    let is_system = |message: &Value| message["role"] == "system";
    if !messages.first().is_some_and(is_system) {
        let empty = [("role", "system"), ("content", "")];
        let empty = empty.map(|(key, text)| (key.to_owned(), Value::from(text)));
        messages.insert(0, Value::Object(Map::from_iter(empty)));
    }
    if let Some(Value::Object(instructions)) = messages.first_mut() {
        let written = functions(tools).and_then(|functions| functions.to_json());
        match written {
            Ok(written) => instructions
                .entry("tools")
                .or_insert_with(|| Value::from(written)),
            Err(fault) => return invalid(format!("the tools cannot be rendered: {fault}")),
        };
    }
    Ok(())
}
