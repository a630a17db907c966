//! Tests of constraints other than JSON schemas: JSON objects, regexes, choices.

use super::vocabularies::{large, sentence_piece, tiny};
use super::walk::walk;
use super::{accepts, compile, wish};
use souffleur_state::grammar::{Constraint, GrammarFailure, GrammarProgress, JsonWhitespace};

#[test]
fn a_json_object_constraint_yields_an_object() {
    for vocabulary in [tiny(), large(), sentence_piece()] {
        let compiler = vocabulary.compiler();
        let constraint = Constraint::JsonObject(JsonWhitespace::Bounded);
        let grammar = compile(compiler, constraint).expect("it compiles");
        for seed in 0..5 {
            let walk = walk(grammar.as_ref(), vocabulary, seed);
            match serde_json::from_str::<serde_json::Value>(&walk.text) {
                Ok(value) => assert!(value.is_object(), "{}", walk.text),
                // The output has a number outside of the range of `f64`.
                Err(error) => assert!(error.to_string().contains("out of range"), "{}", walk.text),
            }
        }
        assert!(!accepts(grammar.as_ref(), vocabulary, "[1]"));
    }
}

#[test]
fn a_regex_matches_the_whole_output() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    let cases: [(&str, &[&str], &[&str]); 5] = [
        ("^a|b$", &["a", "b"], &["ab", ""]),
        (r"\d{3}-\d{4}", &["555-1234"], &["555-12345", "x"]),
        ("(yes|no)?", &["", "yes", "no"], &["maybe"]),
        (
            r"https?://[a-z]+/\S*",
            &["http://a/", "https://b/c?d"],
            &["ftp://a/"],
        ),
        (".+", &["a b"], &["a\nb", ""]),
    ];
    for (pattern, good, bad) in cases {
        let grammar = compile(compiler, Constraint::Regex(pattern.into())).expect("it compiles");
        for text in good {
            assert!(
                accepts(grammar.as_ref(), vocabulary, text),
                "{pattern}: {text:?}"
            );
        }
        for text in bad {
            assert!(
                !accepts(grammar.as_ref(), vocabulary, text),
                "{pattern}: {text:?}"
            );
        }
    }
}

#[test]
fn regexes_that_cannot_be_enforced_are_refused() {
    let compiler = tiny().compiler();
    for (pattern, reason) in [
        ("(?=a)", "look-ahead"),
        ("(", "regex"),
        ("[^\\s\\S]", "no text"),
        ("a{2,1}", "regex"),
    ] {
        let refused = compiler.compile(&wish(Constraint::Regex(pattern.into())), &|| false);
        let error = refused.expect_err("it is refused");
        assert_eq!(error.code(), "invalid_request");
        assert!(error.to_string().contains(reason), "{pattern}: {error}");
    }
}

#[test]
fn a_choice_yields_one_of_its_strings() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    let texts = ["left", "left-hand", "a \"b\" \\n\u{7f}", "日本"].map(str::to_owned);
    let grammar = compile(compiler, Constraint::Choice(texts.clone().into())).expect("it compiles");
    for seed in 0..20 {
        let walk = walk(grammar.as_ref(), vocabulary, seed);
        assert_eq!(walk.end, Ok(GrammarProgress::Done));
        assert!(texts.contains(&walk.text), "{:?}", walk.text);
    }
    assert!(accepts(grammar.as_ref(), vocabulary, "left"));
    assert!(!accepts(grammar.as_ref(), vocabulary, "lef"));
    let refused = compiler.compile(&wish(Constraint::Choice([].into())), &|| false);
    assert!(refused.is_err());
}

#[test]
fn a_token_that_is_not_allowed_fails_the_output() {
    let vocabulary = tiny();
    let compiler = vocabulary.compiler();
    let grammar = compile(compiler, Constraint::Regex("[0-9]+".into())).expect("it compiles");
    for token in [
        vocabulary.tokens("a")[0],
        vocabulary.eos[0],
        vocabulary.size as u32 - 1,
    ] {
        let mut state = grammar.begin();
        // `NoToken` here means that this token is not allowed.
        assert_eq!(state.commit(token), Err(GrammarFailure::NoToken));
    }
}

#[test]
fn nothing_is_constrained_without_a_constraint() {
    let wish = super::GrammarWish::default();
    let compiled = tiny().compiler().compile(&wish, &|| false);
    assert!(compiled.expect("no error").is_none());
}
