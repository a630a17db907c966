//! Tests of sampling parameters: defaults, limits and errors.

use serde::de::DeserializeSeed;
use serde_json::{Value, json};

use super::super::wire;
use super::*;

fn read(fields: Value) -> Result<SamplingParams, String> {
    serde_json::from_value(fields).map_err(|error| error.to_string())
}

fn refused(fields: Value) -> String {
    match read(fields) {
        Ok(params) => match params.validate(100, &RequestLimits::default()) {
            Ok(()) => panic!("accepted: {params:?}"),
            Err(error) => error.to_string(),
        },
        Err(error) => error,
    }
}

#[test]
fn missing_and_null_fields_mean_the_defaults() {
    assert_eq!(read(json!({})), Ok(SamplingParams::default()));
    let names = serde_json::to_value(SamplingParams::default()).expect("plain data");
    let nulls = names.as_object().expect("a struct").keys();
    let mut nulls: Value = nulls.map(|name| (name.clone(), Value::Null)).collect();
    for name in [
        "json_schema",
        "regex",
        "ebnf",
        "structural_tag",
        "stop_regex",
    ] {
        nulls[name] = Value::Null;
    }
    assert_eq!(read(nulls), Ok(SamplingParams::default()));
}

#[test]
fn unused_values_of_unsupported_fields_are_accepted() {
    let nothing = json!({
        "stop_regex": "", "regex": "", "custom_params": {}, "json_schema": false, "ebnf": [null], "bad_words": [],
        "stream_interval": 8,
    });
    assert_eq!(read(nothing), Ok(SamplingParams::default()));
    assert!(refused(json!({"stop_regex": ["a+"]})).contains("not supported yet"));
    assert!(refused(json!({"allowed_token_ids": []})).contains("not supported yet"));
    assert!(refused(json!({"stream_interval": 0})).contains("at least 1"));
}

#[test]
fn limits_beyond_every_context_are_clipped() {
    let huge: Value = serde_json::from_str("100000000000000000000").expect("a number");
    let params = read(json!({
        "max_new_tokens": huge, "min_new_tokens": 1_000_000_000_000u64, "top_k": 1u64 << 31,
    }))
    .expect("valid");
    assert_eq!(
        (params.max_new_tokens, params.min_new_tokens, params.top_k),
        (u32::MAX, u32::MAX, -1)
    );
    assert!(refused(json!({"top_k": -1e20})).contains("top_k is"));
}

#[test]
fn every_form_that_sglang_accepts_is_accepted() {
    let params = read(json!({
        "max_new_tokens": 16.0, "stop": "END", "stop_token_ids": [3, 4], "temperature": 0,
        "top_k": -1, "logit_bias": {"7": -100, "9": 1.5}, "sampling_seed": -1, "ignore_eos": true,
    }))
    .expect("valid");
    assert_eq!(params.max_new_tokens, 16);
    assert_eq!(*params.stop, ["END"]);
    assert_eq!(*params.stop_token_ids, [3, 4]);
    assert_eq!(params.temperature, 0.0);
    assert_eq!(*params.logit_bias, [(7, -100.0), (9, 1.5)]);
    assert_eq!(params.sampling_seed, Some(u64::MAX));
    assert!(params.ignore_eos);
    assert_eq!(params.validate(100, &RequestLimits::default()), Ok(()));
    let list = read(json!({"stop": ["a", "b"], "sampling_seed": u64::MAX})).expect("valid");
    assert_eq!(*list.stop, ["a", "b"]);
    assert_eq!(list.sampling_seed, Some(u64::MAX));
}

#[test]
fn parameters_survive_a_round_trip_through_json() {
    let params = SamplingParams {
        stop: ["x".into()].into(),
        logit_bias: [(5, 0.1), (2, -3.0)].into(),
        sampling_seed: Some(1 << 63),
        top_p: 0.9,
        ..SamplingParams::default()
    };
    let text = serde_json::to_string(&params).expect("plain data");
    assert_eq!(
        serde_json::from_str::<SamplingParams>(&text).expect("round trip"),
        params
    );
}

#[test]
fn wrong_types_are_refused_by_name() {
    for (fields, words) in [
        (json!({"temperature": "hot"}), ["temperature", "\"hot\""]),
        (json!({"top_k": 1.5}), ["top_k", "1.5"]),
        (json!({"max_new_tokens": -1}), ["max_new_tokens", "-1"]),
        (json!({"stop": [1]}), ["stop", "list of strings"]),
        (json!({"stop": {"a": 1}}), ["stop", "list of strings"]),
        (json!({"stop_token_ids": [-2]}), ["stop_token_ids", "-2"]),
        (
            json!({"logit_bias": {"x": 1}}),
            ["logit_bias", "not a token id"],
        ),
        (
            json!({"logit_bias": {"1": "x"}}),
            ["logit_bias", "a number"],
        ),
        (json!({"ignore_eos": 1}), ["ignore_eos", "true or false"]),
        (json!({"tempreature": 1}), ["\"tempreature\"", "unknown"]),
        (
            json!({"stop_regex": "a+"}),
            ["stop_regex", "not supported yet"],
        ),
        (
            json!({"stop": "x".repeat(100_000), "n": "y".repeat(100_000)}),
            ["n is", "..."],
        ),
    ] {
        let error = refused(fields);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(error.len() < 500, "{error}");
    }
}

#[test]
fn values_out_of_range_are_refused_with_value_and_limit() {
    for (fields, words) in [
        (
            json!({"temperature": -0.1}),
            ["temperature is -0.1", "at least 0"],
        ),
        (
            json!({"temperature": 1e300}),
            ["temperature is inf", "finite"],
        ),
        (json!({"top_p": -0.5}), ["top_p is -0.5", "[0, 1]"]),
        (json!({"top_p": 1.01}), ["top_p is 1.01", "[0, 1]"]),
        (json!({"top_k": -2}), ["top_k is -2", "-1"]),
        (json!({"min_p": 1.5}), ["min_p is 1.5", "[0, 1]"]),
        (
            json!({"frequency_penalty": 2.5}),
            ["frequency_penalty is 2.5", "[-2, 2]"],
        ),
        (
            json!({"presence_penalty": -3}),
            ["presence_penalty is -3", "[-2, 2]"],
        ),
        (
            json!({"repetition_penalty": 0}),
            ["repetition_penalty is 0", "(0, 2]"],
        ),
        (
            json!({"min_new_tokens": 129}),
            ["min_new_tokens is 129", "(128)"],
        ),
        (json!({"n": 0}), ["n is 0", "1 to 128"]),
        (json!({"n": 129}), ["n is 129", "1 to 128"]),
        (
            json!({"stop": "x".repeat(1025)}),
            ["stop[0] has 1025 bytes", "1024"],
        ),
        (json!({"stop": vec!["x"; 33]}), ["stop has 33", "32"]),
        (
            json!({"stop_token_ids": [100]}),
            ["stop_token_ids contains token id 100", "100 tokens"],
        ),
        (
            json!({"stop_token_ids": vec![1; 1025]}),
            ["stop_token_ids has 1025", "1024"],
        ),
        (
            json!({"logit_bias": serde_json::Map::from_iter((0..1025).map(|n| (n.to_string(), json!(1))))}),
            ["logit_bias has 1025 tokens", "1024"],
        ),
        (
            json!({"logit_bias": {"100": 1}}),
            ["logit_bias contains token id 100", "100 tokens"],
        ),
        (
            json!({"logit_bias": {"1": 1e300}}),
            ["token 1 is inf", "finite"],
        ),
    ] {
        let error = refused(fields);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    }
}

#[test]
fn nan_is_in_no_range() {
    for nan in [
        "temperature",
        "top_p",
        "min_p",
        "presence_penalty",
        "repetition_penalty",
    ] {
        let mut params = SamplingParams::default();
        match nan {
            "temperature" => params.temperature = f32::NAN,
            "top_p" => params.top_p = f32::NAN,
            "min_p" => params.min_p = f32::NAN,
            "presence_penalty" => params.presence_penalty = f32::NAN,
            _ => params.repetition_penalty = f32::NAN,
        }
        let error = params
            .validate(100, &RequestLimits::default())
            .expect_err("NaN is in no range")
            .to_string();
        assert!(error.contains(nan) && error.contains("NaN"), "{error}");
    }
}

#[test]
fn a_temperature_near_zero_is_greedy() {
    for (temperature, greedy) in [(0.0, true), (9e-7, true), (1e-5, false)] {
        let params = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        assert_eq!(params.is_greedy(), greedy);
        let normalized = params.normalized();
        assert_eq!(normalized.is_greedy(), greedy);
        assert_eq!(normalized.top_k, if greedy { 1 } else { -1 });
        assert!(normalized.temperature >= 1e-6);
    }
}

#[test]
fn an_empty_stop_string_is_ignored_in_json_and_refused_from_a_host() {
    for stop in [json!(""), json!([""]), json!(null), json!([])] {
        let params = read(json!({ "stop": stop })).expect("it is read");
        assert!(params.stop.is_empty());
    }
    let params = read(json!({"stop": ["a", "", "b"]})).expect("it is read");
    assert_eq!(*params.stop, ["a", "b"]);
    let params = SamplingParams {
        stop: [String::new()].into(),
        ..SamplingParams::default()
    };
    let refused = params.validate(100, &RequestLimits::default());
    let error = refused.expect_err("an empty stop string of a host is refused");
    assert!(error.to_string().contains("stop[0] is empty"), "{error}");
}

#[test]
fn unsupported_parameters_are_refused_unless_null() {
    for name in wire::NOT_YET {
        let error = refused(json!({ name: {"x": 1} }));
        assert!(error.contains("not supported yet"), "{error}");
        assert!(read(json!({ name: null })).is_ok());
    }
}

#[test]
fn constraints_are_refused_among_sampling_parameters() {
    for name in wire::CONSTRAINTS {
        let error = refused(json!({ name: "x" }));
        assert!(error.contains("set GenerateRequest::constraint"), "{error}");
        assert!(read(json!({ name: null })).is_ok());
    }
}

#[test]
fn the_last_bias_of_a_token_counts() {
    let text = r#"{"logit_bias": {"5": 1, "6": 2, "5": 3}}"#;
    let params: SamplingParams = serde_json::from_str(text).expect("it is read");
    assert_eq!(*params.logit_bias, [(5, 3.0), (6, 2.0)]);
}

#[test]
fn errors_stay_short_whatever_a_client_sends() {
    let limits = RequestLimits::default();
    let zeros = format!("[{}0]", "0,".repeat(99_999));
    let long = "x".repeat(100_000);
    for name in ["stop_token_ids", "temperature", "no_such", &long] {
        let text = format!("{{\"{name}\": {zeros}}}");
        let read = wire::ReadParams {
            limits: &limits,
            read_elsewhere: &[],
        };
        let read = read.deserialize(&mut serde_json::Deserializer::from_str(&text));
        let error = read.expect("it is JSON").expect_err("is refused");
        let (param, text) = (error.field(), error.to_string());
        assert!(param.len() < 64 && text.len() < 500, "{error}");
    }
}
