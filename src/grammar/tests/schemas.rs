//! Tests that the grammar of a schema accepts the values of the schema.

use serde_json::{Value, json};

use super::schema_list::schemas;
use super::vocabularies::{Vocabulary, large, sentence_piece, tiny};
use super::walk::{feed, mask_after, tokens_in, walk};
use super::{compile, schema, wish};
use souffleur_state::grammar::{Allowed, Constraint, GrammarProgress, JsonWhitespace};

fn walks_are_valid(vocabulary: &Vocabulary, seeds: std::ops::Range<u64>) {
    let compiler = vocabulary.compiler();
    for (at, written) in schemas().into_iter().enumerate() {
        let validator = jsonschema::options()
            .should_validate_formats(true)
            .build(&written)
            .expect("the schema is valid");
        let grammar = compile(compiler, schema(written.clone()));
        let grammar = grammar.unwrap_or_else(|error| panic!("{written}: {error}"));
        for seed in seeds.clone() {
            let walk = walk(grammar.as_ref(), vocabulary, seed * 1000 + at as u64);
            let text = &walk.text;
            assert_eq!(walk.end, Ok(GrammarProgress::Done), "{written}: {text}");
            match serde_json::from_str::<Value>(text) {
                Ok(value) => assert!(validator.is_valid(&value), "{written}: {text}"),
                // The output has a number outside of the range of `f64`.
                Err(error) => assert!(
                    error.to_string().contains("out of range"),
                    "{text}: {error}"
                ),
            }
            assert!(
                !text
                    .bytes()
                    .any(|byte| byte < b' ' && byte != b'\n' && byte != b'\t'),
                "{text:?}"
            );
        }
    }
}

#[test]
fn walks_with_a_small_vocabulary_are_valid() {
    assert!(schemas().len() >= 60);
    walks_are_valid(tiny(), 0..8);
}

#[test]
fn walks_with_a_large_vocabulary_are_valid() {
    walks_are_valid(large(), 0..3);
}

#[test]
fn walks_with_a_sentence_piece_vocabulary_are_valid() {
    walks_are_valid(sentence_piece(), 0..4);
}

#[test]
fn the_end_is_allowed_exactly_where_the_value_is_complete() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    for written in schemas() {
        let validator = jsonschema::validator_for(&written).expect("the schema is valid");
        let grammar = compile(compiler, schema(written.clone())).expect("it compiles");
        let walk = walk(grammar.as_ref(), vocabulary, 5);
        let last = walk.tokens.last().copied();
        let output = match last {
            Some(token) if vocabulary.eos.contains(&token) => &walk.tokens[..walk.tokens.len() - 1],
            _ => &walk.tokens[..],
        };
        // The last token may have ended the output: no mask is computed after it.
        for until in 0..output.len() {
            let masked = mask_after(grammar.as_ref(), vocabulary, &output[..until]);
            let ends = vocabulary
                .eos
                .iter()
                .filter(|&&eos| masked.mask.allows(eos))
                .count();
            let text = vocabulary.spell_lossy(&output[..until]);
            let value = serde_json::from_str::<Value>(&text);
            let is_complete = value.is_ok_and(|value| validator.is_valid(&value));
            assert_eq!(
                ends == vocabulary.eos.len(),
                is_complete,
                "{written}: {text:?}"
            );
            assert!(ends == 0 || ends == vocabulary.eos.len());
        }
    }
}

#[test]
fn control_characters_are_not_allowed_in_strings() {
    for vocabulary in [tiny(), large()] {
        let compiler = vocabulary.compiler();
        let grammar = compile(compiler, schema(json!({"type": "string"}))).expect("it compiles");
        let output = vocabulary.tokens("\"ab");
        let masked = mask_after(grammar.as_ref(), vocabulary, &output);
        assert_eq!(masked.allowed, Allowed::Masked);
        let allowed = tokens_in(&masked.mask);
        assert!(allowed.len() > 200);
        for token in allowed {
            let text = vocabulary.spell_lossy(&[token]);
            let word = vocabulary.text.token(token).expect("a token");
            assert!(!text.chars().any(|c| c < ' ' || c == '\u{7f}'), "{text:?}");
            assert!(!word.chars().any(|c| c.is_ascii_control()), "{word:?}");
        }
    }
}

#[test]
fn tokens_that_are_not_text_are_never_allowed() {
    let vocabulary = large();
    let compiler = vocabulary.compiler();
    let grammar = compile(compiler, Constraint::Regex("(?s:.*)".into())).expect("it compiles");
    let masked = mask_after(grammar.as_ref(), vocabulary, &[]);
    let markers = ["<think>", "<tool_call>", "[ARGS]"];
    for marker in markers.map(|marker| vocabulary.text.token_id(marker).expect("a token")) {
        assert!(!masked.mask.allows(marker));
    }
    for beyond in vocabulary.text.vocab_size()..vocabulary.size {
        assert!(!masked.mask.allows(beyond as u32));
    }
    assert!(vocabulary.eos.iter().all(|&eos| masked.mask.allows(eos)));
    let spaces = vocabulary.text.token_id("    ").expect("a token");
    assert!(masked.mask.allows(spaces), "blanks are text");
}

#[test]
fn white_space_follows_the_request() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    let with = |whitespace| Constraint::JsonSchema {
        schema: std::sync::Arc::new(
            json!({"type": "object", "properties": {"a": {"type": "integer"}},
            "required": ["a"]}),
        ),
        whitespace,
        is_strict: true,
    };
    let texts = [
        "{\"a\":1}",
        "{\"a\": 1}",
        "{\n  \"a\": 1\n}",
        "{  \"a\":1}",
        "{\"a\":\n\n1}",
        " {\"a\":1}",
        "{\"a\":1} ",
    ];
    for (whitespace, allowed) in [
        (
            JsonWhitespace::Bounded,
            [true, true, true, false, false, false, false],
        ),
        (
            JsonWhitespace::Compact,
            [true, false, false, false, false, false, false],
        ),
        (
            JsonWhitespace::Pattern("[ ]+".into()),
            [true, true, false, true, false, false, false],
        ),
    ] {
        let grammar = compile(compiler, with(whitespace.clone())).expect("it compiles");
        let found = texts.map(|text| feed(grammar.as_ref(), vocabulary, text).is_some());
        assert_eq!(found, allowed, "{whitespace:?}");
    }
}

#[test]
fn strict_objects_are_closed() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    let with = |is_strict| Constraint::JsonSchema {
        schema: std::sync::Arc::new(
            json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
        ),
        whitespace: JsonWhitespace::Compact,
        is_strict,
    };
    for is_strict in [false, true] {
        let grammar = compile(compiler, with(is_strict)).expect("it compiles");
        let fed = feed(grammar.as_ref(), vocabulary, "{\"b\":1}");
        assert_eq!(fed.is_none(), is_strict);
    }
}

#[test]
fn compiler_options_in_schemas_are_ignored() {
    let vocabulary = tiny();
    let schema = schema(json!({"type": "object", "x-guidance": {"lenient": true}, "not": {}}));
    let refused = vocabulary.compiler().compile(&wish(schema), &|| false);
    assert!(
        refused
            .expect_err("`not` is not supported")
            .to_string()
            .contains("#/not")
    );
}
