//! Tests that the output of a request is bit for bit the same under any schedule: alone or in a batch of 16, with and
//! without a prefix hit, with any chunk size and page size, in mixed steps, across retractions, preemptions and changes
//! of policies.
//!
//! Real models run on the CPU executor; the tests compare tokens and the bits of log probabilities. Requests for log
//! probabilities never join mixed steps, so for mixed steps only tokens are compared; `tests/models` compares the bits
//! of their logits.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crossbeam_channel::Receiver;
use futures_util::future::join_all;
use souffleur_actors::messages::SetPolicy;
use souffleur_config::{DtypeChoice, EngineConfig, KvCacheDtype};
use souffleur_engine::{Engine, EngineParts, Generation, Progress};
use souffleur_kernels::dtype::Quantization;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::scheduler::policy::schedule_policy_names;

use crate::kernel_paths::{is_repeated, repeats_floats};
use crate::quantised::{kinds, quantise_linear};
use crate::random_models::{edit_config, random_folder, random_tensors, write_tensors};
use crate::requests::{
    Bits, REQUESTS, SHARED_TOKENS, at_once, bits, first_of, long_request, one_after_another,
    request,
};
use crate::world::{Gated, World, collect, within};

pub const MODELS: [&str; 18] = [
    "models/souffleur-tiny",
    "tests/fixtures/models/llama",
    "tests/fixtures/models/mistral",
    "tests/fixtures/models/qwen2",
    "tests/fixtures/models/qwen3",
    "tests/fixtures/models/qwen3-moe",
    "tests/fixtures/models/qwen3-vl",
    "tests/fixtures/models/lfm2",
    "tests/fixtures/models/qwen3-5",
    "tests/fixtures/models/qwen3-next",
    "tests/fixtures/models/deepseek-v2",
    "tests/fixtures/models/glm4-moe-lite",
    "tests/fixtures/models/gpt-oss",
    "tests/fixtures/models/gemma2",
    "tests/fixtures/models/gemma4",
    "tests/fixtures/models/granite",
    "tests/fixtures/models/olmo2",
    "tests/fixtures/models/phi3-longrope",
];

/// Models with recurrent states, on which a prompt resumes only from a saved state.
const WITH_STATES: [&str; 3] = ["lfm2", "qwen3-5", "qwen3-next"];

/// Maximum running requests in the configurations with priorities.
const RUNNING: u32 = 4;

/// A model, and the data types of its weights and K/V.
#[derive(Clone, Copy, Debug)]
pub struct Setup<'a> {
    /// The model's folder: absolute, or relative to the repository.
    pub model: &'a str,
    pub dtype: DtypeChoice,
    pub quantization: Option<Quantization>,
    pub kv: KvCacheDtype,
    pub ranks: usize,
}

impl fmt::Display for Setup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {:?}", self.model, self.dtype)?;
        if let Some(quantization) = self.quantization {
            write!(f, ", {quantization:?}")?;
        }
        match self.kv {
            KvCacheDtype::Auto => {}
            kv => write!(f, ", KV in {kv:?}")?,
        }
        match self.ranks {
            1 => Ok(()),
            ranks => write!(f, ", {ranks} ranks"),
        }
    }
}

/// The configuration of a model without further quantisation of its weights and K/V.
pub fn plain(model: &str, dtype: DtypeChoice) -> EngineConfig {
    let quantization = None;
    config(&Setup {
        model,
        dtype,
        quantization,
        kv: KvCacheDtype::Auto,
        ranks: 1,
    })
}

pub fn config(setup: &Setup<'_>) -> EngineConfig {
    let model_path: PathBuf =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(setup.model);
    EngineConfig {
        model_path,
        dtype: setup.dtype,
        quantization: setup.quantization,
        kv_cache_dtype: setup.kv,
        tp_size: setup.ranks,
        skip_tokenizer_init: true,
        max_total_tokens: Some(4096),
        max_running_requests: Some(16),
        context_length: Some(256),
        threads: 1,
        ..EngineConfig::default()
    }
}

pub fn start(config: EngineConfig) -> World {
    World {
        engine: Engine::start(config).expect("the model loads"),
    }
}

/// Like [`start`], but the engine runs no step before the gate's sender is dropped.
pub fn start_gated(gate: Receiver<()>, config: EngineConfig) -> World {
    let mut parts = EngineParts::from_model(&config, Progress::silent()).expect("the model exists");
    let executor = parts.executor.clone();
    parts.executor = Arc::new(move || {
        Ok(Box::new(Gated {
            inner: executor()?,
            gate: Some(gate.clone()),
        }))
    });
    World {
        engine: Engine::start_with(config, parts).expect("the model loads"),
    }
}

pub fn assert_same(got: &[(Bits, u32)], expected: &[(Bits, u32)], what: &str) {
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        assert_eq!(got.0, expected.0, "{what}, request {index}");
    }
}

/// The outputs of all requests, each alone in an engine without a prefix cache.
pub async fn reference(setup: &Setup<'_>) -> Vec<(Bits, u32)> {
    let world = start(EngineConfig {
        disable_radix_cache: true,
        threads: 2,
        ..config(setup)
    });
    let all = one_after_another(&world).await;
    assert!(all.iter().all(|(_, cached)| *cached == 0));
    world.assert_no_leaks().await;
    world.stop().await;
    all
}

async fn check(setup: &Setup<'_>) {
    let what = |how: &str| format!("{setup}, {how}");
    let expected = reference(setup).await;
    let distinct: std::collections::HashSet<&Bits> =
        expected.iter().map(|(bits, _)| bits).collect();
    assert_eq!(distinct.len(), expected.len(), "some outputs are equal");

    let world = start(EngineConfig {
        threads: 2,
        ..config(setup)
    });
    let hit = one_after_another(&world).await;
    let has_states = setup
        .model
        .rsplit('/')
        .any(|name| WITH_STATES.contains(&name));
    // The shared prefix is too short for a saved recurrent state.
    assert!(has_states || hit[1..].iter().all(|(_, cached)| *cached >= SHARED_TOKENS));
    assert_same(&hit, &expected, &what("with prefix hits"));
    let again = at_once(&world).await;
    assert!(again.iter().all(|(_, cached)| *cached >= SHARED_TOKENS));
    assert_same(&again, &expected, &what("in a batch, all cached"));
    world.assert_no_leaks().await;
    world.stop().await;

    for (chunk, page_size) in [(1, 1), (7, 1), (32, 16), (64, 24), (64, 64)] {
        let chunked = EngineConfig {
            chunked_prefill_size: chunk,
            page_size,
            ..config(setup)
        };
        let world = start(chunked);
        let how = format!("in a batch, chunks of {chunk}, pages of {page_size}");
        assert_same(&at_once(&world).await, &expected, &what(&how));
        world.assert_no_leaks().await;
        world.stop().await;
    }

    let timed = EngineConfig {
        max_prefill_step_ms: 1,
        ..config(setup)
    };
    let world = start(timed);
    let how = what("in a batch, prefill steps of at most 1 ms");
    assert_same(&at_once(&world).await, &expected, &how);
    world.assert_no_leaks().await;
    world.stop().await;

    check_mixed(setup, &expected).await;
    // A retracted request is prefilled again; `tests/models` compares the bits of that on each kernel path.
    if !is_repeated() {
        check_retracted(setup).await;
    }
}

async fn check_mixed(setup: &Setup<'_>, expected: &[(Bits, u32)]) {
    for (chunk, page_size) in [(20, 1), (48, 16)] {
        let (open, gate) = crossbeam_channel::bounded(0);
        let mixed = EngineConfig {
            enable_mixed_chunk: true,
            chunked_prefill_size: chunk,
            page_size,
            ..config(setup)
        };
        let world = start_gated(gate, mixed);
        let send = |index| {
            let mut request = request(index);
            request.logprobs = None;
            world.generate(request)
        };
        let sent: Vec<_> = (0..REQUESTS).map(send).collect();
        // A request that arrived later would find no decode to share a step with.
        world.until_requests(sent.len()).await;
        drop(open);
        let how = format!("{setup}, mixed, chunks of {chunk}, pages of {page_size}");
        let outcomes = join_all(sent.into_iter().map(collect)).await;
        for (index, got) in outcomes.iter().enumerate() {
            let tokens: Vec<u32> = expected[index].0.iter().map(|(token, _)| *token).collect();
            assert_eq!(got.tokens, tokens, "{how}, request {index}");
        }
        let stats = world.assert_no_leaks().await;
        assert!(stats.mixed_steps > 0, "{how}: {stats:?}");
        world.stop().await;
    }
}

/// Configurations in which requests are retracted, preempted or evicted, each with its name.
pub fn configs_with_retractions(setup: &Setup<'_>) -> [(&'static str, EngineConfig); 3] {
    let tight = EngineConfig {
        // Each of the longest two requests fits alone, but both together do not.
        max_total_tokens: Some(340),
        // Admits all prompts in one step, even on a slow machine.
        max_prefill_step_ms: 0,
        schedule_conservativeness: 0.01,
        ..config(setup)
    };
    let preempting = EngineConfig {
        enable_priority_scheduling: true,
        max_running_requests: Some(RUNNING as usize),
        ..config(setup)
    };
    let swapping = EngineConfig {
        max_total_tokens: Some(800),
        ..preempting.clone()
    };
    [
        ("retracted", tight),
        ("preempted", preempting),
        ("evicted between swaps of the policies", swapping),
    ]
}

/// Checks requests that are retracted or preempted and computed again.
async fn check_retracted(setup: &Setup<'_>) {
    let alone = start(EngineConfig {
        disable_radix_cache: true,
        ..config(setup)
    });
    let mut expected = Vec::new();
    for index in 0..REQUESTS {
        expected.push(bits(alone.generate(long_request(index))).await);
    }
    alone.stop().await;
    for (how, config) in configs_with_retractions(setup) {
        let (open, gate) = crossbeam_channel::bounded(0);
        let world = start_gated(gate, config);
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
        let shared_world = &world;
        let runs = order.into_iter().zip(sent);
        let runs = runs.map(async |(index, generation)| {
            let got = bits(generation).await;
            if how.contains("swaps") {
                // The other requests run or wait meanwhile.
                swap_policies(shared_world, index as usize).await;
            }
            (index, got)
        });
        let mut got = join_all(runs).await;
        got.sort_by_key(|(index, _)| *index);
        let stats = world.assert_no_leaks().await;
        let n_retracted = match how {
            "retracted" => stats.retractions,
            "preempted" => stats.preemptions,
            _ => stats.preemptions.min(stats.evicted_tokens),
        };
        assert!(n_retracted > 0, "{setup}: no request was {how}: {stats:?}");
        world.stop().await;
        let got: Vec<_> = got.into_iter().map(|(_, got)| got).collect();
        assert_same(&got, &expected, &format!("{setup}, {how}"));
    }
}

/// Sends all requests. The requests of the lowest priority are in the first step, which waits at a gate.
pub async fn send_lowest_priority_first(world: &World) -> Vec<Generation> {
    let mut sent = Vec::new();
    for index in 0..REQUESTS {
        if index == RUNNING {
            // If all requests were sent together, those of the highest priority would run first.
            world.until(|stats| stats.running_requests > 0).await;
        }
        let mut request = long_request(index);
        request.priority = Some(i64::from(index / RUNNING) * 100);
        sent.push(world.generate(request));
    }
    world.until_requests(sent.len()).await;
    sent
}

async fn swap_policies(world: &World, number: usize) {
    let schedules: Vec<&str> = schedule_policy_names().collect();
    let evictions: Vec<&str> = EvictionPolicy::names().collect();
    let schedule = schedules[number % schedules.len()];
    let eviction = evictions[number % evictions.len()];
    let swap = SetPolicy {
        schedule_policy: Some(schedule.to_owned()),
        radix_eviction_policy: Some(eviction.to_owned()),
    };
    let set = within(world.engine.set_policy(swap)).await;
    let set = set.expect("the policies exist");
    assert_eq!(
        (set.schedule_policy, set.radix_eviction_policy),
        (schedule, eviction)
    );
}

async fn check_all(dtype: DtypeChoice) {
    if repeats_floats() {
        return;
    }
    for model in MODELS {
        let setup = Setup {
            model,
            dtype,
            quantization: None,
            kv: KvCacheDtype::Auto,
            ranks: 1,
        };
        check(&setup).await;
    }
}

#[tokio::test]
async fn schedules_change_no_bit_in_f32() {
    check_all(DtypeChoice::Float32).await;
}

#[tokio::test]
async fn schedules_change_no_bit_in_bf16() {
    check_all(DtypeChoice::Bfloat16).await;
}

/// Fewer key heads than ranks, experts, latent attention, states, norms over all heads of a token, and 4-bit blocks.
#[tokio::test]
async fn schedules_change_no_bit_on_ranks() {
    if is_repeated() {
        return;
    }
    let awq = awq_model();
    let awq = awq.path().to_str().expect("the path is UTF-8");
    for (model, ranks) in [
        ("tests/fixtures/models/qwen3", 4),
        ("tests/fixtures/models/qwen3-moe", 2),
        ("tests/fixtures/models/deepseek-v2", 2),
        ("tests/fixtures/models/qwen3-5", 2),
        ("tests/fixtures/models/olmo2", 2),
        (awq, 2),
    ] {
        let setup = Setup {
            model,
            dtype: DtypeChoice::Bfloat16,
            quantization: None,
            kv: KvCacheDtype::Auto,
            ranks,
        };
        check(&setup).await;
    }
}

/// A random model with AWQ weights: 4-bit blocks with scales and zero points.
fn awq_model() -> tempfile::TempDir {
    let dir = random_folder("qwen3", &[("hidden_size", 128), ("intermediate_size", 128)]);
    let mut kinds = kinds().into_iter();
    let (_, config, quantise) = kinds.find(|(name, ..)| *name == "awq").expect("a kind");
    let mut tensors = random_tensors(dir.path());
    let coded = quantise_linear(&mut tensors, quantise, |_, _| ());
    write_tensors(dir.path(), &coded);
    edit_config(dir.path(), |json| {
        json["quantization_config"] = config.clone();
    });
    dir
}

/// One model for each kind of integer kernel; `tests/models` covers all block formats.
#[tokio::test]
async fn schedules_change_no_bit_in_quantised_models() {
    let awq = awq_model();
    let awq = awq.path().to_str().expect("the path is UTF-8");
    for (model, quantization) in [
        ("models/souffleur-tiny", Some(Quantization::Int8)),
        ("tests/fixtures/models/qwen3-moe", Some(Quantization::Int4)),
        (awq, None),
    ] {
        let setup = Setup {
            model,
            dtype: DtypeChoice::Bfloat16,
            quantization,
            kv: KvCacheDtype::Auto,
            ranks: 1,
        };
        check(&setup).await;
    }
}

#[tokio::test]
async fn schedules_change_no_bit_with_kv_in_int8() {
    for model in [
        "models/souffleur-tiny",
        "tests/fixtures/models/deepseek-v2-grouped",
        "tests/fixtures/models/qwen3-5",
    ] {
        let setup = Setup {
            model,
            dtype: DtypeChoice::Bfloat16,
            quantization: None,
            kv: KvCacheDtype::Int8,
            ranks: 1,
        };
        check(&setup).await;
    }
}
