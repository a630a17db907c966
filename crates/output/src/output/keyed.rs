//! Parses a tool call of GLM: `seat`, `<arg_key>row</arg_key>`, `<arg_value>4</arg_value>`, with or without newlines.

use std::sync::Arc;

use super::call::{CallOutput, CallReader, Step};
use super::named::{MAX_NAME_BYTES, is_name};
use super::parameters::{EdgeNewlines, Parameters, Tail};
use super::syntax::{Tag, TagSet};
use super::tools::ToolUse;

const VALUE_CLOSE: &str = "</arg_value>";

/// Parses the call from the first character of its name up to `</tool_call>`.
///
/// `</arg_value>` ends a value only before another key or the end of the call. A name alone is a call only if it is the
/// name of a tool.
#[derive(Debug)]
pub(super) struct KeyedReader {
    at: At,
    parameters: Parameters,
    key: String,
}

#[derive(Debug)]
enum At {
    Function,
    Body,
    Key,
    AfterKey,
    Value,
    /// After `</arg_value>`.
    Tail(Tail),
}

impl KeyedReader {
    /// Starts a name, if the character can begin one.
    pub(super) fn new(first: char, tools: &Arc<ToolUse>) -> Option<Self> {
        let mut parameters = Parameters::new(tools.clone(), EdgeNewlines::OfValue);
        parameters.function.push(first);
        is_name(first).then_some(Self {
            at: At::Function,
            parameters,
            key: String::new(),
        })
    }

    fn read_function(&mut self, c: char) -> Step {
        let function = &mut self.parameters.function;
        match c {
            _ if c.is_whitespace() => self.at = At::Body,
            _ if is_name(c) && function.len() <= MAX_NAME_BYTES => function.push(c),
            _ => return Step::Broken,
        }
        Step::More
    }

    fn read_key(&mut self, c: char) -> Step {
        if self.key.len() > MAX_NAME_BYTES {
            return Step::Broken;
        }
        self.key.push(c);
        Step::More
    }

    fn begin_value(&mut self, out: &mut CallOutput) -> Step {
        let key = std::mem::take(&mut self.key);
        if !self.parameters.begin(&key, out) {
            return Step::Broken;
        }
        self.at = At::Value;
        Step::More
    }

    fn close(&mut self, out: &mut CallOutput) -> Step {
        if !self.parameters.has_any() && !self.parameters.is_declared() {
            return Step::Broken;
        }
        self.parameters.close(out);
        Step::DoneBefore
    }
}

impl CallReader for KeyedReader {
    fn tags(&self) -> TagSet {
        match self.at {
            At::Function | At::Body | At::Tail(_) => TagSet::of(&[Tag::KeyOpen, Tag::ToolClose]),
            At::Key => TagSet::of(&[Tag::KeyClose]),
            At::AfterKey => TagSet::of(&[Tag::ValueOpen]),
            At::Value => TagSet::of(&[Tag::ValueClose]),
        }
    }

    fn is_in_text(&self) -> bool {
        matches!(self.at, At::Value | At::Tail(_))
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        match &mut self.at {
            At::Function => self.read_function(c),
            At::Key => self.read_key(c),
            At::Body | At::AfterKey if c.is_whitespace() => Step::More,
            At::Body | At::AfterKey => Step::Broken,
            At::Value => {
                self.parameters.read(c, out);
                Step::More
            }
            At::Tail(tail) => {
                if tail.accepts(c) {
                    return Step::More;
                }
                tail.chars().for_each(|c| self.parameters.read(c, out));
                self.at = At::Value;
                // The character may begin `</arg_value>`.
                Step::Again
            }
        }
    }

    fn read_tag(&mut self, tag: Tag, out: &mut CallOutput) -> Step {
        if matches!(self.at, At::Tail(_)) {
            self.parameters.end(out);
            self.at = At::Body;
        }
        self.at = match tag {
            Tag::KeyOpen => At::Key,
            Tag::KeyClose => At::AfterKey,
            Tag::ValueOpen => return self.begin_value(out),
            Tag::ValueClose => At::Tail(Tail::new(VALUE_CLOSE)),
            Tag::ToolClose => return self.close(out),
            _ => return Step::Broken,
        };
        Step::More
    }
}
