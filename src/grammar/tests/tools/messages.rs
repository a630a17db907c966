//! Tests of tool calls in gpt-oss messages.

use std::sync::Arc;

use serde_json::json;

use super::{compile, grammar, wish};
use crate::tests::vocabularies::{messages, tiny};
use crate::tests::{accepts, schema};
use crate::{AnswerFrame, GrammarWish};
use souffleur_state::grammar::Grammar;
use souffleur_state::output::{OutputStart, ToolChoice, ToolFormat};

const SEAT: &str = "<|channel|>commentary to=functions.seat <|constrain|>json<|message|>{\"row\": 4, \"kind\": \"aisle\"}";
const PING: &str = " to=functions.ping<|channel|>commentary json<|message|>{}";
const THOUGHT: &str = "<|channel|>analysis<|message|>So, a seat.<|end|><|start|>assistant";
const PREAMBLE: &str = "<|channel|>commentary<|message|>One moment.<|end|><|start|>assistant";

fn wish_for_messages(choice: ToolChoice, strict: bool) -> GrammarWish {
    GrammarWish {
        frame: AnswerFrame::Messages(OutputStart::Header),
        ..wish(choice, ToolFormat::GptOss, strict, true)
    }
}

#[test]
fn calls_in_messages_are_constrained() {
    for vocabulary in [messages(), tiny()] {
        let required = grammar(vocabulary, &wish_for_messages(ToolChoice::Required, false));
        let auto = grammar(vocabulary, &wish_for_messages(ToolChoice::Auto, true));
        let named = ToolChoice::Named("ping".to_owned());
        let named = grammar(vocabulary, &wish_for_messages(named, false));
        let accepts =
            |grammar: &Arc<dyn Grammar>, text: &str| accepts(grammar.as_ref(), vocabulary, text);
        for call in [SEAT, PING] {
            for text in [
                call.to_owned(),
                format!("{THOUGHT}{call}"),
                format!("{THOUGHT}{THOUGHT}{call}"),
            ] {
                assert!(accepts(&required, &text) && accepts(&auto, &text), "{text}");
                assert_eq!(accepts(&named, &text), call == PING, "{text}");
            }
            assert!(!accepts(&required, &format!("{PREAMBLE}{call}")));
            assert!(accepts(&auto, &format!("{THOUGHT}{PREAMBLE}{call}")));
        }
        let wrong = SEAT.replace("aisle", "floor");
        let answer = "<|channel|>final<|message|>Row 4.";
        assert!(!accepts(&required, &wrong) && !accepts(&auto, &wrong));
        assert!(!accepts(&required, answer) && accepts(&auto, answer));
        assert!(accepts(&auto, &format!("{THOUGHT}{answer}")));
        for text in [
            "",
            "Row 4.",
            "<|channel|>commentary to=functions.fly<|message|>{}",
        ] {
            assert!(!accepts(&required, text) && !accepts(&auto, text), "{text}");
        }
        let loose = compile(vocabulary, &wish_for_messages(ToolChoice::Auto, false));
        assert!(loose.expect("no error").is_none());
    }
}

#[test]
fn a_constraint_applies_to_the_last_message() {
    let numbers = || schema(json!({"type": "array", "items": {"type": "integer"}}));
    let mut with_tools = wish_for_messages(ToolChoice::Auto, false);
    with_tools.constraint = Some(Arc::new(numbers()));
    let alone = GrammarWish {
        tools: None,
        ..with_tools.clone()
    };
    let continued = GrammarWish {
        frame: AnswerFrame::Messages(OutputStart::Content),
        ..alone.clone()
    };
    let answer = "<|channel|>final<|message|>[1, 2]";
    for vocabulary in [messages(), tiny()] {
        let accepts = |wish: &GrammarWish, text: &str| {
            accepts(grammar(vocabulary, wish).as_ref(), vocabulary, text)
        };
        for wish in [&alone, &with_tools] {
            assert!(accepts(wish, answer) && accepts(wish, &format!("{THOUGHT}{answer}")));
            assert!(!accepts(wish, "[1, 2]") && !accepts(wish, &answer.replace("1", "x")));
        }
        assert!(accepts(&with_tools, PING) && !accepts(&alone, PING));
        assert!(accepts(&continued, "[1, 2]") && !accepts(&continued, answer));
    }
}
