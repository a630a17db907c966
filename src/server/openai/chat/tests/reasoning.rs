//! Tests of reasoning in chat completions.

use serde_json::{Map, Value, json};

use super::{call, refuses, refuses_field};
use crate::openai::chat::reasoning::Reasoning;

fn kwargs(value: Value) -> Map<String, Value> {
    call(value).prompt.template_kwargs
}

#[test]
fn an_effort_is_passed_to_the_template() {
    let on = json!({"thinking": true, "enable_thinking": true, "reasoning_effort": "high"});
    assert_eq!(
        Value::Object(kwargs(json!({"reasoning_effort": "high"}))),
        on
    );
    let nested = json!({"reasoning": {"effort": "high"}});
    assert_eq!(Value::Object(kwargs(nested)), on);
    let off = json!({"thinking": false, "enable_thinking": false});
    for fields in [
        json!({"reasoning_effort": "none"}),
        json!({"reasoning": {"effort": "none"}}),
        json!({"reasoning": {"enabled": false}}),
    ] {
        assert_eq!(Value::Object(kwargs(fields)), off);
    }
    assert!(kwargs(json!({})).is_empty());
    let own = json!({"enable_thinking": false, "x": 1});
    let args = kwargs(json!({"reasoning_effort": "low", "chat_template_kwargs": own}));
    assert_eq!(args["enable_thinking"], false);
    assert_eq!((&args["thinking"], &args["x"]), (&json!(true), &json!(1)));
}

#[test]
fn reasoning_is_a_separate_field_by_default() {
    let read = |value: Value| call(value).reasoning;
    assert_eq!(read(json!({})), Reasoning::Streamed);
    assert_eq!(read(json!({"stream_reasoning": false})), Reasoning::Whole);
    assert_eq!(
        read(json!({"separate_reasoning": false})),
        Reasoning::InText
    );
    assert_eq!(read(json!({"include_reasoning": false})), Reasoning::Hidden);
    assert_eq!(
        read(json!({"reasoning": {"exclude": true}})),
        Reasoning::Hidden
    );
    let separates = |value: Value| {
        let parsing = call(value).into_requests()[0].parsing.clone();
        parsing.map(|parsing| parsing.separates_reasoning)
    };
    assert_eq!(separates(json!({})), Some(true));
    assert_eq!(separates(json!({"separate_reasoning": false})), None);
    assert_eq!(separates(json!({"include_reasoning": false})), Some(true));
}

#[test]
fn unknown_efforts_are_refused() {
    let efforts = "none, minimal, low, medium, high, xhigh, max";
    let text = |field: &str| format!("{field} is \"huge\", must be one of {efforts}");
    let name = "reasoning_effort";
    refuses_field(json!({"reasoning_effort": "huge"}), name, &text(name));
    let name = "reasoning.effort";
    refuses_field(json!({"reasoning": {"effort": "huge"}}), name, &text(name));
    refuses_field(
        json!({"reasoning": {"enabled": 1}}),
        "reasoning.enabled",
        "reasoning.enabled is 1, must be true or false",
    );
    refuses(
        json!({"reasoning": {"max_tokens": 5}}),
        "reasoning.max_tokens is not supported yet: leave it out or send null",
    );
}
