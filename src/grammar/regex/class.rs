//! Builds the character classes of regular expressions, as sets of code points.

use std::sync::OnceLock;

use regex_syntax::Parser;
use regex_syntax::hir::{Class, ClassUnicode, ClassUnicodeRange, HirKind};

use super::Dialect;

/// Characters of ECMA-262's `\s`: white space and ends of lines.
const BLANKS: [(char, char); 10] = [
    ('\t', '\r'),
    (' ', ' '),
    ('\u{a0}', '\u{a0}'),
    ('\u{1680}', '\u{1680}'),
    ('\u{2000}', '\u{200a}'),
    ('\u{2028}', '\u{2029}'),
    ('\u{202f}', '\u{202f}'),
    ('\u{205f}', '\u{205f}'),
    ('\u{3000}', '\u{3000}'),
    ('\u{feff}', '\u{feff}'),
];
const WORD: [(char, char); 4] = [('0', '9'), ('A', 'Z'), ('_', '_'), ('a', 'z')];
const ENDS_OF_LINES: [(char, char); 3] = [('\n', '\n'), ('\r', '\r'), ('\u{2028}', '\u{2029}')];

pub(super) fn of(ranges: &[(char, char)]) -> ClassUnicode {
    let ranges = ranges.iter();
    ClassUnicode::new(ranges.map(|&(first, last)| ClassUnicodeRange::new(first, last)))
}

/// The set of code points from `first` to `last`, except the surrogates, which UTF-8 cannot encode.
pub(super) fn of_codes(first: u32, last: u32) -> ClassUnicode {
    let below = (first.min(0xd7ff), last.min(0xd7ff));
    let above = (first.max(0xe000), last.max(0xe000));
    let parts = [(first <= 0xd7ff, below), (last >= 0xe000, above)];
    let parts = parts.into_iter().filter(|(is_there, _)| *is_there);
    let chars = parts
        .filter_map(|(_, (first, last))| Some((char::from_u32(first)?, char::from_u32(last)?)));
    of(&chars.collect::<Vec<_>>())
}

pub(super) fn negated(mut set: ClassUnicode) -> ClassUnicode {
    set.negate();
    set
}

/// The set of an escape such as `\d`; `None` if the letter is not a class escape.
pub(super) fn escape(letter: char, dialect: Dialect) -> Option<ClassUnicode> {
    let set = match (letter.to_ascii_lowercase(), dialect) {
        ('d', Dialect::Ecma) => of(&WORD[..1]),
        ('w', Dialect::Ecma) => of(&WORD),
        ('s', Dialect::Ecma) => of(&BLANKS),
        ('d' | 'w' | 's', Dialect::Python) => {
            parsed(&format!("\\{}", letter.to_ascii_lowercase()))?
        }
        _ => return None,
    };
    Some(if letter.is_ascii_uppercase() {
        negated(set)
    } else {
        set
    })
}

pub(super) fn dot(matches_ends_of_lines: bool, dialect: Dialect) -> ClassUnicode {
    negated(match (matches_ends_of_lines, dialect) {
        (true, _) => ClassUnicode::empty(),
        (false, Dialect::Ecma) => of(&ENDS_OF_LINES),
        (false, Dialect::Python) => of(&ENDS_OF_LINES[..1]),
    })
}

/// The set of a Unicode property, by the text in `\p{…}`; `None` if it is unknown.
pub(super) fn property(name: &str) -> Option<ClassUnicode> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '=');
    if name.chars().all(is_name) {
        parsed(&format!("\\p{{{name}}}"))
    } else {
        None
    }
}

/// Letters with a case, a superset of the letters that case folding changes.
pub(super) fn cased() -> &'static ClassUnicode {
    static CASED: OnceLock<ClassUnicode> = OnceLock::new();
    CASED.get_or_init(|| property("Cased").unwrap_or_else(|| negated(ClassUnicode::empty())))
}

pub(super) fn posix(name: &str) -> Option<ClassUnicode> {
    if name.chars().all(|c| c.is_ascii_alphabetic()) {
        parsed(&format!("[[:{name}:]]"))
    } else {
        None
    }
}

/// The characters that an expression matches; `None` unless it matches single characters.
fn parsed(expression: &str) -> Option<ClassUnicode> {
    let parsed = Parser::new().parse(expression).ok()?;
    match parsed.into_kind() {
        HirKind::Class(Class::Unicode(set)) => Some(set),
        HirKind::Class(Class::Bytes(set)) => set.to_unicode_class(),
        HirKind::Literal(text) => {
            let mut letters = std::str::from_utf8(&text.0).ok()?.chars();
            letters.next().map(|letter| of(&[(letter, letter)]))
        }
        _ => None,
    }
}
