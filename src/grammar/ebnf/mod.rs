//! Reads grammars that requests send as text: EBNF as in GBNF and XGrammar, or Lark.
//!
//! EBNF is parsed ([`reader`]) and rewritten in Lark ([`lark`]). A Lark grammar begins with a line `%llguidance {}`, as
//! in vLLM, and is passed through unchanged.

mod expression;
mod lark;
mod reader;

use std::sync::LazyLock;

use regex::Regex;

use super::limits::{GrammarLimits, check_bytes};
use souffleur_base::error::FieldError;

const LARK: &str = "%llguidance";

/// Lexemes of Lark (texts, expressions, comments, marker tokens, repetitions), distinguished by their beginnings as in
/// llguidance's lexer, and the refused operators between them.
static LEXEME: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = r#"(?x)
        "(?:\\.|[^"\\\x00-\x1f\x7f])*" | /(?:\\.|[^/\\])+/ | (?:\#|//)[^\n]* | <[^<>\s]+> | ~[\ \t]*[0-9]
        | (?<refused>[&~]|%json)"#;
    Regex::new(pattern).expect("the expression is valid")
});

/// Returns the grammar in Lark.
///
/// # Errors
/// Names the invalid or unsupported syntax, with its line if known; or the limit of bytes.
pub(super) fn to_lark(
    field: &str,
    grammar: &str,
    limits: &GrammarLimits,
) -> Result<String, FieldError> {
    check_bytes(field, grammar.len(), limits)?;
    if grammar.trim_start().starts_with(LARK) {
        return checked_lark(field, grammar.trim_start());
    }
    let rules = reader::read(grammar);
    let lark = rules.and_then(|rules| lark::write(&rules));
    lark.map_err(|reason| FieldError::new(field, format!("{field}: {reason}")))
}

/// Passes Lark through, but refuses intersections and complements of expressions, and embedded JSON schemas: the costs
/// of these multiply, and llguidance's limits do not count them.
fn checked_lark(field: &str, grammar: &str) -> Result<String, FieldError> {
    let found = LEXEME
        .captures_iter(grammar)
        .find_map(|lexeme| lexeme.name("refused"));
    let Some(found) = found else {
        return Ok(grammar.to_owned());
    };
    let instead = match found.as_str() {
        "%json" => {
            "send the JSON schema as json_schema, or as a json_schema format of a structural tag"
        }
        _ => "write one expression without it that matches the same texts",
    };
    let line = grammar[..found.start()].matches('\n').count() + 1;
    let sign = found.as_str();
    let reason = format!("{field}, line {line}: {sign:?} is not supported in Lark: {instead}");
    Err(FieldError::new(field, reason))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lark(grammar: &str) -> Result<String, String> {
        let limits = GrammarLimits::default();
        to_lark("ebnf", grammar, &limits).map_err(|error| error.to_string())
    }

    #[test]
    fn unsupported_ebnf_is_rejected_with_the_reason() {
        for (grammar, expected) in [
            ("", "no rule named root"),
            ("a ::= \"x\"", "no rule named root"),
            ("root ::= b", "b is not defined"),
            ("root ::= \"x", "line 1"),
            ("root ::= \"x\"\n  (\"y\"", "line 2"),
            ("root ::= [a-", "line 1"),
            ("root ::= [z-a]", "z-a"),
            ("root ::= []", "empty"),
            ("root ::= \"a\" (=\"b\")", "look-ahead"),
            ("root ::= 'a'", "single quotes"),
            ("root ::= <[12]>", "token"),
            ("root ::= /a/", "/a/"),
            ("root ::= a{3,1}\na ::= \"x\"", "{3,1}"),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
            ("root: \"a\"", "::="),
            ("root ::= TagDispatch((\"a\", b))", "macro"),
            (r#"root ::= "\q""#, "escape"),
        ] {
            let error = lark(grammar).expect_err("it is not supported");
            assert!(error.contains(expected), "{grammar}: {error}");
        }
    }

    #[test]
    fn lark_passes_through_unchanged() {
        for text in [
            "start: \"a\"",
            "start: \"a & b ~ %json \\\" &\" A\nA: /[&~]\\/&/ // & ~\n# ~ %json \"",
            "start: <&> \"a\"~3 \"b\" ~ 2..4",
        ] {
            let text = format!("%llguidance {{}}\n{text}\n");
            assert_eq!(lark(&text), Ok(text.clone()));
        }
    }

    #[test]
    fn costly_lark_operators_are_rejected_with_their_line() {
        for text in [
            "start: A\nA: /a/ & /b/\n",
            "start: \"/\" A\nA: ~/a/\n",
            "# \"\nstart: %json {}\n",
            "// /\nstart: A & /b/\n",
            "start: \"\\\"\" \nA: /\\// & /\"/\n",
        ] {
            let refused = lark(&format!("%llguidance {{}}\n{text}"));
            assert!(
                refused.is_err_and(|reason| reason.contains("line 3: ")),
                "{text}"
            );
        }
    }

    #[test]
    fn rules_without_recursion_become_terminals() {
        let text = lark("root ::= a | \"x\" # comment\na ::= [0-9]{2} b?\nb ::= \".\"");
        let text = text.expect("it is supported");
        assert!(text.contains("start: T0"), "{text}");
        assert!(!text.contains("\nr"), "only terminals: {text}");
    }
}
