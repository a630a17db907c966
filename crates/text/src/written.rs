//! Writes earlier tool calls in the model's format, for templates that leave them out.

use std::fmt::Write as _;

use serde_json::Value;

use crate::arguments::CallArguments;
use crate::jinja::{Fault, Value as TemplateValue};
use crate::pythonic;
use souffleur_output::output::ToolFormat;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallWriter {
    Lfm2,
    /// A tag and a list of objects; the field is the text that closes the list.
    TaggedList(&'static str),
    /// Each call is a JSON object between tags.
    Hermes,
}

impl CallWriter {
    /// Returns the writer for a format; `None` if the format's templates render earlier calls.
    pub(super) fn of(format: ToolFormat) -> Option<Self> {
        match format {
            ToolFormat::Lfm2 => Some(Self::Lfm2),
            ToolFormat::Granite => Some(Self::TaggedList("]")),
            ToolFormat::Phi4Mini => Some(Self::TaggedList("]<|/tool_call|>")),
            ToolFormat::Hermes => Some(Self::Hermes),
            _ => None,
        }
    }

    pub(super) fn add(self, content: &mut String, calls: &[Value]) -> Result<(), Fault> {
        let (begin, between, end) = match self {
            Self::Lfm2 => return pythonic::add(content, calls),
            Self::TaggedList(end) => ("<|tool_call|>[", ", ", end),
            Self::Hermes => (
                "<tool_call>\n",
                "\n</tool_call>\n<tool_call>\n",
                "\n</tool_call>",
            ),
        };
        content.push_str(begin);
        for (index, call) in calls.iter().enumerate() {
            content.push_str(if index > 0 { between } else { "" });
            object(content, call)?;
        }
        content.push_str(end);
        Ok(())
    }
}

fn object(out: &mut String, call: &Value) -> Result<(), Fault> {
    let function = call.get("function").unwrap_or(call);
    let name = TemplateValue::from_json(function.get("name").unwrap_or(&Value::Null))?;
    let _ = write!(out, "{{\"name\": {}, \"arguments\": ", name.to_json()?);
    match CallArguments::of(function)? {
        CallArguments::Text(text) => out.push_str(text),
        CallArguments::Object(arguments) => out.push_str(&arguments.to_json()?),
        CallArguments::Nothing => out.push_str("{}"),
    }
    out.push('}');
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_written_in_the_format_of_each_model() {
        let calls = [
            json!({"type": "function", "function": {"name": "seat", "arguments": {"row": 4}}}),
            json!({"name": "bare"}),
        ];
        let written = |format| {
            let mut content = "Well. ".to_owned();
            let writer = CallWriter::of(format).expect("the format has a writer");
            writer.add(&mut content, &calls).expect("valid calls");
            content
        };
        let objects =
            r#"{"name": "seat", "arguments": {"row": 4}}, {"name": "bare", "arguments": {}}"#;
        assert_eq!(
            written(ToolFormat::Granite),
            format!("Well. <|tool_call|>[{objects}]")
        );
        assert_eq!(
            written(ToolFormat::Phi4Mini),
            format!("Well. <|tool_call|>[{objects}]<|/tool_call|>")
        );
        let each = objects.replace("}}, ", "}}\n</tool_call>\n<tool_call>\n");
        assert_eq!(
            written(ToolFormat::Hermes),
            format!("Well. <tool_call>\n{each}\n</tool_call>")
        );
    }
}
