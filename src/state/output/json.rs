//! Follows a JSON value to its end without changing it.

use super::escape::{Dialect, Read, Unescape};

/// How deep the brackets of a value may be nested.
pub const MAX_DEPTH: u32 = 128;

/// Finds the end of a JSON value. Only brackets and strings are checked: what else stands between them passes, except
/// for characters that no value has outside of its strings.
#[derive(Debug)]
pub(super) struct ValueScanner {
    kind: Kind,
    /// The open brackets, the innermost in the lowest bit: 1 for `{`, 0 for `[`.
    open: u128,
    depth: u32,
    string: InString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ends with its last bracket.
    Brackets,
    /// Ends with its quote.
    Text,
    /// A number or a word: ends before what belongs to neither.
    Word,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InString {
    #[default]
    No,
    Yes,
    Escaped,
}

/// The place of a character in a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    /// It belongs to the value, which goes on.
    More,
    /// It completes the value.
    Done,
    /// The value was complete before it.
    DoneBefore,
    /// It cannot stand there.
    Broken,
}

impl ValueScanner {
    /// Begins a value with its first character, if that can begin one.
    pub(super) fn new(first: char) -> Option<Self> {
        let (kind, depth, string) = match first {
            '{' | '[' => (Kind::Brackets, 1, InString::No),
            '"' => (Kind::Text, 0, InString::Yes),
            _ if is_word(first) => (Kind::Word, 0, InString::No),
            _ => return None,
        };
        Some(Self {
            kind,
            open: u128::from(first == '{'),
            depth,
            string,
        })
    }

    pub(super) fn is_in_string(&self) -> bool {
        self.string != InString::No
    }

    pub(super) fn is_word(&self) -> bool {
        self.kind == Kind::Word
    }

    /// Reads a character after the first.
    pub(super) fn read(&mut self, c: char) -> Scan {
        match (self.string, c) {
            (InString::Escaped, _) => self.string = InString::Yes,
            (InString::Yes, '\\') => self.string = InString::Escaped,
            (InString::Yes, '"') => {
                self.string = InString::No;
                if self.kind == Kind::Text {
                    return Scan::Done;
                }
            }
            (InString::Yes, _) => {}
            (InString::No, _) => return self.read_outside(c),
        }
        Scan::More
    }

    fn read_outside(&mut self, c: char) -> Scan {
        match (self.kind, c) {
            (Kind::Word, _) if is_word(c) => {}
            (Kind::Word, _) => return Scan::DoneBefore,
            (_, '"') => self.string = InString::Yes,
            (_, '{' | '[') if self.depth == MAX_DEPTH => return Scan::Broken,
            (_, '{' | '[') => {
                self.depth += 1;
                self.open = self.open << 1 | u128::from(c == '{');
            }
            (_, '}' | ']') if (self.open & 1 == 1) != (c == '}') => return Scan::Broken,
            (_, '}' | ']') => {
                self.depth -= 1;
                self.open >>= 1;
                if self.depth == 0 {
                    return Scan::Done;
                }
            }
            (_, ',' | ':' | ' ' | '\n' | '\r' | '\t') => {}
            _ if is_word(c) => {}
            _ => return Scan::Broken,
        }
        Scan::More
    }
}

/// Tells early that a text is no JSON, because two values follow each other with nothing between them. Brackets are not
/// looked at.
#[derive(Debug, Default)]
pub(super) struct Separation {
    string: InString,
    /// A value ended, and nothing parts the next one from it.
    is_after_value: bool,
    is_in_word: bool,
}

impl Separation {
    /// Reads the next character, from the first on; returns false if it cannot stand there.
    pub(super) fn read(&mut self, c: char) -> bool {
        match (self.string, c) {
            (InString::Escaped, _) => self.string = InString::Yes,
            (InString::Yes, '\\') => self.string = InString::Escaped,
            (InString::Yes, '"') => {
                self.string = InString::No;
                self.is_after_value = true;
            }
            (InString::Yes, _) => {}
            (InString::No, _) => return self.read_outside(c),
        }
        true
    }

    fn read_outside(&mut self, c: char) -> bool {
        let was_in_word = std::mem::replace(&mut self.is_in_word, is_word(c));
        self.is_after_value |= was_in_word && !self.is_in_word;
        match c {
            ',' | ':' => self.is_after_value = false,
            '}' | ']' => self.is_after_value = true,
            '"' | '{' | '[' if self.is_after_value => return false,
            '"' => self.string = InString::Yes,
            _ if is_word(c) => return !self.is_after_value,
            _ => {}
        }
        true
    }
}

/// Characters of numbers and of `true`, `false`, `null`.
fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '+' | '.' | '_')
}

/// Decodes a JSON string after its opening quote; returns true at the closing one.
pub(super) fn read_string(unescape: &mut Unescape, c: char, to: &mut String) -> bool {
    loop {
        if unescape.is_plain() && c == '"' {
            unescape.finish(to);
            return true;
        }
        if unescape.read(c, to) == Read::Taken {
            return false;
        }
    }
}

/// Returns the decoder of a JSON string.
pub(super) fn string() -> Unescape {
    Unescape::new(Dialect::Json)
}
