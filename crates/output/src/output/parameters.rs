//! Streams the arguments of a call, given as parameters between tags, as JSON.

use std::sync::Arc;

use super::call::CallOutput;
use super::escape::{write_json_char, write_json_string};
use super::schema::Types;
use super::tools::ToolUse;

/// Typed values are held up to this length; longer ones are strings.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Upper bound of held whitespace after the end tag of a value; beyond it, the tag is part of the value.
const MAX_TAIL_BYTES: usize = 1 << 12;

/// The newlines right after the start tag and right before the end tag of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EdgeNewlines {
    /// One newline at each end belongs to the format.
    OfFormat,
    /// The newlines belong to the value.
    OfValue,
}

#[derive(Debug)]
pub(super) struct Parameters {
    tools: Arc<ToolUse>,
    /// The name of the function, kept after it was emitted.
    pub(super) function: String,
    has_any: bool,
    names: Vec<String>,
    value: Value,
    edges: EdgeNewlines,
}

#[derive(Debug)]
struct Value {
    types: Types,
    held: String,
    /// A held newline, dropped if the value ends here.
    newline: bool,
    is_empty: bool,
}

impl Parameters {
    pub(super) fn new(tools: Arc<ToolUse>, edges: EdgeNewlines) -> Self {
        Self {
            tools,
            function: String::new(),
            has_any: false,
            names: Vec::new(),
            value: Value::new(Types::STRING),
            edges,
        }
    }

    pub(super) fn has_any(&self) -> bool {
        self.has_any
    }

    pub(super) fn is_declared(&self) -> bool {
        self.tools.tool(&self.function).is_some()
    }

    /// Whether the tool has this parameter, and the call does not have it yet.
    pub(super) fn lacks(&self, name: &str) -> bool {
        let tool = self.tools.tool(&self.function);
        let schema = tool.and_then(|tool| tool.parameters.as_ref());
        let properties = schema.and_then(|schema| schema.get("properties")?.as_object());
        let has = properties.is_some_and(|properties| properties.contains_key(name));
        has && !self.names.iter().any(|present| present == name)
    }

    pub(super) fn begin(&mut self, name: &str, out: &mut CallOutput) -> bool {
        let name = name.trim();
        if name.is_empty() {
            return false;
        }
        if self.has_any {
            out.arguments.push_str(", ")
        } else {
            out.name = Some(self.function.clone());
            out.arguments.push('{');
        }
        self.has_any = true;
        self.names.push(name.to_owned());
        write_json_string(name, &mut out.arguments);
        out.arguments.push_str(": ");
        let tool = self.tools.tool(&self.function);
        let types = tool.map_or(Types::STRING, |tool| Types::of_parameter(tool, name));
        self.value = Value::new(types);
        if types.is_string() {
            out.arguments.push('"');
        }
        true
    }

    pub(super) fn read(&mut self, c: char, out: &mut CallOutput) {
        match self.edges {
            EdgeNewlines::OfFormat => self.value.read(c, &mut out.arguments),
            EdgeNewlines::OfValue => self.value.push(c, &mut out.arguments),
        }
    }

    pub(super) fn end(&mut self, out: &mut CallOutput) {
        self.value.end(&mut out.arguments);
    }

    pub(super) fn close(&mut self, out: &mut CallOutput) {
        if self.has_any {
            out.arguments.push('}')
        } else {
            out.name = Some(std::mem::take(&mut self.function));
            out.arguments.push_str("{}");
        }
    }
}

/// The end tag of a value and the whitespace after it, until the next input shows whether the value has ended.
#[derive(Debug)]
pub(super) struct Tail(String);

impl Tail {
    pub(super) fn new(tag: &str) -> Self {
        Self(tag.to_owned())
    }

    /// Accepts a whitespace character. Any other character makes the tag part of the value.
    pub(super) fn accepts(&mut self, c: char) -> bool {
        let is_accepted = c.is_whitespace() && self.0.len() < MAX_TAIL_BYTES;
        self.0.extend(is_accepted.then_some(c));
        is_accepted
    }

    pub(super) fn chars(&self) -> impl Iterator<Item = char> + '_ {
        self.0.chars()
    }
}

impl Value {
    fn new(types: Types) -> Self {
        Self {
            types,
            held: String::new(),
            newline: false,
            is_empty: true,
        }
    }

    fn read(&mut self, c: char, out: &mut String) {
        let is_first = std::mem::replace(&mut self.is_empty, false);
        if is_first && c == '\n' {
            return;
        }
        if std::mem::replace(&mut self.newline, c == '\n') {
            self.push('\n', out);
        }
        if c != '\n' {
            self.push(c, out);
        }
    }

    fn push(&mut self, c: char, out: &mut String) {
        if self.types.is_string() {
            write_json_char(c, out);
            return;
        }
        self.held.push(c);
        if self.held.len() > MAX_VALUE_BYTES {
            self.types = Types::STRING;
            out.push('"');
            let held = std::mem::take(&mut self.held);
            held.chars().for_each(|c| write_json_char(c, out));
        }
    }

    fn end(&mut self, out: &mut String) {
        if self.types.is_string() {
            out.push('"')
        } else {
            self.types.write(&std::mem::take(&mut self.held), out)
        }
    }
}
