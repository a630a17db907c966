//! Parses a tool call of Qwen3-Coder: `<function=seat>`, `<parameter=row>`, `4`, `</parameter>`, `</function>`.

use std::sync::Arc;

use super::call::{CallOutput, CallReader, Step};
use super::named::MAX_NAME_BYTES;
use super::parameters::{EdgeNewlines, Parameters, Tail};
use super::syntax::{Tag, TagSet};
use super::tools::ToolUse;

const PARAMETER_OPEN: &str = "<parameter=";
const PARAMETER_CLOSE: &str = "</parameter>";
const FUNCTION_CLOSE: &str = "</function>";

/// Parses the call after `<function=`.
///
/// `</parameter>` ends a value only before another parameter or the end of the function. One newline at each end of a
/// value is dropped. Without `</parameter>`, a value ends at a line that begins with another parameter of the tool, and
/// at the ends of function and call.
#[derive(Debug)]
pub(super) struct XmlReader {
    at: At,
    parameters: Parameters,
    name: String,
    /// The value is at the beginning of a line.
    is_at_line_start: bool,
}

#[derive(Debug)]
enum At {
    Function,
    Body,
    Parameter,
    Value,
    /// After `</parameter>`.
    Tail(Tail),
    /// After `<parameter=` on a separate line in a value.
    Next(String),
    /// After `</function>` on a separate line in a value.
    Closing(Tail),
}

impl XmlReader {
    pub(super) fn new(tools: Arc<ToolUse>) -> Self {
        Self {
            at: At::Function,
            parameters: Parameters::new(tools, EdgeNewlines::OfFormat),
            name: String::new(),
            is_at_line_start: false,
        }
    }

    fn read_name(&mut self, c: char) -> Step {
        let name = match self.at {
            At::Function => &mut self.parameters.function,
            _ => &mut self.name,
        };
        let is_name = !matches!(c, '\n' | '<') && name.len() <= MAX_NAME_BYTES;
        name.extend(is_name.then_some(c));
        if is_name { Step::More } else { Step::Broken }
    }

    fn end_function_name(&mut self) -> Step {
        let function = &mut self.parameters.function;
        *function = function.trim().to_owned();
        self.at = At::Body;
        if function.is_empty() {
            Step::Broken
        } else {
            Step::More
        }
    }

    fn begin_value(&mut self, out: &mut CallOutput) -> Step {
        let name = std::mem::take(&mut self.name);
        if !self.parameters.begin(&name, out) {
            return Step::Broken;
        }
        self.at = At::Value;
        self.is_at_line_start = false;
        Step::More
    }

    /// Reads a possible name of the next parameter: it counts if the tool has the parameter and the call lacks it.
    fn read_next(&mut self, c: char, out: &mut CallOutput) -> Step {
        let At::Next(text) = &mut self.at else {
            return Step::Broken;
        };
        if c == '>' {
            let name = text[PARAMETER_OPEN.len()..].to_owned();
            if self.parameters.lacks(&name) {
                self.parameters.end(out);
                self.name = name;
                return self.begin_value(out);
            }
        } else if !matches!(c, '\n' | '<') && text.len() <= MAX_NAME_BYTES {
            text.push(c);
            return Step::More;
        }
        let text = std::mem::take(text);
        self.take_back(text.chars(), out)
    }

    /// Appends a false end of a value to the value. The next character must be read again.
    fn take_back(&mut self, text: impl Iterator<Item = char>, out: &mut CallOutput) -> Step {
        text.for_each(|c| self.parameters.read(c, out));
        self.at = At::Value;
        self.is_at_line_start = false;
        Step::Again
    }
}

impl CallReader for XmlReader {
    fn tags(&self) -> TagSet {
        match self.at {
            At::Function | At::Parameter => TagSet::NONE,
            At::Value if self.is_at_line_start => {
                TagSet::of(&[Tag::ParameterClose, Tag::ParameterOpen, Tag::FunctionClose])
            }
            At::Value => TagSet::of(&[Tag::ParameterClose]),
            At::Next(_) => TagSet::NONE,
            At::Closing(_) => TagSet::of(&[Tag::ToolClose]),
            At::Body | At::Tail(_) => {
                TagSet::of(&[Tag::ParameterOpen, Tag::FunctionClose, Tag::ToolClose])
            }
        }
    }

    fn is_in_text(&self) -> bool {
        !matches!(self.at, At::Function | At::Parameter | At::Body)
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        match &mut self.at {
            At::Function if c == '>' => self.end_function_name(),
            At::Parameter if c == '>' => self.begin_value(out),
            At::Function | At::Parameter => self.read_name(c),
            At::Body if c.is_whitespace() => Step::More,
            At::Body => Step::Broken,
            At::Value => {
                self.is_at_line_start = c == '\n';
                self.parameters.read(c, out);
                Step::More
            }
            At::Tail(tail) | At::Closing(tail) => {
                if tail.accepts(c) {
                    return Step::More;
                }
                let text: Vec<char> = tail.chars().collect();
                self.take_back(text.into_iter(), out)
            }
            At::Next(_) => self.read_next(c, out),
        }
    }

    fn read_tag(&mut self, tag: Tag, out: &mut CallOutput) -> Step {
        match (&self.at, tag) {
            (At::Value, Tag::ParameterOpen) => {
                self.at = At::Next(PARAMETER_OPEN.to_owned());
                return Step::More;
            }
            (At::Value, Tag::FunctionClose) => {
                self.at = At::Closing(Tail::new(FUNCTION_CLOSE));
                return Step::More;
            }
            (At::Tail(_) | At::Closing(_), _) => {
                self.parameters.end(out);
                self.at = At::Body;
            }
            _ => {}
        }
        match tag {
            Tag::ParameterClose => {
                self.at = At::Tail(Tail::new(PARAMETER_CLOSE));
                Step::More
            }
            Tag::ParameterOpen => {
                self.at = At::Parameter;
                Step::More
            }
            Tag::FunctionClose => {
                self.parameters.close(out);
                Step::Done
            }
            // The end of the function is missing.
            Tag::ToolClose if self.parameters.has_any() => {
                self.parameters.close(out);
                Step::DoneBefore
            }
            _ => Step::Broken,
        }
    }
}
