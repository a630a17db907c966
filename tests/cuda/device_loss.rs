//! Tests of engines whose device fails: errors that end with the context, errors that stay, and two engines on one GPU.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::Sender;
use futures_util::future::{join, join_all};
use souffleur_config::{Device as Wanted, EngineConfig};
use souffleur_cusim::{Device, Fault};
use souffleur_engine::{Engine, EngineParts, Generation, Progress};
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_request::{Event, GenerateRequest, Prompt};

use crate::gpu;
use crate::model::fixture;
use crate::requests::{VOCAB, long_request};
use crate::setups::F32_PAGES_OF_1_GRAPHS;
use crate::world::{World, collect, within};

pub const ILLEGAL_ADDRESS: i32 = 700;
pub const HARDWARE_STACK_ERROR: i32 = 714;
const MISALIGNED_ADDRESS: i32 = 716;
const INVALID_PC: i32 = 718;
const LAUNCH_FAILED: i32 = 719;
const ERRORS: [i32; 5] = [
    ILLEGAL_ADDRESS,
    HARDWARE_STACK_ERROR,
    MISALIGNED_ADDRESS,
    INVALID_PC,
    LAUNCH_FAILED,
];
/// In each wave, all errors strike.
const WAVES: usize = 4;
const STREAMS: usize = 4;
/// The output of each stream, more than it gets until the last error of its wave.
const TOKENS: usize = 80;
/// Tokens that each stream gets between two errors. Without progress, the requests would be tried alone.
const PROGRESS: usize = 6;
/// A number of kernels after which all requests run, and none has ended.
pub const SOME_KERNELS: u64 = 300;

pub fn is_skipped() -> bool {
    let is_skipped = gpu::real().is_some();
    if is_skipped {
        eprintln!("skipped: faults need the emulated GPU");
    }
    is_skipped
}

pub fn stream(index: usize) -> GenerateRequest {
    let index = index as u32;
    let prompt = (0..6).map(|i| (i * 7 + index * 19 + 1) % VOCAB).collect();
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt));
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = TOKENS as u32;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(index));
    if index.is_multiple_of(2) {
        sampling.temperature = 0.0;
    }
    request
}

/// Reads a stream to its end, and counts its tokens.
async fn read(mut generation: Generation, told: &Cell<usize>) -> Vec<u32> {
    let mut tokens = Vec::new();
    loop {
        let event = within(generation.next()).await;
        match event.expect("the stream ends with a terminal event") {
            Event::Delta(delta) => tokens.extend(delta.tokens),
            Event::Finished(end) => {
                tokens.extend(&end.delta.tokens);
                told.set(tokens.len());
                return tokens;
            }
            end => panic!("ended with {end:?}"),
        }
        told.set(tokens.len());
    }
}

/// Lets steps begin one by one, until the condition holds.
async fn steps_until(permits: &Sender<()>, condition: impl Fn() -> bool) {
    within(async {
        while !condition() {
            // Fails if no step waits for it.
            let _ = permits.try_send(());
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// Runs streams while errors strike, each when all streams have progressed. Returns the tokens of the streams.
async fn wave(
    (world, device): (&World, Device),
    permits: &Sender<()>,
    errors: &[i32],
) -> Vec<Vec<u32>> {
    let told: [Cell<usize>; STREAMS] = Default::default();
    let readers = (0..STREAMS).map(|index| read(world.generate(stream(index)), &told[index]));
    let readers = readers.collect::<Vec<_>>();
    let faults = async {
        for (number, error) in errors.iter().enumerate() {
            let before = told.each_ref().map(Cell::get);
            let has_progressed = || {
                let mut pairs = told.iter().zip(before);
                pairs.all(|(told, before)| told.get() >= before + PROGRESS)
            };
            steps_until(permits, has_progressed).await;
            let is_running = |told: &Cell<usize>| told.get() < TOKENS;
            assert!(told.iter().all(is_running), "{told:?}");
            let generation = world.engine.unit_status().generation;
            // In different kernels of a step.
            device.plan(Fault::Kernel(*error), 1 + 7 * number as u64);
            let is_restarted = || {
                let status = world.engine.unit_status();
                status.is_up && status.generation > generation
            };
            steps_until(permits, is_restarted).await;
        }
        let have_ended = || told.iter().all(|told| told.get() == TOKENS);
        steps_until(permits, have_ended).await;
    };
    join(join_all(readers), faults).await.0
}

#[tokio::test]
async fn twenty_errors_that_end_with_the_context_lose_no_request() {
    if is_skipped() {
        return;
    }
    let (setup, ordinal) = (F32_PAGES_OF_1_GRAPHS, gpu::unused());
    let config = EngineConfig {
        max_restarts: "20/60s".parse().expect("a limit"),
        ..setup.config(&fixture("llama"))
    };
    let (permits, gate) = crossbeam_channel::bounded(0);
    let world = setup.start_on(ordinal, gate, config);
    let device = Device::new(ordinal);
    let undisturbed = wave((&world, device), &permits, &[]).await;
    for _ in 0..WAVES {
        let tokens = wave((&world, device), &permits, &ERRORS).await;
        assert_eq!(tokens, undisturbed);
    }
    let status = world.engine.unit_status();
    let n_errors = (WAVES * ERRORS.len()) as u64;
    assert_eq!(n_errors, 20);
    assert_eq!(
        (status.restarts.executor, status.restarts.all()),
        (n_errors, n_errors)
    );
    drop(permits);
    world.assert_no_leaks().await;
    world.stop().await;
}

/// An engine on an emulated GPU as the command starts it, and how often its weights were loaded, or tried to be.
fn start(ordinal: usize) -> (World, Arc<AtomicUsize>) {
    Device::new(ordinal).set_total_memory(4 << 30);
    let config = EngineConfig {
        device: Wanted::gpu(ordinal),
        gemm: GemmWish::Own,
        cuda_graph_max_bs: 6,
        ..F32_PAGES_OF_1_GRAPHS.config(&fixture("llama"))
    };
    let mut parts = EngineParts::from_model(&config, Progress::silent()).unwrap();
    let (make, loads) = (parts.executor.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = loads.clone();
    parts.executor = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        make()
    });
    let engine = Engine::start_with(config, parts).expect("the model loads");
    (World { engine }, loads)
}

/// Sends requests, which must fail.
async fn run_into_the_fault(world: &World) {
    let running = (0..STREAMS as u32).map(|index| collect(world.generate(long_request(index))));
    for outcome in join_all(running.collect::<Vec<_>>()).await {
        assert!(matches!(outcome.end, Event::Failed(_)), "{outcome:?}");
    }
}

/// Waits until the engine has ended after a load that was refused, and checks the reason.
async fn check_end((world, loads): (World, Arc<AtomicUsize>), parts: &[&str]) {
    let reason = within(world.engine.failed()).await;
    for part in parts {
        assert!(reason.contains(part), "{part:?} is not in {reason}");
    }
    assert_eq!(loads.load(Ordering::SeqCst), 2);
    assert!(!world.engine.is_alive());
    world.stop().await;
}

#[tokio::test]
async fn an_error_that_stays_ends_all_requests_and_the_engine_at_the_first_load() {
    if is_skipped() {
        return;
    }
    let ordinal = gpu::unused();
    let engine = start(ordinal);
    Device::new(ordinal).plan(Fault::LastingKernel(HARDWARE_STACK_ERROR), SOME_KERNELS);
    run_into_the_fault(&engine.0).await;
    let gpu = format!("GPU {ordinal} ");
    let parts = [
        "the engine died and will not be rebuilt: ",
        &gpu,
        "CUDA_ERROR_HARDWARE_STACK_ERROR (714)",
        "the process must be terminated and relaunched",
    ];
    check_end(engine, &parts).await;
}

#[tokio::test]
async fn an_error_ends_both_engines_of_a_gpu_and_their_successors_run() {
    if is_skipped() {
        return;
    }
    let ordinal = gpu::unused();
    let gpu = format!("GPU {ordinal} ");
    let parts = [
        "the engine died and will not be rebuilt: ",
        &gpu,
        "several engines of this process",
        "CUDA_ERROR_ILLEGAL_ADDRESS (700)",
    ];
    for is_second_idle in [false, true] {
        let (first, second) = (start(ordinal), start(ordinal));
        Device::new(ordinal).plan(Fault::Kernel(ILLEGAL_ADDRESS), SOME_KERNELS);
        if is_second_idle {
            run_into_the_fault(&first.0).await;
        } else {
            let both = (run_into_the_fault(&first.0), run_into_the_fault(&second.0));
            join(both.0, both.1).await;
        }
        check_end(first, &parts).await;
        check_end(second, &parts).await;
    }
    let (world, _) = start(ordinal);
    let outcome = collect(world.generate(long_request(0))).await;
    assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
    world.stop().await;
}
