//! Tests that JSON strings in outputs decode to texts that match their patterns.

use serde_json::{Value, json};

use super::vocabularies::{large, tiny};
use super::walk::{feed, walk};
use super::{accepts, compile, schema};
use souffleur_state::grammar::GrammarProgress;

/// Patterns, and the characters that an output must not contain.
const PATTERNS: [(&str, &[char]); 12] = [
    ("^[^\"]*$", &['"']),
    (r"^[^\\]+$", &['\\']),
    ("^[^<>\"]+$", &['<', '>', '"']),
    (
        r#"^[^\\/:*?"<>|]+$"#,
        &['\\', '/', ':', '*', '?', '"', '<', '>', '|'],
    ),
    (r"^[\x00-\x1f]$", &['"', '\\', 'a']),
    (r"^[^\n]{1,5}$", &['\n']),
    (r"^[^\r\n\t]{1,5}$", &['\n', '\r', '\t']),
    (r"^[^\s\S]?$", &['a']),
    (r"^(?:[^\\]|[^\x22])?$", &[]),
    (r"^[!#-\[\]-~]+$", &['"', '\\', '\n']),
    (r"^\S+$", &[' ', '\n', '\u{feff}']),
    ("^[a&&b]+$", &['c']),
];

fn decoded(output: &str) -> String {
    let value: Value =
        serde_json::from_str(output).unwrap_or_else(|error| panic!("{output:?}: {error}"));
    value.as_str().expect("a string").to_owned()
}

#[test]
fn outputs_have_no_excluded_characters() {
    for vocabulary in [tiny(), large()] {
        let compiler = vocabulary.compiler();
        for (pattern, excluded) in PATTERNS {
            let written = json!({"type": "string", "pattern": pattern, "maxLength": 12});
            let grammar = compile(compiler, schema(written)).expect("it is supported");
            for seed in 0..40 {
                let walk = walk(grammar.as_ref(), vocabulary, seed);
                assert_eq!(
                    walk.end,
                    Ok(GrammarProgress::Done),
                    "{pattern}: {}",
                    walk.text
                );
                let text = decoded(&walk.text);
                assert!(!text.contains(excluded), "{pattern}: {text:?}");
            }
        }
    }
}

#[test]
fn escapes_match_the_class_of_the_decoded_character() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    for (pattern, accepted, refused) in [
        (
            "^[^\"]*$",
            &[r#""a\\b""#, r#""\n""#, r#""""#][..],
            &[r#""\"""#, r#""a\"b""#][..],
        ),
        (
            r"^[^\\]+$",
            &[r#""a\"b""#, r#""\t""#],
            &[r#""\\""#, r#""a\\b""#],
        ),
        (
            r"^[\x00-\x1f]$",
            &[r#""\n""#, r#""\b""#],
            &[r#""\"""#, r#""\\""#, r#""a""#],
        ),
        (r"^[^\n]$", &[r#""\"""#, r#""\\""#, r#""\t""#], &[r#""\n""#]),
        ("^[a&&b]+$", &[r#""a&b""#], &[r#""c""#]),
        ("^[[]$", &[r#""[""#], &[r#""a""#]),
        ("(^|,)x", &[r#""x""#, r#""a,xb""#], &[r#""ax""#]),
        ("^a|b$", &[r#""ac""#, r#""cb""#], &[r#""ca""#]),
    ] {
        let written = json!({"type": "string", "pattern": pattern});
        let grammar = compile(compiler, schema(written)).expect("it is supported");
        for text in accepted {
            assert!(
                accepts(grammar.as_ref(), vocabulary, text),
                "{pattern} accepts {text}"
            );
        }
        for text in refused {
            assert!(
                !accepts(grammar.as_ref(), vocabulary, text),
                "{pattern} refuses {text}"
            );
        }
    }
}

#[test]
fn names_of_properties_follow_their_patterns() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    let written = json!({
        "type": "object", "patternProperties": {"^[^\"]+$": {"type": "integer"}}, "additionalProperties": false,
    });
    let grammar = compile(compiler, schema(written)).expect("it is supported");
    assert!(feed(grammar.as_ref(), vocabulary, r#"{"a\\b":1}"#).is_some());
    assert!(feed(grammar.as_ref(), vocabulary, r#"{"a\"b":1}"#).is_none());
    assert!(feed(grammar.as_ref(), vocabulary, r#"{"\"":1}"#).is_none());
}
