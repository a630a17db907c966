//! Tests of simulated replicas: their times, the choice of a replica for each request, the sums over all, and replays.

use std::collections::HashSet;

use souffleur::config::EngineConfig;
use souffleur::simulate::disk::StoreModel;
use souffleur::simulate::engine::{Simulation, simulate};
use souffleur::simulate::hardware::Hardware;
use souffleur::simulate::outcome::{Outcome, RequestFate, RequestOutcome, UnitOutcome};
use souffleur::simulate::pool::{model_info, storage};
use souffleur::simulate::replay::{ReplayCache, Replayed, replay_in_replicas, replay_prompts};
use souffleur::simulate::roofline::Roofline;
use souffleur::simulate::shape;
use souffleur::simulate::synthetic::{Arrivals, Lengths, SyntheticLoad};
use souffleur::simulate::trace::{Prompt, Segment, Trace, TraceRequest};
use souffleur::state::cache::eviction::EvictionPolicy;
use souffleur::state::pool::pages::PageSize;
use souffleur::state::router::LoadBalance;

use crate::engine::{load, run, trace};

const METHODS: [LoadBalance; 3] = [
    LoadBalance::Prefix,
    LoadBalance::RoundRobin,
    LoadBalance::TotalTokens,
];
const PREFIX_TOKENS: u32 = 3000;

fn replicas(dp_size: usize, load_balance_method: LoadBalance) -> EngineConfig {
    EngineConfig {
        dp_size,
        load_balance_method,
        ..EngineConfig::default()
    }
}

/// Requests that arrive at once.
fn burst(requests: usize) -> SyntheticLoad {
    SyntheticLoad {
        arrivals: Arrivals::Burst,
        ..load(requests, 1.0)
    }
}

/// Requests one after another, each with one of eight prefixes. Eight in a row have all prefixes, in an order that
/// shows each replica all of them if the replicas take turns.
fn eight_prefixes(requests: u32) -> Trace {
    let request = |index: u32| {
        let prefix = (3 * index + index / 8) % 8;
        let mut prompt = Prompt::default();
        prompt.push(Segment {
            first_block: 6 * prefix,
            tokens: PREFIX_TOKENS,
        });
        prompt.push(Segment {
            first_block: 48 + 2 * index,
            tokens: 1000,
        });
        TraceRequest {
            arrival_s: f64::from(index),
            prompt,
            output_tokens: 50,
        }
    };
    Trace {
        requests: (0..requests).map(request).collect(),
        n_blocks: 48 + 2 * requests,
        empty_prompts: 0,
    }
}

fn requests_of(outcome: &Outcome) -> Vec<usize> {
    outcome.units.iter().map(|unit| unit.requests).collect()
}

fn greatest_load(outcome: &Outcome) -> f64 {
    outcome.loads().into_iter().fold(0.0, f64::max)
}

#[test]
fn one_replica_is_an_engine_under_any_method() {
    let load = trace(&SyntheticLoad {
        shared_prefixes: 3,
        shared_prefix_tokens: 2000,
        shared_fraction: 0.7,
        ..load(100, 20.0)
    });
    let default = run(&EngineConfig::default(), Some(30_000), true, &load);
    for method in METHODS {
        let outcome = run(&replicas(1, method), Some(30_000), true, &load);
        assert_eq!(outcome.requests, default.requests);
        assert_eq!(outcome.stats, default.stats);
        assert_eq!(outcome.timeline.moments(), default.timeline.moments());
        assert!(
            outcome
                .requests
                .iter()
                .all(|request| request.replica.is_none())
        );
        assert_eq!(
            (requests_of(&outcome), outcome.loads()),
            (vec![100], vec![1.0])
        );
    }
}

#[test]
fn replicas_compute_at_the_same_time() {
    let config = replicas(3, LoadBalance::RoundRobin);
    let alone = run(&EngineConfig::default(), None, true, &trace(&burst(1)));
    let outcome = run(&config, None, true, &trace(&burst(3)));
    for (request, replica) in outcome.requests.iter().zip(0..) {
        let expected = RequestOutcome {
            replica: Some(replica),
            ..alone.requests[0]
        };
        assert_eq!(*request, expected);
    }
    assert_eq!(outcome.makespan_s, alone.makespan_s);
    assert!((outcome.busy_s - 3.0 * alone.busy_s).abs() < 1e-9);
    assert_eq!(outcome.kv_tokens, 3 * alone.kv_tokens);
}

#[test]
fn prefix_routing_caches_more_than_round_robin_and_keeps_the_load_even() {
    let trace = eight_prefixes(200);
    // A pool has space for two prefixes and the rest of some requests.
    let outcome = |method| run(&replicas(4, method), Some(10_000), true, &trace);
    let (prefix, in_turn) = (
        outcome(LoadBalance::Prefix),
        outcome(LoadBalance::RoundRobin),
    );
    let (cached, in_turn_cached) = (prefix.stats.cached_tokens, in_turn.stats.cached_tokens);
    // All but the first request of each prefix could find it.
    let most = (200 - 8) * u64::from(PREFIX_TOKENS);
    assert!(20 * cached >= 19 * most, "{cached} of {most}");
    assert!(cached <= most);
    assert!(
        2 * in_turn_cached <= cached,
        "{in_turn_cached} against {cached}"
    );
    let greatest = greatest_load(&prefix);
    assert!(greatest <= 1.25, "{greatest}: {:?}", prefix.loads());
}

#[test]
fn each_method_chooses_as_the_router_does() {
    let in_turn = run(
        &replicas(3, LoadBalance::RoundRobin),
        None,
        true,
        &trace(&load(20, 4.0)),
    );
    let turns = in_turn.requests.iter().map(|request| request.replica);
    let turns: Vec<_> = turns.collect();
    let expected: Vec<Option<u32>> = (0..20).map(|request| Some(request % 3)).collect();
    assert_eq!(turns, expected);

    let fewest = run(
        &replicas(4, LoadBalance::TotalTokens),
        None,
        true,
        &trace(&burst(8)),
    );
    assert_eq!(requests_of(&fewest), [2, 2, 2, 2]);

    // All of them need the prefix that the first one computes.
    let common_prefix = trace(&SyntheticLoad {
        input_tokens: Lengths::Fixed(100),
        shared_prefixes: 1,
        shared_prefix_tokens: PREFIX_TOKENS,
        shared_fraction: 1.0,
        ..burst(4)
    });
    let together = run(
        &replicas(2, LoadBalance::Prefix),
        None,
        true,
        &common_prefix,
    );
    assert_eq!(requests_of(&together), [4, 0]);
}

/// The requests of a replica, compared with the stats of its scheduler.
fn check_unit(outcome: &Outcome, unit: &UnitOutcome, replica: u32) {
    let of_unit = |request: &&RequestOutcome| request.replica == Some(replica);
    let requests: Vec<_> = outcome.requests.iter().filter(of_unit).collect();
    let sum = |of: fn(&RequestOutcome) -> u32| -> u64 {
        let values = requests.iter().map(|request| u64::from(of(request)));
        values.sum()
    };
    assert_eq!(requests.len(), unit.requests);
    assert_eq!(
        sum(|request| request.prompt_tokens),
        unit.stats.prompt_tokens
    );
    assert_eq!(
        sum(|request| request.cached_tokens),
        unit.stats.cached_tokens
    );
    assert_eq!(sum(|request| request.output_tokens), unit.output_tokens);
    assert!(unit.stats.is_idle_and_whole(), "{:?}", unit.stats);
}

#[test]
fn totals_are_the_sums_over_the_replicas() {
    let load = trace(&SyntheticLoad {
        input_tokens: Lengths::Uniform(1, 3000),
        output_tokens: Lengths::Uniform(1, 200),
        shared_prefixes: 6,
        shared_prefix_tokens: 1000,
        shared_fraction: 0.8,
        ..load(300, 60.0)
    });
    for method in METHODS {
        let outcome = run(&replicas(3, method), Some(15_000), true, &load);
        assert_eq!(outcome.ended(RequestFate::Finished).count(), 300);
        for (unit, replica) in outcome.units.iter().zip(0..) {
            assert!(unit.requests > 0, "{method:?}, replica {replica}");
            check_unit(&outcome, unit, replica);
        }
        let sum = |of: fn(&UnitOutcome) -> u64| outcome.units.iter().map(of).sum::<u64>();
        let stats = &outcome.stats;
        assert_eq!(sum(|unit| unit.requests as u64), 300);
        assert_eq!(stats.prompt_tokens, load.prompt_tokens());
        assert_eq!(stats.cached_tokens, sum(|unit| unit.stats.cached_tokens));
        assert_eq!(sum(|unit| unit.output_tokens), load.output_tokens());
        assert_eq!(outcome.prefill_steps, sum(|unit| unit.prefill_steps));
        assert_eq!(outcome.decode_steps, sum(|unit| unit.decode_steps));
        assert_eq!(
            (stats.total_tokens, outcome.kv_tokens),
            (3 * 15_000, 3 * 15_000)
        );
        let mut busy = outcome.units.iter().map(|unit| unit.busy_s);
        assert!(busy.all(|busy_s| busy_s <= outcome.makespan_s + 1e-9));
        let loads = outcome.loads();
        assert!((loads.iter().sum::<f64>() - 3.0).abs() < 1e-9, "{loads:?}");
        let moments = outcome.timeline.moments();
        assert!(
            moments
                .iter()
                .all(|moment| moment.held_tokens <= outcome.kv_tokens)
        );
    }
}

#[test]
fn the_limits_of_requests_are_common_to_the_replicas() {
    let config = EngineConfig {
        max_queued_requests: 10,
        ..replicas(2, LoadBalance::RoundRobin)
    };
    let outcome = run(&config, None, true, &trace(&burst(100)));
    assert_eq!(outcome.waited_outside, 90);
    assert_eq!(outcome.ended(RequestFate::Finished).count(), 100);
    assert_eq!(outcome.largest_batch, 5);
    let used: HashSet<_> = outcome
        .requests
        .iter()
        .map(|request| request.replica)
        .collect();
    assert_eq!(used, HashSet::from([Some(0), Some(1)]));
}

#[test]
fn replicas_are_refused_with_a_store_and_without_a_number() {
    let hardware = Hardware::load("zen4-2-cores").expect("the preset is compiled in");
    let shape = shape::load("qwen3-0.6b").expect("the preset is compiled in");
    let refusal = |dp_size: usize, has_store: bool| {
        let stored = EngineConfig {
            kv_disk_path: has_store.then(|| "nowhere".into()),
            ..EngineConfig::default()
        };
        let model = model_info(&stored, &shape, &hardware, 1, Some(4000)).expect("it fits");
        let store = StoreModel::new(&stored, &shape, &model, (&hardware, 1));
        let store = store.expect("the store is valid");
        let config = replicas(dp_size, LoadBalance::Prefix);
        let simulation = Simulation {
            config: &config,
            model: &model,
            roofline: &Roofline::new(&hardware, &shape, storage(&config, &shape), 1),
            store: store.as_ref(),
            ignore_eos: true,
            drafts: None,
        };
        let outcome = simulate(&simulation, &trace(&burst(1)));
        outcome.err().map(|error| error.to_string())
    };
    assert_eq!(refusal(2, false), None);
    assert_eq!(refusal(1, true), None);
    let stored = refusal(2, true).expect("a store is refused");
    assert!(
        stored.contains("dp_size is 2, but a KV store is simulated"),
        "{stored}"
    );
    let none = refusal(0, false).expect("no replica is refused");
    assert!(none.contains("dp_size is 0"), "{none}");
}

fn cache(kv_tokens: usize) -> ReplayCache {
    ReplayCache {
        page_size: PageSize::new(8).expect("it is positive"),
        eviction: EvictionPolicy::default(),
        kv_tokens: Some(kv_tokens),
    }
}

#[test]
fn replayed_prompts_are_routed_by_their_prefixes() {
    let trace = eight_prefixes(200);
    let replay = |kv_tokens, routing| {
        replay_in_replicas(&trace, cache(kv_tokens), routing).expect("the caches are valid")
    };
    let prefix = replay(10_000, (4, LoadBalance::Prefix));
    let in_turn = replay(10_000, (4, LoadBalance::RoundRobin));
    for replays in [&prefix, &in_turn] {
        let sum = |of: fn(&Replayed) -> u64| replays.replicas.iter().map(of).sum::<u64>();
        assert_eq!(sum(|replica| replica.prompts as u64), 200);
        assert_eq!(sum(|replica| replica.hit_tokens), replays.all.hit_tokens);
        assert_eq!(replays.all.prompt_tokens, trace.prompt_tokens());
        assert_eq!(replays.all.too_long, 0);
    }
    assert!(in_turn.replicas.iter().all(|replica| replica.prompts == 50));
    let hits = prefix.all.hit_tokens;
    let most = (200 - 8) * u64::from(PREFIX_TOKENS);
    assert!(20 * hits >= 19 * most && hits <= most, "{hits} of {most}");
    assert!(2 * in_turn.all.hit_tokens <= hits, "{:?}", in_turn.all);
    assert!(prefix.greatest_load() <= 1.25, "{:?}", prefix.replicas);

    let one = replay_prompts(&trace, cache(10_000)).expect("the cache is valid");
    for method in METHODS {
        assert_eq!(replay(10_000, (1, method)).all, one);
    }
    // No prompt fits.
    let tiny = replay(3000, (2, LoadBalance::Prefix));
    assert_eq!((tiny.all.prompts, tiny.all.too_long), (200, 200));
    assert_eq!(tiny.replicas, [Replayed::default(); 2]);
}
