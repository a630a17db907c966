//! Parses a call that lacks the tag of the model's format: a JSON object alone, or in Markdown code or other tags.

use std::sync::Arc;

use super::call::{CallOutput, CallReader, Step};
use super::closers::{Closers, FENCE, TICK};
use super::json::{Scan, Separation, ValueScanner};
use super::named::MAX_NAME_BYTES;
use super::object::ObjectReader;
use super::syntax::{Loose, Tag, TagSet};
use super::tools::{Tool, ToolUse};

/// The languages of fences around calls.
const LANGUAGES: [&str; 3] = ["", "json", "xml"];
const TAGS: [(&str, &str); 7] = [
    ("function_call", "</function_call>"),
    ("tool", "</tool>"),
    ("tools", "</tools>"),
    ("response", "</response>"),
    ("json", "</json>"),
    ("xml", "</xml>"),
    ("JSON", "</JSON>"),
];
const FUNCTION_CLOSE: &str = "</function>";

/// Parses from the first character of the object, or of its fence, tag or list.
///
/// The object is a call only if it names a tool and has only the keys of a call. So nothing is emitted before the whole
/// object has been validated.
#[derive(Debug)]
pub(super) struct LooseReader {
    tools: Arc<ToolUse>,
    accepted: Loose,
    at: At,
    /// The partial fence with its language, or the partial tag.
    word: String,
    closers: Closers,
    /// Only whitespace precedes the call in the content.
    is_start: bool,
    /// This call opened the list, which has no fence or tag around it.
    is_lone_list: bool,
    found: CallOutput,
    /// The object's text before its arguments, as in [`strict_openings`].
    opening: String,
    separation: Separation,
}

#[derive(Debug)]
enum At {
    Fence,
    /// In the name of a tag.
    Tag,
    /// Before the object, or its tag or bracket.
    Before,
    /// Before the arguments of a function named in a tag.
    BeforeArguments,
    Object(ObjectReader),
    Arguments(ValueScanner),
    /// After the first object of a lone list; counts the white space and commas since.
    AfterObject(usize),
}

impl LooseReader {
    /// Starts a call, if one can begin with this character.
    pub(super) fn new(
        first: char,
        accepted: Loose,
        closers: Closers,
        tools: &Arc<ToolUse>,
        is_start: bool,
    ) -> Option<Self> {
        let mut reader = Self {
            tools: tools.clone(),
            accepted,
            at: At::Before,
            word: String::new(),
            closers,
            is_start,
            is_lone_list: false,
            found: CallOutput::default(),
            opening: String::new(),
            separation: Separation::default(),
        };
        let is_next = !closers.is_empty();
        match first {
            '{' => reader.open_object(),
            '`' if !is_next => {
                reader.word.push('`');
                reader.at = At::Fence;
            }
            // The engine passes the bracket of a tag only in formats that accept tags.
            '[' | '<' if !is_next => {
                reader.read_before(first);
            }
            _ => return None,
        }
        Some(reader)
    }

    fn open_object(&mut self) {
        self.separation = Separation::default();
        self.separation.read('{');
        self.opening.push('{');
        self.at = At::Object(ObjectReader::of_tools(self.tools.clone()));
    }

    fn read_fence(&mut self, c: char) -> Step {
        if c == '{' && self.word == TICK && self.is_start {
            self.closers.tick = true;
            self.open_object();
            return Step::More;
        }
        let language = self.word.strip_prefix(FENCE);
        let is_open = language.is_some_and(|language| LANGUAGES.contains(&language));
        if is_open && (c.is_whitespace() || matches!(c, '{' | '[' | '<')) {
            self.closers = Closers {
                fence: true,
                more: true,
                ..Closers::default()
            };
            self.at = At::Before;
            return self.read_before(c);
        }
        self.word.push(c);
        let mut languages = LANGUAGES.iter();
        let may_be_fence = match self.word.strip_prefix(FENCE) {
            Some(language) => languages.any(|allowed| allowed.starts_with(language)),
            None => FENCE.starts_with(&self.word),
        };
        more_if(may_be_fence)
    }

    fn read_before(&mut self, c: char) -> Step {
        match c {
            _ if c.is_whitespace() => {}
            '{' => self.open_object(),
            '[' if !self.closers.list => {
                self.is_lone_list = !self.closers.fence && self.closers.tag.is_none();
                self.closers.list = true;
            }
            '<' if self.accepted == Loose::ObjectsAndTags && self.is_bare() => {
                self.word.clear();
                self.at = At::Tag;
            }
            _ => return Step::Broken,
        }
        Step::More
    }

    fn is_bare(&self) -> bool {
        self.closers.tag.is_none() && !self.closers.list
    }

    fn read_tag_name(&mut self, c: char) -> Step {
        if c != '>' {
            self.word.push(c);
            return more_if(self.word.len() <= MAX_NAME_BYTES && self.may_be_tag());
        }
        if let Some((_, close)) = TAGS.iter().find(|(tag, _)| *tag == self.word) {
            self.closers.tag = Some(close);
            self.at = At::Before;
            return Step::More;
        }
        let Some(name) = function(&self.word) else {
            return Step::Broken;
        };
        self.found.name = Some(name.to_owned());
        self.closers.tag = Some(FUNCTION_CLOSE);
        self.at = At::BeforeArguments;
        more_if(self.tools.tool(name).is_some_and(|tool| !tool.strict))
    }

    fn may_be_tag(&self) -> bool {
        let word = self.word.as_str();
        TAGS.iter().any(|(tag, _)| tag.starts_with(word))
            || FUNCTIONS
                .iter()
                .any(|begin| begin.starts_with(word) || word.starts_with(begin))
    }

    /// Whether the object may call the tool with this name. Its arguments have begun.
    fn may_call(&self, name: &str) -> bool {
        if self.tools.tool(name).is_some_and(|tool| !tool.strict) {
            return true;
        }
        let openings = strict_openings(name);
        let is_accepted = openings.iter().any(|(open, _)| *open == self.opening);
        is_accepted && loose_strict_tools(&self.tools).any(|tool| tool.name == name)
    }

    fn read_object(&mut self, c: char, out: &mut CallOutput) -> Step {
        if !self.separation.read(c) {
            return Step::Broken;
        }
        let step = match &mut self.at {
            At::Object(object) => {
                let step = object.read(c, &mut self.found);
                match self.found.name.as_deref() {
                    None => self.opening.push(c),
                    Some(name) if !self.may_call(name) => return Step::Broken,
                    Some(_) => {}
                }
                step
            }
            At::Arguments(scanner) => match scanner.read_into(c, &mut self.found.arguments) {
                Scan::More => Step::More,
                Scan::Done => Step::Done,
                Scan::DoneBefore | Scan::Broken => Step::Broken,
            },
            _ => Step::Broken,
        };
        match step {
            Step::More => Step::More,
            Step::Done if !is_object(&self.found.arguments) => Step::Broken,
            Step::Done if self.is_lone_list => {
                self.at = At::AfterObject(0);
                Step::More
            }
            Step::Done => {
                self.emit(out);
                Step::Done
            }
            _ => Step::Broken,
        }
    }

    fn emit(&mut self, out: &mut CallOutput) {
        out.name = self.found.name.take();
        out.arguments.push_str(&self.found.arguments);
    }

    /// A bracket opens a list only if `]` or `{` follows its first object.
    fn read_after_object(&mut self, n_read: usize, c: char, out: &mut CallOutput) -> Step {
        match c {
            ']' | '{' => {
                self.emit(out);
                Step::DoneBefore
            }
            _ if c == ',' || c.is_whitespace() => {
                self.at = At::AfterObject(n_read + 1);
                Step::More
            }
            _ => Step::Broken,
        }
    }
}

/// Upper bound of strict tools callable without a tag. The grammar searches all text for each of them.
const MAX_STRICT: usize = 8;

/// Returns the two accepted beginnings of an object that calls a strict tool, up to its arguments, each with its end:
/// on one line, or one line per key. The grammar accepts only these; an object with other whitespace is text, because
/// its arguments may violate the schema.
pub fn strict_openings(name: &str) -> [(String, &'static str); 2] {
    let name = serde_json::Value::from(name);
    [
        (format!("{{\"name\": {name}, \"arguments\": "), "}"),
        (format!("{{\n  \"name\": {name},\n  \"arguments\": "), "\n}"),
    ]
}

/// Returns the strict tools callable without a tag: all, or none if there are more than `MAX_STRICT`.
pub fn loose_strict_tools(tools: &ToolUse) -> impl Iterator<Item = &Tool> {
    let strict = || tools.tools.iter().filter(|tool| tool.strict);
    let are_few = strict().nth(MAX_STRICT).is_none();
    strict().filter(move |_| are_few)
}

/// The beginnings of tags that contain a function name.
const FUNCTIONS: [&str; 2] = ["function=", "function name=\""];

fn function(tag: &str) -> Option<&str> {
    match tag.strip_prefix(FUNCTIONS[0]) {
        Some(name) => Some(name),
        None => tag.strip_prefix(FUNCTIONS[1])?.strip_suffix('"'),
    }
}

fn more_if(is_more: bool) -> Step {
    if is_more { Step::More } else { Step::Broken }
}

fn is_object(arguments: &str) -> bool {
    let is_json = serde_json::from_str::<serde::de::IgnoredAny>(arguments).is_ok();
    is_json && arguments.trim_start().starts_with('{')
}

impl CallReader for LooseReader {
    fn tags(&self) -> TagSet {
        match self.at {
            // The tag of the model's format inside a fence.
            At::Before if self.closers.fence && self.is_bare() => TagSet::of(&[Tag::ToolOpen]),
            _ => TagSet::NONE,
        }
    }

    fn is_in_text(&self) -> bool {
        match &self.at {
            At::Object(object) => object.is_in_text(),
            At::Arguments(scanner) => scanner.is_in_string(),
            _ => false,
        }
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        match &self.at {
            At::Fence => self.read_fence(c),
            At::Tag => self.read_tag_name(c),
            At::Before => self.read_before(c),
            At::BeforeArguments if c.is_whitespace() => Step::More,
            At::BeforeArguments => match ValueScanner::new(c).filter(|_| c == '{') {
                Some(scanner) => {
                    self.found.arguments.push(c);
                    self.separation.read(c);
                    self.at = At::Arguments(scanner);
                    Step::More
                }
                None => Step::Broken,
            },
            At::Object(_) | At::Arguments(_) => self.read_object(c, out),
            At::AfterObject(n_read) => {
                let n_read = *n_read;
                self.read_after_object(n_read, c, out)
            }
        }
    }

    fn read_tag(&mut self, _: Tag, _: &mut CallOutput) -> Step {
        Step::More
    }

    fn closers(&self) -> Closers {
        self.closers
    }

    fn n_after_call(&self) -> Option<usize> {
        match self.at {
            At::AfterObject(n_read) => Some(n_read),
            _ => None,
        }
    }

    fn pending_name(&self) -> Option<&str> {
        match &self.at {
            At::Object(object) => object.pending_name().or(self.found.name.as_deref()),
            At::Arguments(_) => self.found.name.as_deref(),
            _ => None,
        }
    }
}
