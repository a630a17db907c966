//! Tests of the fields of `/infill`, and of the calls that llama.vim and llama.vscode send.

use serde_json::{Value, json};

use super::*;

fn parse(value: Value) -> Result<Call, String> {
    let request = RequestLimits::default();
    let limits = CallLimits {
        max_requests: 8,
        websocket: None,
        request: &request,
        embeds: None,
    };
    let parsed = Call::parse(Fields::of(&value), limits);
    parsed
        .map(|(call, _)| call)
        .map_err(|error| error.to_string())
}

fn with(name: &str, value: Value) -> Value {
    let mut body = json!({"input_prefix": "a", "input_suffix": "b"});
    body[name] = value;
    body
}

fn prompt_of(call: &Call) -> &InfillPrompt {
    match &call.request.prompt {
        Prompt::Infill(infill) => infill,
        other => panic!("{other:?}"),
    }
}

#[test]
fn prefix_and_suffix_are_required_and_defaults_are_llama_cpps() {
    let call = parse(json!({"input_prefix": "a", "input_suffix": ""})).expect("both are given");
    let prompt = prompt_of(&call);
    assert_eq!(
        (&*prompt.prefix, &*prompt.suffix, &*prompt.line_start),
        ("a", "", "")
    );
    assert_eq!(prompt.files.as_ref().map(Vec::len), Some(0));
    let expected = SamplingParams {
        max_new_tokens: u32::MAX,
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..SamplingParams::default()
    };
    assert_eq!(call.request.sampling, expected);
    assert!(call.line_limit.is_none() && call.response_fields.is_empty());
    let missing = parse(json!({"input_prefix": "a"})).err();
    assert!(missing.is_some_and(|error| error.starts_with("input_suffix")));
}

#[test]
fn the_call_of_llama_vim_is_read() {
    let call = parse(json!({
        "id_slot": 0, "input_prefix": "p\n", "input_suffix": "s\n",
        "input_extra": [{"text": "x", "time": 1.5, "filename": "f.c"}], "prompt": "int ", "n_predict": 128,
        "stop": [], "n_indent": 4, "top_k": 40, "top_p": 0.9, "samplers": ["top_k", "top_p", "infill"],
        "stream": false, "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n"],
    }));
    let call = call.expect("llama.vim sends it");
    let prompt = prompt_of(&call);
    let files = prompt.files.as_deref().expect("files");
    assert_eq!((&*files[0].name, &*files[0].text), ("f.c", "x"));
    assert_eq!(&*prompt.line_start, "int ");
    assert_eq!(call.request.sampling.max_new_tokens, 128);
    let limit = LineLimit {
        after: Some(Duration::from_secs(1)),
        indent: 4,
    };
    assert_eq!(call.line_limit, limit);
    assert_eq!(call.response_fields, ["content", "timings/prompt_n"]);
}

#[test]
fn the_calls_of_llama_vscode_are_read() {
    let warm_up = parse(json!({
        "id_slot": 0, "input_prefix": "", "input_suffix": "", "input_extra": [{"text": "x", "filename": "f"}],
        "prompt": "", "n_predict": 0, "samplers": [], "cache_prompt": true, "t_max_prompt_ms": 500,
        "t_max_predict_ms": 1,
    }));
    let warm_up = warm_up.expect("llama.vscode sends it");
    assert_eq!(warm_up.request.sampling.max_new_tokens, 0);
    let call = parse(json!({
        "id_slot": 0, "input_prefix": "p", "input_suffix": "s", "input_extra": [], "prompt": "", "n_predict": 128,
        "n_cmpl": 3, "top_k": 40, "top_p": 0.99, "stream": false, "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": true, "t_max_prompt_ms": 500, "t_max_predict_ms": 2500, "model": "m",
    }));
    assert_eq!(call.expect("llama.vscode sends it").requests().len(), 3);
}

#[test]
fn minus_one_means_a_random_seed_and_no_length_limit() {
    let sampling = |name, value| parse(with(name, value)).expect("valid").request.sampling;
    for random in [json!(-1), json!(4_294_967_295_u32)] {
        assert_eq!(sampling("seed", random).sampling_seed, None);
    }
    assert_eq!(sampling("seed", json!(5)).sampling_seed, Some(5));
    assert_eq!(sampling("n_predict", json!(-1)).max_new_tokens, u32::MAX);
    assert_eq!(sampling("max_tokens", json!(7)).max_new_tokens, 7);
    assert_eq!(
        sampling("repeat_penalty", json!(1.5)).repetition_penalty,
        1.5
    );
}

#[test]
fn wrong_values_are_refused_by_name() {
    for (name, value, expected) in [
        (
            "n_predict",
            json!(-2),
            "n_predict is -2, must be at least -1",
        ),
        ("n_cmpl", json!(0), "n_cmpl is 0, limits are 1 to 128"),
        ("n_cmpl", json!(9), "ask for 9 samples, limit is 8"),
        (
            "repeat_penalty",
            json!(0),
            "repeat_penalty is 0, must be in (0, 2]",
        ),
        ("t_max_predict_ms", json!("x"), "t_max_predict_ms is"),
        (
            "samplers",
            json!(7),
            "samplers is 7, must be a list of names",
        ),
        ("prompt", json!([1]), "prompt is a list"),
        ("input_extra", json!([{}]), "input_extra[0].text is missing"),
        (
            "input_extra",
            json!([{"filename": "ok"}]),
            "input_extra[0].text is missing",
        ),
        (
            "input_extra",
            json!([{"filename": 123, "text": "a"}]),
            "input_extra[0].filename is 123",
        ),
        (
            "input_extra",
            json!([{"text": 456}]),
            "input_extra[0].text is 456",
        ),
        (
            "input_extra",
            json!(["a"]),
            "input_extra[0] is \"a\", must be an object",
        ),
        (
            "input_extra",
            json!(vec![json!({"text": ""}); 1025]),
            "input_extra has 1025 files",
        ),
        ("response_fields", json!([5]), "response_fields[0] is 5"),
        (
            "grammar",
            json!("root ::= x"),
            "grammar is not supported yet",
        ),
        ("json_schema", json!({}), "json_schema is not supported yet"),
    ] {
        let error = parse(with(name, value)).err().unwrap_or_default();
        assert!(error.contains(expected), "{name}: {error}");
    }
}
