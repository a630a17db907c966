//! Tests of engines whose model is divided among CPU ranks: tokens, the KV store, and ranks that fail or hang.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::Receiver;
use futures_util::future::join_all;
use souffleur_base::error::StartError;
use souffleur_config::{DtypeChoice, EngineConfig, MaxRestarts};
use souffleur_engine::{Engine, EngineHandle, EngineParts, ModelInfo, Progress};
use souffleur_executor::cpu::{CpuOptions, load_ranks};
use souffleur_kernels::cpu::Numa;
use souffleur_kernels::cpu::ranks::{GroupRules, Moment};
use souffleur_kernels::shard::Rank;
use tempfile::TempDir;

use crate::identity::{plain, start};
use crate::kernel_paths::repeats_floats;
use crate::requests::{Bits, REQUESTS, at_once, bits, one_after_another, request};
use crate::store::{run_after_restart, run_and_store, stored};
use crate::world::World;

const QWEN3: &str = "tests/fixtures/models/qwen3";
/// More than a busy machine keeps a rank waiting, so that only planted faults end a step.
const LIMIT: Duration = Duration::from_secs(1);

async fn outputs(config: EngineConfig) -> Vec<(Bits, u32)> {
    let world = start(config);
    let outputs = at_once(&world).await;
    world.assert_no_leaks().await;
    world.stop().await;
    outputs
}

fn tokens(bits: &[(u32, u32)]) -> Vec<u32> {
    bits.iter().map(|(token, _)| *token).collect()
}

#[tokio::test]
async fn tokens_of_ranks_are_those_of_one_in_f32() {
    if repeats_floats() {
        return;
    }
    let (mut n_tokens, mut n_different) = (0, 0);
    for (model, counts) in [
        (QWEN3, &[2, 4][..]),
        ("tests/fixtures/models/qwen3-moe", &[2, 4]),
        ("tests/fixtures/models/deepseek-v2", &[4]),
        ("tests/fixtures/models/gpt-oss", &[2]),
        ("tests/fixtures/models/gemma4", &[4]),
        ("tests/fixtures/models/lfm2", &[2]),
        ("tests/fixtures/models/qwen3-5", &[2]),
        ("tests/fixtures/models/olmo2", &[4]),
    ] {
        let one = plain(model, DtypeChoice::Float32);
        let expected = outputs(one.clone()).await;
        for count in counts {
            let got = outputs(EngineConfig {
                tp_size: *count,
                ..one.clone()
            })
            .await;
            for ((ours, _), (one, _)) in got.iter().zip(&expected) {
                n_tokens += one.len();
                n_different += usize::from(tokens(ours) != tokens(one));
            }
        }
    }
    // Where the best two tokens are about as likely, rounding may decide.
    assert!(
        200 * n_different <= n_tokens,
        "{n_different} of {n_tokens} tokens"
    );
}

#[tokio::test]
async fn replicas_of_ranks_have_the_bits_of_one_group() {
    let ranks = EngineConfig {
        tp_size: 2,
        ..plain(QWEN3, DtypeChoice::Auto)
    };
    let expected = outputs(ranks.clone()).await;
    let got = outputs(EngineConfig {
        dp_size: 2,
        ..ranks
    })
    .await;
    for ((got, _), (expected, _)) in got.iter().zip(&expected) {
        assert_eq!(got, expected);
    }
}

#[test]
fn models_and_settings_that_ranks_cannot_share_are_refused_by_name() {
    let refusal = |config: EngineConfig| {
        let refused = Engine::start(config).err();
        refused.expect("it is refused").to_string()
    };
    let of_three = EngineConfig {
        tp_size: 3,
        ..plain(QWEN3, DtypeChoice::Auto)
    };
    let refused = refusal(of_three);
    assert!(
        refused.starts_with("tp_size is 3, but the model's num_attention_heads is 4"),
        "{refused}"
    );
    let blocks = EngineConfig {
        tp_size: 4,
        ..plain("tests/fixtures/models/gpt-oss-mxfp4", DtypeChoice::Auto)
    };
    let refused = refusal(blocks);
    assert!(refused.contains("in blocks of 32"), "{refused}");
}

#[tokio::test]
async fn stored_blocks_are_found_by_the_same_number_of_ranks_only() {
    for model in [
        QWEN3,
        "tests/fixtures/models/deepseek-v2",
        "tests/fixtures/models/lfm2",
    ] {
        let folder = TempDir::new().expect("a temporary folder");
        let on_ranks = |tp_size: usize| EngineConfig {
            tp_size,
            ..stored(model, folder.path(), 16)
        };
        let expected = run_and_store(on_ranks(2), 1).await;
        for others in [1, 4] {
            let (_, loaded) = run_after_restart(on_ranks(others), 1).await;
            assert_eq!(loaded, 0, "{model}, {others} ranks");
        }
        let (got, loaded) = run_after_restart(on_ranks(2), 1).await;
        assert_eq!((loaded, got), (128, expected), "{model}");
    }
}

#[derive(Clone, Copy)]
enum Fault {
    Panic,
    Hang,
}

/// A fault of one rank, at one of its next moments of a kind.
#[derive(Clone, Copy)]
struct Due {
    rank: usize,
    moment: Moment,
    /// Such moments of the rank before it.
    after: usize,
    fault: Fault,
}

/// The faults that a test plants, one after another. A rank hangs until the sender of `release` is dropped.
struct Faults {
    due: Mutex<VecDeque<Due>>,
    n_struck: AtomicUsize,
    release: Receiver<()>,
}

impl Faults {
    fn new(release: Receiver<()>) -> Arc<Self> {
        Arc::new(Self {
            due: Mutex::default(),
            n_struck: AtomicUsize::new(0),
            release,
        })
    }

    fn due(&self) -> MutexGuard<'_, VecDeque<Due>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plant(&self, due: Due) {
        self.due().push_back(due);
    }

    /// The first fault, if it is due now.
    fn take(&self, rank: Rank, moment: Moment) -> Option<Fault> {
        let mut all = self.due();
        let is_here = |due: &&mut Due| due.rank == rank.index() && due.moment == moment;
        let first = all.front_mut().filter(is_here)?;
        if first.after > 0 {
            first.after -= 1;
            return None;
        }
        all.pop_front().map(|due| due.fault)
    }

    fn n_struck(&self) -> usize {
        self.n_struck.load(Ordering::SeqCst)
    }

    fn strike(&self, rank: Rank, moment: Moment) {
        let Some(fault) = self.take(rank, moment) else {
            return;
        };
        self.n_struck.fetch_add(1, Ordering::SeqCst);
        match fault {
            Fault::Panic => panic!("planted in rank {}", rank.index()),
            Fault::Hang => {
                let _ = self.release.recv();
            }
        }
    }
}

/// The executor's options for the engine's model.
fn options(info: &ModelInfo) -> CpuOptions {
    CpuOptions {
        dtype: None,
        kv_dtype: None,
        quantization: None,
        load_format: Default::default(),
        n_pages: info.max_total_tokens / info.page_size,
        page_size: info.page_size,
        threads: 1,
        pin_threads: false,
        numa: Numa::Off,
        max_rows: info.max_running_requests,
        n_state_slots: 0,
        n_window_pages: 0,
        isa: None,
        shared_prefix: true,
        eos_token_ids: info.eos_token_ids.clone().into(),
        sparsity: None,
        speculation: None,
    }
}

/// An engine with two ranks that may have faults.
fn start_faulty(faults: &Arc<Faults>) -> Result<EngineHandle, StartError> {
    let config = EngineConfig {
        tp_size: 2,
        max_restarts: MaxRestarts {
            limit: 1000,
            period_s: 60,
        },
        rebuild_backoff_s: 0.0,
        ..plain(QWEN3, DtypeChoice::Auto)
    };
    let mut parts = EngineParts::from_model(&config, Progress::silent()).expect("the model exists");
    let (dir, options, faults) = (
        config.model_path.clone(),
        options(&parts.info),
        faults.clone(),
    );
    let rules = GroupRules {
        fault_hook: Some(Arc::new(move |rank: Rank, moment: Moment| {
            faults.strike(rank, moment);
        })),
        ..GroupRules::new(2, LIMIT)
    };
    parts.executor = Arc::new(move || {
        let ranks = load_ranks(&dir, &options, &rules, None, None, &mut |_, _| {})?;
        Ok(Box::new(ranks))
    });
    Engine::start_with(config, parts)
}

fn faulty(faults: &Arc<Faults>) -> World {
    World {
        engine: start_faulty(faults).expect("the model loads"),
    }
}

/// Runs four of the requests at once, and checks that each has its undisturbed output.
async fn serve(world: &World, first: u32, expected: &[(Bits, u32)]) {
    let indices = (first..first + 4).map(|index| index % REQUESTS);
    let runs = indices.map(async |index| (index, bits(world.generate(request(index))).await.0));
    for (index, got) in join_all(runs).await {
        assert_eq!(got, expected[index as usize].0, "request {index}");
    }
}

/// The number of faults, every 50th of which is a hang: `SOUFFLEUR_RANK_FAULTS=200 cargo test --test engine ranks`.
fn n_faults() -> u64 {
    let number = std::env::var("SOUFFLEUR_RANK_FAULTS").ok();
    number.map_or(50, |number| number.parse().expect("a number"))
}

#[tokio::test]
async fn ranks_that_fail_or_hang_lose_no_request() {
    let (hold, release) = crossbeam_channel::bounded(0);
    let faults = Faults::new(release);
    let world = faulty(&faults);
    let expected = one_after_another(&world).await;
    let mut n_hangs = 0;
    for seed in 0..n_faults() {
        let mut random = fastrand::Rng::with_seed(seed);
        let fault = match seed % 50 {
            49 => Fault::Hang,
            _ => Fault::Panic,
        };
        n_hangs += u64::from(matches!(fault, Fault::Hang));
        faults.plant(Due {
            rank: random.usize(..2),
            moment: Moment::Collective,
            // Fewer than the steps of the shortest request have.
            after: random.usize(..20),
            fault,
        });
        serve(&world, random.u32(..REQUESTS), &expected).await;
        assert_eq!(faults.n_struck() as u64, seed + 1, "a fault in each run");
    }
    let restarts = world.engine.unit_status().restarts;
    assert_eq!(
        (restarts.executor, restarts.control),
        (n_hangs, 0),
        "only a rank that hangs costs the executor"
    );
    world.assert_no_leaks().await;
    world.stop().await;
    drop(hold);
}

#[tokio::test]
async fn a_rank_that_fails_in_the_load_is_named_or_loaded_again() {
    let (hold, release) = crossbeam_channel::bounded(0);
    let faults = Faults::new(release);
    let in_load = Due {
        rank: 1,
        moment: Moment::Load,
        after: 0,
        fault: Fault::Panic,
    };
    faults.plant(in_load);
    let refused = start_faulty(&faults).err().expect("a rank fails");
    let refused = refused.to_string();
    assert!(
        refused.contains("rank 1 panicked in the load: planted"),
        "{refused}"
    );
    let world = faulty(&faults);
    let expected = one_after_another(&world).await;
    faults.plant(Due {
        rank: 0,
        moment: Moment::Collective,
        after: 9,
        fault: Fault::Hang,
    });
    // Strikes while the model is loaded after the hang.
    faults.plant(in_load);
    serve(&world, 3, &expected).await;
    assert_eq!(faults.n_struck(), 3);
    world.assert_no_leaks().await;
    world.stop().await;
    drop(hold);
}
