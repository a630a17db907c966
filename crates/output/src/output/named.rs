//! Parses a tool call of Mistral: a name and a JSON object, with tags between them: `seat[ARGS]{"row":4}`.

use super::call::{CallOutput, CallReader, Step};
use super::json::{Scan, ValueScanner};
use super::syntax::{Tag, TagSet};

/// A longer name or call id is invalid.
pub(super) const MAX_NAME_BYTES: usize = 256;

/// Whether a character may be part of a function name.
pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}

/// Parses the call from the first character of its name. A call id is dropped, and `[ARGS]` is optional.
#[derive(Debug)]
pub(super) struct NamedReader {
    at: At,
    name: String,
    id_bytes: usize,
}

#[derive(Debug)]
enum At {
    Name,
    AfterName,
    Id,
    BeforeArguments,
    Arguments(ValueScanner),
}

impl NamedReader {
    pub(super) fn new(first: char) -> Option<Self> {
        let begins = first.is_alphanumeric() || first == '_';
        begins.then(|| Self {
            at: At::Name,
            name: first.to_string(),
            id_bytes: 0,
        })
    }

    fn begin_arguments(&mut self, out: &mut CallOutput) -> Step {
        let Some(scanner) = ValueScanner::new('{') else {
            return Step::Broken;
        };
        out.name = Some(std::mem::take(&mut self.name));
        out.arguments.push('{');
        self.at = At::Arguments(scanner);
        Step::More
    }

    fn read_name(&mut self, c: char) -> Step {
        if !is_name(c) || self.name.len() > MAX_NAME_BYTES {
            return Step::Broken;
        }
        self.name.push(c);
        Step::More
    }

    fn read_id(&mut self, c: char) -> Step {
        let belongs = c.is_alphanumeric() || matches!(c, '_' | '-') || c.is_whitespace();
        self.id_bytes += c.len_utf8();
        if belongs && self.id_bytes <= MAX_NAME_BYTES {
            Step::More
        } else {
            Step::Broken
        }
    }
}

impl CallReader for NamedReader {
    fn tags(&self) -> TagSet {
        match &self.at {
            At::Name | At::AfterName => TagSet::of(&[Tag::Arguments, Tag::CallId]),
            At::Id => TagSet::of(&[Tag::Arguments]),
            At::BeforeArguments => TagSet::NONE,
            At::Arguments(scanner) if scanner.is_in_string() => TagSet::NONE,
            At::Arguments(_) => TagSet::of(&[Tag::ToolOpen]),
        }
    }

    fn is_in_text(&self) -> bool {
        matches!(&self.at, At::Arguments(scanner) if scanner.is_in_string())
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        match &mut self.at {
            At::Arguments(scanner) => match scanner.read_into(c, &mut out.arguments) {
                Scan::More => Step::More,
                Scan::Done => Step::Done,
                Scan::DoneBefore | Scan::Broken => Step::Broken,
            },
            _ if c == '{' => self.begin_arguments(out),
            At::Name if c.is_whitespace() => {
                self.at = At::AfterName;
                Step::More
            }
            At::Name => self.read_name(c),
            At::Id => self.read_id(c),
            At::AfterName | At::BeforeArguments if c.is_whitespace() => Step::More,
            At::AfterName | At::BeforeArguments => Step::Broken,
        }
    }

    fn read_tag(&mut self, tag: Tag, _: &mut CallOutput) -> Step {
        self.at = match tag {
            Tag::Arguments => At::BeforeArguments,
            Tag::CallId => At::Id,
            _ => return Step::Broken,
        };
        Step::More
    }
}
