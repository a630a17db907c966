//! Writes tool calls in LFM2's Python-like syntax.

use std::fmt::Write as _;

use serde_json::Value;

use crate::arguments::CallArguments;
use crate::jinja::{Fault, Value as TemplateValue};

/// Tags before and after the list of calls.
const TAGS: [&str; 2] = ["<|tool_call_start|>", "<|tool_call_end|>"];

pub(super) fn add(content: &mut String, calls: &[Value]) -> Result<(), Fault> {
    content.push_str(TAGS[0]);
    content.push('[');
    for (index, call) in calls.iter().enumerate() {
        let function = call.get("function").unwrap_or(call);
        let name = function.get("name").and_then(Value::as_str);
        let before = if index > 0 { ", " } else { "" };
        let _ = write!(content, "{before}{}(", name.unwrap_or_default());
        match CallArguments::of(function)? {
            CallArguments::Object(arguments) => {
                let mut before = "";
                for (key, value) in arguments.fields() {
                    let _ = write!(content, "{before}{key}=");
                    literal(content, value)?;
                    before = ", ";
                }
            }
            CallArguments::Text(text) => content.push_str(text),
            CallArguments::Nothing => {}
        }
        content.push(')');
    }
    content.push(']');
    content.push_str(TAGS[1]);
    Ok(())
}

/// Writes a value as a Python literal. JSON strings are valid Python strings.
fn literal(out: &mut String, value: &TemplateValue) -> Result<(), Fault> {
    match value {
        TemplateValue::None => out.push_str("None"),
        TemplateValue::Bool(true) => out.push_str("True"),
        TemplateValue::Bool(false) => out.push_str("False"),
        TemplateValue::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                literal(out, item)?;
            }
            out.push(']');
        }
        TemplateValue::Dict(_) => {
            out.push('{');
            let mut before = "";
            for (key, value) in value.fields() {
                let _ = write!(out, "{before}{}: ", TemplateValue::text(key).to_json()?);
                literal(out, value)?;
                before = ", ";
            }
            out.push('}');
        }
        other => out.push_str(&other.to_json()?),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_written_in_python() {
        let mut content = "Let me see.".to_owned();
        let arguments = json!({"city": "São \"T\"\n", "days": 2, "sure": true, "at": [1.5, null, {"a": false}]});
        let calls = [
            json!({"type": "function", "function": {"name": "weather", "arguments": arguments}}),
            json!({"function": {"name": "clock", "arguments": {}}}),
            json!({"function": {"name": "raw", "arguments": "4, "}}),
            json!({"name": "bare"}),
        ];
        add(&mut content, &calls).expect("valid calls");
        let expected = "Let me see.<|tool_call_start|>[weather(city=\"São \\\"T\\\"\\n\", days=2, sure=True, \
                        at=[1.5, None, {\"a\": False}]), clock(), raw(4, ), bare()]<|tool_call_end|>";
        assert_eq!(content, expected);
    }
}
