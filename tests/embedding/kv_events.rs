//! Tests of the KV events of a whole engine: after a rebuild, of replicas, with a port in use, and switched off.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle};
use souffleur::error::LoadError;
use souffleur::request::Event;
use souffleur::state::router::LoadBalance;

use super::doubles::{Fault, faulty_parts};
use super::world::{Build, World, assert_finished, collect, request, within};
use super::zmq_peer::Peer;

/// The executor dies at this step: after the first request, and before the end of the second one.
const FAULT_STEP: u64 = 30;
const BLOCK: usize = 16;

fn build(endpoint: &str) -> Build {
    let json = json!({
        "publisher": "zmq",
        "endpoint": endpoint,
        "replay_endpoint": "tcp://*:0",
        "block_size": BLOCK,
    });
    let config = EngineConfig {
        kv_events_config: Some(json.to_string()),
        ..Build::default().config
    };
    Build {
        config,
        ..Build::default()
    }
}

fn events(engine: &EngineHandle, rank: u16) -> Vec<Value> {
    let info = engine.kv_events().expect("KV events");
    let port = info.replay_endpoint_port_base.expect("a replay port") + rank;
    let batches = Peer::connect(port, "REQ").ask(0);
    let events = batches.iter().flat_map(|batch| {
        assert_eq!(batch.payload[2], rank);
        let events = batch.payload[1].as_array();
        events.expect("a batch has a list").clone()
    });
    events.collect()
}

fn is_clear(event: &Value) -> bool {
    event["type"] == "AllBlocksCleared"
}

fn clears(engine: &EngineHandle, rank: u16) -> usize {
    let events = events(engine, rank);
    events.iter().filter(|event| is_clear(event)).count()
}

/// The events after the last `AllBlocksCleared` event; `None` if there are fewer than `n` such events.
fn since_clear((engine, rank): (&EngineHandle, u16), n: usize) -> Option<Vec<Value>> {
    let events = events(engine, rank);
    let clears = (0..events.len()).filter(|at| is_clear(&events[*at]));
    let at = clears.skip(n - 1).last()?;
    Some(events[at + 1..].to_vec())
}

/// Waits for at least `n` clear events with the prompt's blocks right after the last one. Returns the blocks' ids.
async fn stored(replica: (&EngineHandle, u16), n: usize, prompt: &[u32]) -> Vec<Value> {
    let n_tokens = prompt.len() / BLOCK * BLOCK;
    within(async {
        loop {
            let events = since_clear(replica, n).unwrap_or_default();
            let (mut ids, mut tokens) = (Vec::new(), Vec::new());
            for event in &events {
                assert_eq!(event["type"], "BlockStored");
                ids.extend(event["block_hashes"].as_array().expect("ids").clone());
                tokens.extend(event["token_ids"].as_array().expect("tokens").clone());
            }
            if tokens.len() >= n_tokens {
                assert_eq!(json!(tokens[..n_tokens]), json!(prompt[..n_tokens]));
                ids.truncate(n_tokens / BLOCK);
                return ids;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_rebuilt_engine_publishes_a_clear_and_then_its_blocks() {
    let build = build("tcp://*:0");
    let parts = faulty_parts(&build, FAULT_STEP, Fault::DeviceLost);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let prompt: Vec<u32> = (1..50).collect();
    let outcome = collect(world.generate(request(&prompt, 2, 7))).await;
    assert_finished(&outcome, &prompt, 2, 7);
    let before = stored((&world.engine, 0), 1, &prompt).await;
    let mut long = request(&prompt, 100, 7);
    long.sampling.ignore_eos = true;
    let outcome = collect(world.generate(long)).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    assert_eq!(world.engine.unit_status().generation, 2);
    assert_eq!(stored((&world.engine, 0), 2, &prompt).await, before);
    world.assert_no_leaks().await;
    world.stop().await;
}

/// Waits until the first of the replicas has published a second clear event.
async fn until_cleared(engine: &EngineHandle) {
    within(async {
        while clears(engine, 0) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
}

/// Replicas that get requests in turn.
fn replicas() -> Build {
    let mut build = build("tcp://*:0");
    build.config.dp_size = 2;
    build.config.load_balance_method = LoadBalance::RoundRobin;
    build
}

#[tokio::test]
async fn a_replica_publishes_its_own_blocks_and_clears_only_them_after_a_restart() {
    let build = replicas();
    let parts = faulty_parts(&build, FAULT_STEP, Fault::DeviceLost);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let prompts: [Vec<u32>; 2] = [(1..50).collect(), (101..150).collect()];
    let mut ids = Vec::new();
    for (rank, prompt) in (0..).zip(&prompts) {
        let outcome = collect(world.generate(request(prompt, 2, 7))).await;
        assert_finished(&outcome, prompt, 2, 7);
        ids.push(stored((&world.engine, rank), 1, prompt).await);
    }
    let mut long = request(&prompts[0], 100, 7);
    long.sampling.ignore_eos = true;
    let outcome = collect(world.generate(long)).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    // The first replica has died, and the request has moved to the second one.
    until_cleared(&world.engine).await;
    let status = world.engine.unit_status();
    let generations = status.replicas.iter().map(|replica| replica.generation);
    assert_eq!(generations.collect::<Vec<_>>(), [2, 1]);
    assert_eq!(since_clear((&world.engine, 0), 2), Some(Vec::new()));
    assert_eq!(clears(&world.engine, 1), 1);
    assert_eq!(
        stored((&world.engine, 1), 1, &prompts[1]).await,
        ids[1],
        "its blocks are still cached"
    );
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_replica_that_stays_down_is_cleared() {
    let mut build = replicas();
    build.config.rebuild_attempts = 1;
    let mut parts = faulty_parts(&build, FAULT_STEP, Fault::DeviceLost);
    let (make, loads) = (parts.executor.clone(), AtomicUsize::new(0));
    parts.executor = Arc::new(move || match loads.fetch_add(1, Ordering::SeqCst) {
        0 | 1 => make(),
        _ => Err(LoadError::DeviceLost("there is no device".to_owned())),
    });
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let prompt: Vec<u32> = (1..50).collect();
    let mut long = request(&prompt, 100, 7);
    long.sampling.ignore_eos = true;
    let outcome = collect(world.generate(long)).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    until_cleared(&world.engine).await;
    assert_eq!(since_clear((&world.engine, 0), 2), Some(Vec::new()));
    stored((&world.engine, 1), 1, &prompt).await;
    assert_eq!(clears(&world.engine, 1), 1);
    assert!(world.engine.is_ready());
    world.stop().await;
}

#[tokio::test]
async fn an_engine_does_not_start_if_its_port_is_taken() {
    let taken = TcpListener::bind("0.0.0.0:0").expect("a port is free");
    let port = taken.local_addr().expect("an address").port();
    let build = build(&format!("tcp://*:{port}"));
    let parts = build.parts();
    let refused = Engine::start_with(build.config, parts).err();
    let refused = refused.expect("the port is taken").to_string();
    assert!(refused.contains("kv_events_config"), "{refused}");
    assert!(refused.contains(&port.to_string()), "{refused}");
}

#[tokio::test]
async fn by_default_an_engine_publishes_no_events() {
    let world = Build::default().start();
    assert_eq!(world.engine.kv_events(), None);
    world.stop().await;
}
