//! Tests of extreme settings, models with EOS ids outside the vocabulary, and cache flushes by clients.

use std::fs;
use std::path::Path;
use std::process::Command;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use souffleur::config::EngineConfig;
use souffleur::engine::Engine;
use souffleur::request::{Event, GenerateRequest, Prompt};
use souffleur::server::{ApiKey, ServerConfig};
use tokio::net::TcpStream;
use tokio_tungstenite::client_async;
use tokio_tungstenite::tungstenite::Message;

use crate::http::{Response, get, post, post_text, stream};
use crate::world::{World, block_on, long_model};

/// Extreme values for a number; the config parser rejects those that a key's type cannot hold.
fn extremes(default: &Value) -> Vec<Value> {
    match default {
        Value::Number(_) | Value::Null => vec![
            json!(-1),
            json!(0),
            json!(1),
            json!(u16::MAX),
            json!(u32::MAX),
            json!(i64::MAX),
            json!(u64::MAX),
            json!(f64::MIN_POSITIVE),
            json!(f64::MAX),
        ],
        _ => Vec::new(),
    }
}

/// Configurations in which one number is set to an extreme value.
fn extreme_configurations(config: &Value) -> impl Iterator<Item = (String, Value, Value)> {
    let keys = config.as_object().expect("a section is a map").iter();
    keys.flat_map(move |(key, default)| {
        extremes(default).into_iter().map(move |value| {
            let mut config = config.clone();
            config[key] = value.clone();
            (key.clone(), value, config)
        })
    })
}

fn one_token() -> GenerateRequest {
    let mut request = GenerateRequest::new(Prompt::Tokens([5].into()));
    request.sampling.max_new_tokens = 1;
    request
}

#[test]
fn every_extreme_engine_setting_is_refused_with_a_sentence_or_serves() {
    let model = long_model();
    let base = EngineConfig {
        model_path: model.path().to_owned(),
        served_model_name: Some("tiny".to_owned()),
        max_total_tokens: Some(4096),
        max_running_requests: Some(8),
        page_size: 64,
        threads: 1,
        skip_tokenizer_init: true,
        record: Some(model.path().join("log")),
        ..EngineConfig::default()
    };
    let base = serde_json::to_value(base).expect("the configuration is JSON");
    let (mut n_serving, mut n_refused) = (0, 0);
    for (key, value, config) in extreme_configurations(&base) {
        let what = format!("{key} = {value}");
        let Ok(config) = serde_json::from_value::<EngineConfig>(config) else {
            continue;
        };
        if let Err(error) = config.validate() {
            assert!(error.reason.starts_with("is "), "{what}: {error}");
            assert_eq!(error.key, key, "{what}");
            n_refused += 1;
            continue;
        }
        let engine = match Engine::start(config) {
            Ok(engine) => engine,
            Err(error) => {
                // The model or the machine is too small for this value.
                assert!(!error.to_string().contains("panicked"), "{what}: {error}");
                n_refused += 1;
                continue;
            }
        };
        let end = block_on(async {
            let mut generation = engine.generate(one_token()).expect("a generation");
            let mut last = generation.next().await.expect("an event");
            while let Some(event) = generation.next().await {
                last = event;
            }
            last
        });
        match end {
            Event::Finished(_) => n_serving += 1,
            Event::Failed(error) if key.ends_with("_timeout_s") => {
                assert_eq!(error.code(), "timeout", "{what}");
            }
            other => panic!("{what}: {other:?}"),
        }
        assert!(engine.is_alive(), "{what}");
    }
    assert!(n_serving > 40 && n_refused > 40, "{n_serving}, {n_refused}");
}

#[track_caller]
fn assert_answers(what: &str, response: &Response) {
    let is_sentence = || {
        let error = &response.json()["error"];
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains(' '))
    };
    assert!(
        response.status == 200 || is_sentence(),
        "{what}: {} {}",
        response.status,
        response.body
    );
}

/// Whether a request over a WebSocket gets an answer, which may be an error.
fn websocket_answers(world: &World) -> bool {
    let address = format!("ws://{}/v1/ws/generate", world.addr);
    let sampling = json!({"max_new_tokens": 1});
    let call = json!({"op": "generate", "input_ids": [5], "sampling_params": sampling});
    block_on(async {
        let stream = TcpStream::connect(world.addr).await.expect("a connection");
        match client_async(address, stream).await {
            // The server accepts no more connections.
            Err(_) => true,
            Ok((mut socket, _)) => {
                let _ = socket.send(Message::text(call.to_string())).await;
                socket.next().await.is_some()
            }
        }
    })
}

#[test]
fn every_extreme_server_setting_is_refused_with_a_sentence_or_serves() {
    let base = serde_json::to_value(ServerConfig::default()).expect("the configuration is JSON");
    let call = json!({"input_ids": [5], "sampling_params": {"max_new_tokens": 1}});
    let (mut n_serving, mut n_refused) = (0, 0);
    for (key, value, config) in extreme_configurations(&base) {
        let what = format!("{key} = {value}");
        let Ok(config) = serde_json::from_value::<ServerConfig>(config) else {
            continue;
        };
        if let Err(error) = config.validate() {
            assert!(error.reason.starts_with("is "), "{what}: {error}");
            // A limit may concern two keys together; then the sentence names both.
            let names_key = error.key == key || error.reason.contains(&key);
            assert!(names_key, "{what}: {error}");
            n_refused += 1;
            continue;
        }
        let world = World::with(|_, server| *server = config);
        assert_answers(&what, &post(world.addr, "/generate", &call));
        if key.starts_with("ws_") {
            assert!(websocket_answers(&world), "{what}");
        }
        assert_eq!(get(world.addr, "/health").status, 200, "{what}");
        n_serving += 1;
    }
    assert!(n_serving > 30 && n_refused > 10, "{n_serving}, {n_refused}");
}

#[test]
fn a_server_with_the_largest_accepted_sizes_works() {
    let world = World::with(|engine, server| {
        engine.client_channel_events = 1 << 16;
        engine.max_running_requests = Some(1 << 16);
        server.workers = 256;
        server.max_batch_requests = 1 << 16;
    });
    let call = json!({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}});
    post(world.addr, "/generate", &call).ok();
    world.wait_until_idle();
}

/// Runs `serve` with these flags, which it must refuse; returns the exit code and the log.
fn refused(flags: &[&str]) -> (Option<i32>, String) {
    let model = long_model();
    let mut command = Command::new(env!("CARGO_BIN_EXE_souffleur"));
    command.args(["serve", "--port", "0", "--model-path"]);
    let output = command.arg(model.path()).args(flags).output();
    let output = output.expect("the binary runs");
    let log = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), log)
}

#[test]
fn flags_out_of_range_are_refused_at_the_start() {
    let (code, log) = refused(&["--client-channel-events", "18446744073709551615"]);
    assert_eq!(code, Some(2), "{log}");
    assert!(
        log.contains("--client-channel-events is 18446744073709551615, must be at most 65536"),
        "{log}"
    );
    let (code, log) = refused(&["--schedule-conservativeness", "0"]);
    assert_eq!(code, Some(2), "{log}");
    assert!(log.contains("is 0, must lie in (0, 100]"), "{log}");
}

#[test]
fn a_pool_larger_than_memory_is_clamped_with_a_memory_fraction_and_refused_without_one() {
    const REQUESTED: usize = 1 << 53;
    let world = World::with(|engine, _| {
        engine.max_total_tokens = Some(REQUESTED);
        engine.mem_fraction_static = Some(0.05);
        engine.page_size = 256;
    });
    let call = json!({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}});
    post(world.addr, "/generate", &call).ok();
    let info = get(world.addr, "/server_info").ok();
    let tokens = info["max_total_num_tokens"].as_u64().expect("a number");
    assert!(tokens > 0 && tokens < REQUESTED as u64, "{tokens}");
    world.wait_until_idle();
    let model = long_model();
    let plan = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_souffleur"));
        command.args(["plan", "--page-size", "256", "--model-path"]);
        command.arg(model.path()).args(more);
        command.args(["--max-total-tokens", &REQUESTED.to_string()]);
        let output = command.output().expect("the binary runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), printed, log)
    };
    let (code, printed, log) = plan(&["--mem-fraction-static", "0.05"]);
    assert_eq!(code, Some(0), "{log}");
    let warning = format!("warning: --max-total-tokens {REQUESTED} would take");
    assert!(printed.contains(&warning), "{printed}");
    assert!(
        log.contains("exceeds the limit set by mem_fraction_static"),
        "{log}"
    );
    // Without a fraction, a pool larger than the memory is an error.
    let (code, _, log) = plan(&[]);
    assert_eq!(code, Some(1), "{log}");
    let reason = format!("max_total_tokens is {REQUESTED}, whose K/V takes");
    assert!(log.contains(&reason), "{log}");
    assert!(log.contains("tokens fit: "), "{log}");
}

/// Sets `eos_token_id` in the model's `config.json` and `generation_config.json`.
fn set_eos(model: &Path, of_config: &Value, of_generation: &Value) {
    for (file, value) in [
        ("config.json", of_config),
        ("generation_config.json", of_generation),
    ] {
        let file = model.join(file);
        let text = fs::read_to_string(&file).expect("the model has the file");
        let mut json: Value = serde_json::from_str(&text).expect("JSON");
        json["eos_token_id"] = value.clone();
        fs::write(&file, json.to_string()).expect("a writable file");
    }
}

/// The EOS ids of a server whose model has these EOS ids in its two files.
fn served_eos(of_config: &Value, of_generation: &Value) -> Value {
    let world = World::with(|engine, _| set_eos(&engine.model_path, of_config, of_generation));
    // The prompt of this health probe is an EOS token.
    get(world.addr, "/health_generate").ok();
    let call = json!({"input_ids": [5], "sampling_params": {"max_new_tokens": 3}});
    post(world.addr, "/generate", &call).ok();
    get(world.addr, "/model_info").ok()["eos_token_ids"].take()
}

#[test]
fn an_eos_id_outside_the_vocabulary_is_ignored() {
    let beyond = json!(4_000_000_000_u32);
    let table = [
        (json!([288, 7]), beyond.clone(), json!([7])),
        (beyond.clone(), json!([2, 288]), json!([2])),
        // Only the tokenizer's EOS id remains.
        (beyond.clone(), beyond, json!([1])),
        (json!(null), json!(null), json!([1])),
    ];
    for (of_config, of_generation, expected) in table {
        let served = served_eos(&of_config, &of_generation);
        assert_eq!(served, expected, "{of_config}, {of_generation}");
    }
}

#[test]
fn an_eos_id_of_the_tokenizer_alone_respects_min_new_tokens() {
    let world = World::with(|engine, _| set_eos(&engine.model_path, &json!(null), &json!(null)));
    // Without `min_new_tokens` the output would end at once.
    let call = |min_new_tokens: u32| {
        json!({"input_ids": [5, 6, 7], "sampling_params": {
            "max_new_tokens": 20, "min_new_tokens": min_new_tokens, "temperature": 0,
            "logit_bias": {"1": 100.0},
        }})
    };
    for min_new_tokens in [0, 1, 6] {
        let answer = post(world.addr, "/generate", &call(min_new_tokens)).ok();
        let tokens = answer["output_ids"].as_array().expect("token ids");
        assert_eq!(tokens.len(), min_new_tokens as usize + 1, "{answer}");
        let first_end = tokens.iter().position(|token| *token == 1);
        assert_eq!(first_end, Some(min_new_tokens as usize), "{answer}");
    }
}

/// Sends the prompt of a seed, and returns the number of the prompt's cached tokens.
fn cached(world: &World, seed: u32) -> u64 {
    let ids: Vec<u32> = (0..200).map(|at| 2 + (at * 7 + seed * 31) % 250).collect();
    let call = json!({"input_ids": ids, "sampling_params": {"max_new_tokens": 2}});
    let answer = post(world.addr, "/generate", &call).ok();
    answer["meta_info"]["cached_tokens"]
        .as_u64()
        .expect("a number")
}

fn flush(world: &World) -> Response {
    post_text(world.addr, "/flush_cache", "")
}

#[test]
fn a_flush_empties_the_cache_and_reports_the_freed_tokens() {
    for page_size in [1, 16] {
        let world = World::with(|engine, _| engine.page_size = page_size);
        assert_eq!(cached(&world, 1), 0);
        assert!(cached(&world, 1) > 180);
        // The last request's K/V enters the cache only when the scheduler plans after the request's end.
        world.wait_until_idle();
        let in_cache = world.stats().evictable_tokens;
        assert!(in_cache > 180, "{in_cache}");
        let answer = flush(&world).ok();
        let expected = json!({
            "flushed_tokens": in_cache, "flushed_pages": in_cache / page_size as usize,
            "kept_tokens": 0,
        });
        assert_eq!(answer, expected);
        let after = world.stats();
        assert_eq!(after.free_tokens, after.total_tokens);
        assert_eq!((after.evictable_tokens, after.protected_tokens), (0, 0));
        assert_eq!(after.integrity_failures, 0);
        assert_eq!(flush(&world).ok()["flushed_tokens"], 0);
        assert_eq!(cached(&world, 1), 0);
        assert!(cached(&world, 1) > 180);
        world.wait_until_idle();
    }
}

#[test]
fn a_flush_is_refused_while_a_request_runs_and_disturbs_nothing() {
    let world = World::new();
    assert_eq!(cached(&world, 1), 0);
    let call = json!({
        "input_ids": [5, 6, 7], "stream": true,
        "sampling_params": {"max_new_tokens": 60_000, "ignore_eos": true},
    });
    let mut running = stream(world.addr, "/generate", &call);
    running.next_json();
    let refused = flush(&world);
    assert_eq!(refused.status, 400, "{}", refused.body);
    let error = &refused.json()["error"];
    assert_eq!(error["code"], "busy");
    let text = error["message"].as_str().expect("a message");
    assert!(
        text.starts_with("1 requests are running and 0 are waiting"),
        "{text}"
    );
    running.next_json();
    assert!(cached(&world, 1) > 180);
    drop(running);
    world.wait_until_idle();
    assert!(flush(&world).ok()["flushed_tokens"].as_u64() > Some(200));
    world.wait_until_idle();
}

#[test]
fn a_flush_keeps_pinned_prefixes_and_frees_nothing_without_a_cache() {
    let world = World::new();
    cached(&world, 1);
    cached(&world, 2);
    let tokens: Vec<u32> = (0..200).map(|at| 2 + (at * 7 + 31) % 250).collect();
    let engine = world.engine();
    let ttl = std::time::Duration::from_secs(1000);
    let pin = engine.pin_prefix(Default::default(), tokens[..150].into(), ttl);
    let pinned = block_on(pin).expect("the pin succeeds");
    assert_eq!(pinned.tokens, 150);
    assert_eq!(flush(&world).ok()["kept_tokens"], 150);
    assert_eq!(cached(&world, 1), 150);
    assert_eq!(cached(&world, 2), 0);
    let without_cache = World::with(|engine, _| engine.disable_radix_cache = true);
    cached(&without_cache, 1);
    let nothing = json!({"flushed_tokens": 0, "flushed_pages": 0, "kept_tokens": 0});
    assert_eq!(flush(&without_cache).ok(), nothing);
}

#[test]
fn a_flush_needs_post_and_the_api_key_if_one_is_set() {
    let world = World::with(|_, server| {
        server.api_key = Some(ApiKey::new("secret").expect("a valid key"));
    });
    assert_eq!(flush(&world).status, 401);
    let world = World::new();
    assert_eq!(get(world.addr, "/flush_cache").status, 405);
}
