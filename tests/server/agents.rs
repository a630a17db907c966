//! What agents rely on, on a model that says scripted lines.

use serde_json::json;

use crate::http::{post, stream};
use crate::scripted::NO_LINE;
use crate::world::World;

#[test]
fn a_scripted_model_says_the_line_of_the_last_cue() {
    let world = World::scripted(&[
        ("row", "In which row?"),
        ("the first row", "Booked."),
        ("seat", "A seat or a box?"),
    ]);
    let says = |question: &str| {
        let call = json!({"messages": [{"role": "user", "content": question}]});
        let answer = post(world.addr, "/v1/chat/completions", &call).ok();
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "stop");
        choice["message"]["content"].as_str().map(str::to_owned)
    };
    let expected = [
        ("A row?", "In which row?"),
        ("A seat in the first row.", "Booked."),
        ("Not in a row, on a seat.", "A seat or a box?"),
        ("Hello!", NO_LINE),
    ];
    for (question, answer) in expected {
        assert_eq!(says(question).as_deref(), Some(answer), "{question}");
    }
    world.wait_until_whole();
}

#[test]
fn a_scripted_model_has_log_probabilities_and_bytes_that_are_no_whole_characters() {
    let world = World::scripted(&[("", "Grüße, 観客 🎭!")]);
    let mut call = json!({
        "messages": [{"role": "user", "content": "?"}], "logprobs": true, "top_logprobs": 2,
    });
    let whole = post(world.addr, "/v1/chat/completions", &call).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"]["content"], "Grüße, 観客 🎭!");
    let tokens = choice["logprobs"]["content"].as_array().expect("a list");
    let bytes = tokens.iter().flat_map(|token| token["bytes"].as_array());
    let bytes: Vec<u8> = bytes
        .flatten()
        .map(|byte| byte.as_u64().expect("a number") as u8)
        .collect();
    let said = String::from_utf8(bytes).expect("the bytes are whole characters");
    assert_eq!(said, "Grüße, 観客 🎭!<|im_end|>");
    call["stream"] = true.into();
    let events = stream(world.addr, "/v1/chat/completions", &call).rest();
    let text: String = events
        .iter()
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str())
        .collect();
    assert_eq!(text, "Grüße, 観客 🎭!");
}
