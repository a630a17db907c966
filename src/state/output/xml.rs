//! Reads a call of Qwen3-Coder: `<function=seat>`, `<parameter=row>`, `4`, `</parameter>`, `</function>`.

use std::sync::Arc;

use super::call::{CallOutput, CallReader, Step};
use super::named::MAX_NAME_BYTES;
use super::parameters::{EdgeNewlines, Parameters, Tail};
use super::syntax::{Tag, TagSet};
use super::tools::ToolUse;

const PARAMETER_CLOSE: &str = "</parameter>";

/// Reads the call after `<function=`.
///
/// `</parameter>` ends a value only if another parameter or the end of the function follows. One newline at each end of
/// a value is dropped.
#[derive(Debug)]
pub(super) struct XmlReader {
    at: At,
    parameters: Parameters,
    /// The name of a parameter.
    name: String,
}

#[derive(Debug)]
enum At {
    Function,
    Body,
    Parameter,
    Value,
    /// After `</parameter>`.
    Tail(Tail),
}

impl XmlReader {
    pub(super) fn new(tools: Arc<ToolUse>) -> Self {
        Self {
            at: At::Function,
            parameters: Parameters::new(tools, EdgeNewlines::OfForm),
            name: String::new(),
        }
    }

    fn read_name(&mut self, c: char) -> Step {
        let name = match self.at {
            At::Function => &mut self.parameters.function,
            _ => &mut self.name,
        };
        let is_name = !matches!(c, '\n' | '<') && name.len() <= MAX_NAME_BYTES;
        name.extend(is_name.then_some(c));
        match is_name {
            true => Step::More,
            false => Step::Broken,
        }
    }

    fn end_function_name(&mut self) -> Step {
        let function = &mut self.parameters.function;
        *function = function.trim().to_owned();
        self.at = At::Body;
        match function.is_empty() {
            true => Step::Broken,
            false => Step::More,
        }
    }

    fn begin_value(&mut self, out: &mut CallOutput) -> Step {
        let name = std::mem::take(&mut self.name);
        if !self.parameters.begin(&name, out) {
            return Step::Broken;
        }
        self.at = At::Value;
        Step::More
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
                self.parameters.read(c, out);
                Step::More
            }
            At::Tail(tail) => {
                if tail.takes(c) {
                    return Step::More;
                }
                tail.chars().for_each(|c| self.parameters.read(c, out));
                self.at = At::Value;
                // The character may begin `</parameter>`.
                Step::Again
            }
        }
    }

    fn read_tag(&mut self, tag: Tag, out: &mut CallOutput) -> Step {
        if matches!(self.at, At::Tail(_)) {
            self.parameters.end(out);
            self.at = At::Body;
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
