//! Parses calls in Python's notation: `seat(row=4, window=True)`.

use super::atom;
use super::value::ValueReader;
use crate::output::call::{CallOutput, CallReader, Step};
use crate::output::escape::write_json_string;
use crate::output::json::Scan;
use crate::output::named::MAX_NAME_BYTES;
use crate::output::syntax::{Tag, TagSet};

/// Parses a call from the first character of its name. Only keyword arguments are accepted.
#[derive(Debug)]
pub(in crate::output) struct PythonReader {
    at: At,
    function: String,
    is_started: bool,
    keyword: String,
    /// The JSON separator before the next argument.
    separator: String,
}

#[derive(Debug)]
enum At {
    Function,
    Argument,
    Keyword,
    Equals,
    BeforeValue,
    Value(ValueReader),
    Comma,
}

impl PythonReader {
    pub(in crate::output) fn new(first: char) -> Option<Self> {
        begins_name(first).then(|| Self {
            at: At::Function,
            function: first.to_string(),
            is_started: false,
            keyword: String::new(),
            separator: String::new(),
        })
    }

    fn read_function(&mut self, c: char) -> Step {
        match c {
            '(' => self.at = At::Argument,
            _ if self.function.len() > MAX_NAME_BYTES => return Step::Broken,
            '_' | '.' | '-' => self.function.push(c),
            _ if c.is_alphanumeric() => self.function.push(c),
            _ => return Step::Broken,
        }
        Step::More
    }

    fn read_keyword(&mut self, c: char) -> Step {
        match c {
            '=' => self.at = At::BeforeValue,
            _ if c.is_whitespace() => self.at = At::Equals,
            _ if self.keyword.len() > MAX_NAME_BYTES => return Step::Broken,
            _ if atom::is_atom(c) && !matches!(c, '+' | '.') => self.keyword.push(c),
            _ => return Step::Broken,
        }
        Step::More
    }

    fn begin_value(&mut self, c: char, out: &mut CallOutput) -> Step {
        if !ValueReader::begins(c) {
            return Step::Broken;
        }
        self.start(out);
        out.arguments.push_str(&self.separator);
        write_json_string(&self.keyword, &mut out.arguments);
        out.arguments.push_str(": ");
        self.separator.clear();
        self.separator.push_str(", ");
        self.at = At::Value(ValueReader::new());
        self.read(c, out)
    }

    fn start(&mut self, out: &mut CallOutput) {
        if !self.is_started {
            self.is_started = true;
            out.name = Some(std::mem::take(&mut self.function));
            out.arguments.push('{');
        }
    }

    fn close(&mut self, out: &mut CallOutput) -> Step {
        self.start(out);
        out.arguments.push('}');
        Step::Done
    }
}

fn begins_name(c: char) -> bool {
    c.is_alphabetic() || c == '_'
}

impl CallReader for PythonReader {
    fn tags(&self) -> TagSet {
        TagSet::NONE
    }

    fn is_in_text(&self) -> bool {
        matches!(&self.at, At::Value(value) if value.is_in_string())
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        match &mut self.at {
            At::Function => return self.read_function(c),
            At::Argument | At::Equals | At::BeforeValue | At::Comma if c.is_whitespace() => {}
            At::Argument | At::Comma if c == ')' => return self.close(out),
            At::Argument if begins_name(c) => {
                self.keyword.clear();
                self.keyword.push(c);
                self.at = At::Keyword;
            }
            At::Keyword => return self.read_keyword(c),
            At::Equals if c == '=' => self.at = At::BeforeValue,
            At::BeforeValue => return self.begin_value(c, out),
            At::Comma if c == ',' => self.at = At::Argument,
            At::Argument | At::Equals | At::Comma => return Step::Broken,
            At::Value(value) => match value.read(c, &mut out.arguments) {
                Scan::More => {}
                Scan::Done => self.at = At::Comma,
                Scan::DoneBefore => {
                    self.at = At::Comma;
                    return self.read(c, out);
                }
                Scan::Broken => return Step::Broken,
            },
        }
        Step::More
    }

    fn read_tag(&mut self, _: Tag, _: &mut CallOutput) -> Step {
        Step::Broken
    }

    fn pending_name(&self) -> Option<&str> {
        let is_read = !self.is_started && !matches!(self.at, At::Function);
        is_read.then_some(self.function.as_str())
    }
}
