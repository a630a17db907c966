//! Parses a call given as a JSON object with a name and arguments.

use std::sync::Arc;

use super::call::{CallOutput, CallReader, Step};
use super::escape::Unescape;
use super::json::{self, Scan, ValueScanner};
use super::syntax::{Surroundings, Tag, TagSet};
use super::tools::ToolUse;

/// A longer key is ignored.
const MAX_KEY_BYTES: usize = 64;

/// Parses the object after its opening bracket. Arguments before the name are held.
#[derive(Debug)]
pub(super) struct ObjectReader {
    surroundings: Surroundings,
    at: At,
    text: String,
    name: Option<String>,
    is_started: bool,
    /// Arguments before the name.
    early: String,
    arguments: Arguments,
    quoted: QuotedState,
    /// The tools of which the call must name one; `None` if a tag marks the call.
    tools: Option<Arc<ToolUse>>,
    /// The call is in an object inside this one.
    is_nested: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arguments {
    None,
    Open,
    Complete,
}

#[derive(Debug)]
enum QuotedState {
    Blank,
    Object(ValueScanner),
    Complete,
}

#[derive(Debug)]
enum At {
    FirstKey,
    NextKey,
    Key(Unescape),
    Colon(Field),
    Value(Field),
    Name(Unescape),
    Scanned(ValueScanner),
    /// Arguments inside a string.
    Quoted(Unescape),
    /// The value of an ignored key.
    Skipped(ValueScanner),
    AfterValue,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Name,
    Arguments,
    /// A nested object with the call itself.
    Call,
    Other,
}

impl ObjectReader {
    pub(super) fn new(surroundings: Surroundings) -> Self {
        Self {
            surroundings,
            at: At::FirstKey,
            text: String::new(),
            name: None,
            is_started: false,
            early: String::new(),
            arguments: Arguments::None,
            quoted: QuotedState::Blank,
            tools: None,
            is_nested: false,
        }
    }

    /// A reader of an object that is a call only if it names one of the tools.
    pub(super) fn of_tools(tools: Arc<ToolUse>) -> Self {
        Self {
            tools: Some(tools),
            ..Self::new(Surroundings::Named)
        }
    }

    /// The step at an invalid character. If the arguments are complete, so is the call.
    fn broken(&self) -> Step {
        if self.is_started && self.arguments == Arguments::Complete {
            Step::DoneBefore
        } else {
            Step::Broken
        }
    }

    /// Emits the name, and the arguments held before it.
    fn start(&mut self, out: &mut CallOutput) {
        if let Some(name) = self.name.take() {
            self.is_started = true;
            out.name = Some(name);
            out.arguments.push_str(&std::mem::take(&mut self.early));
        }
    }

    /// The first of duplicate keys counts.
    fn field(&self) -> Field {
        let is_named = self.is_started || self.name.is_some();
        match self.text.as_str() {
            "name" if !is_named => Field::Name,
            "arguments" | "parameters" if self.arguments == Arguments::None => Field::Arguments,
            "function" | "tool_call"
                if self.surroundings == Surroundings::Named && !is_named && !self.is_nested =>
            {
                Field::Call
            }
            _ => Field::Other,
        }
    }

    /// Whether a key may come next. Without a tag, only `type` and `id` may precede the call's name or arguments.
    fn allows(&self, field: Field) -> bool {
        let is_named = self.is_started || self.name.is_some();
        let is_kind = || matches!(self.text.as_str(), "type" | "id");
        match (self.surroundings, field) {
            (Surroundings::Tagged, _) | (_, Field::Name | Field::Call) => true,
            (Surroundings::Bare, Field::Arguments) => is_named,
            (Surroundings::Named, Field::Arguments) => true,
            (Surroundings::Bare | Surroundings::Named, Field::Other) => {
                self.is_started || is_kind()
            }
        }
    }

    fn begin_value(&mut self, field: Field, c: char, out: &mut CallOutput) -> Step {
        self.text.clear();
        self.at = match (field, c) {
            (Field::Name, '"') => At::Name(json::string()),
            (Field::Name, _) => return Step::Broken,
            (Field::Call, '{') => {
                self.is_nested = true;
                At::FirstKey
            }
            (Field::Call, _) => return Step::Broken,
            (Field::Arguments, '{') => self.scan_arguments(c, out),
            (Field::Arguments, _) if self.surroundings == Surroundings::Bare => {
                return Step::Broken;
            }
            (Field::Arguments, '"') => {
                self.arguments = Arguments::Open;
                At::Quoted(json::string())
            }
            (Field::Arguments, '[') => return Step::Broken,
            (Field::Arguments | Field::Other, _) => match ValueScanner::new(c) {
                None => return self.broken(),
                Some(scanner) if field == Field::Other => At::Skipped(scanner),
                Some(scanner) => {
                    self.arguments = Arguments::Open;
                    self.text.push(c);
                    At::Scanned(scanner)
                }
            },
        };
        Step::More
    }

    fn scan_arguments(&mut self, c: char, out: &mut CallOutput) -> At {
        self.arguments = Arguments::Open;
        self.start(out);
        self.arguments_in(out).push(c);
        // The caller passes a bracket.
        ValueScanner::new(c).map_or(At::AfterValue, At::Scanned)
    }

    fn arguments_in<'a>(&'a mut self, out: &'a mut CallOutput) -> &'a mut String {
        if self.is_started {
            &mut out.arguments
        } else {
            &mut self.early
        }
    }

    fn read_scanned(&mut self, scan: Scan, c: char, out: &mut CallOutput) -> Step {
        match scan {
            Scan::Broken => return Step::Broken,
            Scan::More => {}
            Scan::Done => self.end_arguments(),
            Scan::DoneBefore if self.text != "null" => return Step::Broken,
            Scan::DoneBefore => {
                self.start(out);
                self.arguments_in(out).push_str("{}");
                self.end_arguments();
                return self.read(c, out);
            }
        }
        Step::More
    }

    fn end_arguments(&mut self) {
        self.arguments = Arguments::Complete;
        self.at = At::AfterValue;
    }

    /// Reads a character of a string that holds the arguments: an object, or only white space.
    fn read_quoted(&mut self, c: char, out: &mut CallOutput) -> Step {
        let At::Quoted(unescape) = &mut self.at else {
            return Step::Broken;
        };
        let mut decoded = std::mem::take(&mut self.text);
        decoded.clear();
        let is_end = json::read_string(unescape, c, &mut decoded);
        let is_object = decoded.chars().all(|c| self.read_decoded(c, out));
        self.text = decoded;
        match (&self.quoted, is_end) {
            _ if !is_object => return Step::Broken,
            (_, false) => return Step::More,
            (QuotedState::Object(_), true) => return Step::Broken,
            (QuotedState::Blank, true) => {
                self.start(out);
                self.arguments_in(out).push_str("{}");
            }
            (QuotedState::Complete, true) => {}
        }
        self.end_arguments();
        Step::More
    }

    /// Returns whether a decoded character belongs to the object. White space around the object is dropped.
    fn read_decoded(&mut self, c: char, out: &mut CallOutput) -> bool {
        let is_blank = matches!(c, ' ' | '\n' | '\r' | '\t');
        let scan = match &mut self.quoted {
            QuotedState::Blank | QuotedState::Complete if is_blank => return true,
            QuotedState::Blank if c == '{' => {
                self.start(out);
                match ValueScanner::new(c) {
                    Some(scanner) => self.quoted = QuotedState::Object(scanner),
                    None => return false,
                }
                self.arguments_in(out).push(c);
                Scan::More
            }
            QuotedState::Blank | QuotedState::Complete => return false,
            QuotedState::Object(scanner) => {
                let to = if self.is_started {
                    &mut out.arguments
                } else {
                    &mut self.early
                };
                scanner.read_into(c, to)
            }
        };
        match scan {
            Scan::More => {}
            Scan::Done => self.quoted = QuotedState::Complete,
            Scan::DoneBefore | Scan::Broken => return false,
        }
        true
    }

    fn read_key(&mut self, c: char) -> Step {
        let At::Key(unescape) = &mut self.at else {
            return Step::Broken;
        };
        if !json::read_string(unescape, c, &mut self.text) {
            if self.text.len() > MAX_KEY_BYTES {
                self.text.pop();
            }
            return Step::More;
        }
        let field = self.field();
        self.at = At::Colon(field);
        if self.allows(field) {
            Step::More
        } else {
            Step::Broken
        }
    }

    fn end_name(&mut self, out: &mut CallOutput) -> Step {
        let is_tool = |tools: &Arc<ToolUse>| tools.tool(&self.text).is_some();
        if self.text.is_empty() || !self.tools.as_ref().is_none_or(is_tool) {
            return Step::Broken;
        }
        self.name = Some(std::mem::take(&mut self.text));
        self.at = At::AfterValue;
        if self.arguments == Arguments::Complete {
            self.start(out);
        }
        Step::More
    }

    fn close(&mut self, out: &mut CallOutput) -> Step {
        if !self.is_started {
            if self.name.is_none() || self.surroundings == Surroundings::Bare {
                return Step::Broken;
            }
            self.early.push_str("{}");
            self.start(out);
        }
        if std::mem::take(&mut self.is_nested) {
            self.at = At::AfterValue;
            Step::More
        } else {
            Step::Done
        }
    }

    fn begin_key(&mut self) -> Step {
        self.text.clear();
        self.at = At::Key(json::string());
        Step::More
    }
}

impl CallReader for ObjectReader {
    fn tags(&self) -> TagSet {
        if self.is_in_text() {
            TagSet::NONE
        } else {
            TagSet::of(&[Tag::ToolOpen, Tag::ToolClose])
        }
    }

    fn is_in_text(&self) -> bool {
        match &self.at {
            At::Key(_) | At::Name(_) | At::Quoted(_) => true,
            At::Scanned(scanner) | At::Skipped(scanner) => scanner.is_in_string(),
            _ => false,
        }
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        let is_space = matches!(c, ' ' | '\n' | '\r' | '\t');
        match &mut self.at {
            At::FirstKey | At::NextKey | At::Colon(_) | At::Value(_) | At::AfterValue
                if is_space =>
            {
                Step::More
            }
            At::FirstKey | At::NextKey if c == '"' => self.begin_key(),
            At::FirstKey | At::NextKey | At::AfterValue if c == '}' => self.close(out),
            At::AfterValue if c == ',' => {
                self.at = At::NextKey;
                Step::More
            }
            At::FirstKey | At::NextKey | At::AfterValue => self.broken(),
            At::Key(_) => self.read_key(c),
            At::Colon(field) if c == ':' => {
                self.at = At::Value(*field);
                Step::More
            }
            At::Colon(_) => self.broken(),
            At::Value(field) => {
                let field = *field;
                self.begin_value(field, c, out)
            }
            At::Name(unescape) => {
                if json::read_string(unescape, c, &mut self.text) {
                    self.end_name(out)
                } else {
                    Step::More
                }
            }
            At::Scanned(scanner) => {
                let to = match (scanner.is_word(), self.is_started) {
                    (true, _) => &mut self.text,
                    (false, true) => &mut out.arguments,
                    (false, false) => &mut self.early,
                };
                let scan = scanner.read_into(c, to);
                self.read_scanned(scan, c, out)
            }
            At::Quoted(_) => self.read_quoted(c, out),
            At::Skipped(scanner) => match scanner.read(c) {
                Scan::More => Step::More,
                Scan::Done => {
                    self.at = At::AfterValue;
                    Step::More
                }
                Scan::DoneBefore => {
                    self.at = At::AfterValue;
                    self.read(c, out)
                }
                Scan::Broken => self.broken(),
            },
        }
    }

    fn read_tag(&mut self, _: Tag, _: &mut CallOutput) -> Step {
        self.broken()
    }

    fn pending_name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}
