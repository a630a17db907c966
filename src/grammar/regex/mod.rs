//! Regular expressions of requests.

use llguidance::regex_to_lark;

use super::limits::GrammarLimits;
use super::wish::check_bytes;
use crate::error::FieldError;

/// Constructs that no automaton can match, by their beginnings.
const UNKNOWN: [(&str, &str); 6] = [
    ("(?=", "look-ahead"),
    ("(?!", "look-ahead"),
    ("(?<=", "look-behind"),
    ("(?<!", "look-behind"),
    ("(?>", "an atomic group"),
    ("(?P=", "a back reference"),
];

/// Tells what of an expression cannot be promised.
pub(super) fn check(field: &str, pattern: &str, limits: &GrammarLimits) -> Result<(), FieldError> {
    check_bytes(field, pattern.len(), limits)?;
    match unknown(pattern) {
        None => Ok(()),
        Some(what) => Err(FieldError::new(
            field,
            format!("{field} has {what}, which is not supported: write it without"),
        )),
    }
}

/// The terminal in Lark that an expression matches from its first to its last character.
pub(super) fn whole_match(
    field: &str,
    pattern: &str,
    limits: &GrammarLimits,
) -> Result<String, FieldError> {
    check(field, pattern, limits)?;
    let pattern = pattern.strip_prefix('^').unwrap_or(pattern);
    let pattern = match pattern.strip_suffix('$') {
        Some(rest) if !ends_escaped(rest) => rest,
        _ => pattern,
    };
    Ok(terminal(pattern))
}

/// The terminal in Lark for texts that an expression is found in, as in JSON schemas; `None` if its anchors are not at
/// the ends of the whole.
pub(super) fn search(pattern: &str) -> Option<String> {
    let (from_start, inner) = match pattern.strip_prefix('^') {
        Some(rest) => (true, rest),
        None => (false, pattern),
    };
    let (to_end, inner) = match inner.strip_suffix('$') {
        Some(rest) if !ends_escaped(rest) => (true, rest),
        _ => (false, inner),
    };
    if (from_start || to_end) && has_options(inner) {
        return None;
    }
    let before = if from_start { "" } else { "(?s:.*)" };
    let after = if to_end { "" } else { "(?s:.*)" };
    let inner = regex_to_lark(inner, "dw");
    Some(format!("/{before}(?:{inner}){after}/"))
}

/// Whether it has `|` outside of groups and classes.
fn has_options(pattern: &str) -> bool {
    let (mut depth, mut in_class, mut is_escaped) = (0_usize, false, false);
    for letter in pattern.chars() {
        match letter {
            _ if is_escaped => {
                is_escaped = false;
                continue;
            }
            '\\' => is_escaped = true,
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => depth += 1,
            ')' if !in_class => depth = depth.saturating_sub(1),
            '|' if !in_class && depth == 0 => return true,
            _ => {}
        }
    }
    false
}

/// The terminal in Lark for an expression without anchors.
pub(super) fn terminal(pattern: &str) -> String {
    match pattern.is_empty() {
        true => "\"\"".to_owned(),
        false => format!("/{}/", regex_to_lark(pattern, "")),
    }
}

/// The expression for a text.
pub(super) fn literal(text: &str) -> String {
    let escaped = text
        .chars()
        .map(|letter| match letter.is_ascii_alphanumeric() {
            true => letter.to_string(),
            false => format!("\\x{{{:x}}}", u32::from(letter)),
        });
    escaped.collect()
}

/// Whether the next character would be escaped.
fn ends_escaped(text: &str) -> bool {
    text.bytes().rev().take_while(|&byte| byte == b'\\').count() % 2 == 1
}

/// The first construct that is not supported.
fn unknown(pattern: &str) -> Option<&'static str> {
    let mut in_class = false;
    let mut rest = pattern;
    while let Some(letter) = rest.chars().next() {
        match letter {
            '\\' => {
                let escaped = rest.chars().nth(1)?;
                if !in_class && (escaped.is_ascii_digit() && escaped != '0' || escaped == 'k') {
                    return Some("a back reference");
                }
                if !in_class && matches!(escaped, 'b' | 'B') {
                    return Some("a word boundary");
                }
                rest = &rest[1 + escaped.len_utf8()..];
                continue;
            }
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class => {
                let found = UNKNOWN.iter().find(|(begin, _)| rest.starts_with(begin));
                if let Some((_, what)) = found {
                    return Some(what);
                }
            }
            _ => {}
        }
        rest = &rest[letter.len_utf8()..];
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(pattern: &str) -> Result<String, String> {
        whole_match("regex", pattern, &GrammarLimits::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn anchors_at_the_ends_say_nothing_new() {
        assert_eq!(whole("^a|b$"), Ok("/a|b/".to_owned()));
        assert_eq!(whole(r"a\$"), Ok(r"/a\$/".to_owned()));
        assert_eq!(whole(r"a\\$"), Ok(r"/a\\/".to_owned()));
        assert_eq!(whole("a/b"), Ok(r"/a\/b/".to_owned()));
        assert_eq!(whole("^$"), Ok("\"\"".to_owned()));
    }

    #[test]
    fn patterns_are_found_anywhere() {
        assert_eq!(search("a"), Some("/(?s:.*)(?:a)(?s:.*)/".to_owned()));
        assert_eq!(search("^a$"), Some("/(?:a)/".to_owned()));
        assert_eq!(search("a|b"), Some("/(?s:.*)(?:a|b)(?s:.*)/".to_owned()));
        assert_eq!(
            search("^(a|b)[|]"),
            Some("/(?:(a|b)[|])(?s:.*)/".to_owned())
        );
        assert_eq!(search("^a|b$"), None);
    }

    #[test]
    fn what_no_automaton_can_do_is_told_by_name() {
        for (pattern, what) in [
            ("a(?=b)", "look-ahead"),
            ("(?<!a)b", "look-behind"),
            (r"(a)\1", "a back reference"),
            (r"\bword\b", "a word boundary"),
        ] {
            let told = whole(pattern).expect_err("it is not supported");
            assert!(told.contains(what), "{told}");
        }
        assert!(whole(r"[(?=]\\(?:a)[\b]").is_ok());
    }
}
