//! Tests of models that are divided among CUDA ranks, each on an emulated GPU of its own, over the emulated NCCL.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use souffleur_base::error::{LoadError, StepError};
use souffleur_config::{Device as Wanted, EngineConfig, Gpus};
use souffleur_cusim::{Device as Emulated, Fault};
use souffleur_engine::{Engine, EngineParts, Progress};
use souffleur_executor::cuda::{CudaOptions, LoadModules, check_model, load_ranks};
use souffleur_executor::{Executor, Ranks};
use souffleur_kernels::cpu::ranks::GroupRules;
use souffleur_kernels::cuda::driver::{Claim, Device};
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_model::config::ModelConfig;
use souffleur_model::loader::LoadFormat;
use souffleur_request::{Event, GenerateRequest, Prompt};
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::scheduler::tier::TierStats;
use souffleur_state::step::{StepOutput, StepPlan};
use tempfile::TempDir;

use crate::common::{append, decode, greedy, options, plan, prefill, start, tokens};
use crate::device_loss::is_skipped;
use crate::gpu;
use crate::model::fixture;
use crate::requests::{Bits, VOCAB, bits, first_of, request};
use crate::scores::Reference;
use crate::setups::{F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16, Setup};
use crate::world::{Gated, World, collect};

const PROMPT_TOKENS: u32 = 20;
const DECODES: u32 = 4;
const ROW: u32 = 3;
/// Token ids of prompts, less than any vocabulary here has.
const TOKENS: u32 = 280;
/// Largest difference of log probabilities, in f32.
const TOLERANCE: f32 = 1e-4;
/// More than a rank of a test ever waits.
const LONG: Duration = Duration::from_secs(600);
/// Free memory of an emulated GPU, more than the reserve of a memory plan.
const TOTAL_BYTES: u64 = 8 << 30;

/// Emulated GPUs that no other test uses, with the emulated NCCL.
pub fn gpus(count: usize) -> Vec<usize> {
    souffleur_cusim::load_nccl();
    let ordinals: Vec<usize> = (0..count).map(|_| gpu::unused()).collect();
    for ordinal in &ordinals {
        Emulated::new(*ordinal).set_total_memory(TOTAL_BYTES);
    }
    ordinals
}

/// An engine's claims on GPUs.
pub fn claims(gpus: &[usize]) -> Vec<Claim> {
    gpus.iter().map(|ordinal| Claim::new(*ordinal)).collect()
}

/// Loads a model on ranks, each on one of the emulated GPUs.
pub fn load(
    gpus: &[Claim],
    dir: &Path,
    options: &CudaOptions,
    rules: &GroupRules,
) -> Result<Ranks, LoadError> {
    let devices = gpus.iter().map(Claim::open);
    let devices = devices.collect::<Result<Vec<Device>, _>>();
    let devices = devices.map_err(|error| error.to_load_error())?;
    let devices = (devices, gpu::kernels as LoadModules);
    load_ranks(devices, dir, options, rules, None, None, &mut |_, _| {})
}

/// Options with one graph.
fn few_graphs() -> CudaOptions {
    CudaOptions {
        graph_rows: 1,
        ..options()
    }
}

/// The models that CUDA runs, one for each family with its kinds of windows and biases.
fn models() -> Vec<String> {
    let folder = fixture("");
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<String> = names.collect();
    let mut kinds = BTreeSet::new();
    let is_new = |name: &String| {
        let config = ModelConfig::read(&fixture(name)).unwrap();
        let ModelConfig {
            architecture,
            windows,
            bias,
            tie_word_embeddings,
            ..
        } = &config;
        let kind = format!("{architecture:?} {windows:?} {bias:?} {tie_word_embeddings}");
        check_model(&config).is_ok() && kinds.insert(kind)
    };
    names.into_iter().filter(is_new).collect()
}

/// Prefills a prompt in chunks, and decodes.
fn steps(chunk: u32) -> Vec<StepPlan> {
    let prompt = tokens(1, PROMPT_TOKENS as usize, TOKENS);
    let wish = Arc::new(LogprobWish {
        start: Some(0),
        top: 2,
        ..Default::default()
    });
    let chunks = (0..PROMPT_TOKENS).step_by(chunk as usize).map(|first| {
        let end = PROMPT_TOKENS.min(first + chunk);
        prefill(ROW, first..end, end == PROMPT_TOKENS)
    });
    let decodes = (0..DECODES).map(|index| decode(ROW, PROMPT_TOKENS + index));
    let rows = chunks.chain(decodes).enumerate();
    let steps = rows.map(|(number, mut row)| {
        let mut step = plan(number as u64);
        if number == 0 {
            step.starts = vec![start(ROW, &prompt, prompt.len(), &greedy())];
            step.table = vec![append(ROW, 1..PROMPT_TOKENS + DECODES + 2)];
        }
        row.logprobs = Some(wish.clone());
        step.rows = vec![row];
        step
    });
    steps.collect()
}

fn run_all(ranks: &mut Ranks, steps: &[StepPlan]) -> Result<Vec<StepOutput>, StepError> {
    steps.iter().map(|step| ranks.run(step)).collect()
}

/// The log probabilities of the prompt's tokens, and of the greedy outputs with their alternatives.
fn outcome(executor: &mut impl Executor, steps: &[StepPlan]) -> [Vec<TokenLogprobs>; 2] {
    let [mut input, mut output] = [Vec::new(), Vec::new()];
    for step in steps {
        let mut result = executor.run(step).unwrap();
        let logprobs = result.rows[0].logprobs.take().unwrap();
        input.extend(logprobs.input);
        output.extend(logprobs.output);
        executor.recycle(result.rows);
    }
    [input, output]
}

/// Compares log probabilities up to the first near tie that ranks decide otherwise. Returns the numbers of outputs, and
/// of such ties.
fn check_equal(
    ours: &[Vec<TokenLogprobs>; 2],
    one: &[Vec<TokenLogprobs>; 2],
    about: &str,
) -> (usize, usize) {
    let check = |ours: &TokenLogprobs, one: &TokenLogprobs| {
        let difference = ours.logprob.unwrap() - one.logprob.unwrap();
        assert!(difference.abs() <= TOLERANCE, "{about}: {ours:?}, {one:?}");
    };
    assert_eq!(ours[0].len(), one[0].len());
    for (ours, one) in ours[0].iter().zip(&one[0]) {
        check(ours, one);
    }
    assert_eq!(ours[1].len(), one[1].len());
    for (number, (ours, one)) in (1..).zip(ours[1].iter().zip(&one[1])) {
        if ours.token != one.token {
            let margin = one.top[0].1 - one.top[1].1;
            assert!(margin <= 2.0 * TOLERANCE, "{about}: {ours:?}, {one:?}");
            return (number, 1);
        }
        check(ours, one);
    }
    (ours[1].len(), 0)
}

#[test]
fn every_family_gives_on_ranks_what_it_gives_on_one() {
    if is_skipped() {
        return;
    }
    let (mut n_outputs, mut n_ties, mut n_models) = (0, 0, [0, 0]);
    for name in models() {
        let mut one = crate::common::load(&name, &few_graphs());
        let expected = outcome(&mut one, &steps(PROMPT_TOKENS));
        for (index, count) in [2, 4].into_iter().enumerate() {
            let rules = GroupRules::new(count, LONG);
            let gpus = claims(&gpus(count));
            let ranks = load(&gpus, &fixture(&name), &few_graphs(), &rules);
            let mut ranks = match ranks {
                Ok(ranks) => ranks,
                Err(error) => {
                    let error = error.to_string();
                    assert!(error.starts_with("tp_size is 4"), "{name}: {error}");
                    continue;
                }
            };
            n_models[index] += 1;
            let ours = outcome(&mut ranks, &steps(7));
            let about = format!("{name} on {count} ranks");
            let (outputs, ties) = check_equal(&ours, &expected, &about);
            n_outputs += outputs;
            n_ties += ties;
        }
    }
    assert!(n_models[0] > 4 && n_models[1] > 4, "{n_models:?}");
    assert!(200 * n_ties <= n_outputs, "{n_ties} of {n_outputs} outputs");
}

/// A model with random weights, whose vocabulary no ranks can share equally.
fn with_odd_vocabulary() -> TempDir {
    let dir = TempDir::new().unwrap();
    let config = fs::read_to_string(fixture("llama").join("config.json")).unwrap();
    let odd = config.replace("\"vocab_size\": 288", "\"vocab_size\": 287");
    assert_ne!(odd, config);
    fs::write(dir.path().join("config.json"), odd).unwrap();
    dir
}

#[test]
fn a_vocabulary_that_does_not_divide_is_padded() {
    if is_skipped() {
        return;
    }
    let dir = with_odd_vocabulary();
    let options = CudaOptions {
        load_format: LoadFormat::Dummy,
        ..few_graphs()
    };
    let mut one = crate::setups::load(dir.path(), &options);
    let expected = outcome(&mut one, &steps(PROMPT_TOKENS));
    for count in [2, 4] {
        let gpus = claims(&gpus(count));
        let ranks = load(&gpus, dir.path(), &options, &GroupRules::new(count, LONG));
        let ours = outcome(&mut ranks.unwrap(), &steps(7));
        check_equal(&ours, &expected, &format!("{count} ranks"));
    }
}

#[test]
fn calls_of_ranks_that_differ_are_named_with_both_ranks() {
    if is_skipped() {
        return;
    }
    let (gpus, rules) = (gpus(2), GroupRules::new(2, LONG));
    let ranks = load(&claims(&gpus), &fixture("llama"), &few_graphs(), &rules);
    let mut ranks = ranks.unwrap();
    let plans = steps(7);
    ranks.run(&plans[0]).unwrap();
    Emulated::new(gpus[1]).plan(Fault::CollectiveMismatch, 3);
    let error = run_all(&mut ranks, &plans[1..]).unwrap_err();
    let StepError::Lost(reason) = &error else {
        panic!("{error}");
    };
    for rank in ["rank 0 calls all-reduce", "rank 1 calls all-reduce"] {
        assert!(reason.contains(rank), "{reason}");
    }
    assert!(ranks.is_lost());
    let lost = ranks.reset().unwrap_err();
    assert_eq!(lost.to_string(), *reason);
}

/// A configuration for ranks on emulated GPUs, as the command starts them.
fn on_ranks(setup: &Setup, gpus: &[usize], model: &Path) -> EngineConfig {
    EngineConfig {
        device: Wanted::Cuda(Gpus::Listed(gpus.to_vec())),
        tp_size: gpus.len(),
        gemm: GemmWish::Own,
        cuda_graph_max_bs: 6,
        ..setup.config(model)
    }
}

fn start_engine(config: EngineConfig) -> World {
    World {
        engine: Engine::start(config).expect("the model loads"),
    }
}

/// Runs some requests one after another, so that the later ones find the prefix of the first, and then at once.
async fn check_requests(count: usize, requests: u32) {
    let (setup, model) = (F32_PAGES_OF_1_GRAPHS, fixture("llama"));
    let reference = Reference::new(&setup, &model, (request, requests)).await;
    let world = start_engine(on_ranks(&setup, &gpus(count), &model));
    for index in 0..requests {
        let (got, cached) = bits(world.generate(request(index))).await;
        assert_eq!(index > 0, cached > 0);
        reference.check(&setup, index, &got, "alone").await;
    }
    let sent: Vec<_> = (0..requests)
        .map(|index| world.generate(request(index)))
        .collect();
    for (index, (got, _)) in (0..).zip(join_all(sent.into_iter().map(bits)).await) {
        reference.check(&setup, index, &got, "in a batch").await;
    }
    world.assert_no_leaks().await;
    world.stop().await;
    reference.stop().await;
}

#[tokio::test]
async fn cold_and_cached_requests_have_their_outputs_on_two_ranks() {
    if !is_skipped() {
        check_requests(2, 5).await;
    }
}

#[tokio::test]
async fn fewer_key_heads_than_ranks_are_replicated() {
    if !is_skipped() {
        check_requests(4, 3).await;
    }
}

/// A short prompt, and an output of which the scheduler reserves only a part.
fn growing(index: u32) -> GenerateRequest {
    let prompt = (1..20).map(|i| (i * 7 + index * 19) % VOCAB).collect();
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 60;
    sampling.min_new_tokens = 60;
    sampling.sampling_seed = Some(u64::from(index));
    sampling.temperature = 0.0;
    request
}

#[tokio::test]
async fn retracted_and_chunked_requests_have_their_outputs_on_ranks() {
    const N: u32 = 4;
    if is_skipped() {
        return;
    }
    let (setup, model) = (F32_PAGES_OF_1_GRAPHS, fixture("qwen3"));
    let reference = Reference::new(&setup, &model, (growing, N)).await;
    let config = EngineConfig {
        // Enough for one request, and not for two.
        max_total_tokens: Some(120),
        chunked_prefill_size: 16,
        // As in the tests of retraction on one GPU.
        max_prefill_step_ms: 0,
        schedule_conservativeness: 0.01,
        ..on_ranks(&setup, &gpus(2), &model)
    };
    let mut parts = EngineParts::from_model(&config, Progress::silent()).unwrap();
    let (open, gate) = crossbeam_channel::bounded(0);
    let make = parts.executor.clone();
    parts.executor = Arc::new(move || {
        let (inner, gate) = (make()?, Some(gate.clone()));
        Ok(Box::new(Gated { inner, gate }))
    });
    let world = World {
        engine: Engine::start_with(config, parts).expect("the model loads"),
    };
    let order = first_of([0], N);
    let sent = order.iter().map(|index| growing(*index));
    let sent = world.send_first_alone(sent).await;
    drop(open);
    let outputs = join_all(sent.into_iter().map(bits)).await;
    let stats = world.assert_no_leaks().await;
    assert!(stats.retractions > 0, "{stats:?}");
    world.stop().await;
    for (index, (got, _)) in order.into_iter().zip(&outputs) {
        reference.check(&setup, index, got, "retracted").await;
    }
    reference.stop().await;
}

#[tokio::test]
async fn replicas_of_ranks_answer_as_one_group() {
    if is_skipped() {
        return;
    }
    let (setup, model) = (F32_PAGES_OF_1_GRAPHS, fixture("llama"));
    let serve = async |world: &World| {
        let sent: Vec<_> = (0..4).map(|index| world.generate(request(index))).collect();
        let outcomes = join_all(sent.into_iter().map(collect)).await;
        let tokens = outcomes.into_iter().map(|outcome| {
            assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
            outcome.tokens
        });
        tokens.collect::<Vec<Vec<u32>>>()
    };
    let mut expected = None;
    for dp_size in [1, 2] {
        let config = EngineConfig {
            tp_size: 2,
            dp_size,
            ..on_ranks(&setup, &gpus(2 * dp_size), &model)
        };
        let world = start_engine(config);
        let got = serve(&world).await;
        assert_eq!(got, *expected.get_or_insert_with(|| got.clone()));
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[test]
fn the_gpu_with_the_least_memory_decides_the_pool_of_all_ranks() {
    if is_skipped() {
        return;
    }
    let pool = |memories: [u64; 2]| {
        let gpus = gpus(2);
        for (ordinal, bytes) in gpus.iter().zip(memories) {
            Emulated::new(*ordinal).set_total_memory(bytes);
        }
        let config = EngineConfig {
            max_total_tokens: None,
            ..on_ranks(&F32_PAGES_OF_16, &gpus, &fixture("llama"))
        };
        let parts = EngineParts::from_model(&config, Progress::silent()).unwrap();
        let of_gpus = parts.gpus.iter().map(|gpu| gpu.memory.max_total_tokens);
        (
            parts.info.max_total_tokens as u64,
            of_gpus.collect::<Vec<u64>>(),
        )
    };
    let (small, _) = pool([TOTAL_BYTES, TOTAL_BYTES]);
    let (large, _) = pool([2 * TOTAL_BYTES, 2 * TOTAL_BYTES]);
    assert!(small < large);
    let (unequal, of_gpus) = pool([2 * TOTAL_BYTES, TOTAL_BYTES]);
    assert_eq!((unequal, of_gpus), (small, vec![large, small]));
}

#[test]
fn models_that_ranks_cannot_share_are_refused_by_name() {
    if is_skipped() {
        return;
    }
    let refusal = |gpus: &[usize], model: &str, tp_size| {
        let config = EngineConfig {
            tp_size,
            ..on_ranks(&F32_PAGES_OF_16, gpus, &fixture(model))
        };
        let refused = EngineParts::from_model(&config, Progress::silent()).err();
        refused.expect("it is refused").to_string()
    };
    let three = refusal(&gpus(3), "llama", 3);
    assert!(
        three.starts_with("tp_size is 3, but the model's num_attention_heads is 4"),
        "{three}"
    );
    let without_kernels = refusal(&gpus(2), "gemma2", 2);
    assert!(
        without_kernels.ends_with("start with --device cpu"),
        "{without_kernels}"
    );
    // The first of two GPUs, of which the driver has only one.
    let last = usize::MAX >> 40;
    let missing = refusal(&[last], "llama", 2);
    assert!(missing.contains("there is no GPU"), "{missing}");
}

fn tier(stats: &EngineStats) -> TierStats {
    stats.store.expect("the engine has a store")
}

/// Runs a prompt of two blocks and some tokens on a new engine. Returns its output, and the tokens that were loaded.
async fn run_with_store(folder: &Path, count: usize, blocks: u64) -> (Bits, u64) {
    let config = EngineConfig {
        kv_disk_path: Some(folder.to_owned()),
        kv_disk_bytes: 1 << 28,
        kv_host_bytes: Some(1 << 24),
        ..on_ranks(&F32_PAGES_OF_16, &gpus(count), &fixture("llama"))
    };
    let world = start_engine(config);
    world.until(|stats| tier(stats).serves).await;
    let prompt = (0..150).map(|i| (i * 17 + 5 + i / 7) % VOCAB);
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt.collect()));
    request.logprobs = Some(LogprobWish::default());
    request.sampling.max_new_tokens = 8;
    request.sampling.ignore_eos = true;
    request.sampling.temperature = 0.0;
    let (output, _) = bits(world.generate(request)).await;
    let is_written = |stats: &EngineStats| {
        let tier = tier(stats);
        let is_idle = tier.queued_paths == 0 && tier.free_buffers == tier.buffers;
        tier.saved_blocks >= blocks && is_idle
    };
    world.until(is_written).await;
    let stats = world.assert_no_leaks().await;
    world.stop().await;
    (output, tier(&stats).loaded_tokens)
}

#[tokio::test]
async fn stored_blocks_are_found_by_the_same_number_of_ranks_only() {
    if is_skipped() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let (expected, loaded) = run_with_store(folder.path(), 2, 2).await;
    assert_eq!(loaded, 0);
    let (_, loaded) = run_with_store(folder.path(), 4, 0).await;
    assert_eq!(loaded, 0);
    let (got, loaded) = run_with_store(folder.path(), 2, 0).await;
    assert_eq!((loaded, got), (128, expected));
}
