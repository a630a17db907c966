//! Implements the filter `wordwrap`: Python's `textwrap` without expanding tabs.

use super::super::args::Args;
use super::super::error::{Fault, Result};
use super::super::eval::Interpreter;
use super::super::methods::lines;
use super::super::value::Value;

impl Interpreter<'_> {
    pub(super) fn wordwrap(&self, value: &Value, args: Args) -> Result<Value> {
        let names = [
            "width",
            "break_long_words",
            "wrapstring",
            "break_on_hyphens",
        ];
        let [width, long, separator, hyphens] = args.bind("wordwrap", names, 0)?;
        let width = width.map_or(Ok(79), |width| self.whole(&width))?;
        let Some(width) = usize::try_from(width).ok().filter(|width| *width > 0) else {
            return Fault::other(format!("invalid width {width} (must be > 0)"));
        };
        let wrap = Wrap {
            width,
            breaks_long: long.is_none_or(|long| self.truth(&long)),
            breaks_hyphens: hyphens.is_none_or(|hyphens| self.truth(&hyphens)),
        };
        let separator = match separator {
            None | Some(Value::None) => Value::text("\n"),
            Some(separator) => separator,
        };
        let separator = self.text_of(&separator)?;
        let text = self.text_of(value)?;
        self.check_allocation(separator.len() + 1, text.len())?;
        let wrapped = lines(text, false)
            .into_iter()
            .map(|line| wrap.line(line).join(separator));
        Ok(Value::text(wrapped.collect::<Vec<_>>().join(separator)))
    }
}

struct Wrap {
    width: usize,
    breaks_long: bool,
    breaks_hyphens: bool,
}

/// White space as `textwrap` defines it.
fn is_blank(character: char) -> bool {
    matches!(character, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

impl Wrap {
    /// The number of characters of a chunk, at most one more than fit in a line.
    fn width_of(&self, chunk: &str) -> usize {
        chunk.chars().take(self.width + 1).count()
    }

    fn line(&self, line: &str) -> Vec<String> {
        let parts = self.chunks(line);
        let mut chunks: Vec<&str> = parts.iter().map(String::as_str).rev().collect();
        let mut lines = Vec::new();
        while let Some(last) = chunks.last() {
            if !lines.is_empty() && last.chars().all(is_blank) {
                chunks.pop();
                if chunks.is_empty() {
                    break;
                }
            }
            let (mut current, mut used): (Vec<&str>, _) = (Vec::new(), 0);
            while let Some(chunk) = chunks.last() {
                let width = self.width_of(chunk);
                if used + width > self.width {
                    break;
                }
                used += width;
                current.extend(chunks.pop());
            }
            if let Some(chunk) = chunks.last().copied()
                && self.width_of(chunk) > self.width
            {
                let max_chars = self.width.saturating_sub(used).max(1);
                if self.breaks_long {
                    let (head, rest) = self.cut(chunk, max_chars);
                    chunks.pop();
                    chunks.push(rest);
                    current.push(head);
                } else if current.is_empty() {
                    current.extend(chunks.pop());
                }
            }
            if current
                .last()
                .is_some_and(|chunk| chunk.chars().all(is_blank))
            {
                current.pop();
            }
            if !current.is_empty() {
                lines.push(current.concat());
            }
        }
        lines
    }

    /// Cuts a chunk that is too long, after a hyphen if there is one.
    fn cut<'a>(&self, chunk: &'a str, max_chars: usize) -> (&'a str, &'a str) {
        let mut places = chunk.char_indices();
        let end = places.nth(max_chars).map_or(chunk.len(), |(at, _)| at);
        if self.breaks_hyphens
            && end < chunk.len()
            && let Some(hyphen) = chunk[..end].rfind('-')
            && hyphen > 0
            && chunk[..hyphen].chars().any(|character| character != '-')
        {
            return chunk.split_at(hyphen + 1);
        }
        chunk.split_at(end)
    }

    /// Splits a line into words, parts of hyphenated words, and white space.
    fn chunks(&self, line: &str) -> Vec<String> {
        let mut chunks = Vec::new();
        let mut rest = line;
        while let Some(first) = rest.chars().next() {
            let blank = is_blank(first);
            let end = rest.find(|character| is_blank(character) != blank);
            let (run, after) = rest.split_at(end.unwrap_or(rest.len()));
            if blank || !self.breaks_hyphens {
                chunks.push(run.to_owned())
            } else {
                chunks.extend(hyphenated(run))
            }
            rest = after;
        }
        chunks
    }
}

/// Splits a word after hyphens between letters.
fn hyphenated(word: &str) -> Vec<String> {
    let chars: Vec<char> = word.chars().collect();
    let is_letter = |at: usize| {
        chars
            .get(at)
            .is_some_and(|c| c.is_alphabetic() || *c == '_')
    };
    let is_of_word = |at: usize| {
        let is = |c: &char| {
            c.is_alphanumeric() || matches!(c, '_' | '!' | '"' | '\'' | '&' | '.' | ',' | '?')
        };
        chars.get(at).is_some_and(is)
    };
    let (mut parts, mut part) = (Vec::new(), String::new());
    for (at, character) in chars.iter().enumerate() {
        part.push(*character);
        let single =
            *character == '-' && at >= 2 && chars.get(at + 1) != Some(&'-') && chars[at - 1] != '-';
        let after_letters = single && is_letter(at - 1) && is_of_word(at - 2);
        let before_letters =
            is_letter(at + 1) && (is_letter(at + 2) || chars.get(at + 2) == Some(&'-'));
        if after_letters && before_letters {
            parts.push(std::mem::take(&mut part));
        }
    }
    if !part.is_empty() {
        parts.push(part);
    }
    parts
}
