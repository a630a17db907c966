//! Tests that drafts, right and wrong ones, change no token and no bit of a log probability, under any schedule: with
//! prefix hits, in batches, chunked, in mixed steps, across retractions and preemptions.
//!
//! `SOUFFLEUR_DRAFT_RUNS=20 cargo test --test engine drafts` has 20 runs of each model, with other drafts and schedules.

use std::fmt;

use futures_util::future::join_all;
use souffleur_config::{DtypeChoice, EngineConfig, KvCacheDtype};
use souffleur_kernels::dtype::Quantization;

use crate::identity::{
    MODELS, Setup, assert_same, config, configs_with_retractions, reference,
    send_lowest_priority_first, start as start_plain,
};
use crate::kernel_paths::repeats_floats;
use crate::requests::{
    Bits, REQUESTS, VOCAB, at_once, bits, first_of, long_request, one_after_another, request,
};
use crate::scripted_drafts::{Script, ScriptedDrafts, Tally};
use crate::speculating::{PLACES, learn, start};
use crate::world::collect;

/// Runs that verify enough drafts for the night's check.
const MANY_RUNS: usize = 20;
const MANY_DRAFTS: u64 = 10_000;

/// Chunk size, page size and compute threads.
const SCHEDULES: [(i64, u32, usize); 4] = [(4096, 1, 1), (32, 16, 2), (64, 64, 1), (7, 1, 2)];

fn runs() -> usize {
    let number = std::env::var("SOUFFLEUR_DRAFT_RUNS").ok();
    number.map_or(1, |number| number.parse().expect("a number"))
}

fn script(number: usize) -> Script {
    match number % 7 {
        0 => Script::Random(0.7),
        1 => Script::WrongAt(PLACES - 1 - number / 7 % PLACES),
        2 => Script::Random(0.95),
        3 => Script::Random(0.3),
        4 => Script::Random(1.0),
        5 => Script::Random(0.8),
        _ => Script::Random(0.0),
    }
}

fn plain(model: &str, number: usize) -> Setup<'_> {
    Setup {
        model,
        dtype: [DtypeChoice::Bfloat16, DtypeChoice::Float32][number % 2],
        quantization: None,
        kv: KvCacheDtype::Auto,
        ranks: 1,
    }
}

/// All models, in one of two types each, then quantised weights, then K/V in int8.
fn setups(run: usize) -> Vec<Setup<'static>> {
    let models = MODELS.into_iter().enumerate();
    let mut all: Vec<Setup<'static>> = models
        .map(|(index, model)| plain(model, index + run))
        .collect();
    for (model, quantization) in [
        ("models/souffleur-tiny", Quantization::Int8),
        ("tests/fixtures/models/qwen3-moe", Quantization::Int4),
    ] {
        all.push(Setup {
            quantization: Some(quantization),
            ..plain(model, 0)
        });
    }
    for model in [
        "models/souffleur-tiny",
        "tests/fixtures/models/deepseek-v2-grouped",
        "tests/fixtures/models/qwen3-5",
    ] {
        all.push(Setup {
            kv: KvCacheDtype::Int8,
            ..plain(model, 0)
        });
    }
    all
}

/// Models whose layers have full attention, states, latents, and windows with sinks.
const FEW: [&str; 4] = [
    "models/souffleur-tiny",
    "tests/fixtures/models/qwen3-5",
    "tests/fixtures/models/deepseek-v2",
    "tests/fixtures/models/gpt-oss",
];

/// Drafts that follow these outputs of [`request`] or [`long_request`].
fn drafts_of(
    number: usize,
    request: fn(u32) -> souffleur_request::GenerateRequest,
    outputs: &[(Bits, u32)],
) -> ScriptedDrafts {
    let drafts = ScriptedDrafts::new(script(number), number as u64, VOCAB);
    for (index, (bits, _)) in (0..).zip(outputs) {
        let tokens: Vec<u32> = bits.iter().map(|(token, _)| *token).collect();
        learn(&drafts, &request(index), &tokens);
    }
    drafts
}

fn assert_verified(number: usize, tally: &Tally, what: &dyn fmt::Display) {
    let (accepted, rejected) = tally.totals();
    let script = script(number);
    let has_right = !matches!(script, Script::Random(0.0) | Script::WrongAt(0));
    assert_eq!(accepted > 0, has_right, "{what}, {script:?}: accepted");
    // Few outputs of the night's seeds are long enough for a draft at each later place.
    let has_wrong = match script {
        Script::Random(rate) => rate < 1.0,
        Script::WrongAt(place) => place == 0,
    };
    assert!(!has_wrong || rejected > 0, "{what}, {script:?}: rejected");
}

async fn check(setup: &Setup<'_>, number: usize, all: &Tally) {
    let expected = reference(setup).await;
    let drafts = drafts_of(number, request, &expected);
    let (chunked_prefill_size, page_size, threads) = SCHEDULES[number % SCHEDULES.len()];
    let scheduled = EngineConfig {
        chunked_prefill_size,
        page_size,
        threads,
        ..config(setup)
    };
    let (world, tally) = start(scheduled, &drafts, None);
    let how = format!("{setup}, {:?}, schedule {number}", script(number));
    assert_same(&one_after_another(&world).await, &expected, &how);
    let how = format!("{how}, in a batch");
    assert_same(&at_once(&world).await, &expected, &how);
    world.assert_no_leaks().await;
    world.stop().await;
    assert_verified(number, &tally, setup);
    all.merge(&tally);
}

#[tokio::test]
async fn drafts_change_no_bit_under_any_schedule() {
    if repeats_floats() {
        return;
    }
    let all = Tally::default();
    for run in 0..runs() {
        for (index, setup) in setups(run).iter().enumerate() {
            check(setup, index + 5 * run, &all).await;
        }
    }
    all.assert_both_at_each(PLACES, "all models");
    let (accepted, rejected) = all.totals();
    if runs() >= MANY_RUNS {
        assert!(accepted >= MANY_DRAFTS, "{accepted} drafts accepted");
        assert!(rejected >= MANY_DRAFTS, "{rejected} drafts rejected");
    }
}

/// Fewer key heads than ranks, experts, latents and states.
#[tokio::test]
async fn drafts_change_no_bit_on_ranks() {
    if repeats_floats() {
        return;
    }
    let all = Tally::default();
    for (number, (model, ranks)) in [
        ("tests/fixtures/models/qwen3", 4),
        ("tests/fixtures/models/qwen3-moe", 2),
        ("tests/fixtures/models/deepseek-v2", 2),
        ("tests/fixtures/models/qwen3-5", 2),
        ("tests/fixtures/models/lfm2", 2),
    ]
    .into_iter()
    .enumerate()
    {
        let setup = Setup {
            ranks,
            ..plain(model, 0)
        };
        check(&setup, [0, 2, 3, 5, 8][number], &all).await;
    }
    let (accepted, rejected) = all.totals();
    assert!(
        accepted > 0 && rejected > 0,
        "{accepted} drafts accepted, {rejected} rejected"
    );
}

/// Requests for log probabilities never join mixed steps, so this compares tokens.
async fn check_mixed(setup: &Setup<'_>, number: usize, all: &Tally) {
    let expected = reference(setup).await;
    let drafts = drafts_of(number, request, &expected);
    let (chunked_prefill_size, page_size) = [(20, 1), (48, 16)][number % 2];
    let mixed = EngineConfig {
        enable_mixed_chunk: true,
        chunked_prefill_size,
        page_size,
        ..config(setup)
    };
    let (open, gate) = crossbeam_channel::bounded(0);
    let (world, tally) = start(mixed, &drafts, Some(gate));
    let send = |index| {
        let mut request = request(index);
        request.logprobs = None;
        world.generate(request)
    };
    let sent: Vec<_> = (0..REQUESTS).map(send).collect();
    // A request that arrived later would find no decode to share a step with.
    world.until_requests(sent.len()).await;
    drop(open);
    let outcomes = join_all(sent.into_iter().map(collect)).await;
    for (index, (got, (bits, _))) in outcomes.iter().zip(&expected).enumerate() {
        let tokens: Vec<u32> = bits.iter().map(|(token, _)| *token).collect();
        assert_eq!(got.tokens, tokens, "{setup}, mixed, request {index}");
    }
    let stats = world.assert_no_leaks().await;
    assert!(stats.mixed_steps > 0, "{setup}: {stats:?}");
    world.stop().await;
    all.merge(&tally);
}

#[tokio::test]
async fn drafts_between_mixed_steps_change_no_token() {
    if repeats_floats() {
        return;
    }
    let all = Tally::default();
    for run in 0..runs() {
        for (index, model) in FEW.into_iter().enumerate() {
            check_mixed(&plain(model, run), index + 5 * run, &all).await;
        }
    }
    let (accepted, rejected) = all.totals();
    assert!(
        accepted > 0 && rejected > 0,
        "{accepted} drafts accepted, {rejected} rejected"
    );
}

/// Checks requests that are retracted or preempted while their steps have drafts.
async fn check_retracted(setup: &Setup<'_>, number: usize) {
    let alone = start_plain(EngineConfig {
        disable_radix_cache: true,
        ..config(setup)
    });
    let mut expected = Vec::new();
    for index in 0..REQUESTS {
        expected.push(bits(alone.generate(long_request(index))).await);
    }
    alone.stop().await;
    let drafts = drafts_of(number, long_request, &expected);
    for (how, config) in configs_with_retractions(setup).into_iter().take(2) {
        let (open, gate) = crossbeam_channel::bounded(0);
        let (world, tally) = start(config, &drafts, Some(gate));
        let order = match how {
            "retracted" => first_of([15, 14], REQUESTS),
            _ => (0..REQUESTS).collect(),
        };
        let sent = match how {
            "retracted" => {
                let requests = order.iter().map(|index| long_request(*index));
                world.send_first_alone(requests).await
            }
            _ => send_lowest_priority_first(&world).await,
        };
        drop(open);
        let outputs = join_all(sent.into_iter().map(bits)).await;
        for (index, got) in order.iter().zip(outputs) {
            let what = format!("{setup}, {how}, request {index}");
            assert_eq!(got.0, expected[*index as usize].0, "{what}");
        }
        let stats = world.assert_no_leaks().await;
        let n_retracted = match how {
            "retracted" => stats.retractions,
            _ => stats.preemptions,
        };
        // Drafts end some outputs before the pool is full, in runs of the night.
        assert!(
            n_retracted > 0 || number > 0,
            "{setup}: no request was {how}: {stats:?}"
        );
        world.stop().await;
        assert_verified(number, &tally, &format!("{setup}, {how}"));
    }
}

#[tokio::test]
async fn drafts_of_retracted_and_preempted_requests_change_no_bit() {
    if repeats_floats() {
        return;
    }
    for run in 0..runs() {
        for (index, model) in FEW.into_iter().enumerate() {
            check_retracted(&plain(model, run), index + 5 * run).await;
        }
    }
}
