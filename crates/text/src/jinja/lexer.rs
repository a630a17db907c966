//! Splits a template into text and tokens, and strips white space as Jinja does.

use super::token::{Kind, Token};
use super::{characters, literals};

/// Operators and punctuation, the longest first.
const SIGNS: [&str; 26] = [
    "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}",
    ">", "<", "=", ".", ":", "|", ",", ";",
];

/// Splits a template into tokens. An error is a message and its line.
pub(super) fn lex(source: &str) -> Result<Vec<Token>, (String, usize)> {
    let mut source = source.replace("\r\n", "\n").replace('\r', "\n");
    if source.ends_with('\n') {
        source.pop();
    }
    let mut lexer = Lexer {
        source: &source,
        at: 0,
        line: 1,
        tokens: Vec::new(),
        starts_line: true,
    };
    match lexer.run() {
        Ok(()) => Ok(lexer.tokens),
        Err(message) => Err((message, lexer.line)),
    }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: usize,
    tokens: Vec<Token>,
    /// Whether the rest of the source begins a line.
    starts_line: bool,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn push(&mut self, kind: Kind) {
        let line = self.line;
        self.tokens.push(Token { kind, line });
    }

    fn advance(&mut self, bytes: usize) {
        let passed = &self.source[self.at..self.at + bytes];
        self.line += passed.bytes().filter(|byte| *byte == b'\n').count();
        self.starts_line = passed.ends_with('\n');
        self.at += bytes;
    }

    fn run(&mut self) -> Result<(), String> {
        loop {
            let rest = self.rest();
            let Some(start) = find_tag(rest) else {
                self.data(rest);
                self.advance(rest.len());
                self.push(Kind::End);
                return Ok(());
            };
            let opening = &rest[start..start + 2];
            let (text, sign) = (&rest[..start], rest[start + 2..].chars().next());
            self.text_before(text, sign, opening != "{{");
            self.advance(start + 2);
            if matches!(sign, Some('-' | '+')) {
                self.advance(1);
            }
            match opening {
                "{#" => self.comment()?,
                "{{" => {
                    self.push(Kind::VariableBegin);
                    self.expression(Kind::VariableEnd)?;
                }
                _ => match raw_opening(self.rest()) {
                    Some(bytes) => {
                        self.advance(bytes);
                        self.raw()?;
                    }
                    None => {
                        self.push(Kind::BlockBegin);
                        self.expression(Kind::BlockEnd)?;
                    }
                },
            }
        }
    }

    /// Pushes the text before a tag, without the white space that the tag's sign or `lstrip_blocks` strips.
    fn text_before(&mut self, text: &str, sign: Option<char>, strips_line: bool) {
        let text = match sign {
            Some('-') => text.trim_end_matches(characters::is_blank),
            Some('+') => text,
            _ if strips_line => {
                let line = text.rfind('\n').map_or(0, |at| at + 1);
                let is_blank = text[line..].chars().all(characters::is_blank);
                if (line > 0 || self.starts_line) && is_blank {
                    &text[..line]
                } else {
                    text
                }
            }
            _ => text,
        };
        self.data(text);
    }

    fn data(&mut self, text: &str) {
        if !text.is_empty() {
            self.push(Kind::Data(text.to_owned()));
        }
    }

    /// Skips white space after a tag: all of it (after `-%}`), or one line break (`trim_blocks`).
    fn skip_after(&mut self, takes_all: bool, takes_line: bool) {
        let rest = self.rest();
        let bytes = match (takes_all, takes_line) {
            (true, _) => rest.len() - rest.trim_start_matches(characters::is_blank).len(),
            (false, true) => usize::from(rest.starts_with('\n')),
            (false, false) => 0,
        };
        if bytes > 0 {
            self.advance(bytes);
        }
    }

    fn comment(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let Some(end) = rest.find("#}") else {
            return Err("Missing end of comment tag".to_owned());
        };
        let sign = rest[..end].chars().next_back();
        self.advance(end + 2);
        self.skip_after(sign == Some('-'), sign != Some('+'));
        Ok(())
    }

    fn raw(&mut self) -> Result<(), String> {
        let rest = self.rest();
        let mut from = 0;
        while let Some(found) = rest[from..].find("{%") {
            let start = from + found;
            let tag = &rest[start + 2..];
            let sign = tag.chars().next().filter(|sign| matches!(sign, '-' | '+'));
            let inside = tag[sign.map_or(0, char::len_utf8)..].trim_start();
            if let Some(after) = inside.strip_prefix("endraw") {
                let after = after.trim_start();
                let ends = ["%}", "-%}", "+%}"];
                if let Some(end) = ends.into_iter().find(|end| after.starts_with(end)) {
                    self.text_before(&rest[..start], sign, true);
                    self.advance(rest.len() - after.len() + end.len());
                    self.skip_after(end.starts_with('-'), end == "%}");
                    return Ok(());
                }
            }
            from = start + 2;
        }
        Err("Missing end of raw directive".to_owned())
    }

    fn expression(&mut self, end: Kind) -> Result<(), String> {
        let closing = if end == Kind::BlockEnd { "%}" } else { "}}" };
        let mut open: Vec<char> = Vec::new();
        loop {
            let rest = self.rest();
            let blank = rest.len() - rest.trim_start_matches(characters::is_blank).len();
            self.advance(blank);
            let rest = self.rest();
            if open.is_empty() {
                for sign in ["-", "+", ""] {
                    let is_end = rest
                        .strip_prefix(sign)
                        .is_some_and(|rest| rest.starts_with(closing));
                    if is_end && (sign != "+" || end == Kind::BlockEnd) {
                        self.push(end.clone());
                        self.advance(sign.len() + 2);
                        self.skip_after(sign == "-", end == Kind::BlockEnd && sign.is_empty());
                        return Ok(());
                    }
                }
            }
            self.token(&mut open)?;
        }
    }

    fn token(&mut self, open: &mut Vec<char>) -> Result<(), String> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return Err("unexpected end of template".to_owned());
        };
        let follows_dot = matches!(
            self.tokens.last(),
            Some(Token {
                kind: Kind::Sign("."),
                ..
            })
        );
        let (kind, bytes) = match first {
            '\'' | '"' => literals::text(rest)?,
            _ if first.is_ascii_digit() => literals::number(rest, follows_dot)?,
            _ if first == '_' || first.is_alphabetic() => {
                let is_of_name = |c: char| c == '_' || c.is_alphanumeric();
                let end = rest.find(|c| !is_of_name(c)).unwrap_or(rest.len());
                (Kind::Name(rest[..end].to_owned()), end)
            }
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => (Kind::Sign(sign), sign.len()),
                None => return Err(format!("unexpected char {first:?}")),
            },
        };
        if let Kind::Sign(sign) = kind {
            let closes = match sign {
                "(" | "[" | "{" => {
                    open.push(first);
                    None
                }
                ")" => Some('('),
                "]" => Some('['),
                "}" => Some('{'),
                _ => None,
            };
            if closes.is_some() && open.pop() != closes {
                return Err(format!("unexpected {sign:?}"));
            }
        }
        self.push(kind);
        self.advance(bytes);
        Ok(())
    }
}

fn find_tag(text: &str) -> Option<usize> {
    let mut openings = text.match_indices('{').map(|(at, _)| at);
    openings.find(|at| matches!(text.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')))
}

/// The length of ` raw %}` if `rest`, which follows `{%`, begins with it.
fn raw_opening(rest: &str) -> Option<usize> {
    let inside = rest.trim_start().strip_prefix("raw")?.trim_start();
    let end = match inside.strip_prefix("-%}") {
        Some(after) => after.trim_start(),
        None => inside.strip_prefix("%}")?,
    };
    Some(rest.len() - end.len())
}
