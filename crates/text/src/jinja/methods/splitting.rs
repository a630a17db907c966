//! Implements Python's string splitting.

use super::super::characters::{is_alnum, is_blank};

/// Splits a text at a separator, at most `max` times, from the start or from the end.
pub(super) fn split<'a>(
    text: &'a str,
    separator: &str,
    max: usize,
    from_end: bool,
) -> Vec<&'a str> {
    let pieces = max.saturating_add(1);
    if from_end {
        let mut parts: Vec<&str> = text.rsplitn(pieces, separator).collect();
        parts.reverse();
        parts
    } else {
        text.splitn(pieces, separator).collect()
    }
}

/// Splits a text at runs of white space.
pub(super) fn split_blank(text: &str, max: usize, from_end: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_matches(is_blank);
    if max == 0 || !from_end {
        rest = text.trim_start_matches(is_blank);
    }
    if from_end {
        rest = text.trim_end_matches(is_blank);
        while !rest.is_empty() {
            match rest.rfind(is_blank).filter(|_| parts.len() < max) {
                Some(at) => {
                    let width = rest[at..].chars().next().map_or(0, char::len_utf8);
                    parts.push(&rest[at + width..]);
                    rest = rest[..at].trim_end_matches(is_blank);
                }
                None => {
                    parts.push(rest);
                    rest = "";
                }
            }
        }
        parts.reverse();
        return parts;
    }
    while !rest.is_empty() {
        match rest.find(is_blank).filter(|_| parts.len() < max) {
            Some(at) => {
                parts.push(&rest[..at]);
                rest = rest[at..].trim_start_matches(is_blank);
            }
            None => {
                parts.push(rest);
                rest = "";
            }
        }
    }
    parts
}

/// `str.splitlines`.
pub(in super::super) fn lines(text: &str, keeps_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut start = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, character)) = chars.next() {
        let is_end = matches!(
            character,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        );
        if !is_end {
            continue;
        }
        let mut end = at + character.len_utf8();
        if character == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(&text[start..if keeps_ends { end } else { at }]);
        start = end;
    }
    if start < text.len() {
        lines.push(&text[start..]);
    }
    lines
}

/// Runs of letters, digits and underscores.
pub(in super::super) fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_of_word = |character: char| character == '_' || is_alnum(character);
    text.split(move |character| !is_of_word(character))
        .filter(|word| !word.is_empty())
}
