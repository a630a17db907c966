//! Rewrites llguidance's messages about a grammar in terms of the request.

/// Parts of llguidance's messages that name its options, features and internals, and their replacements.
const REPLACEMENTS: [(&str, &str); 13] = [
    (
        "oneOf constraints are not supported",
        "oneOf is supported only if its options exclude each other, for example by different types, or by a required \
         property with a different const in each: change the options, or use anyOf",
    ),
    (
        "'referencing' feature",
        "a $ref names nothing in the schema",
    ),
    ("fuel", TOO_COMPLEX),
    ("too big", TOO_COMPLEX),
    ("schema too large", TOO_COMPLEX),
    ("too many expressions", TOO_COMPLEX),
    ("Unable to determine if regex is empty", TOO_COMPLEX),
    (
        "stack level exceeded",
        "its schemas refer to each other too deeply",
    ),
    (
        "min/maxProperties only supported when",
        "minProperties and maxProperties are supported only where all named properties are required",
    ),
    (
        "l-flag is not supported",
        "the flag l is not supported in Lark expressions",
    ),
    (
        "lookarounds not supported",
        "an expression has \\b, \\B, or an anchor that is neither at its beginning nor at its end",
    ),
    (
        "Regex is empty",
        "a pattern and the other keywords next to it allow no text",
    ),
    (
        "Failed to generate regex",
        "the bounds of a number exclude every number",
    ),
];
const TOO_COMPLEX: &str = "it is too complex";
pub(super) const CRASHED: &str =
    "the grammar compiler crashed, which is a bug of this engine (please report it)";

/// Converts a message of llguidance to one for clients.
pub(super) fn for_client(reason: &str) -> String {
    if reason.starts_with("panic:") {
        return CRASHED.to_owned();
    }
    let instead = REPLACEMENTS.iter().find(|(part, _)| reason.contains(part));
    match instead {
        Some((_, instead)) => (*instead).to_owned(),
        None => reason.trim_end_matches("<non-verbose/>").trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_no_options_of_llguidance() {
        for (message, expected) in [
            (
                "oneOf constraints are not supported. Enable 'coerce_one_of' option to approximate oneOf with anyOf",
                "exclude each other",
            ),
            (
                "Only absolute $ref's (#/...) are supported without 'referencing' feature; ref 'x'",
                "names nothing",
            ),
            (
                "initial lexer configuration (grammar) too big (limit for this grammar: 1000000)",
                "too complex",
            ),
            ("schema too large", "too complex"),
            (
                "number 65 is too large; must be <= 63",
                "number 65 is too large; must be <= 63",
            ),
            ("panic: at 'x.rs' <backtrace>", "compiler crashed"),
        ] {
            let text = for_client(message);
            assert!(text.contains(expected), "{text}");
            assert!(
                !text.contains("option to") && !text.contains("feature"),
                "{text}"
            );
        }
        assert_eq!(
            for_client("Invalid type: x <non-verbose/>"),
            "Invalid type: x"
        );
    }
}
