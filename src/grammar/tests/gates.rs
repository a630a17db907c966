//! Tests of grammars that begin after the reasoning.

use std::sync::Arc;

use serde_json::json;

use super::super::{GrammarWish, ReasoningGate};
use super::vocabularies::{Vocabulary, large, tiny};
use super::walk::{feed, mask_after};
use super::{accepts, schema};
use souffleur_state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress};
use souffleur_state::output::{Tool, ToolChoice, ToolFormat, ToolUse};

fn gated(vocabulary: &Vocabulary, starts_inside: bool) -> Arc<dyn Grammar> {
    let wish = GrammarWish {
        constraint: Some(Arc::new(schema(json!({"type": "integer"})))),
        reasoning: Some(gate(starts_inside)),
        ..GrammarWish::default()
    };
    let compiled = vocabulary.compiler().compile(&wish, &|| false);
    compiled.expect("it compiles").expect("a grammar")
}

fn gate(starts_inside: bool) -> ReasoningGate {
    ReasoningGate {
        open: "<think>".into(),
        close: "</think>".into(),
        starts_inside,
    }
}

#[test]
fn nothing_is_constrained_before_the_end_of_reasoning() {
    for vocabulary in [large(), tiny()] {
        let grammar = gated(vocabulary, true);
        let masked = mask_after(grammar.as_ref(), vocabulary, &[]);
        assert_eq!(masked.allowed, Allowed::All);
        assert!(accepts(grammar.as_ref(), vocabulary, "so {x</think>12"));
        assert!(accepts(grammar.as_ref(), vocabulary, "</think>12"));
        assert!(!accepts(grammar.as_ref(), vocabulary, "so</think>x"));
    }
}

#[test]
fn an_output_may_begin_with_reasoning_or_without() {
    for vocabulary in [large(), tiny()] {
        let grammar = gated(vocabulary, false);
        let masked = mask_after(grammar.as_ref(), vocabulary, &[]);
        assert_eq!(masked.allowed, Allowed::Masked);
        assert!(!masked.mask.allows(vocabulary.tokens("x")[0]));
        assert!(accepts(grammar.as_ref(), vocabulary, "12"));
        assert!(accepts(grammar.as_ref(), vocabulary, "<think>so</think>12"));
        assert!(!accepts(grammar.as_ref(), vocabulary, "<thin"));
        assert!(!accepts(grammar.as_ref(), vocabulary, "1<think>"));
    }
}

#[test]
fn eos_in_the_reasoning_ends_the_output() {
    let vocabulary = large();
    let grammar = gated(vocabulary, true);
    let mut state = grammar.begin();
    assert_eq!(state.commit(vocabulary.eos[1]), Ok(GrammarProgress::Done));
}

#[test]
fn text_after_the_closing_tag_must_match_the_grammar() {
    let vocabulary = tiny();
    let grammar = gated(vocabulary, true);
    let commit = |parts: &[&str]| {
        let mut state = grammar.begin();
        let mut last = Ok(GrammarProgress::Open);
        for part in parts {
            for token in vocabulary.tokens(part) {
                last = state.commit(token);
            }
        }
        last
    };
    assert_eq!(commit(&["</think>"]), Ok(GrammarProgress::Open));
    assert_eq!(commit(&["</think>", "7"]), Ok(GrammarProgress::Open));
    assert_eq!(commit(&["</think>", "x"]), Err(GrammarFailure::NoToken));
}

#[test]
fn a_call_ends_the_reasoning() {
    let vocabulary = large();
    let tool = Tool {
        name: "ping".to_owned(),
        description: None,
        parameters: None,
        strict: true,
    };
    let wish = GrammarWish {
        tools: Some(Arc::new(ToolUse {
            tools: vec![tool],
            choice: ToolChoice::Required,
            parallel: false,
        })),
        tool_format: Some(ToolFormat::Hermes),
        reasoning: Some(gate(true)),
        ..GrammarWish::default()
    };
    let compiled = vocabulary.compiler().compile(&wish, &|| false);
    let grammar = compiled.expect("it compiles").expect("a grammar");
    let call = "<tool_call>\n{\"name\": \"ping\", \"arguments\": {}}\n</tool_call>";
    for before in ["", "hm", "hm</think>"] {
        assert!(
            accepts(grammar.as_ref(), vocabulary, &format!("{before}{call}")),
            "{before}"
        );
    }
    assert!(feed(grammar.as_ref(), vocabulary, "hm<tool_call>x").is_none());
}

#[test]
fn reasoning_alone_constrains_nothing() {
    let wish = GrammarWish {
        reasoning: Some(gate(false)),
        ..GrammarWish::default()
    };
    let compiled = tiny().compiler().compile(&wish, &|| false);
    assert!(compiled.expect("no error").is_none());
}
