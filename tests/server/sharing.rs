//! Tests that answers and metrics agree on the cached tokens of sixteen clients that share a prefix of 512 tokens.

use serde_json::{Value, json};

use crate::http::{get, post};
use crate::world::World;

const CLIENTS: usize = 16;
const SHARED_TOKENS: usize = 512;
const OWN_TOKENS: usize = 9;

fn prompt(client: usize) -> Vec<u32> {
    let shared = (0..SHARED_TOKENS).map(|index| 2 + (index % 250) as u32);
    shared
        .chain((0..OWN_TOKENS).map(|index| 3 + (client * 7 + index) as u32 % 250))
        .collect()
}

fn call(client: usize) -> Value {
    json!({"input_ids": prompt(client), "sampling_params": {"max_new_tokens": 4, "ignore_eos": true}})
}

fn cached_tokens(world: &World, client: usize) -> u64 {
    let reply = post(world.addr, "/generate", &call(client)).ok();
    reply["meta_info"]["cached_tokens"]
        .as_u64()
        .expect("a count")
}

/// The longest prefix that a client's prompt shares with an earlier client's prompt, in whole pages.
fn common_tokens(client: usize, page_size: usize) -> u64 {
    let own = prompt(client);
    let common = |other: usize| {
        let other = prompt(other);
        own.iter().zip(&other).take_while(|(a, b)| a == b).count()
    };
    // The last token is always computed: its logits are needed.
    let longest = (0..client)
        .map(common)
        .max()
        .unwrap_or(0)
        .min(own.len() - 1);
    (longest - longest % page_size) as u64
}

/// The sum of a counter over its labels, for one model.
fn counter(world: &World, name: &str, model: &str) -> u64 {
    let page = get(world.addr, "/metrics").body;
    let label = format!("model_name=\"{model}\"");
    let lines = page
        .lines()
        .filter(|line| line.starts_with(&format!("{name}{{")));
    let values = lines.filter(|line| line.contains(&label)).map(|line| {
        let value = line.rsplit(' ').next().expect("a line has a value");
        value
            .parse::<u64>()
            .unwrap_or_else(|error| panic!("{error}: {line}"))
    });
    values.sum()
}

fn world(model: &str, page_size: u32) -> World {
    World::with(|engine, _| {
        engine.served_model_name = Some(model.to_owned());
        engine.page_size = page_size;
    })
}

#[track_caller]
fn check_counters(world: &World, model: &str, cached: u64) {
    world.wait_until_idle();
    let prompts = (CLIENTS * (SHARED_TOKENS + OWN_TOKENS)) as u64;
    assert_eq!(counter(world, "sglang:prompt_tokens_total", model), prompts);
    assert_eq!(counter(world, "sglang:cached_tokens_total", model), cached);
    let stats = world.stats();
    assert_eq!(
        (stats.prompt_tokens, stats.cached_tokens),
        (prompts, cached)
    );
}

#[test]
fn sequential_clients_find_the_common_prefix_in_whole_pages() {
    for page_size in [1, 16, 64] {
        let model = format!("in-turn-{page_size}");
        let world = world(&model, page_size);
        let mut cached = 0;
        for client in 0..CLIENTS {
            let found = cached_tokens(&world, client);
            assert_eq!(
                found,
                common_tokens(client, page_size as usize),
                "client {client}"
            );
            cached += found;
        }
        check_counters(&world, &model, cached);
    }
}

#[test]
fn all_but_one_of_concurrent_clients_find_the_prefix() {
    for page_size in [1, 16] {
        let model = format!("at-once-{page_size}");
        let world = world(&model, page_size);
        let found: Vec<u64> = std::thread::scope(|scope| {
            let world = &world;
            let clients =
                (0..CLIENTS).map(|client| scope.spawn(move || cached_tokens(world, client)));
            let clients: Vec<_> = clients.collect();
            clients
                .into_iter()
                .map(|client| client.join().expect("an answer"))
                .collect()
        });
        let hits = found
            .iter()
            .filter(|cached| **cached >= SHARED_TOKENS as u64)
            .count();
        assert_eq!(hits, CLIENTS - 1, "{found:?}");
        check_counters(&world, &model, found.iter().sum());
    }
}
