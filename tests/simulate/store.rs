//! Tests of the simulated engine with a KV store: times computed by hand, the hits of a naive store, and busy loads.

use std::collections::HashSet;
use std::path::PathBuf;

use souffleur::config::EngineConfig;
use souffleur::simulate::disk::StoreModel;
use souffleur::simulate::engine::{Simulation, simulate};
use souffleur::simulate::hardware::Hardware;
use souffleur::simulate::outcome::{Outcome, RequestFate};
use souffleur::simulate::pool::{model_info, storage};
use souffleur::simulate::roofline::Roofline;
use souffleur::simulate::shape;
use souffleur::simulate::trace::{Prompt, Segment, Trace, TraceRequest};

use crate::mooncake;

const GIB: u64 = 1 << 30;
/// K/V bytes per token of Qwen3-0.6B in 16 bits.
const TOKEN_BYTES: f64 = 114_688.0;

/// A machine with two CPU cores and a disk.
fn two_cores() -> Hardware {
    Hardware::load("zen4-2-cores").expect("the preset is compiled in")
}

/// The configuration of an engine with a store of `disk_bytes` bytes, or without a store.
fn config(disk_bytes: Option<u64>) -> EngineConfig {
    EngineConfig {
        kv_disk_path: disk_bytes.map(|_| PathBuf::from("nowhere")),
        kv_disk_bytes: disk_bytes.unwrap_or(GIB),
        ..EngineConfig::default()
    }
}

fn run(
    config: &EngineConfig,
    (hardware, shape_name): (&Hardware, &str),
    kv_tokens: usize,
    trace: &Trace,
) -> Outcome {
    let shape = shape::load(shape_name).expect("the preset is compiled in");
    let model = model_info(config, &shape, hardware, 1, Some(kv_tokens)).expect("the model fits");
    let roofline = Roofline::new(hardware, &shape, storage(config, &shape), 1);
    let store = StoreModel::new(config, &shape, &model, (hardware, 1)).expect("the store is valid");
    let simulation = Simulation {
        config,
        model: &model,
        roofline: &roofline,
        store: store.as_ref(),
        ignore_eos: true,
        drafts: None,
    };
    let outcome = simulate(&simulation, trace).expect("the simulation completes");
    assert!(outcome.stats.is_idle_and_whole(), "{:?}", outcome.stats);
    outcome
}

/// Requests that arrive `gap_s` apart, with prompts that consist of runs (first block, tokens).
fn trace(prompts: &[&[(u32, u32)]], output_tokens: u32, gap_s: f64) -> Trace {
    let request = |(index, runs): (usize, &&[(u32, u32)])| {
        let mut prompt = Prompt::default();
        for &(first_block, tokens) in *runs {
            prompt.push(Segment {
                first_block,
                tokens,
            });
        }
        TraceRequest {
            arrival_s: index as f64 * gap_s,
            prompt,
            output_tokens,
        }
    };
    Trace {
        requests: prompts.iter().enumerate().map(request).collect(),
        n_blocks: 1 << 20,
        empty_prompts: 0,
    }
}

#[test]
fn an_evicted_prompt_is_loaded_in_the_time_that_the_disk_takes() {
    // The pool holds one prompt with its output, so the second prompt evicts the first.
    let prompts: [&[(u32, u32)]; 3] = [&[(0, 1000)], &[(10, 1000)], &[(0, 1000)]];
    let load = trace(&prompts, 50, 100.0);
    let hardware = two_cores();
    let target = (&hardware, "qwen3-0.6b");
    let without = run(&config(None), target, 1100, &load);
    assert!(without.store.is_none());
    assert!(without.stats.cached_tokens < 64, "{:?}", without.stats);
    let with = run(&config(Some(GIB)), target, 1100, &load);
    // The prompt's 1,000 tokens contain fifteen whole blocks.
    let requests = &with.requests;
    assert_eq!(requests[2].cached_tokens, 960);
    let in_memory = 960 - requests[2].loaded_tokens;
    assert!(in_memory < 64, "{in_memory}");
    assert_eq!(
        (requests[0].loaded_tokens, requests[1].loaded_tokens),
        (0, 0)
    );
    let store = with.store.expect("the outcome has a store");
    assert_eq!(store.read, 15);
    // A prompt and its output have 1,049 computed tokens: 16 whole blocks. The third request's last block may be new.
    assert!((32..=33).contains(&store.written), "{store:?}");
    let block_bytes = 64.0 * TOKEN_BYTES;
    let fetch_s = 100e-6 + 15.0 * block_bytes / 0.68e9;
    assert!((store.read_s - fetch_s).abs() < 1e-9, "{store:?}");
    let write_s = store.written as f64 * block_bytes / 1.1e9;
    assert!((store.write_s - write_s).abs() < 1e-9, "{store:?}");
    // After the fetch, a step copies the blocks within memory and computes 40 tokens, in 0.05 to 0.3 seconds.
    let copy_s = f64::from(requests[2].loaded_tokens) * TOKEN_BYTES * 2.0 / (57.6e9 * 0.62);
    let ttft_s = with.ttft_s();
    let step_s = ttft_s[2] - fetch_s - copy_s;
    assert!((0.05..0.3).contains(&step_s), "{step_s}");
    assert!(ttft_s[2] < ttft_s[0] / 4.0, "{ttft_s:?}");
    assert!((with.disk_hit_rate() + with.memory_hit_rate() - with.hit_rate()).abs() < 1e-12);
}

/// Random conversations with up to three turns of 512 tokens each, as runs (first block, tokens).
fn conversations(n: usize) -> Vec<Vec<(u32, u32)>> {
    let mut random: u64 = 7;
    let mut below = |n: u32| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as u32 % n
    };
    let prompt = |_| {
        // Four beginnings, and two continuations per turn.
        let turns = 1 + below(3);
        let mut runs = vec![(below(4) * 100, 512)];
        for turn in 0..turns {
            runs.push((1000 * (turn + 1) + below(2) * 10, 512));
        }
        let tail_tokens = 1 + below(400);
        runs.push((50_000 + below(5), tail_tokens));
        runs
    };
    (0..n).map(prompt).collect()
}

#[test]
fn sequential_requests_hit_the_same_blocks_as_a_naive_store() {
    let prompts = conversations(60);
    let prompts: Vec<&[(u32, u32)]> = prompts.iter().map(Vec::as_slice).collect();
    let load = trace(&prompts, 2, 1000.0);
    let config = EngineConfig {
        page_size: 64,
        kv_host_bytes: Some(4 * GIB),
        ..config(Some(1000 * GIB))
    };
    // The naive store identifies a block by all tokens up to its end, and never evicts a computed block.
    let mut stored: HashSet<Vec<u32>> = HashSet::new();
    let mut expected = Vec::new();
    for request in &load.requests {
        let tokens = request.prompt.tokens();
        let ends: Vec<usize> = (1..=tokens.len() / 64).map(|block| block * 64).collect();
        // The last token is always computed.
        let usable = ends.iter().filter(|end| **end < tokens.len());
        let hits = usable.take_while(|end| stored.contains(&tokens[..**end]));
        expected.push(hits.last().copied().unwrap_or(0) as u32);
        stored.extend(ends.iter().map(|end| tokens[..*end].to_vec()));
    }
    assert!(expected.iter().filter(|tokens| **tokens > 0).count() > 20);
    let hardware = two_cores();
    for kv_tokens in [2816, 8192, 1 << 20] {
        let outcome = run(&config, (&hardware, "qwen3-0.6b"), kv_tokens, &load);
        let hits: Vec<u32> = outcome
            .requests
            .iter()
            .map(|request| request.cached_tokens)
            .collect();
        assert_eq!(hits, expected, "{kv_tokens}");
        let loaded: u32 = outcome
            .requests
            .iter()
            .map(|request| request.loaded_tokens)
            .sum();
        assert_eq!(u64::from(loaded), outcome.loaded_tokens());
        assert_eq!(loaded > 0, kv_tokens < 1 << 20);
        let store = outcome.store.expect("the outcome has a store");
        assert_eq!((store.evicted, store.orphans, store.no_space), (0, 0, 0));
    }
}

#[test]
fn all_requests_of_a_busy_trace_end_with_any_disk() {
    let load = mooncake(Some(120));
    let slow = Hardware {
        disk_read_gb_s: Some(0.01),
        disk_write_gb_s: Some(0.01),
        ..Hardware::load("h100-sxm").expect("the preset is compiled in")
    };
    let fast = Hardware::load("h100-sxm").expect("the preset is compiled in");
    let config = |disk_bytes| EngineConfig {
        context_length: Some(200_000),
        ..config(Some(disk_bytes))
    };
    for (hardware, disk_bytes) in [(&slow, 64 * GIB), (&fast, 64 * GIB), (&fast, GIB)] {
        let outcome = run(
            &config(disk_bytes),
            (hardware, "llama-3.1-8b"),
            250_000,
            &load,
        );
        assert_eq!(outcome.ended(RequestFate::Finished).count(), 120);
        assert_eq!(outcome.stats.prompt_tokens, load.prompt_tokens());
        assert!(outcome.loaded_tokens() <= outcome.stats.cached_tokens);
        let store = outcome.store.expect("the outcome has a store");
        assert!(store.held_bytes <= disk_bytes);
        assert!(store.written > 0, "{store:?}");
        let again = run(
            &config(disk_bytes),
            (hardware, "llama-3.1-8b"),
            250_000,
            &load,
        );
        assert_eq!(again.requests, outcome.requests);
        assert_eq!(again.store, outcome.store);
    }
}

#[test]
fn hardware_without_a_disk_is_refused() {
    let hardware = Hardware {
        disk_write_gb_s: None,
        ..two_cores()
    };
    let shape = shape::load("qwen3-0.6b").expect("the preset is compiled in");
    let config = config(Some(GIB));
    let model = model_info(&config, &shape, &hardware, 1, Some(5000)).expect("the model fits");
    let refused = StoreModel::new(&config, &shape, &model, (&hardware, 1));
    let refused = refused.expect_err("there is no disk").to_string();
    assert!(refused.contains("disk_write_gb_s"), "{refused}");
}
