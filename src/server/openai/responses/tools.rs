//! Parses `tools` and `tool_choice` of `POST /v1/responses`.
//!
//! The model knows only functions. A custom tool becomes a function with one text as its argument, and the tools of a
//! namespace become functions named `namespace.tool`. Tools that run at OpenAI, such as web search, are left out:
//! clients send them to every server.

use rustc_hash::FxHashMap;
use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::chat::tool_choice::Choice;
use crate::openai::chat::tools::{CallTools, ToolList, as_function, read_list};
use crate::openai::json_values::{missing, must_be, object, optional_text, text};
use crate::raw::Raw;

const TOOLS: &str = "tools";
const CHOICE: &str = "tool_choice";

/// A tool's name and namespace for the client. For the model they are joined to one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ClientTool {
    pub(super) name: String,
    pub(super) namespace: Option<String>,
    pub(super) is_custom: bool,
}

/// The tools that are not plain functions, by the names under which the model knows them.
#[derive(Debug, Default)]
pub(super) struct ToolNames(FxHashMap<String, ClientTool>);

impl ToolNames {
    pub(super) fn client_tool(&self, name: &str) -> ClientTool {
        let plain = || ClientTool {
            name: name.to_owned(),
            ..ClientTool::default()
        };
        self.0.get(name).cloned().unwrap_or_else(plain)
    }
}

/// The name under which the model knows a tool in a namespace.
pub(super) fn name_in(namespace: Option<&str>, name: &str) -> String {
    match namespace {
        Some(namespace) => format!("{namespace}.{name}"),
        None => name.to_owned(),
    }
}

pub(super) fn read(fields: &mut Fields) -> Result<(CallTools, ToolNames), ApiError> {
    let raw = fields.take_raw(TOOLS);
    let raw = raw.filter(|raw| !raw.has_no_effect());
    let choice = Choice::read(fields, CHOICE)?;
    let parallel = fields.optional_flag("parallel_tool_calls")?.unwrap_or(true);
    let mut parser = ToolParser::default();
    if let Some(raw) = raw {
        for (index, (item, sent)) in read_list(fields, TOOLS, &raw)?.into_iter().enumerate() {
            parser.add(&format!("{TOOLS}[{index}]"), item, &sent, None)?;
        }
    }
    let tools = CallTools::of(parser.list, choice, CHOICE, parallel)?;
    Ok((tools, parser.names))
}

#[derive(Default)]
struct ToolParser {
    list: ToolList,
    names: ToolNames,
}

impl ToolParser {
    fn add(
        &mut self,
        path: &str,
        item: Value,
        sent: &Raw,
        namespace: Option<&str>,
    ) -> Result<(), ApiError> {
        let tool = object(path, item)?;
        match (text(&tool, path, "type")?, namespace) {
            ("function", _) => self.add_function(path, &tool, sent, namespace, false),
            ("custom", _) => {
                let function = custom(path, &tool)?;
                let written = Raw::from_value(&Value::Object(function.clone()));
                self.add_function(path, &function, &written, namespace, true)
            }
            ("namespace", None) => self.add_namespace(path, tool, sent),
            ("namespace", Some(_)) => {
                let wanted = "function or custom: namespaces hold no others";
                Err(must_be(&format!("{path}.type"), &tool["type"], wanted))
            }
            _ => Ok(()),
        }
    }

    fn add_namespace(
        &mut self,
        path: &str,
        mut tool: Map<String, Value>,
        sent: &Raw,
    ) -> Result<(), ApiError> {
        let sent = sent.field(TOOLS);
        let name = text(&tool, path, "name")?.to_owned();
        let path = format!("{path}.{TOOLS}");
        let nested = match tool.get_mut(TOOLS).map(Value::take) {
            Some(Value::Array(nested)) => nested,
            Some(other) => return Err(must_be(&path, &other, "a list of tools")),
            None => return Err(missing(path, "a list of tools")),
        };
        let sent = sent.map_or(Ok(Vec::new()), |list| {
            let items = list.items(&path, nested.len());
            items.map(|(items, _)| items)
        })?;
        let mut nested = nested.into_iter().zip(sent).enumerate();
        nested.try_for_each(|(index, (item, sent))| {
            self.add(&format!("{path}[{index}]"), item, &sent, Some(&name))
        })
    }

    fn add_function(
        &mut self,
        path: &str,
        tool: &Map<String, Value>,
        sent: &Raw,
        namespace: Option<&str>,
        is_custom: bool,
    ) -> Result<(), ApiError> {
        let name = text(tool, path, "name")?.to_owned();
        let model_name = name_in(namespace, &name);
        let mut function = Map::new();
        function.insert("name".to_owned(), model_name.as_str().into());
        for key in ["description", "parameters", "strict"] {
            if let Some(value) = tool.get(key) {
                function.insert(key.to_owned(), value.clone());
            }
        }
        let json = as_function(&model_name, sent, "parameters");
        self.list.add(path, &function, json)?;
        if is_custom || namespace.is_some() {
            let client_tool = ClientTool {
                name,
                namespace: namespace.map(str::to_owned),
                is_custom,
            };
            self.names.0.insert(model_name, client_tool);
        }
        Ok(())
    }
}

/// Converts a custom tool to a function. The description gets the grammar of the tool's input. The grammar is not
/// enforced: in a call the input is a JSON string, which the grammar does not describe.
fn custom(path: &str, tool: &Map<String, Value>) -> Result<Map<String, Value>, ApiError> {
    let name = text(tool, path, "name")?;
    let mut description = optional_text(tool, path, "description")?
        .unwrap_or_default()
        .to_owned();
    if let Some(Value::Object(format)) = tool.get("format") {
        let path = format!("{path}.format");
        match text(format, &path, "type")? {
            "text" => (),
            "grammar" => {
                let syntax = text(format, &path, "syntax")?;
                let definition = text(format, &path, "definition")?;
                let grammar = format!("The input follows this grammar ({syntax}):\n{definition}");
                let gap = if description.is_empty() { "" } else { "\n\n" };
                description = format!("{description}{gap}{grammar}");
            }
            _ => {
                let kind = &format["type"];
                return Err(must_be(&format!("{path}.type"), kind, "text or grammar"));
            }
        }
    }
    let input = json!({"type": "string", "description": "The input of the tool, as it is."});
    let parameters = json!({
        "type": "object", "properties": {"input": input}, "required": ["input"],
    });
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    if !description.is_empty() {
        function.insert("description".to_owned(), description.into());
    }
    function.insert("parameters".to_owned(), parameters);
    Ok(function)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(tools: &str) -> String {
        let mut fields = Fields::of(&json!({}));
        fields.put_raw(TOOLS, Raw::in_text(tools));
        let (tools, _) = read(&mut fields).unwrap_or_else(|error| panic!("{error}"));
        let prompt = tools.prompt.expect("there are tools");
        prompt.get().to_owned()
    }

    #[test]
    fn functions_reach_the_template_as_they_were_sent() {
        let schema = r#"{"type":"object", "required": ["z","a"],"properties":{"z":{"maximum":12345678901234567890123},"a":{"minimum":1.10,"maximum":1E5,"default":null}},"additionalProperties":false}"#;
        for fields in [
            format!(
                r#""name": "f", "parameters": {schema}, "strict": true, "description": "d\u00e9""#
            ),
            format!(r#""name": "f", "description": null, "strict": null, "parameters": {schema}"#),
            r#""name": "f", "description": "", "parameters": null, "strict": false"#.to_owned(),
            r#""name": "f", "description": "no parameters""#.to_owned(),
            r#""name": "f", "parameters": {}"#.to_owned(),
            r#""name": "f""#.to_owned(),
        ] {
            assert_eq!(
                json(&format!(r#"[{{"type": "function", {fields}}}]"#)),
                format!(r#"[{{"type": "function", "function": {{{fields}}}}}]"#)
            );
        }
    }

    #[test]
    fn other_fields_of_a_tool_are_not_part_of_its_function() {
        let tool = r#"{"description": "a", "defer_loading": true, "name": "f", "type": "function", "description": "b"}"#;
        assert_eq!(
            json(&format!("[{tool}]")),
            r#"[{"type": "function", "function": {"description": "b", "name": "f"}}]"#
        );
    }

    #[test]
    fn namespaces_prefix_their_functions_and_custom_tools_take_a_string() {
        let nested = r#"{"type":"function","strict":true,"name":"f","parameters":{"maximum":18446744073709551616}}"#;
        let tools = format!(
            r#"[{{"type":"namespace","name":"n","tools":[{nested}]}},{{"type":"custom","name":"c","format":null}}]"#
        );
        let input = r#"{"type":"object","properties":{"input":{"type":"string","description":"The input of the tool, as it is."}},"required":["input"]}"#;
        assert_eq!(
            json(&tools),
            format!(
                r#"[{{"type": "function", "function": {{"strict": true, "name": "n.f", "parameters": {{"maximum":18446744073709551616}}}}}}, {{"type": "function", "function": {{"name": "c", "parameters": {input}}}}}]"#
            )
        );
    }
}
