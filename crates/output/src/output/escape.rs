//! Backslash escapes: decodes quoted strings, and writes JSON strings.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    Json,
    Python,
}

/// Decodes the inside of a string by character. Invalid escapes remain unchanged; unpaired surrogates become U+FFFD.
#[derive(Debug)]
pub(super) struct Unescape {
    dialect: Dialect,
    at: At,
    /// The first half of a surrogate pair.
    high: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Plain,
    Backslash,
    Hex { left: u8, value: u32 },
    Octal { left: u8, value: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Taken,
    /// Not consumed: the character ended the previous escape, and must be read again.
    Again,
}

impl Unescape {
    pub(super) fn new(dialect: Dialect) -> Self {
        Self {
            dialect,
            at: At::Plain,
            high: None,
        }
    }

    /// Returns whether the next character is literal, so that a quote ends the string.
    pub(super) fn is_plain(&self) -> bool {
        self.at == At::Plain
    }

    pub(super) fn read(&mut self, c: char, to: &mut String) -> Read {
        match self.at {
            At::Plain if c == '\\' => self.at = At::Backslash,
            At::Plain => {
                self.finish(to);
                to.push(c);
            }
            At::Backslash => self.escape(c, to),
            At::Hex { left, value } => match c.to_digit(16) {
                Some(digit) => self.digit(left, value << 4 | digit, to),
                None => return self.end_incomplete(to),
            },
            At::Octal { left, value } => match c.to_digit(8) {
                Some(digit) if left > 1 => {
                    let (left, value) = (left - 1, value << 3 | digit);
                    self.at = At::Octal { left, value };
                }
                Some(digit) => self.push_code_point(value << 3 | digit, to),
                None => {
                    self.push_code_point(value, to);
                    return Read::Again;
                }
            },
        }
        Read::Taken
    }

    /// Ends the string, and writes a pending surrogate.
    pub(super) fn finish(&mut self, to: &mut String) {
        to.extend(self.high.take().map(|_| char::REPLACEMENT_CHARACTER));
    }

    fn escape(&mut self, c: char, to: &mut String) {
        self.at = match (self.dialect, c) {
            (_, 'u') => At::Hex { left: 4, value: 0 },
            (Dialect::Python, 'x') => At::Hex { left: 2, value: 0 },
            (Dialect::Python, 'U') => At::Hex { left: 8, value: 0 },
            (Dialect::Python, '0'..='7') => At::Octal {
                left: 2,
                value: c as u32 - '0' as u32,
            },
            _ => At::Plain,
        };
        if self.at != At::Plain {
            return;
        }
        self.finish(to);
        let plain = match (self.dialect, c) {
            (_, 'n') => '\n',
            (_, 't') => '\t',
            (_, 'r') => '\r',
            (_, 'b') => '\u{8}',
            (_, 'f') => '\u{c}',
            (_, '"' | '\\') | (Dialect::Json, '/') | (Dialect::Python, '\'') => c,
            (Dialect::Python, 'a') => '\u{7}',
            (Dialect::Python, 'v') => '\u{b}',
            (Dialect::Python, '\n') => return,
            _ => {
                to.push('\\');
                c
            }
        };
        to.push(plain);
    }

    fn digit(&mut self, left: u8, value: u32, to: &mut String) {
        match left {
            1 => self.push_code_point(value, to),
            _ => {
                let left = left - 1;
                self.at = At::Hex { left, value };
            }
        }
    }

    /// Ends an escape with missing digits.
    fn end_incomplete(&mut self, to: &mut String) -> Read {
        self.at = At::Plain;
        self.finish(to);
        to.push(char::REPLACEMENT_CHARACTER);
        Read::Again
    }

    fn push_code_point(&mut self, value: u32, to: &mut String) {
        self.at = At::Plain;
        match (self.high, value) {
            (Some(high), 0xdc00..=0xdfff) => {
                self.high = None;
                let code = 0x10000 + ((high - 0xd800) << 10) + (value - 0xdc00);
                to.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            (_, 0xd800..=0xdbff) => {
                self.finish(to);
                self.high = Some(value);
            }
            _ => {
                self.finish(to);
                to.push(char::from_u32(value).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
        }
    }
}

/// Writes a character inside a JSON string.
pub(super) fn write_json_char(c: char, to: &mut String) {
    let short = match c {
        '"' => "\\\"",
        '\\' => "\\\\",
        '\n' => "\\n",
        '\r' => "\\r",
        '\t' => "\\t",
        '\u{8}' => "\\b",
        '\u{c}' => "\\f",
        '\0'..='\u{1f}' => {
            let code = c as u32;
            let digit = |value: u32| char::from_digit(value & 0xf, 16).unwrap_or('0');
            to.push_str("\\u00");
            to.push(digit(code >> 4));
            to.push(digit(code));
            return;
        }
        _ => {
            to.push(c);
            return;
        }
    };
    to.push_str(short);
}

/// Writes a text as a JSON string with its quotes.
pub(super) fn write_json_string(text: &str, to: &mut String) {
    to.push('"');
    text.chars().for_each(|c| write_json_char(c, to));
    to.push('"');
}
