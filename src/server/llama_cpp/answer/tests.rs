//! Tests of the answers of `/infill`.

use std::time::Instant;

use serde_json::json;

use super::*;
use souffleur_request::Timings;

fn writer(response_fields: &[&str]) -> Writer {
    Writer {
        model: "m".to_owned(),
        settings: json!({"n_ctx": 100}),
        context_tokens: 100,
        response_fields: response_fields
            .iter()
            .map(|path| (*path).to_owned())
            .collect(),
        return_tokens: false,
        has_newline: vec![false; 2],
    }
}

fn update(text: &str, end: Option<FinishReason>) -> Update {
    let queued = Instant::now();
    let later = |ms| queued + Duration::from_millis(ms);
    let timings = Timings {
        queued,
        admitted: Some(later(50)),
        first_token: Some(later(150)),
        ended: later(350),
    };
    let delta = Delta {
        text: text.to_owned(),
        tokens: vec![7, 8],
        usage: Usage {
            prompt_tokens: 60,
            completion_tokens: 4,
            cached_tokens: 40,
            ..Usage::default()
        },
        ..Delta::default()
    };
    let end = end.map(|reason| TranscriptEnd {
        reason,
        e2e_latency_s: 0.35,
        prompt: Default::default(),
        embedding: None,
        timings: Some(timings),
        accept_histogram: Default::default(),
    });
    Update { delta, end }
}

fn transcript(text: &str, end: FinishReason) -> Transcript {
    let mut transcript = Transcript::default();
    transcript.push(update(text, Some(end)));
    transcript
}

fn whole(writer: &mut Writer, transcripts: Vec<Transcript>) -> Value {
    serde_json::from_slice(&writer.whole(transcripts)).expect("it is JSON")
}

fn events(out: Chunks) -> Vec<Value> {
    let text = String::from_utf8(out.into_bytes()).expect("events are text");
    text.split_terminator("\n\n")
        .map(|event| event.strip_prefix("data: ").expect("events are data"))
        .map(|data| serde_json::from_str(data).expect("data is JSON"))
        .collect()
}

#[test]
fn an_answer_has_llama_cpps_fields() {
    let end = FinishReason::StopString("x".to_owned());
    let answer = whole(&mut writer(&[]), vec![transcript("a\nb", end)]);
    let expected = json!({
        "index": 0, "content": "a\nb", "tokens": [], "id_slot": -1, "stop": true, "model": "m",
        "tokens_predicted": 4, "tokens_evaluated": 60, "generation_settings": {"n_ctx": 100}, "has_new_line": true,
        "truncated": false, "stop_type": "word", "stopping_word": "x", "tokens_cached": 40,
        "timings": {
            "cache_n": 40, "prompt_n": 20, "prompt_ms": 100.0, "prompt_per_token_ms": 5.0, "prompt_per_second": 200.0,
            "predicted_n": 4, "predicted_ms": 200.0, "predicted_per_token_ms": 50.0, "predicted_per_second": 20.0,
        },
    });
    assert_eq!(answer, expected);
    let two = vec![
        transcript("a", FinishReason::StopToken(2)),
        transcript("b", FinishReason::Length { max_new_tokens: 4 }),
    ];
    let answers = whole(&mut writer(&[]), two);
    let shown = |index: usize| (&answers[index]["content"], &answers[index]["stop_type"]);
    assert_eq!(shown(0), (&json!("a"), &json!("eos")));
    assert_eq!(shown(1), (&json!("b"), &json!("limit")));
}

#[test]
fn selected_fields_have_their_paths_as_names() {
    let paths = [
        "content",
        "timings/prompt_n",
        "timings/none",
        "",
        "content/x",
    ];
    let end = FinishReason::StopToken(2);
    let answer = whole(&mut writer(&paths), vec![transcript("a", end)]);
    assert_eq!(answer, json!({"content": "a", "timings/prompt_n": 20}));
    let end = FinishReason::StopToken(2);
    let nothing = whole(&mut writer(&[""]), vec![transcript("a", end)]);
    assert_eq!(nothing, json!({}));
}

#[test]
fn a_stream_has_its_text_in_parts_and_the_rest_at_the_end() {
    let mut writer = writer(&[]);
    let mut out = Chunks::default();
    writer.update(0, update("a\n", None), &mut out);
    let end = FinishReason::Length { max_new_tokens: 4 };
    writer.update(0, update("b", Some(end)), &mut out);
    writer.end(&mut out);
    writer.close(&mut out);
    let events = events(out);
    let shown = |event: &Value| (event["content"].clone(), event["stop"].clone());
    let shown: Vec<_> = events.iter().map(shown).collect();
    let expected = [("a\n", false), ("b", false), ("", true)];
    assert_eq!(
        shown,
        expected.map(|(text, stop)| (json!(text), json!(stop)))
    );
    assert_eq!(events[2]["has_new_line"], true);
    assert_eq!(events[2]["tokens_predicted"], 4);
}

#[test]
fn answers_have_tokens_if_the_call_asks_for_them() {
    for (return_tokens, tokens) in [(true, json!([7, 8])), (false, json!([]))] {
        let new = || Writer {
            return_tokens,
            ..writer(&[])
        };
        let answer = whole(
            &mut new(),
            vec![transcript("a", FinishReason::StopToken(2))],
        );
        assert_eq!(answer["tokens"], tokens);
        let mut out = Chunks::default();
        new().update(0, update("a", None), &mut out);
        new().update(0, update("", None), &mut out);
        let events = events(out);
        // Without text and tokens, there is nothing to send.
        assert_eq!(events.len(), if return_tokens { 2 } else { 1 });
        assert!(events.iter().all(|event| event["tokens"] == tokens));
    }
}

#[test]
fn no_time_gives_no_rate() {
    let times = TimesJson::of(&Usage::default(), None);
    assert_eq!(times, TimesJson::default());
}
