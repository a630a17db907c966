//! Parses and checks regular expressions of requests, and rewrites them in llguidance's dialect.
//!
//! llguidance's dialect differs from the clients' dialects: classes have operators, and a final backslash is dropped.
//! So this module parses expressions ([`read`]) and rewrites them ([`write`]) without ambiguous syntax.

mod class;
mod escapes;
mod node;
mod read;
#[cfg(test)]
mod tests;
mod write;

use serde_json::Value;

use super::limits::{GrammarLimits, check_bytes};
use super::schema::patterns::map_patterns;
use souffleur_base::error::FieldError;
use write::Purpose;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    /// ECMA-262 with the flag `u`, plus syntax that browsers accept without the flag; for patterns in JSON schemas.
    Ecma,
    /// The forms that Python's `re` and Rust's `regex` share, and some that only one of them has. `\d`, `\w` and `\s`
    /// are Unicode's.
    Python,
}

/// Checks a pattern in a JSON schema, and returns its size in bytes as written for llguidance.
///
/// # Errors
/// A clause that names the unsupported construct.
pub(super) fn check(pattern: &str, limits: &GrammarLimits) -> Result<usize, String> {
    check_bytes("it", pattern.len(), limits).map_err(|error| error.to_string())?;
    let quoted = read::read(pattern, Dialect::Ecma);
    let quoted = quoted.and_then(|node| write::search(&node, Purpose::Quoted));
    let quoted = quoted.map_err(|what| format!("it must not have {what}"))?;
    Ok(quoted.len())
}

/// Rewrites the patterns of a checked schema so that llguidance matches them in JSON strings.
pub(super) fn quote_patterns(schema: &mut Value) {
    let quoted = |pattern: &str| {
        let node = read::read(pattern, Dialect::Ecma).ok()?;
        let search = write::search(&node, Purpose::Quoted).ok()?;
        Some(format!("^(?:{search})$"))
    };
    map_patterns(schema, &mut |pattern| {
        quoted(pattern).unwrap_or_else(|| pattern.to_owned())
    });
}

/// Rewrites an expression of Python's dialect for llguidance.
pub(super) fn rewrite(
    field: &str,
    pattern: &str,
    limits: &GrammarLimits,
) -> Result<String, FieldError> {
    check_bytes(field, pattern.len(), limits)?;
    let node = read::read(pattern, Dialect::Python);
    let plain = node.and_then(|node| write::whole(&node, Purpose::Plain));
    plain.map_err(|what| refused(field, &what))
}

/// Like [`rewrite`], for an expression that has been checked.
pub(super) fn rewrite_checked(pattern: &str) -> String {
    let node = read::read(pattern, Dialect::Python);
    let plain = node.and_then(|node| write::whole(&node, Purpose::Plain));
    plain.unwrap_or_else(|_| pattern.to_owned())
}

/// The Lark terminal for texts that an expression in Python's dialect matches in full.
pub(super) fn whole_match(
    field: &str,
    pattern: &str,
    limits: &GrammarLimits,
) -> Result<String, FieldError> {
    rewrite(field, pattern, limits).map(|plain| terminal(&plain))
}

/// The Lark terminal for texts that contain a match of a JSON schema's pattern; `None` if it is not supported.
pub(super) fn search(pattern: &str) -> Option<String> {
    let node = read::read(pattern, Dialect::Ecma).ok()?;
    let search = write::search(&node, Purpose::Plain).ok()?;
    Some(terminal(&search))
}

/// Writes an expression without slashes as a Lark terminal.
fn terminal(expression: &str) -> String {
    if expression.is_empty() {
        "\"\"".to_owned()
    } else {
        format!("/{expression}/")
    }
}

pub(super) fn literal(text: &str) -> String {
    let mut literal = String::new();
    text.chars()
        .for_each(|letter| write::write_letter(letter, &mut literal));
    literal
}

fn refused(field: &str, what: &str) -> FieldError {
    let reason = format!("{field} must not have {what}: write it differently");
    FieldError::new(field, reason)
}
