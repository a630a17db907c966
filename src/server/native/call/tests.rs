//! Tests of parsing `/generate` calls.

use serde_json::{Value, json};

use super::*;
use crate::call::{EmbedLimits, WebSocketSlots};

fn parse(value: Value) -> Result<NativeCall, ApiError> {
    NativeCall::parse(Fields::of(&value), limits(&RequestLimits::default()))
}

fn limits(request: &RequestLimits) -> CallLimits<'_> {
    CallLimits {
        max_requests: 8,
        websocket: None,
        request,
        embeds: Some(EmbedLimits { dim: 2, max_len: 4 }),
    }
}

#[track_caller]
fn read(value: Value) -> NativeCall {
    parse(value).unwrap_or_else(|error| panic!("{error}"))
}

#[track_caller]
fn refuses(value: Value, param: &str, message: &str) {
    let error = parse(value).err().unwrap_or_else(|| panic!("accepted"));
    assert_eq!(error, ApiError::field(param, message));
}

fn rids(call: &NativeCall) -> Vec<&str> {
    call.requests
        .iter()
        .map(|request| request.rid.as_str())
        .collect()
}

#[test]
fn a_text_is_one_request_with_sglangs_defaults() {
    let call = read(json!({"text": "hi", "rid": "a", "sampling_params": null}));
    assert!(!call.is_batch && !call.stream);
    assert_eq!(rids(&call), ["a"]);
    let request = &call.requests[0];
    assert!(matches!(&request.prompt, Prompt::Text(text) if &**text == "hi"));
    assert_eq!(request.sampling, SamplingParams::default());
    assert_eq!(request.logprobs, None);
}

#[test]
fn a_batch_takes_one_value_for_all_or_one_for_each() {
    let call = read(json!({
        "input_ids": [[1, 2], [3]],
        "rid": ["a", "b"],
        "sampling_params": [{"max_new_tokens": 3}, {}],
        "return_logprob": true,
        "logprob_start_len": [0, -1],
        "top_logprobs_num": 2,
        "token_ids_logprob": [[7], null],
        "cache_salt": "s",
        "stream": true,
    }));
    assert!(call.is_batch && call.stream);
    assert_eq!(rids(&call), ["a", "b"]);
    let [first, second] = call.requests.as_slice() else {
        panic!("two requests")
    };
    assert_eq!(
        (
            first.sampling.max_new_tokens,
            second.sampling.max_new_tokens
        ),
        (3, 128)
    );
    let wish = |start, token_ids| {
        Some(LogprobWish {
            start,
            top: 2,
            token_ids,
        })
    };
    assert_eq!(first.logprobs, wish(Some(0), [7].into()));
    assert_eq!(second.logprobs, wish(None, [].into()));
    assert_eq!(second.namespace.cache_salt(), Some("s"));
}

#[test]
fn samples_follow_their_prompt_and_get_different_seeds() {
    let sampling = json!({"n": 2, "sampling_seed": 5});
    let call = read(json!({"text": ["x", "y"], "rid": "a", "sampling_params": sampling}));
    assert_eq!(rids(&call), ["a-0-0", "a-0-1", "a-1-0", "a-1-1"]);
    let seeds: Vec<Option<u64>> = call
        .requests
        .iter()
        .map(|request| request.sampling.sampling_seed)
        .collect();
    assert_eq!(seeds, [Some(5), Some(6), Some(5), Some(6)]);
    assert!(call.requests.iter().all(|request| request.sampling.n == 1));
    let alone = read(json!({"text": "x", "rid": "a", "sampling_params": {"n": 2}}));
    assert!(alone.is_batch);
    assert_eq!(rids(&alone), ["a-0", "a-1"]);
}

#[test]
fn errors_name_the_field_its_value_and_the_accepted_values() {
    let missing = "text is missing: send text, input_ids or input_embeds";
    refuses(json!({}), "text", missing);
    refuses(json!({"text": null}), "text", missing);
    refuses(
        json!({"text": 5}),
        "text",
        "text is 5, must be a string or a list of strings",
    );
    refuses(
        json!({"text": []}),
        "text",
        "the list of prompts is empty: send at least one",
    );
    refuses(
        json!({"text": ["a", 5]}),
        "text[1]",
        "text[1] is 5, must be a string",
    );
    let both = json!({"text": "a", "input_ids": [1]});
    refuses(
        both,
        "input_ids",
        "text and input_ids are both given: send one of them",
    );
    let token = "input_ids[1] is -1, must be a token id from 0 to 4294967295";
    refuses(json!({"input_ids": [1, -1]}), "input_ids[1]", token);
    let list = json!({"text": ["a", "b"], "rid": ["x"]});
    refuses(
        list,
        "rid",
        "rid has 1 entries, must have 2, one per prompt",
    );
    let stream = json!({"text": "a", "stream": "yes"});
    refuses(stream, "stream", "stream is \"yes\", must be true or false");
    let start = json!({"text": "a", "logprob_start_len": -2});
    let wanted = "logprob_start_len is -2, must be a position in the prompt, or -1 for none";
    refuses(start, "logprob_start_len", wanted);
    let rid = json!({"text": "a", "rid": "x".repeat(257)});
    refuses(rid, "rid", "rid has 257 bytes, limit is 256: shorten it");
}

#[test]
fn bad_sampling_parameters_name_the_parameter() {
    let sampling = |sampling: Value| json!({"text": "a", "sampling_params": sampling});
    let error = parse(sampling(json!({"n": 1, "temprature": 1})))
        .err()
        .expect("is refused");
    assert!(error.to_string().contains("\"temprature\""), "{error}");
    assert_eq!(error, ApiError::field("temprature", error.to_string()));
    let error = parse(sampling(json!({"n": 1, "top_p": "x"})))
        .err()
        .expect("is refused");
    assert_eq!(error, ApiError::field("top_p", error.to_string()));
    let text = "n is 0, limits are 1 to 128: send several requests for more samples";
    refuses(sampling(json!({"n": 0})), "n", text);
    refuses(
        sampling(json!([])),
        "sampling_params",
        "sampling_params is a list of 0 items, must be an object",
    );
}

#[test]
fn too_many_alternatives_are_refused_if_log_probabilities_are_requested() {
    let many = |wanted: bool| json!({"text": "a", "return_logprob": wanted, "top_logprobs_num": 1_000_000});
    let text = "top_logprobs_num asks for 1000000, limit is 1024: ask for fewer";
    refuses(many(true), "top_logprobs_num", text);
    assert!(parse(many(false)).is_ok());
}

#[test]
fn too_many_samples_are_refused_before_they_are_made() {
    let many = json!({"text": ["a", "b"], "sampling_params": {"n": 5}});
    let text = "2 prompts ask for 10 samples, limit is 8: send several requests";
    refuses(many, "n", text);
    let each = json!({"text": vec!["a"; 9], "rid": "r"});
    let text = "9 prompts ask for 9 samples, limit is 8: send several requests";
    refuses(each, "text", text);
    let call = json!({"text": "a", "sampling_params": {"n": 129}});
    let text = "n is 129, limits are 1 to 128: send several requests for more samples";
    refuses(call, "n", text);
}

#[test]
fn unsupported_fields_of_sglang_pass_only_without_effect() {
    let call = json!({
        "text": "a", "model": "m", "lora_path": [null], "image_data": [null],
        "return_hidden_states": false, "routing_key": "k", "no_such_field": 5,
    });
    assert_eq!(read(call).requests.len(), 1);
    // An empty list is refused unless it is the field's default.
    for value in [json!("x"), json!([])] {
        let error = parse(json!({"text": "a", "lora_path": value})).err();
        assert_eq!(error, Some(ApiError::unsupported("lora_path")));
    }
    let error = parse(json!({"text": "a", "sampling_params": {"stop_regex": "x"}}));
    assert_eq!(error.err(), Some(ApiError::unsupported("stop_regex")));
}

#[test]
fn images_belong_to_texts() {
    let files = |call: Value| -> Vec<Vec<(String, usize)>> {
        let requests = read(call).requests;
        let of_request = |request: &GenerateRequest| {
            let files = request.prompt.image_files().iter();
            files
                .map(|file| (file.field.to_string(), file.bytes.len()))
                .collect()
        };
        requests.iter().map(of_request).collect()
    };
    let named = |name: &str, bytes: usize| (name.to_owned(), bytes);
    let one = json!({"text": "a", "image_data": "R0lG"});
    assert_eq!(files(one), [[named("image_data", 3)]]);
    let two = json!({"text": "a", "image_data": ["R0lG", null, "data:,ab"]});
    assert_eq!(
        files(two),
        [[named("image_data[0]", 3), named("image_data[2]", 2)]]
    );
    let each = json!({"text": ["a", "b", "c"], "image_data": [null, ["R0lGOA"], "R0lG"]});
    let expected = [
        Vec::new(),
        vec![named("image_data[1][0]", 4)],
        vec![named("image_data[2]", 3)],
    ];
    assert_eq!(files(each), expected);
    let none: Vec<(String, usize)> = Vec::new();
    assert_eq!(files(json!({"text": "a", "image_data": []})), [none]);
    for (call, expected) in [
        (
            json!({"text": "a", "image_data": ["R0lG", "/etc/passwd"]}),
            "image_data[1]: the base64 text is invalid",
        ),
        (
            json!({"text": "a", "image_data": "file:/etc/passwd"}),
            "image_data: the base64 text is invalid",
        ),
        (
            json!({"text": "a", "image_data": "file:///etc/passwd"}),
            "image_data: the URL has none of the schemes https, http and data",
        ),
        (
            json!({"text": "a", "image_data": {"format": "precomputed_embedding"}}),
            "image_data.url is missing: send a string",
        ),
        (
            json!({"text": "a", "image_data": [{"type": "image_url", "image_url": {"url": 5}}]}),
            "image_data[0].image_url.url is 5, must be a string",
        ),
        (
            json!({"text": "a", "image_data": [5]}),
            "image_data[0] is 5, must be a string",
        ),
        (
            json!({"input_ids": [1], "image_data": "R0lG"}),
            "image_data needs text",
        ),
        (
            json!({"text": ["a", "b"], "image_data": ["R0lG"]}),
            "image_data has 1 entries, must have 2",
        ),
        (
            json!({"text": ["a"], "image_data": "R0lG"}),
            "image_data is \"R0lG\", must be a list",
        ),
    ] {
        let error = parse(call).err().expect("is refused").to_string();
        assert!(error.starts_with(expected), "{error}");
    }
}

#[test]
fn images_have_urls_and_are_in_objects() {
    let mut call = read(json!({"text": ["a", "b"], "image_data": [
        [{"url": "R0lG", "detail": "low"}, "https://a.example/b.png"],
        [{"type": "image_url", "image_url": {"url": "DATA:;base64,R0lG"}}, {"image_url": "HTTP://c.example/d"}],
    ]}));
    let files = |request: &GenerateRequest| {
        let files = request.prompt.image_files().iter();
        files.map(|file| file.bytes.len()).collect::<Vec<_>>()
    };
    let found: Vec<_> = call.requests.iter().map(files).collect();
    assert_eq!(found, [[3, 0], [3, 0]]);
    let wanted = call.take_wanted();
    let wanted: Vec<_> = wanted
        .iter()
        .map(|it| (it.index, &*it.place, it.url.host().to_string()))
        .collect();
    let expected = [
        (0, "image_data[0][1]", "a.example".to_owned()),
        (1, "image_data[1][1]", "c.example".to_owned()),
    ];
    assert_eq!(wanted, expected);
    assert!(call.take_wanted().is_empty());
}

#[test]
fn a_value_for_all_prompts_is_parsed_once_and_shared() {
    let sampling =
        json!({"stop": ["a", "b"], "stop_token_ids": [1], "logit_bias": {"2": 1}, "n": 2});
    let call = json!({
        "text": ["x", "y"], "sampling_params": sampling, "return_logprob": true,
        "token_ids_logprob": [7, 8],
    });
    let call = read(call);
    let [first, rest @ ..] = call.requests.as_slice() else {
        panic!("four requests")
    };
    assert_eq!(rest.len(), 3);
    for other in rest {
        assert!(Arc::ptr_eq(&first.sampling.stop, &other.sampling.stop));
        let (one, another) = (&first.sampling, &other.sampling);
        assert!(Arc::ptr_eq(&one.stop_token_ids, &another.stop_token_ids));
        assert!(Arc::ptr_eq(&one.logit_bias, &another.logit_bias));
        let ids =
            |request: &GenerateRequest| request.logprobs.clone().expect("requested").token_ids;
        assert!(Arc::ptr_eq(&ids(first), &ids(other)));
    }
}

#[test]
fn names_and_lists_have_limits() {
    let text = "extra_key has 257 bytes, limit is 256: shorten it";
    let error = parse(json!({"text": "a", "extra_key": "x".repeat(257)})).err();
    assert_eq!(error.expect("is refused").to_string(), text);
    let text = "cache_salt has 257 bytes, limit is 256: shorten it";
    let error = parse(json!({"text": ["a", "b"], "cache_salt": ["s", "x".repeat(257)]})).err();
    assert_eq!(error.expect("is refused").to_string(), text);
    let text = "token_ids_logprob has 1025 ids, limit is 1024: send fewer";
    let list = json!({"text": "a", "token_ids_logprob": vec![0; 1025]});
    refuses(list, "token_ids_logprob", text);
    let list = json!({"text": "a", "sampling_params": {"stop_token_ids": vec![0; 1025]}});
    let text = "stop_token_ids has 1025 ids, limit is 1024: send fewer";
    refuses(list, "stop_token_ids", text);
}

#[test]
fn a_websocket_with_too_few_free_slots_refuses_a_call() {
    let request = RequestLimits::default();
    let slots = WebSocketSlots { free: 1, limit: 4 };
    let limits = CallLimits {
        websocket: Some(slots),
        ..limits(&request)
    };
    for value in [
        json!({"text": ["a", "b"]}),
        json!({"input_ids": [[1], [2]]}),
        json!({"text": "a", "sampling_params": {"n": 2}}),
    ] {
        let error = NativeCall::parse(Fields::of(&value), limits).err();
        assert_eq!(error, Some(ApiError::too_many_on_websocket(4)));
    }
}

#[test]
fn each_prompt_has_its_constraint() {
    let call = read(json!({
        "text": ["a", "b", "c"],
        "sampling_params": [{"regex": "x+", "n": 2}, {"json_schema": "{}", "max_new_tokens": 3}, {}],
    }));
    let regex = Constraint::Regex("x+".into());
    let constraints: Vec<Option<&Constraint>> = call
        .requests
        .iter()
        .map(|request| request.constraint.as_deref())
        .collect();
    assert_eq!(constraints[..2], [Some(&regex), Some(&regex)]);
    assert!(matches!(
        constraints[2],
        Some(Constraint::JsonSchema { .. })
    ));
    assert_eq!(constraints[3], None);
    assert_eq!(call.requests[2].sampling.max_new_tokens, 3);
    let shared = read(json!({"text": ["a", "b"], "sampling_params": {"ebnf": "root ::= \"a\""}}));
    let constraint = |index: usize| shared.requests[index].constraint.clone().expect("one");
    assert!(Arc::ptr_eq(&constraint(0), &constraint(1)));
}

#[test]
fn two_constraints_and_misplaced_constraints_are_refused() {
    refuses(
        json!({"text": "a", "sampling_params": {"regex": "a", "ebnf": "b"}}),
        "ebnf",
        "regex and ebnf both constrain the answer: send one of them",
    );
    refuses(
        json!({"text": "a", "sampling_params": {"regex": 5}}),
        "regex",
        "regex is 5, must be a string",
    );
    refuses(
        json!({"text": "a", "regex": "x"}),
        "regex",
        "regex is a sampling parameter: send it in sampling_params",
    );
    assert!(parse(json!({"text": "a", "regex": null, "sampling_params": {"regex": ""}})).is_ok());
}

#[test]
fn each_prompt_may_have_a_prediction() {
    let call = read(json!({"text": ["a", "b", "c"], "prediction": ["x", null, ""]}));
    let predictions: Vec<Option<&str>> = call
        .requests
        .iter()
        .map(|request| request.prediction.as_deref())
        .collect();
    assert_eq!(predictions, [Some("x"), None, None]);
    let call = read(json!({"text": ["a", "b"], "prediction": "x"}));
    let mut shared = call
        .requests
        .iter()
        .filter_map(|request| request.prediction.clone());
    let (first, second) = (shared.next(), shared.next());
    let is_shared = first
        .zip(second)
        .map(|(one, other)| Arc::ptr_eq(&one, &other));
    assert_eq!(is_shared, Some(true));
    let text = "prediction is 5, must be a string";
    refuses(json!({"text": "a", "prediction": 5}), "prediction", text);
}
