//! Parses `tools` of a chat completion.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::tool_choice::{Choice, Mode};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::openai::json_values::{missing, must_be, object, optional_flag, optional_text, text};
use crate::raw::Raw;
use souffleur_base::field::{Cut, Field, check_count};
use souffleur_request::{Tool, ToolChoice, ToolUse};

pub(crate) const MAX_TOOLS: usize = 1024;
const MAX_TOOLS_BYTES: usize = 4 << 20;
pub(crate) const MAX_NAME_BYTES: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct CallTools {
    /// The tools as JSON for the chat template; `None` if the template gets no tools.
    pub(crate) prompt: Option<Box<RawValue>>,
    /// The tools that the model may call; `None` if it may call no tool.
    pub(crate) usage: Option<Arc<ToolUse>>,
}

impl CallTools {
    /// Reads `tools` and `tool_choice`, or the older `functions` and `function_call`.
    pub(super) fn read(fields: &mut Fields) -> Result<Self, ApiError> {
        let form = Form::of(fields)?;
        let raw = fields.take_raw(form.list);
        let raw = raw.filter(|raw| !raw.has_no_effect());
        let choice = Choice::read(fields, form.choice)?;
        let parallel = fields.optional_flag("parallel_tool_calls")?.unwrap_or(true);
        if choice == Choice::None {
            return Ok(Self::default());
        }
        let tools = match raw {
            Some(raw) => form.tools(fields, &raw)?,
            None => ToolList::default(),
        };
        Self::of(tools, choice, form.choice, parallel)
    }

    /// Combines a list of tools with the `tool_choice` that was read from `field`.
    pub(crate) fn of(
        list: ToolList,
        choice: Choice,
        field: &str,
        parallel: bool,
    ) -> Result<Self, ApiError> {
        if choice == Choice::None {
            return Ok(Self::default());
        }
        if list.tools.is_empty() {
            choice.check_without_tools(field)?;
            return Ok(Self::default());
        }
        let prompt = json_list(&list.json)?;
        let (tools, choice) = choose(list.tools, choice, field)?;
        let usage = ToolUse {
            tools,
            choice,
            parallel,
        };
        Ok(Self {
            prompt: Some(prompt),
            usage: Some(Arc::new(usage)),
        })
    }
}

/// The names of the two fields of a call that hold the tools and the choice.
struct Form {
    list: &'static str,
    choice: &'static str,
}

impl Form {
    const TOOLS: Self = Self {
        list: "tools",
        choice: "tool_choice",
    };
    const FUNCTIONS: Self = Self {
        list: "functions",
        choice: "function_call",
    };

    fn of(fields: &Fields) -> Result<Self, ApiError> {
        let is_sent = |name: &str| {
            let raw = fields.peek(name);
            raw.is_some_and(|raw| !raw.has_no_effect())
        };
        let (tools, functions) = (Self::TOOLS, Self::FUNCTIONS);
        for old in [functions.list, functions.choice] {
            for new in [tools.list, tools.choice] {
                if is_sent(old) && is_sent(new) {
                    let text = format!("{old} and {new} are both given: leave {old} out");
                    return Err(ApiError::field(old, text));
                }
            }
        }
        if is_sent(functions.list) || is_sent(functions.choice) {
            Ok(functions)
        } else {
            Ok(tools)
        }
    }

    fn tools(&self, fields: &mut Fields, raw: &Raw) -> Result<ToolList, ApiError> {
        let mut list = ToolList::default();
        for (index, (item, sent)) in read_list(fields, self.list, raw)?.into_iter().enumerate() {
            let (path, function) = self.function(index, item)?;
            list.add(&path, &function, self.json(&sent))?;
        }
        Ok(list)
    }

    /// The JSON of an entry for the template: as it was sent, or, from `functions`, wrapped in a tool.
    fn json(&self, sent: &Raw) -> String {
        let sent = sent.text();
        if self.list == Self::FUNCTIONS.list {
            format!("{{\"type\": \"function\", \"function\": {sent}}}")
        } else {
            sent.into_owned()
        }
    }

    /// The path of an entry's function, and the function.
    fn function(
        &self,
        index: usize,
        item: Value,
    ) -> Result<(String, Map<String, Value>), ApiError> {
        let path = format!("{}[{index}]", self.list);
        let mut entry = object(&path, item)?;
        if self.list == Self::FUNCTIONS.list {
            return Ok((path, entry));
        }
        match entry.get("type") {
            Some(Value::String(kind)) if kind == "function" => (),
            None => return Err(missing(format!("{path}.type"), "\"function\"")),
            Some(other) => {
                let wanted = "\"function\": no other kind of tool is supported";
                return Err(must_be(&format!("{path}.type"), other, wanted));
            }
        }
        let path = format!("{path}.function");
        match entry.get_mut("function") {
            Some(function) => Ok((path.clone(), object(&path, function.take())?)),
            None => Err(missing(path, "an object with a name")),
        }
    }
}

/// Functions, as JSON for the template and parsed for the engine.
#[derive(Default)]
pub(crate) struct ToolList {
    names: FxHashSet<String>,
    json: Vec<String>,
    tools: Vec<Tool>,
}

impl ToolList {
    /// Adds the function at `path`, with its JSON for the template in `json`.
    pub(crate) fn add(
        &mut self,
        path: &str,
        function: &Map<String, Value>,
        json: String,
    ) -> Result<(), ApiError> {
        let tool = read_function(path, function)?;
        if !self.names.insert(tool.name.clone()) {
            let path = format!("{path}.name");
            let name = &tool.name;
            let text = format!("{path} is {name:?}, which another tool has: rename one");
            return Err(ApiError::field(path, text));
        }
        self.json.push(json);
        self.tools.push(tool);
        Ok(())
    }
}

fn json_list(json: &[String]) -> Result<Box<RawValue>, ApiError> {
    RawValue::from_string(format!("[{}]", json.join(", ")))
        .map_err(|error| ApiError::invalid(format!("the tools are not valid JSON: {error}")))
}

/// Converts a function of another API to the form that templates know: the known fields of `sent`, in their order and
/// as they were written. The model knows the function as `name`. `schema` names the field with its parameters.
pub(crate) fn as_function(name: &str, sent: &Raw, schema: &str) -> String {
    let mut fields: Vec<(&str, String)> = Vec::new();
    for (key, value) in sent.entries() {
        let (key, text) = match key.as_str() {
            "name" => ("name", Value::from(name).to_string()),
            "description" => ("description", value.text().into_owned()),
            "strict" => ("strict", value.text().into_owned()),
            key if key == schema => ("parameters", value.text().into_owned()),
            _ => continue,
        };
        match fields.iter_mut().find(|(known, _)| *known == key) {
            Some((_, before)) => *before = text,
            None => fields.push((key, text)),
        }
    }
    let fields: Vec<String> = fields
        .iter()
        .map(|(key, text)| format!("\"{key}\": {text}"))
        .collect();
    let fields = fields.join(", ");
    format!("{{\"type\": \"function\", \"function\": {{{fields}}}}}")
}

/// Reads a list of tools within its limits. Returns each entry both parsed and as JSON.
pub(crate) fn read_list(
    fields: &mut Fields,
    name: &str,
    raw: &Raw,
) -> Result<Vec<(Value, Raw)>, ApiError> {
    if !raw.is_list() {
        let value = raw.shallow(name)?;
        return Err(Field::new(name, &value).must_be("a list of tools").into());
    }
    let (_, count) = raw.items(name, 0)?;
    check_count(name, count, MAX_TOOLS, "tools")?;
    let bytes = raw.bytes().len();
    if bytes > MAX_TOOLS_BYTES {
        let text = format!("{name} has {bytes} bytes, limit is {MAX_TOOLS_BYTES}: send fewer");
        return Err(ApiError::field(name, text));
    }
    // Charged twice: for the prompt, and for the schemas that the answer is parsed with.
    fields.charge_request(raw)?;
    let (sent, _) = raw.items(name, MAX_TOOLS)?;
    match fields.tree(name, raw)? {
        Value::Array(items) => Ok(items.into_iter().zip(sent).collect()),
        _ => Err(ApiError::field(
            name,
            format!("{name} is not a list of tools"),
        )),
    }
}

fn read_function(path: &str, function: &Map<String, Value>) -> Result<Tool, ApiError> {
    let name = text(function, path, "name")?.to_owned();
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    if !(1..=MAX_NAME_BYTES).contains(&name.len()) || !name.bytes().all(is_valid) {
        let wanted = format!("1 to {MAX_NAME_BYTES} letters, digits, _, . or -");
        return Err(must_be(&format!("{path}.name"), &function["name"], &wanted));
    }
    let description = optional_text(function, path, "description")?.map(str::to_owned);
    let strict = optional_flag(function, path, "strict")?.unwrap_or(false);
    let parameters = match function.get("parameters") {
        None | Some(Value::Null) => None,
        Some(parameters @ Value::Object(_)) => Some(parameters.clone()),
        Some(other) => {
            let wanted = "a JSON schema: an object";
            return Err(must_be(&format!("{path}.parameters"), other, wanted));
        }
    };
    Ok(Tool {
        name,
        description,
        parameters,
        strict,
    })
}

fn choose(
    tools: Vec<Tool>,
    choice: Choice,
    field: &str,
) -> Result<(Vec<Tool>, ToolChoice), ApiError> {
    let exists = |name: &str| tools.iter().any(|tool| tool.name == name);
    match choice {
        Choice::None | Choice::Mode(Mode::Auto) => Ok((tools, ToolChoice::Auto)),
        Choice::Mode(Mode::Required) => Ok((tools, ToolChoice::Required)),
        Choice::Named { name, path } => {
            if exists(&name) {
                Ok((tools, ToolChoice::Named(name)))
            } else {
                Err(no_such_tool(path, &name, field))
            }
        }
        Choice::Allowed { mode, names } => {
            if let Some((path, name)) = names.iter().find(|(_, name)| !exists(name)) {
                return Err(no_such_tool(path.clone(), name, field));
            }
            let allowed: FxHashSet<&str> = names.iter().map(|(_, name)| name.as_str()).collect();
            let tools = tools.into_iter();
            let tools = tools.filter(|tool| allowed.contains(tool.name.as_str()));
            let choice = match mode {
                Mode::Auto => ToolChoice::Allowed,
                Mode::Required => ToolChoice::Required,
            };
            Ok((tools.collect(), choice))
        }
    }
}

fn no_such_tool(path: String, name: &str, field: &str) -> ApiError {
    let name = Cut(name);
    let text = format!("{path} is {name}, but no tool has that name: {field} must name a tool");
    ApiError::field(path, text)
}
