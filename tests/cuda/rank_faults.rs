//! Tests of CUDA ranks that fail, hang or end: in a step, in the load, and in the recording of a graph. The others end
//! in time, the engine goes on, and no request is lost.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use futures_util::future::join_all;
use souffleur_base::error::StartError;
use souffleur_config::{EngineConfig, MaxRestarts};
use souffleur_cusim::{Device as Emulated, Fault as DeviceFault};
use souffleur_engine::{Engine, EngineHandle, EngineParts, Progress};
use souffleur_executor::cuda::CudaOptions;
use souffleur_kernels::cpu::ranks::{GroupRules, Moment};
use souffleur_kernels::shard::Rank;
use souffleur_request::{Event, GenerateRequest, Prompt};

use crate::device_loss::{ILLEGAL_ADDRESS, is_skipped};
use crate::model::fixture;
use crate::ranks::{claims, gpus, load};
use crate::requests::VOCAB;
use crate::setups::F32_PAGES_OF_1_GRAPHS;
use crate::world::{World, collect};

/// More than a busy machine keeps a rank waiting, so that only planted faults end a step.
const LIMIT: Duration = Duration::from_secs(2);
/// The time that the leader gives the ranks after it has ended their collectives.
const GRACE: Duration = Duration::from_secs(1);
/// Requests at once, more than a graph has rows.
const REQUESTS: usize = 3;
/// `ncclInternalError`.
const INTERNAL_ERROR: i32 = 3;
/// Collectives of a step of the model, and so calls of a step without a graph.
const COLLECTIVES: usize = 5;

/// A fault on the thread of a rank.
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

impl Due {
    /// At the first moment of this kind of rank 1.
    fn at(moment: Moment, fault: Fault) -> Self {
        Self {
            rank: 1,
            moment,
            after: 0,
            fault,
        }
    }
}

/// The faults on threads that a test plants, one after another. A rank hangs until the sender of `release` sends to it,
/// or is dropped.
struct Faults {
    due: Mutex<VecDeque<Due>>,
    n_struck: AtomicUsize,
    release: Receiver<()>,
}

impl Faults {
    fn new() -> (Arc<Self>, Sender<()>) {
        let (hold, release) = crossbeam_channel::bounded(0);
        let faults = Self {
            due: Mutex::default(),
            n_struck: AtomicUsize::new(0),
            release,
        };
        (Arc::new(faults), hold)
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

/// Starts an engine with two ranks that may have faults, on these GPUs.
fn start(gpus: &[usize], faults: &Arc<Faults>) -> Result<EngineHandle, StartError> {
    let setup = F32_PAGES_OF_1_GRAPHS;
    let config = EngineConfig {
        max_restarts: MaxRestarts {
            limit: 1000,
            period_s: 60,
        },
        rebuild_backoff_s: 0.0,
        ..setup.config(&fixture("llama"))
    };
    let mut parts = EngineParts::from_model(&config, Progress::silent()).expect("the model exists");
    let options = CudaOptions {
        graph_rows: REQUESTS - 1,
        ..setup.options(&config, &parts)
    };
    let (dir, gpus, faults) = (config.model_path.clone(), claims(gpus), faults.clone());
    let rules = GroupRules {
        fault_hook: Some(Arc::new(move |rank: Rank, moment: Moment| {
            faults.strike(rank, moment);
        })),
        ..GroupRules::new(gpus.len(), LIMIT)
    };
    parts.executor = Arc::new(move || Ok(Box::new(load(&gpus, &dir, &options, &rules)?)));
    Engine::start_with(config, parts)
}

fn ask(index: usize) -> GenerateRequest {
    let index = index as u32;
    let prompt = (0..12).map(|i| (i * 7 + index * 19 + 1) % VOCAB).collect();
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt));
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 6 + 2 * index;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(index));
    if index.is_multiple_of(2) {
        sampling.temperature = 0.0;
    }
    request
}

/// Runs the requests at once, and returns their tokens.
async fn serve(world: &World) -> Vec<Vec<u32>> {
    let sent: Vec<_> = (0..REQUESTS)
        .map(|index| world.generate(ask(index)))
        .collect();
    let outcomes = join_all(sent.into_iter().map(collect)).await;
    let tokens = outcomes.into_iter().map(|outcome| {
        assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
        outcome.tokens
    });
    tokens.collect()
}

/// Whether the fault of a run hangs. This lasts as long as the limit, so there are few.
fn hangs(seed: u64) -> bool {
    seed % 40 == 5
}

/// Plants a fault of each kind, in turn.
fn plant(seed: u64, gpus: &[usize], faults: &Faults) {
    let mut random = fastrand::Rng::with_seed(seed);
    let rank = random.usize(..gpus.len());
    let device = Emulated::new(gpus[rank]);
    let call = random.usize(..COLLECTIVES);
    // Fewer than the collectives of the shortest request.
    let nth = random.u64(1..6 * COLLECTIVES as u64);
    let of_thread = |fault| Due {
        rank,
        moment: Moment::Collective,
        after: call,
        fault,
    };
    match seed % 8 {
        0 => device.plan(
            DeviceFault::CollectiveRefused(INTERNAL_ERROR),
            1 + call as u64,
        ),
        1 => device.plan(DeviceFault::CollectiveFails(INTERNAL_ERROR), nth),
        2 => device.plan(DeviceFault::CollectiveMismatch, nth),
        3 => device.plan(DeviceFault::Kernel(ILLEGAL_ADDRESS), nth),
        // As long as a hang.
        4 if seed % 40 == 4 => device.plan(DeviceFault::CollectiveSilent, nth),
        _ if hangs(seed) => faults.plant(of_thread(Fault::Hang)),
        _ => faults.plant(of_thread(Fault::Panic)),
    }
}

/// The number of faults: `SOUFFLEUR_RANK_FAULTS=200 cargo test --test cuda rank_faults`.
fn n_faults() -> u64 {
    let number = std::env::var("SOUFFLEUR_RANK_FAULTS").ok();
    number.map_or(7, |number| number.parse().expect("a number"))
}

#[tokio::test]
async fn ranks_that_fail_or_hang_lose_no_request() {
    if is_skipped() {
        return;
    }
    let (gpus, (faults, hold)) = (gpus(2), Faults::new());
    let world = World {
        engine: start(&gpus, &faults).expect("the model loads"),
    };
    let expected = serve(&world).await;
    for seed in 0..n_faults() {
        plant(seed, &gpus, &faults);
        let began = Instant::now();
        assert_eq!(serve(&world).await, expected, "seed {seed}");
        // A fault ends all ranks in time; the requests need some more.
        let longest = 3 * (LIMIT + GRACE);
        assert!(
            began.elapsed() < longest,
            "seed {seed}: {:?}",
            began.elapsed()
        );
        if hangs(seed) {
            hold.send(()).expect("a rank hangs");
        }
        assert_eq!(serve(&world).await, expected, "after seed {seed}");
        let restarts = world.engine.unit_status().restarts;
        assert_eq!(restarts.executor, seed + 1, "a fault in each run");
    }
    world.assert_no_leaks().await;
    world.stop().await;
    drop(hold);
}

/// Starts an engine with a fault of rank 1. Returns the error's text.
fn refusal(moment: Moment, fault: Fault) -> String {
    let (gpus, (faults, hold)) = (gpus(2), Faults::new());
    faults.plant(Due::at(moment, fault));
    let began = Instant::now();
    let refused = start(&gpus, &faults).err().expect("a rank fails");
    assert_eq!(faults.n_struck.load(Ordering::SeqCst), 1);
    assert!(
        began.elapsed() < 2 * (LIMIT + GRACE),
        "{:?}",
        began.elapsed()
    );
    drop(hold);
    refused.to_string()
}

#[test]
fn a_rank_that_panics_in_the_load_or_in_a_recording_is_named() {
    if is_skipped() {
        return;
    }
    for moment in [Moment::Load, Moment::Recording] {
        let refused = refusal(moment, Fault::Panic);
        assert!(
            refused.contains("rank 1 panicked in the load: planted"),
            "{moment:?}: {refused}"
        );
    }
}

#[test]
fn a_rank_that_hangs_in_the_load_is_named() {
    if !is_skipped() {
        let refused = refusal(Moment::Load, Fault::Hang);
        assert!(
            refused.contains("rank 1 has not called Barrier"),
            "{refused}"
        );
    }
}

#[test]
fn a_rank_that_hangs_in_a_recording_ends_the_load_on_all() {
    if !is_skipped() {
        let refused = refusal(Moment::Recording, Fault::Hang);
        assert!(refused.contains("answered within 2s"), "{refused}");
    }
}

#[tokio::test]
async fn ranks_that_fail_while_they_are_loaded_again_are_loaded_once_more() {
    if is_skipped() {
        return;
    }
    let (gpus, (faults, hold)) = (gpus(2), Faults::new());
    let world = World {
        engine: start(&gpus, &faults).expect("the model loads"),
    };
    let expected = serve(&world).await;
    for moment in [Moment::Load, Moment::Recording] {
        faults.plant(Due::at(Moment::Collective, Fault::Panic));
        faults.plant(Due::at(moment, Fault::Panic));
        assert_eq!(serve(&world).await, expected, "{moment:?}");
    }
    assert_eq!(faults.n_struck.load(Ordering::SeqCst), 4);
    world.assert_no_leaks().await;
    world.stop().await;
    drop(hold);
}
