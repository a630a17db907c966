//! Tests of the simulated engine in virtual time: invariants under any load, and known results of small loads.

use std::path::Path;
use std::sync::Arc;

use souffleur::config::EngineConfig;
use souffleur::simulate::drafts::DraftHistogram;
use souffleur::simulate::engine::{Simulation, simulate};
use souffleur::simulate::hardware::Hardware;
use souffleur::simulate::outcome::{Outcome, RequestFate};
use souffleur::simulate::pool::{model_info, storage};
use souffleur::simulate::roofline::Roofline;
use souffleur::simulate::rows::{Guess, SimulatedDrafts};
use souffleur::simulate::shape;
use souffleur::simulate::synthetic::{Arrivals, Lengths, SyntheticLoad};
use souffleur::simulate::trace::Trace;

use crate::mooncake;

pub fn run(
    config: &EngineConfig,
    kv_tokens: Option<usize>,
    ignore_eos: bool,
    trace: &Trace,
) -> Outcome {
    run_with(config, kv_tokens, ignore_eos, trace, None)
}

fn run_with(
    config: &EngineConfig,
    kv_tokens: Option<usize>,
    ignore_eos: bool,
    trace: &Trace,
    drafts: Option<SimulatedDrafts>,
) -> Outcome {
    let hardware = Hardware::load("h100-sxm").expect("the hardware is compiled in");
    let shape = shape::load("llama-3.1-8b").expect("the shape is compiled in");
    let model = model_info(config, &shape, &hardware, 1, kv_tokens).expect("the model fits");
    let roofline = Roofline::new(&hardware, &shape, storage(config, &shape), 1);
    let simulation = Simulation {
        config,
        model: &model,
        roofline: &roofline,
        store: None,
        ignore_eos,
        drafts,
    };
    let outcome = simulate(&simulation, trace).expect("the simulation completes");
    assert!(outcome.stats.is_idle_and_whole(), "{:?}", outcome.stats);
    outcome
}

pub fn load(requests: usize, rate: f64) -> SyntheticLoad {
    SyntheticLoad {
        requests,
        rate,
        arrivals: Arrivals::Poisson,
        input_tokens: Lengths::Fixed(1000),
        output_tokens: Lengths::Fixed(50),
        shared_prefixes: 0,
        shared_prefix_tokens: 0,
        shared_fraction: 0.0,
        seed: 3,
    }
}

pub fn trace(load: &SyntheticLoad) -> Trace {
    load.trace().expect("the load is valid")
}

/// Seconds of a decode step on the H100: 150 µs, and all 16-bit weights but the embedding at 85 % of 3,350 GB/s.
const DECODE_S: f64 = 150e-6 + (8.03e9 - 0.525e9) * 2.0 / (3350e9 * 0.85);

#[test]
fn a_single_request_takes_one_prefill_and_a_decode_per_further_token() {
    let outcome = run(&EngineConfig::default(), None, true, &trace(&load(1, 1.0)));
    let request = outcome.requests[0];
    assert_eq!(
        (request.output_tokens, request.end),
        (50, RequestFate::Finished)
    );
    assert_eq!((outcome.prefill_steps, outcome.decode_steps), (1, 49));
    let ttft_s = outcome.ttft_s()[0];
    // The parameters without the embedding and the output head.
    let flops_s = 2.0 * 6.98e9 * 1000.0 / (989.4e12 * 0.7);
    assert!((flops_s..1.2 * flops_s).contains(&ttft_s), "{ttft_s}");
    let tpot_s = outcome.tpot_s()[0];
    assert!((DECODE_S..1.05 * DECODE_S).contains(&tpot_s), "{tpot_s}");
    assert!((outcome.busy_s - outcome.makespan_s).abs() < 1e-9);
}

#[test]
fn every_request_ends_with_all_its_tokens_whatever_the_load() {
    for (rate, kv_tokens) in [(5.0, None), (1000.0, None), (1000.0, Some(20_000))] {
        let trace = trace(&SyntheticLoad {
            input_tokens: Lengths::Uniform(1, 4000),
            output_tokens: Lengths::Uniform(1, 200),
            ..load(400, rate)
        });
        let outcome = run(&EngineConfig::default(), kv_tokens, true, &trace);
        assert_eq!(outcome.ended(RequestFate::Finished).count(), 400);
        let outputs = outcome
            .requests
            .iter()
            .map(|request| u64::from(request.output_tokens));
        assert_eq!(outputs.sum::<u64>(), trace.output_tokens());
        assert!(
            outcome
                .requests
                .iter()
                .all(|request| request.first_token_s > Some(request.arrival_s))
        );
        assert!(outcome.busy_s <= outcome.makespan_s + 1e-9);
        let moments = outcome.timeline.moments();
        assert!(moments.iter().all(|moment| {
            moment.used_tokens <= moment.held_tokens && moment.held_tokens <= outcome.kv_tokens
        }));
    }
}

#[test]
fn requests_with_drafts_end_with_all_their_tokens_in_fewer_steps() {
    let text = r#"{"schema": "souffleur-bench-taught/1", "cells": [
        {"kind": "a", "decodes": [[0, 0, 1], [7, 3, 2], [7, 7, 1]]}]}"#;
    let measured = DraftHistogram::parse(Path::new("taught.json"), text.as_bytes(), None);
    let measured = Arc::new(measured.expect("it is valid"));
    let trace = trace(&SyntheticLoad {
        arrivals: Arrivals::Burst,
        output_tokens: Lengths::Uniform(1, 200),
        ..load(60, 1.0)
    });
    let config = EngineConfig::default();
    for kv_tokens in [None, Some(20_000)] {
        let plain = run(&config, kv_tokens, true, &trace);
        for guess in [Guess::Measured(measured.clone()), Guess::Rate(0.7)] {
            let drafts = Some(SimulatedDrafts {
                room: 8,
                guess,
                seed: 0,
            });
            let outcome = run_with(&config, kv_tokens, true, &trace, drafts.clone());
            assert_eq!(outcome.ended(RequestFate::Finished).count(), 60);
            for (request, asked) in outcome.requests.iter().zip(&trace.requests) {
                assert_eq!(request.output_tokens, asked.output_tokens);
            }
            assert!(outcome.decode_steps < plain.decode_steps);
            let again = run_with(&config, kv_tokens, true, &trace, drafts);
            assert_eq!(again.requests, outcome.requests);
        }
    }
}

#[test]
fn shared_prefixes_are_computed_once() {
    let shared = SyntheticLoad {
        shared_prefixes: 4,
        shared_prefix_tokens: 3000,
        shared_fraction: 1.0,
        ..load(200, 20.0)
    };
    let outcome = run(&EngineConfig::default(), None, true, &trace(&shared));
    assert_eq!(outcome.stats.cached_tokens, 196 * 3000);
    let off = EngineConfig {
        disable_radix_cache: true,
        ..EngineConfig::default()
    };
    let without = run(&off, None, true, &trace(&shared));
    assert_eq!(without.stats.cached_tokens, 0);
    assert!(without.busy_s > outcome.busy_s);
}

#[test]
fn a_small_pool_retracts_when_memory_is_reserved_for_a_part_of_the_outputs() {
    let trace = trace(&SyntheticLoad {
        arrivals: Arrivals::Burst,
        output_tokens: Lengths::Fixed(800),
        ..load(60, 1.0)
    });
    let fully_reserved = run(&EngineConfig::default(), Some(30_000), true, &trace);
    assert_eq!(fully_reserved.stats.retractions, 0);
    let config = EngineConfig {
        schedule_conservativeness: 0.1,
        ..EngineConfig::default()
    };
    let partly_reserved = run(&config, Some(30_000), false, &trace);
    assert!(partly_reserved.stats.retractions > 0);
    let counted: u64 = partly_reserved
        .requests
        .iter()
        .map(|request| u64::from(request.retractions))
        .sum();
    assert_eq!(counted, partly_reserved.stats.retractions);
    assert_eq!(partly_reserved.ended(RequestFate::Finished).count(), 60);
}

#[test]
fn a_full_queue_delays_requests_and_prompts_that_cannot_fit_are_refused() {
    let trace = trace(&SyntheticLoad {
        arrivals: Arrivals::Burst,
        ..load(100, 1.0)
    });
    let config = EngineConfig {
        max_queued_requests: 10,
        ..EngineConfig::default()
    };
    let outcome = run(&config, None, true, &trace);
    assert_eq!(
        (
            outcome.waited_outside,
            outcome.ended(RequestFate::Finished).count()
        ),
        (90, 100)
    );
    assert_eq!(outcome.largest_batch, 10);
    let short = EngineConfig {
        context_length: Some(500),
        ..EngineConfig::default()
    };
    assert_eq!(
        run(&short, None, true, &trace)
            .ended(RequestFate::TooLong)
            .count(),
        100
    );
}

#[test]
fn the_same_load_gives_the_same_outcome_and_any_page_size_the_same_number_of_prompt_tokens() {
    let trace = mooncake(Some(150));
    let outcome = |page_size| {
        let config = EngineConfig {
            page_size,
            context_length: Some(200_000),
            ..EngineConfig::default()
        };
        run(&config, None, true, &trace)
    };
    let (first, second, pages) = (outcome(1), outcome(1), outcome(64));
    assert_eq!(first.requests, second.requests);
    assert_eq!(first.stats, second.stats);
    assert_eq!(first.stats.prompt_tokens, trace.prompt_tokens());
    assert_eq!(pages.stats.prompt_tokens, trace.prompt_tokens());
    assert!(first.hit_rate() >= pages.hit_rate() && pages.hit_rate() > 0.0);
}
