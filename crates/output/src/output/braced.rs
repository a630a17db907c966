//! Parses a tool call of Gemma 4: `call:seat{row:4,who:<|"|>Ada<|"|>}`.

use super::call::{CallOutput, CallReader, Step};
use super::escape::{write_json_char, write_json_string};
use super::json::MAX_DEPTH;
use super::named::{MAX_NAME_BYTES, is_name};
use super::python::atom;
use super::syntax::{Tag, TagSet};

/// The label before the name, without its first letter.
const LABEL: &str = "all:";
/// A longer number or word is invalid.
const MAX_WORD_BYTES: usize = 4096;

/// Parses the call from the first character of its label to its last bracket, and writes its arguments as JSON.
#[derive(Debug)]
pub(super) struct BracedReader {
    at: At,
    /// The current name, key or word.
    word: String,
    open: Vec<Container>,
}

#[derive(Clone, Copy, Debug)]
struct Container {
    kind: Kind,
    has_items: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Map,
    List,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The rest of the label.
    Label(&'static str),
    Function,
    /// Expects a key, or the end of the map.
    Key,
    /// In an unquoted key.
    BareKey,
    QuotedKey,
    Colon,
    /// Expects the value of a key.
    Value,
    /// Expects an item, or the end of the list.
    Item,
    /// In a number or word.
    Word,
    Text,
    /// Expects a comma, or the end of the container.
    Comma,
}

impl BracedReader {
    /// Starts a call if the label `call:` begins with this character.
    pub(super) fn new(first: char) -> Option<Self> {
        (first == 'c').then_some(Self {
            at: At::Label(LABEL),
            word: String::new(),
            open: Vec::new(),
        })
    }

    fn read_label(&mut self, left: &'static str, c: char) -> Step {
        match left.strip_prefix(c) {
            Some("") => self.at = At::Function,
            Some(left) => self.at = At::Label(left),
            None => return Step::Broken,
        }
        Step::More
    }

    fn read_function(&mut self, c: char, out: &mut CallOutput) -> Step {
        match c {
            '{' if !self.word.is_empty() => {
                out.name = Some(std::mem::take(&mut self.word));
                self.open(Kind::Map, out)
            }
            _ if is_name(c) => self.push(c, MAX_NAME_BYTES),
            _ => Step::Broken,
        }
    }

    fn push(&mut self, c: char, max_bytes: usize) -> Step {
        self.word.push(c);
        if self.word.len() > max_bytes {
            Step::Broken
        } else {
            Step::More
        }
    }

    fn open(&mut self, kind: Kind, out: &mut CallOutput) -> Step {
        if self.open.len() == MAX_DEPTH as usize {
            return Step::Broken;
        }
        out.arguments.push(match kind {
            Kind::Map => '{',
            Kind::List => '[',
        });
        self.open.push(Container {
            kind,
            has_items: false,
        });
        self.at = self.next_item();
        Step::More
    }

    /// The state at the start of the innermost container, or after a comma in it.
    fn next_item(&self) -> At {
        match self.open.last().map(|open| open.kind) {
            Some(Kind::List) => At::Item,
            _ => At::Key,
        }
    }

    fn closes(&self, c: char) -> bool {
        let closer = self.open.last().map(|open| match open.kind {
            Kind::Map => '}',
            Kind::List => ']',
        });
        closer == Some(c)
    }

    fn close(&mut self, c: char, out: &mut CallOutput) -> Step {
        out.arguments.push(c);
        self.open.pop();
        self.at = At::Comma;
        if self.open.is_empty() {
            Step::Done
        } else {
            Step::More
        }
    }

    fn separate(&mut self, out: &mut CallOutput) {
        if let Some(open) = self.open.last_mut()
            && std::mem::replace(&mut open.has_items, true)
        {
            out.arguments.push_str(", ");
        }
    }

    fn end_key(&mut self, at: At, out: &mut CallOutput) -> Step {
        self.separate(out);
        let key = std::mem::take(&mut self.word);
        let key = match self.at {
            At::QuotedKey => key.as_str(),
            _ => key.trim_end(),
        };
        write_json_string(key, &mut out.arguments);
        out.arguments.push_str(": ");
        self.at = at;
        Step::More
    }

    /// Starts a value, which is a list item or follows a key.
    fn begin_value(&mut self, c: char, out: &mut CallOutput) -> Step {
        if matches!(c, ',' | ':' | '}' | ']') {
            return Step::Broken;
        }
        if self.at == At::Item {
            self.separate(out);
        }
        match c {
            '{' => return self.open(Kind::Map, out),
            '[' => return self.open(Kind::List, out),
            _ => {}
        }
        self.word.push(c);
        self.at = At::Word;
        Step::More
    }

    fn read_word(&mut self, c: char, out: &mut CallOutput) -> Step {
        if !matches!(c, ',' | '}' | ']') {
            return self.push(c, MAX_WORD_BYTES);
        }
        let word = std::mem::take(&mut self.word);
        atom::write(word.trim_end(), &mut out.arguments);
        self.at = At::Comma;
        self.read(c, out)
    }
}

impl CallReader for BracedReader {
    fn tags(&self) -> TagSet {
        TagSet::of(&[Tag::Quote])
    }

    fn is_in_text(&self) -> bool {
        matches!(self.at, At::Text | At::QuotedKey)
    }

    fn read(&mut self, c: char, out: &mut CallOutput) -> Step {
        match self.at {
            At::Label(left) => self.read_label(left, c),
            At::Function => self.read_function(c, out),
            At::Text => {
                write_json_char(c, &mut out.arguments);
                Step::More
            }
            At::QuotedKey => self.push(c, MAX_WORD_BYTES),
            At::BareKey if c == ':' => self.end_key(At::Value, out),
            At::BareKey => self.push(c, MAX_WORD_BYTES),
            At::Word => self.read_word(c, out),
            _ if c.is_whitespace() => Step::More,
            At::Key | At::Item | At::Comma if self.closes(c) => self.close(c, out),
            At::Key if !matches!(c, ',' | ':' | '{' | '}' | '[' | ']') => {
                self.word.push(c);
                self.at = At::BareKey;
                Step::More
            }
            At::Colon if c == ':' => {
                self.at = At::Value;
                Step::More
            }
            At::Comma if c == ',' => {
                self.at = self.next_item();
                Step::More
            }
            At::Value | At::Item => self.begin_value(c, out),
            At::Key | At::Colon | At::Comma => Step::Broken,
        }
    }

    fn read_tag(&mut self, _: Tag, out: &mut CallOutput) -> Step {
        match self.at {
            At::Key => self.at = At::QuotedKey,
            At::QuotedKey => return self.end_key(At::Colon, out),
            At::Value | At::Item => {
                if self.at == At::Item {
                    self.separate(out);
                }
                out.arguments.push('"');
                self.at = At::Text;
            }
            At::Text => {
                out.arguments.push('"');
                self.at = At::Comma;
            }
            _ => return Step::Broken,
        }
        Step::More
    }
}
