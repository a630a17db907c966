//! Tests of replicas on GPUs: on one they answer as one engine, and the loss of a GPU loses no request.

use futures_util::future::join_all;
use souffleur_config::{Device as Wanted, EngineConfig, Gpus};
use souffleur_cusim::{Device, Fault};
use souffleur_engine::{Engine, EngineParts, Progress};
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_request::Event;
use souffleur_state::router::LoadBalance;

use crate::device_loss::{HARDWARE_STACK_ERROR, ILLEGAL_ADDRESS, SOME_KERNELS, is_skipped, stream};
use crate::gpu;
use crate::model::fixture;
use crate::setups::F32_PAGES_OF_1_GRAPHS;
use crate::world::{World, collect};

const STREAMS: usize = 8;
/// Free memory of an emulated GPU, enough for several replicas.
const TOTAL_BYTES: u64 = 8 << 30;

/// The parts of an engine with replicas on these GPUs.
fn parts(gpus: &[usize], dp_size: usize) -> (EngineConfig, EngineParts) {
    if gpu::real().is_none() {
        for ordinal in gpus {
            Device::new(*ordinal).set_total_memory(TOTAL_BYTES);
        }
    }
    let config = EngineConfig {
        device: Wanted::Cuda(Gpus::Listed(gpus.to_vec())),
        dp_size,
        load_balance_method: LoadBalance::RoundRobin,
        gemm: GemmWish::Own,
        cuda_graph_max_bs: 6,
        ..F32_PAGES_OF_1_GRAPHS.config(&fixture("llama"))
    };
    let parts = EngineParts::from_model(&config, Progress::silent()).unwrap();
    (config, parts)
}

fn start(gpus: &[usize], dp_size: usize) -> World {
    let (config, parts) = parts(gpus, dp_size);
    let engine = Engine::start_with(config, parts).expect("the model loads");
    World { engine }
}

/// Runs requests at once, and returns their tokens.
async fn serve(world: &World) -> Vec<Vec<u32>> {
    let sent: Vec<_> = (0..STREAMS)
        .map(|index| world.generate(stream(index)))
        .collect();
    let outcomes = join_all(sent.into_iter().map(collect)).await;
    let tokens = outcomes.into_iter().map(|outcome| {
        assert!(matches!(outcome.end, Event::Finished(_)), "{outcome:?}");
        outcome.tokens
    });
    tokens.collect()
}

/// The generations of the replicas, and which of them run.
fn replicas(world: &World) -> Vec<(u64, bool)> {
    let status = world.engine.unit_status();
    let replicas = status.replicas.iter();
    replicas
        .map(|replica| (replica.generation, replica.is_up))
        .collect()
}

fn restarts(world: &World) -> (u64, u64) {
    let restarts = world.engine.unit_status().restarts;
    (restarts.executor, restarts.all())
}

#[tokio::test]
async fn two_replicas_on_one_gpu_answer_as_one_engine() {
    let unused = || gpu::real().unwrap_or_else(gpu::unused);
    let alone = start(&[unused()], 1);
    let expected = serve(&alone).await;
    alone.assert_no_leaks().await;
    alone.stop().await;
    let two = start(&[unused()], 2);
    assert_eq!(serve(&two).await, expected);
    assert_eq!(replicas(&two), [(1, true), (1, true)]);
    two.assert_no_leaks().await;
    two.stop().await;
}

#[test]
fn the_replicas_of_a_gpu_have_equal_parts_of_its_memory() {
    if is_skipped() {
        return;
    }
    let free_bytes = |gpus: &[usize], dp_size| {
        let (_, parts) = parts(gpus, dp_size);
        let replicas: Vec<usize> = parts.gpus.iter().map(|gpu| gpu.replicas).collect();
        let memory = parts.info.memory.expect("a plan");
        (replicas, memory.budget.free_before_bytes)
    };
    let (replicas, whole) = free_bytes(&[gpu::unused()], 1);
    assert_eq!(replicas, [1]);
    let half = free_bytes(&[gpu::unused()], 2);
    assert_eq!(half, (vec![2], whole / 2));
    let gpus = [gpu::unused(), gpu::unused()];
    assert_eq!(free_bytes(&gpus, 2), (vec![1, 1], whole));
    // The pools of replicas on the GPU with two of them decide.
    assert_eq!(free_bytes(&gpus, 3), (vec![2, 1], whole / 2));
}

#[tokio::test]
async fn an_error_of_a_gpu_restarts_its_replicas_once_and_loses_no_request() {
    if is_skipped() {
        return;
    }
    let ordinal = gpu::unused();
    let world = start(&[ordinal], 2);
    let undisturbed = serve(&world).await;
    Device::new(ordinal).plan(Fault::Kernel(ILLEGAL_ADDRESS), SOME_KERNELS);
    assert_eq!(serve(&world).await, undisturbed);
    assert_eq!(replicas(&world), [(2, true), (2, true)]);
    assert_eq!(restarts(&world), (1, 1));
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn the_replicas_of_another_gpu_continue_the_requests_of_a_dead_one() {
    if is_skipped() {
        return;
    }
    let gpus = [gpu::unused(), gpu::unused()];
    let world = start(&gpus, 4);
    let undisturbed = serve(&world).await;
    Device::new(gpus[0]).plan(Fault::LastingKernel(HARDWARE_STACK_ERROR), SOME_KERNELS);
    for _ in 0..2 {
        assert_eq!(serve(&world).await, undisturbed);
        let (dead, running) = ((2, false), (1, true));
        assert_eq!(replicas(&world), [dead, running, dead, running]);
        assert_eq!(restarts(&world), (1, 1));
    }
    assert!(world.engine.is_alive());
    world.assert_no_leaks().await;
    world.stop().await;
}
