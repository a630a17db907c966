//! Incremental JSON validator, which reads a value to its end.

use super::escape::{Dialect, Read, Unescape, write_json_char};

pub const MAX_DEPTH: u32 = 128;

/// Follows a JSON value to its end, and finds the first invalid character.
#[derive(Debug)]
pub(super) struct ValueScanner {
    kind: Kind,
    /// The open brackets, the innermost in the lowest bit: 1 for `{`, 0 for `[`.
    open: u128,
    depth: u32,
    at: At,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Ends with its last bracket.
    Brackets,
    /// Ends with its quote.
    Text,
    /// A number or a word: ends before the first other character.
    Word,
}

/// The expected input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Value,
    FirstItem,
    Key,
    /// A key, or the end of its object.
    FirstKey,
    Colon,
    /// A comma, or the end of the enclosing list or object.
    Next,
    Word(Word),
    Text {
        is_key: bool,
        escape: Escape,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    Hex(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Literal(&'static str),
    Minus,
    Zero,
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scan {
    More,
    Done,
    /// The character is not consumed: the value was complete before it.
    DoneBefore,
    Broken,
}

impl ValueScanner {
    /// Starts a value with its first character, if a value can begin with this character.
    pub(super) fn new(first: char) -> Option<Self> {
        let (kind, depth, at) = match first {
            '{' => (Kind::Brackets, 1, At::FirstKey),
            '[' => (Kind::Brackets, 1, At::FirstItem),
            '"' => (Kind::Text, 0, At::text(false)),
            _ => (Kind::Word, 0, At::Word(Word::new(first)?)),
        };
        Some(Self {
            kind,
            open: u128::from(first == '{'),
            depth,
            at,
        })
    }

    pub(super) fn is_in_string(&self) -> bool {
        matches!(self.at, At::Text { .. })
    }

    pub(super) fn is_word(&self) -> bool {
        self.kind == Kind::Word
    }

    /// Reads a character after the first and writes it, if it belongs to the value. Models write raw line breaks and
    /// tabs into strings: these are escaped.
    pub(super) fn read_into(&mut self, c: char, to: &mut String) -> Scan {
        let is_raw = self.is_in_string() && c < ' ';
        let scan = self.read(c);
        match scan {
            Scan::More | Scan::Done if is_raw => write_json_char(c, to),
            Scan::More | Scan::Done => to.push(c),
            Scan::DoneBefore | Scan::Broken => {}
        }
        scan
    }

    /// Reads a character after the first. Control characters are allowed in strings.
    pub(super) fn read(&mut self, c: char) -> Scan {
        match self.at {
            At::Text { is_key, escape } => self.read_text(is_key, escape, c),
            At::Word(word) => self.read_word(word, c),
            _ if matches!(c, ' ' | '\n' | '\r' | '\t') => Scan::More,
            At::FirstKey if c == '}' => self.close(c),
            At::FirstItem if c == ']' => self.close(c),
            At::Next if matches!(c, '}' | ']') => self.close(c),
            At::FirstKey | At::Key if c == '"' => self.go_to(At::text(true)),
            At::Colon if c == ':' => self.go_to(At::Value),
            At::Next if c == ',' && self.open & 1 == 1 => self.go_to(At::Key),
            At::Next if c == ',' => self.go_to(At::Value),
            At::Value | At::FirstItem => self.begin(c),
            At::FirstKey | At::Key | At::Colon | At::Next => Scan::Broken,
        }
    }

    fn go_to(&mut self, at: At) -> Scan {
        self.at = at;
        Scan::More
    }

    fn begin(&mut self, c: char) -> Scan {
        let at = match c {
            '"' => At::text(false),
            '{' | '[' if self.depth == MAX_DEPTH => return Scan::Broken,
            '{' | '[' => {
                self.depth += 1;
                self.open = self.open << 1 | u128::from(c == '{');
                match c {
                    '{' => At::FirstKey,
                    _ => At::FirstItem,
                }
            }
            _ => match Word::new(c) {
                Some(word) => At::Word(word),
                None => return Scan::Broken,
            },
        };
        self.go_to(at)
    }

    fn close(&mut self, c: char) -> Scan {
        if (self.open & 1 == 1) != (c == '}') {
            return Scan::Broken;
        }
        self.depth -= 1;
        self.open >>= 1;
        self.at = At::Next;
        match self.depth {
            0 => Scan::Done,
            _ => Scan::More,
        }
    }

    fn read_text(&mut self, is_key: bool, escape: Escape, c: char) -> Scan {
        let escape = match (escape, c) {
            (Escape::None, '"') if self.kind == Kind::Text => {
                self.at = At::Next;
                return Scan::Done;
            }
            (Escape::None, '"') if is_key => return self.go_to(At::Colon),
            (Escape::None, '"') => return self.go_to(At::Next),
            (Escape::None, '\\') => Escape::Backslash,
            (Escape::None, _) => Escape::None,
            (Escape::Backslash, 'u') => Escape::Hex(4),
            (Escape::Backslash, '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't') => Escape::None,
            (Escape::Hex(left), _) if c.is_ascii_hexdigit() => match left {
                1 => Escape::None,
                _ => Escape::Hex(left - 1),
            },
            (Escape::Backslash | Escape::Hex(_), _) => return Scan::Broken,
        };
        self.go_to(At::Text { is_key, escape })
    }

    fn read_word(&mut self, word: Word, c: char) -> Scan {
        match word.with(c) {
            Some(word) => self.go_to(At::Word(word)),
            None if !word.is_whole() || is_word(c) => Scan::Broken,
            None if self.kind == Kind::Word => Scan::DoneBefore,
            None => {
                self.at = At::Next;
                self.read(c)
            }
        }
    }
}

impl At {
    fn text(is_key: bool) -> Self {
        Self::Text {
            is_key,
            escape: Escape::None,
        }
    }
}

impl Word {
    fn new(first: char) -> Option<Self> {
        Some(match first {
            't' => Self::Literal("rue"),
            'f' => Self::Literal("alse"),
            'n' => Self::Literal("ull"),
            '-' => Self::Minus,
            '0' => Self::Zero,
            '1'..='9' => Self::Digits,
            _ => return None,
        })
    }

    /// The state after another character, if it belongs to the word.
    fn with(self, c: char) -> Option<Self> {
        Some(match (self, c) {
            (Self::Literal(left), _) => Self::Literal(left.strip_prefix(c)?),
            (Self::Minus, '0') => Self::Zero,
            (Self::Minus, '1'..='9') | (Self::Digits, '0'..='9') => Self::Digits,
            (Self::Zero | Self::Digits, '.') => Self::Point,
            (Self::Point | Self::Fraction, '0'..='9') => Self::Fraction,
            (Self::Zero | Self::Digits | Self::Fraction, 'e' | 'E') => Self::Exponent,
            (Self::Exponent, '+' | '-') => Self::ExponentSign,
            (Self::Exponent | Self::ExponentSign | Self::ExponentDigits, '0'..='9') => {
                Self::ExponentDigits
            }
            _ => return None,
        })
    }

    fn is_whole(self) -> bool {
        match self {
            Self::Literal(left) => left.is_empty(),
            Self::Zero | Self::Digits | Self::Fraction | Self::ExponentDigits => true,
            Self::Minus | Self::Point | Self::Exponent | Self::ExponentSign => false,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum InString {
    #[default]
    No,
    Yes,
    Escaped,
}

/// Detects early that a text is not JSON: two values follow each other without a separator. Brackets are not matched.
#[derive(Debug, Default)]
pub(super) struct Separation {
    string: InString,
    /// After a value, before a separator.
    is_after_value: bool,
    is_in_word: bool,
}

impl Separation {
    /// Reads the next character, the text's first included. Returns false if it is invalid.
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

pub(super) fn string() -> Unescape {
    Unescape::new(Dialect::Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scans a text from its first character up to the first step other than `More`.
    fn scan(text: &str) -> (Scan, &str) {
        let mut chars = text.chars();
        let first = chars.next().and_then(ValueScanner::new);
        let Some(mut scanner) = first else {
            return (Scan::Broken, text);
        };
        loop {
            let left = chars.as_str();
            let Some(c) = chars.next() else {
                return (Scan::More, left);
            };
            match scanner.read(c) {
                Scan::More => {}
                Scan::Done => return (Scan::Done, chars.as_str()),
                step => return (step, left),
            }
        }
    }

    #[test]
    fn valid_values_are_read_to_their_end() {
        for value in [
            "{}",
            "[ ]",
            r#"{"a": [1, -0, 0.5, -1.25e+10, 2E-3, 0e1], "b" :{"c":null} }"#,
            r#"[true,false , null, "", "\"\\\/\b\f\n\r\t\u00e9\uD800 é"]"#,
            r#""a \" b""#,
            "[[[{}]]]",
        ] {
            assert!(serde_json::from_str::<serde::de::IgnoredAny>(value).is_ok());
            assert_eq!(scan(&format!("{value} x")), (Scan::Done, " x"), "{value}");
            let ends = value.char_indices().map(|(at, _)| at).skip(1);
            for end in ends {
                assert_eq!(scan(&value[..end]).0, Scan::More, "{}", &value[..end]);
            }
        }
        for (word, left) in [("12 ", " "), ("-3.5}", "}"), ("true,", ","), ("null]", "]")] {
            assert_eq!(scan(word), (Scan::DoneBefore, left));
        }
    }

    #[test]
    fn the_first_invalid_character_is_found() {
        for (before, after) in [
            ("", "x"),
            ("", "+1"),
            ("", "True"),
            ("{", "a: 1}"),
            ("{\"a\" ", "1}"),
            ("{\"a\": 1,", "}"),
            ("{\"a\": ", "}"),
            ("{\"a\": 1", "]"),
            ("{\"a\": 1 ", "2}"),
            ("{\"a\": ", "True}"),
            ("{\"a\": nul", "}"),
            ("{\"a\": null", "s}"),
            ("{", ", }"),
            ("[1,", "]"),
            ("[", ",1]"),
            ("[0", "1]"),
            ("[1.", "]"),
            ("[-", "]"),
            ("[1e", ",2]"),
            ("[1", "_000]"),
            ("[\"\\", "d\"]"),
            ("[\"\\u12", "\"]"),
            ("[", "'a']"),
            ("[1 ", "// x"),
        ] {
            let text = format!("{before}{after}");
            assert!(serde_json::from_str::<serde::de::IgnoredAny>(&text).is_err());
            assert_eq!(scan(&text), (Scan::Broken, after), "{text}");
        }
    }
}
