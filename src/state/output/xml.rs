//! Reads a call of Qwen3-Coder: `<function=seat>`, `<parameter=row>`, `4`, `</parameter>`, `</function>`.

use std::sync::Arc;

use super::call::{CallOutput, CallReader, Step};
use super::escape::{write_json_char, write_json_string};
use super::named::MAX_NAME_BYTES;
use super::schema::Types;
use super::syntax::{Tag, TagSet};
use super::tools::ToolUse;

/// A value that is to be typed is held up to this length, and is a string if it is longer.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// Whitespace after `</parameter>` that is held at most; then the tag was part of the value.
const MAX_TAIL_BYTES: usize = 1 << 12;

const PARAMETER_CLOSE: &str = "</parameter>";

/// Reads the call after `<function=`.
///
/// `</parameter>` ends a value only if another parameter or the end of the function follows. One newline at each end of
/// a value is dropped.
#[derive(Debug)]
pub(super) struct XmlReader {
    tools: Arc<ToolUse>,
    at: At,
    /// The name of the function, also after it has gone out.
    function: String,
    has_parameters: bool,
    /// The name of a parameter.
    parameter: String,
    value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum At {
    Function,
    Body,
    Parameter,
    Value,
    /// After `</parameter>`, with it and the whitespace since then.
    Tail(String),
}

/// The value that is being read.
#[derive(Debug)]
struct Value {
    types: Types,
    /// A value that is to be typed.
    held: String,
    /// A newline that is dropped if the value ends here.
    newline: bool,
    is_empty: bool,
}

impl XmlReader {
    pub(super) fn new(tools: Arc<ToolUse>) -> Self {
        Self {
            tools,
            at: At::Function,
            function: String::new(),
            has_parameters: false,
            parameter: String::new(),
            value: Value::new(Types::STRING),
        }
    }

    fn read_name(&mut self, c: char) -> Step {
        let name = match self.at {
            At::Function => &mut self.function,
            _ => &mut self.parameter,
        };
        let is_name = !matches!(c, '\n' | '<') && name.len() <= MAX_NAME_BYTES;
        name.extend(is_name.then_some(c));
        match is_name {
            true => Step::More,
            false => Step::Broken,
        }
    }

    fn end_function_name(&mut self) -> Step {
        let name = self.function.trim().to_owned();
        self.function = name;
        self.at = At::Body;
        match self.function.is_empty() {
            true => Step::Broken,
            false => Step::More,
        }
    }

    fn begin_value(&mut self, out: &mut CallOutput) -> Step {
        let name = std::mem::take(&mut self.parameter);
        let name = name.trim();
        if name.is_empty() {
            return Step::Broken;
        }
        match self.has_parameters {
            true => out.arguments.push_str(", "),
            false => {
                out.name = Some(self.function.clone());
                out.arguments.push('{');
            }
        }
        self.has_parameters = true;
        write_json_string(name, &mut out.arguments);
        out.arguments.push_str(": ");
        let tool = self.tools.tool(&self.function);
        let types = tool.map_or(Types::STRING, |tool| Types::of_parameter(tool, name));
        self.value = Value::new(types);
        if types.is_string() {
            out.arguments.push('"');
        }
        self.at = At::Value;
        Step::More
    }

    fn close(&mut self, out: &mut CallOutput) -> Step {
        match self.has_parameters {
            true => out.arguments.push('}'),
            false => {
                out.name = Some(std::mem::take(&mut self.function));
                out.arguments.push_str("{}");
            }
        }
        Step::Done
    }

    /// Reads a character after `</parameter>`.
    fn read_tail(&mut self, mut tail: String, c: char, out: &mut CallOutput) -> Step {
        if c.is_whitespace() && tail.len() < MAX_TAIL_BYTES {
            tail.push(c);
            self.at = At::Tail(tail);
            return Step::More;
        }
        self.at = At::Value;
        for c in tail.chars() {
            self.value.read(c, &mut out.arguments);
        }
        // The character may begin `</parameter>`.
        Step::Again
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
        match self.types.is_string() {
            true => out.push('"'),
            false => self.types.write(&std::mem::take(&mut self.held), out),
        }
    }
}

impl CallReader for XmlReader {
    fn tags(&self) -> TagSet {
        match self.at {
            At::Function | At::Parameter => TagSet::NONE,
            At::Value => TagSet::of(&[Tag::ParameterClose]),
            At::Body | At::Tail(_) => {
                TagSet::of(&[Tag::ParameterOpen, Tag::FunctionClose, Tag::ToolClose])
            }
        }
    }

    fn is_in_text(&self) -> bool {
        matches!(self.at, At::Value | At::Tail(_))
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        match &mut self.at {
            At::Function if c == '>' => self.end_function_name(),
            At::Parameter if c == '>' => self.begin_value(out),
            At::Function | At::Parameter => self.read_name(c),
            At::Body if c.is_whitespace() => Step::More,
            At::Body => Step::Broken,
            At::Value => {
                self.value.read(c, &mut out.arguments);
                Step::More
            }
            At::Tail(tail) => {
                let tail = std::mem::take(tail);
                self.read_tail(tail, c, out)
            }
        }
    }

    fn read_tag(&mut self, tag: Tag, out: &mut CallOutput) -> Step {
        if matches!(self.at, At::Tail(_)) {
            self.value.end(&mut out.arguments);
            self.at = At::Body;
        }
        match tag {
            Tag::ParameterClose => {
                self.at = At::Tail(PARAMETER_CLOSE.to_owned());
                Step::More
            }
            Tag::ParameterOpen => {
                self.at = At::Parameter;
                Step::More
            }
            Tag::FunctionClose => self.close(out),
            // The end of the function is missing.
            Tag::ToolClose if self.has_parameters => {
                out.arguments.push('}');
                Step::DoneBefore
            }
            _ => Step::Broken,
        }
    }
}
