//! Parses a tool call of DeepSeek: a name and a JSON object with a separator tag between them.
//!
//! V3.1 writes the name before the tag and the object after it. V3 writes a word before the tag, and after it the name,
//! a line break, and the object in a Markdown fence. The character after the tag distinguishes the two.

use super::call::{CallOutput, CallReader, Step};
use super::closers::{Closers, FENCE};
use super::json::{Scan, ValueScanner};
use super::named::{MAX_NAME_BYTES, is_name};
use super::syntax::{Tag, TagSet};

const FENCE_OF_JSON: &str = "```json";

#[derive(Debug)]
pub(super) struct SeparatedReader {
    at: At,
    /// The name, or the word before the separator.
    name: String,
    /// The part read so far of the fence before the arguments.
    fence: String,
}

#[derive(Debug)]
enum At {
    BeforeSeparator,
    AfterSeparator,
    Name,
    Fence,
    Arguments(ValueScanner),
}

impl SeparatedReader {
    pub(super) fn new(first: char) -> Option<Self> {
        is_name(first).then(|| Self {
            at: At::BeforeSeparator,
            name: first.to_string(),
            fence: String::new(),
        })
    }

    fn read_name(&mut self, c: char) -> Step {
        if !is_name(c) || self.name.len() > MAX_NAME_BYTES {
            return Step::Broken;
        }
        self.name.push(c);
        Step::More
    }

    fn read_after_separator(&mut self, c: char, out: &mut CallOutput) -> Step {
        match c {
            '{' => self.begin_arguments(out),
            _ if c.is_whitespace() => Step::More,
            _ => {
                self.name.clear();
                self.at = At::Name;
                self.read_name(c)
            }
        }
    }

    fn read_fence(&mut self, c: char, out: &mut CallOutput) -> Step {
        let is_whole = ["", FENCE, FENCE_OF_JSON].contains(&self.fence.as_str());
        if c == '{' && is_whole {
            return self.begin_arguments(out);
        }
        if c.is_whitespace() && is_whole {
            return Step::More;
        }
        self.fence.push(c);
        if FENCE_OF_JSON.starts_with(&self.fence) {
            Step::More
        } else {
            Step::Broken
        }
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
}

impl CallReader for SeparatedReader {
    fn tags(&self) -> TagSet {
        match &self.at {
            At::BeforeSeparator => TagSet::of(&[Tag::Separator]),
            At::Arguments(scanner) if scanner.is_in_string() => TagSet::NONE,
            At::AfterSeparator | At::Name | At::Fence | At::Arguments(_) => {
                TagSet::of(&[Tag::ToolOpen, Tag::ToolClose, Tag::SectionClose])
            }
        }
    }

    fn is_in_text(&self) -> bool {
        matches!(&self.at, At::Arguments(scanner) if scanner.is_in_string())
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        match &mut self.at {
            At::BeforeSeparator => self.read_name(c),
            At::AfterSeparator => self.read_after_separator(c, out),
            At::Name if c.is_whitespace() => {
                self.at = At::Fence;
                Step::More
            }
            At::Name if c == '{' => self.begin_arguments(out),
            At::Name => self.read_name(c),
            At::Fence => self.read_fence(c, out),
            At::Arguments(scanner) => match scanner.read_into(c, &mut out.arguments) {
                Scan::More => Step::More,
                Scan::Done => Step::Done,
                Scan::DoneBefore | Scan::Broken => Step::Broken,
            },
        }
    }

    fn read_tag(&mut self, tag: Tag, _: &mut CallOutput) -> Step {
        if tag != Tag::Separator {
            return Step::Broken;
        }
        self.at = At::AfterSeparator;
        Step::More
    }

    fn closers(&self) -> Closers {
        if self.fence.is_empty() {
            Closers::default()
        } else {
            Closers::OF_FENCE
        }
    }
}
