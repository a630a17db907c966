//! Tests of `/v1/loads` and `/get_load`, which tell gateways the load of an engine.

use serde_json::{Value, json};

use crate::http::{get, open, post, stream};
use crate::world::{CONTEXT_TOKENS, World};

/// The request that smg, the gateway of SGLang, sends every ten seconds.
const SMG: &str = "/v1/loads?include=core,disagg,queues,memory";
/// Integers that smg parses as 32 bits.
const COUNTS: [&str; 9] = [
    "dp_rank",
    "num_running_reqs",
    "num_waiting_reqs",
    "num_waiting_uncached_tokens",
    "num_total_reqs",
    "num_used_tokens",
    "num_total_tokens",
    "max_total_num_tokens",
    "max_running_requests",
];
const RATES: [&str; 4] = [
    "token_usage",
    "gen_throughput",
    "cache_hit_rate",
    "utilization",
];

/// The load of the only rank.
#[track_caller]
fn rank(world: &World, path: &str) -> Value {
    let mut load = get(world.addr, path).ok();
    assert_eq!(load["dp_rank_count"], 1, "{load}");
    assert_eq!(load["loads"].as_array().map(Vec::len), Some(1), "{load}");
    load["loads"][0].take()
}

fn call(tokens: impl IntoIterator<Item = u32>, max_new_tokens: u32) -> Value {
    let tokens: Vec<u32> = tokens.into_iter().collect();
    let sampling = json!({"max_new_tokens": max_new_tokens, "temperature": 0, "ignore_eos": true});
    json!({"input_ids": tokens, "sampling_params": sampling, "stream": true})
}

#[test]
fn an_idle_engine_has_no_load_and_reports_its_capacity() {
    let world = World::new();
    let load = get(world.addr, SMG).ok();
    assert_eq!(load["version"], env!("CARGO_PKG_VERSION"));
    let time = load["timestamp"].as_str().expect("a text");
    assert!(time.ends_with('Z') && time.contains('T'), "{time}");
    let rank = rank(&world, SMG);
    for name in COUNTS {
        let count = rank[name].as_u64().unwrap_or_else(|| panic!("no {name}"));
        assert!(i32::try_from(count).is_ok(), "{name}");
        let expected = match name {
            "max_total_num_tokens" => CONTEXT_TOKENS as u64 + 1024,
            "max_running_requests" => 32,
            _ => 0,
        };
        assert_eq!(count, expected, "{name}");
    }
    for name in RATES {
        assert_eq!(rank[name].as_f64(), Some(0.0), "{name}");
    }
    assert_eq!(rank["disaggregation"], json!({"mode": "null"}));
    let queues = json!({"waiting": 0, "paused": 0, "retracted": 0});
    assert_eq!(rank["queues"], queues);
    let memory = &rank["memory"];
    assert_eq!(memory["token_capacity"], rank["max_total_num_tokens"]);
    for name in ["weight_gb", "kv_cache_gb"] {
        assert!(memory[name].as_f64() > Some(0.0), "{memory}");
    }
    world.wait_until_idle();
}

#[test]
fn running_and_waiting_requests_are_counted_until_they_end() {
    let world = World::with(|engine, _| engine.max_running_requests = Some(1));
    let mut running = stream(world.addr, "/generate", &call(10..110, 60_000));
    running.next_json();
    let prompts = [200..230, 240..280];
    let waiting = prompts.map(|tokens| open(world.addr, "/generate", &call(tokens, 5)));
    world.wait_until("two requests wait", |stats| stats.waiting_requests == 2);
    post(
        world.addr,
        "/pause_generation",
        &json!({"mode": "in_place"}),
    )
    .ok();
    let rank = rank(&world, "/v1/loads");
    for (name, count) in [
        ("num_running_reqs", 1),
        ("num_waiting_reqs", 2),
        ("num_total_reqs", 3),
        ("num_waiting_uncached_tokens", 70),
    ] {
        assert_eq!(rank[name], count, "{name}: {rank}");
    }
    let used = rank["num_used_tokens"].as_u64().expect("a count");
    assert!(used >= 100, "the prompt and its output: {rank}");
    assert_eq!(rank["num_total_tokens"], used + 70);
    let usage = used as f64 / (CONTEXT_TOKENS as f64 + 1024.0);
    assert_eq!(rank["token_usage"].as_f64(), Some(usage));
    assert_eq!(rank["utilization"], 1.0, "the only row is in use");
    assert_eq!(rank["queues"]["waiting"], 2);
    let legacy = json!([{
        "dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 2, "num_tokens": used + 70, "num_pending_tokens": 70,
    }]);
    assert_eq!(get(world.addr, "/get_load").ok(), legacy);
    drop((running, waiting));
    post(world.addr, "/continue_generation", &json!({})).ok();
    world.wait_until_idle();
    let rank = self::rank(&world, "/v1/loads");
    for name in [
        "num_total_reqs",
        "num_waiting_uncached_tokens",
        "num_total_tokens",
    ] {
        assert_eq!(rank[name], 0, "{name}: {rank}");
    }
}

#[test]
fn the_hit_rate_covers_only_the_last_admission() {
    let world = World::new();
    let shared = || 10..100;
    for (rest, rate) in [(100..110, 0.0), (200..210, 0.9)] {
        let mut body = call(shared().chain(rest), 4);
        body["stream"] = false.into();
        post(world.addr, "/generate", &body).ok();
        let rank = rank(&world, "/v1/loads");
        assert_eq!(rank["cache_hit_rate"], rate, "{rank}");
    }
    world.wait_until_idle();
}

#[test]
fn each_replica_has_a_rank_with_its_load() {
    let world = World::with(|engine, _| engine.dp_size = 2);
    let tokens = CONTEXT_TOKENS + 1024;
    let ranks = |path: &str| -> Vec<(Value, Value)> {
        let mut load = get(world.addr, path).ok();
        assert_eq!(load["dp_rank_count"], 2, "{load}");
        let Value::Array(loads) = load["loads"].take() else {
            panic!("no list: {load}");
        };
        let loads = loads.into_iter();
        loads
            .map(|mut load| (load["dp_rank"].take(), load["max_total_num_tokens"].take()))
            .collect()
    };
    let of = |rank: usize| (json!(rank), json!(tokens));
    assert_eq!(ranks("/v1/loads"), [of(0), of(1)]);
    assert_eq!(ranks("/v1/loads?dp_rank=1"), [of(1)]);
    let refused = get(world.addr, "/v1/loads?dp_rank=2");
    assert_eq!(refused.status, 400, "{}", refused.body);
    let body = refused.body;
    assert!(body.contains("must be less than 2"), "{body}");
    let older = get(world.addr, "/get_load").ok();
    assert_eq!(older.as_array().map(Vec::len), Some(2), "{older}");
    let document = get(world.addr, "/openapi.json").ok();
    let parameters = document["paths"]["/v1/loads"]["get"]["parameters"].as_array();
    let mut parameters = parameters.expect("a list").iter();
    let rank = parameters.find(|parameter| parameter["name"] == "dp_rank");
    assert_eq!(rank.expect("it is documented")["schema"]["maximum"], 1);
    world.wait_until_idle();
}

#[test]
fn sections_can_be_chosen_and_unsupported_parameters_are_refused_by_name() {
    let world = World::new();
    let has = |path: &str| {
        let rank = rank(&world, path);
        ["memory", "disaggregation", "queues"].map(|name| rank.get(name).is_some())
    };
    assert_eq!(has("/v1/loads?include=core"), [false; 3]);
    assert_eq!(has("/v1/loads?include=queues"), [false, false, true]);
    assert_eq!(has("/v1/loads?include=core,of_another_version"), [false; 3]);
    for all in [
        "/v1/loads",
        "/v1/loads?include=all&dp_rank=0",
        "/loads?model=tiny",
    ] {
        assert_eq!(has(all), [true; 3], "{all}");
    }
    for (path, part) in [
        ("/v1/loads?dp_rank=1", "dp_rank is \"1\", must be 0"),
        ("/v1/loads?format=prometheus", "/metrics"),
        ("/v1/loads?include=core&include=queues", "invalid query"),
    ] {
        let refused = get(world.addr, path);
        assert_eq!(refused.status, 400, "{path}: {}", refused.body);
        let message = refused.json()["error"]["message"].take();
        let message = message.as_str().expect("a text");
        assert!(message.contains(part), "{path}: {message}");
    }
}
