//! Tests of the format of Gemma 4.

use super::*;
const F: ToolFormat = ToolFormat::Gemma4;

fn call(arguments: &str) -> String {
    format!("<|tool_call>call:seat{{{arguments}}}<tool_call|>")
}

fn quoted(text: &str) -> String {
    text.replace('\'', "<|\"|>")
}

#[test]
fn arguments_become_json() {
    for (arguments, expected) in [
        ("", "{}"),
        ("row:4", r#"{"row": 4}"#),
        (
            "row:-4.5e3,window:true,price:null",
            r#"{"row": -4.5e3, "window": true, "price": null}"#,
        ),
        (
            "who:'Ada {x}, \"y\":[z]'",
            r#"{"who": "Ada {x}, \"y\":[z]"}"#,
        ),
        ("who:''", r#"{"who": ""}"#),
        (
            "tags:['a','b'],any:[]",
            r#"{"tags": ["a", "b"], "any": []}"#,
        ),
        (
            "meal:{'soup':{hot:true},bread:2}",
            r#"{"meal": {"soup": {"hot": true}, "bread": 2}}"#,
        ),
        ("any:[[1,{a:'b'}],[]]", r#"{"any": [[1, {"a": "b"}], []]}"#),
        // Variants that models may write.
        (" row : 4 , who : 'Ada' ", r#"{"row": 4, "who": "Ada"}"#),
        ("who:Ada Lovelace", r#"{"who": "Ada Lovelace"}"#),
        ("who:'a\nb\tc'", r#"{"who": "a\nb\tc"}"#),
    ] {
        check(F, &call(&quoted(arguments)), &format!("seat({expected})"));
    }
}

#[test]
fn calls_follow_each_other_and_text() {
    let row = call("row:1");
    check(
        F,
        &format!("So: {row}{row}"),
        "«So: »seat({\"row\": 1})seat({\"row\": 1})",
    );
    let text = quoted("who:'<tool_call|> <|tool_call>call:f{}'");
    check(
        F,
        &call(&text),
        "seat({\"who\": \"<tool_call|> <|tool_call>call:f{}\"})",
    );
}

#[test]
fn text_that_only_resembles_a_call_is_text() {
    for text in [
        "<|tool_call>",
        "<|tool_call>call:",
        "<|tool_call>seat{}",
        "<|tool_call>call:{}",
        "call:seat{}",
    ] {
        check_text(F, text);
    }
    check(F, "<|tool_call>call:seat{row:1", "seat({\"row\": ");
}

#[test]
fn reasoning_is_in_a_channel_with_a_label() {
    let run = |text: &str| short(&run(engine(Some(F), Some(ReasoningFormat::Gemma4)), text));
    assert_eq!(run("<|channel>thought\nSo.\n<channel|>Yes."), "‹So.›«Yes.»");
    assert_eq!(run("<|channel>thought\n<channel|>Yes."), "«Yes.»");
    assert_eq!(run("<|channel>thoughts<channel|>Yes."), "‹thoughts›«Yes.»");
    assert_eq!(run("<|channel>thou<channel|>Yes."), "«Yes.»");
    assert_eq!(run("<|channel>thou"), "");
    assert_eq!(run("<|channel>those"), "‹those›");
    let called = format!("<|channel>thought\nSo<channel|>{}", call("row:1"));
    assert_eq!(run(&called), "‹So›seat({\"row\": 1})");
}
