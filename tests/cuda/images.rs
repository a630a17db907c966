//! Tests of images that the host's vision tower encodes for a text model on GPUs, and on ranks: the CPU's outputs, and
//! steps that are under way meanwhile. And of a model whose images rotate by rows and columns and have vectors for the
//! outputs of several layers.

use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use souffleur_base::error::StepError;
use souffleur_base::ids::Ticket;
use souffleur_config::{Device as Wanted, EngineConfig, Gpus};
use souffleur_engine::Engine;
use souffleur_executor::cpu::{HostSizes, HostTower};
use souffleur_executor::cuda::CudaExecutor;
use souffleur_executor::vision::ImageTower;
use souffleur_executor::{Executor, Launch};
use souffleur_kernels::cpu::CpuBackend;
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_kernels::dtype::Dtype;
use souffleur_request::{
    GenerateRequest, ImageDigest, ImageGrid, ImageInput, ImagePrompt, Prompt, PromptImage,
    PromptVectors,
};
use souffleur_state::sampling::LogprobWish;
use souffleur_state::step::{StepPlan, VisionSlice};

use crate::common::{append, decode, greedy, load, options, plan, prefill, start, tokens};
use crate::device_loss::is_skipped;
use crate::model::fixture;
use crate::ranks::gpus;
use crate::requests::bits;
use crate::scores::Reference;
use crate::setups::{F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16, Setup};
use crate::vision_model::{MERGE, PATCH_VALUES, VOCAB, vision_model};
use crate::world::{World, collect};

const REQUESTS: u32 = 4;
/// Text before the first image.
const SHARED: u32 = 20;
const PAD: u32 = 280;
const BEGIN: u32 = 281;
const END: u32 = 282;

/// A picture: its number, and the rows and columns of its vectors.
type Picture = (u8, u32, u32);

/// Pseudo-random patches.
#[derive(Debug)]
struct Pixels(Picture);

impl ImageInput for Pixels {
    fn n_views(&self) -> usize {
        1
    }

    fn grid(&self, _: usize) -> ImageGrid {
        let (_, rows, columns) = self.0;
        let merge = MERGE as u32;
        ImageGrid {
            rows: rows * merge,
            columns: columns * merge,
        }
    }

    fn patches(&self, view: usize) -> Vec<f32> {
        let ImageGrid { rows, columns } = self.grid(view);
        let mut random = fastrand::Rng::with_seed(u64::from(self.0.0));
        let len = (rows * columns) as usize * PATCH_VALUES;
        (0..len).map(|_| random.f32() * 2.0 - 1.0).collect()
    }

    fn bytes(&self) -> usize {
        size_of::<Picture>()
    }
}

/// The pictures of a request: none, one, or two, some of which other requests have too.
fn pictures(index: u32) -> &'static [Picture] {
    match index % 4 {
        0 => &[(1, 2, 3)],
        1 => &[(1, 2, 3), (2, 4, 2)],
        2 => &[],
        _ => &[(3, 5, 3), (1, 2, 3)],
    }
}

/// A request with pictures that the engine encodes.
fn request(index: u32) -> GenerateRequest {
    ask(index, |picture, image| PromptImage {
        input: Some(Arc::new(Pixels(picture))),
        ..image
    })
}

/// A request with pictures whose vectors are random: the one at the embedding's place, and those of two layers.
fn request_with_vectors(index: u32) -> GenerateRequest {
    ask(index, |(number, rows, columns), image| {
        let mut random = fastrand::Rng::with_seed(u64::from(number));
        let len = (rows * columns) as usize * 3 * WIDTH;
        let values = (0..len).map(|_| random.f32() - 0.5).collect();
        let vectors = PromptVectors::new(3 * WIDTH, values).expect("finite values");
        PromptImage {
            vectors: Some(Arc::new(vectors)),
            ..image
        }
    })
}

/// Text, pictures with text after each, and a question. `fill` adds a picture's pixels or vectors.
fn ask(index: u32, fill: fn(Picture, PromptImage) -> PromptImage) -> GenerateRequest {
    let mut tokens: Vec<u32> = (0..SHARED).map(|i| (i * 17 + 3) % PAD).collect();
    let mut images = Vec::new();
    for picture in pictures(index) {
        let (number, rows, columns) = *picture;
        let first = tokens.len() as u32;
        tokens.push(BEGIN);
        tokens.extend(std::iter::repeat_n(PAD, (rows * columns) as usize));
        tokens.push(END);
        let image = PromptImage {
            positions: first..tokens.len() as u32,
            pad: PAD,
            digest: ImageDigest([number; 32]),
            grid: ImageGrid { rows, columns },
            vectors: None,
            input: None,
        };
        images.push(fill(*picture, image));
        tokens.extend((0..3).map(|i| i + 60));
    }
    tokens.extend((0..4 + index).map(|i| (i * 13 + index * 29) % PAD));
    let prompt = if images.is_empty() {
        Prompt::Tokens(tokens.into())
    } else {
        let tokens = tokens.into();
        ImagePrompt { tokens, images }.into()
    };
    let mut request = GenerateRequest::new(prompt);
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 5;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(index));
    sampling.temperature = if index.is_multiple_of(2) { 0.0 } else { 0.8 };
    request
}

type Ask = fn(u32) -> GenerateRequest;

fn start_engine(config: EngineConfig) -> World {
    World {
        engine: Engine::start(config).expect("the model loads"),
    }
}

/// A configuration for GPUs, one for each rank, as the command starts them.
fn on_gpus(setup: &Setup, model: &Path, count: usize) -> EngineConfig {
    EngineConfig {
        device: Wanted::Cuda(Gpus::Listed(gpus(count))),
        tp_size: count,
        gemm: GemmWish::Own,
        cuda_graph_max_bs: 4,
        ..setup.config(model)
    }
}

/// Runs the requests one after another, and again, when all is cached.
async fn check(setup: &Setup, config: EngineConfig, (reference, request): (&Reference, Ask)) {
    let world = start_engine(config);
    for round in 0..2 {
        for index in 0..REQUESTS {
            let (got, cached) = bits(world.generate(request(index))).await;
            assert!(cached > 0 || (round == 0 && index == 0), "request {index}");
            reference.check(setup, index, &got, "alone").await;
        }
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

/// Runs the requests at once without a cache, in chunks that end within images.
async fn check_chunks(
    setup: &Setup,
    config: EngineConfig,
    (reference, request): (&Reference, Ask),
) {
    let world = start_engine(EngineConfig {
        enable_mixed_chunk: true,
        chunked_prefill_size: i64::from(setup.page_size.max(7)),
        disable_radix_cache: true,
        ..config
    });
    let sent: Vec<_> = (0..REQUESTS)
        .map(|index| {
            let mut request = request(index);
            // A request with log probabilities runs alone in its steps.
            if index > 0 {
                request.logprobs = None;
            }
            world.generate(request)
        })
        .collect();
    let outcomes = join_all(sent.into_iter().map(collect)).await;
    for (index, got) in (0..).zip(outcomes) {
        reference
            .check_tokens(setup, index, &got.tokens, "in chunks")
            .await;
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn images_that_the_host_encodes_give_the_outputs_of_the_cpu() {
    if is_skipped() {
        return;
    }
    let model = vision_model();
    let model = model.path();
    for setup in [F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16] {
        check_on_gpu(&setup, model, request).await;
    }
}

async fn check_on_gpu(setup: &Setup, model: &Path, request: Ask) {
    let reference = Reference::new(setup, model, (request, REQUESTS)).await;
    let expected = (&reference, request);
    check(setup, on_gpus(setup, model, 1), expected).await;
    check_chunks(setup, on_gpus(setup, model, 1), expected).await;
    reference.stop().await;
}

#[tokio::test]
async fn images_with_rows_and_columns_and_vectors_of_layers_give_the_outputs_of_the_cpu() {
    if is_skipped() {
        return;
    }
    let model = fixture("qwen3-vl");
    check_on_gpu(&F32_PAGES_OF_1_GRAPHS, &model, request_with_vectors).await;
}

#[tokio::test]
async fn images_on_ranks_give_the_outputs_of_one_cpu() {
    if is_skipped() {
        return;
    }
    let model = vision_model();
    let (setup, model) = (F32_PAGES_OF_1_GRAPHS, model.path());
    let reference = Reference::new(&setup, model, (request, REQUESTS)).await;
    let on_cpus = EngineConfig {
        tp_size: 2,
        ..setup.config(model)
    };
    for config in [on_cpus, on_gpus(&setup, model, 2)] {
        check(&setup, config, (&reference, request)).await;
    }
    reference.stop().await;
}

/// Counts its units, and makes one vector of the count.
#[derive(Default)]
struct Counter(u32);

impl ImageTower<CpuBackend> for Counter {
    fn begin(&mut self, _: &mut CpuBackend, _: &dyn ImageInput) -> Result<(), String> {
        self.0 = 0;
        Ok(())
    }

    fn advance(&mut self, _: &mut CpuBackend, _: &dyn ImageInput) -> Result<(), String> {
        self.0 += 1;
        Ok(())
    }

    fn finish(&mut self, _: &mut CpuBackend) -> Result<Vec<f32>, String> {
        Ok(vec![self.0 as f32; WIDTH])
    }

    fn forget(&mut self) {
        self.0 = 0;
    }
}

/// The hidden size of the fixture.
const WIDTH: usize = 64;
const UNITS: u32 = 4;

fn with_counter() -> CudaExecutor {
    let sizes = HostSizes {
        dtype: Dtype::F32,
        threads: 1,
    };
    let tower = HostTower::new(Box::new(Counter::default()), WIDTH, sizes);
    load("llama", &options()).with_tower(tower.expect("one thread"))
}

fn slice(pixels: &Arc<Pixels>, units: std::ops::Range<u32>) -> Option<Box<VisionSlice>> {
    Some(Box::new(VisionSlice {
        job: Ticket::new(1),
        input: Some(pixels.clone()),
        units,
        n_units: UNITS,
    }))
}

/// Prefills a prompt of ten tokens, or decodes.
fn text_step(step: u64) -> StepPlan {
    let mut step_plan = plan(step);
    if step == 0 {
        step_plan.starts = vec![start(1, &tokens(3, 10, VOCAB), 10, &greedy())];
        step_plan.table = vec![append(1, 1..40)];
        step_plan.rows = vec![prefill(1, 0..10, true)];
    } else {
        step_plan.rows = vec![decode(1, 9 + step as u32)];
    }
    step_plan
}

/// The tokens of a prefill and two decodes, with the slices of these steps.
fn sampled(executor: &mut CudaExecutor, slices: [Option<Box<VisionSlice>>; 3]) -> Vec<u32> {
    let mut sampled = Vec::new();
    for (step, vision) in (0..).zip(slices) {
        let step_plan = StepPlan {
            vision,
            ..text_step(step)
        };
        let output = executor.run(&step_plan).expect("the step runs");
        sampled.extend(&output.rows[0].tokens);
    }
    sampled
}

#[test]
fn steps_with_slices_are_under_way_and_change_no_text() {
    let (mut executor, pixels) = (with_counter(), Arc::new(Pixels((1, 2, 2))));
    let expected = sampled(&mut executor, [None, None, None]);
    executor.reset().expect("the GPU is sound");
    let slices = [slice(&pixels, 0..1), None, slice(&pixels, 1..UNITS)];
    assert_eq!(sampled(&mut executor, slices), expected);
    let encoded = executor.take_encoded();
    let vectors = encoded[0].result.as_ref().expect("it is encoded");
    assert_eq!((encoded.len(), vectors.values(0..1)[0]), (1, UNITS as f32));
    // Two steps are in flight, the first of which has rows and a slice, the second a slice alone.
    executor.reset().expect("the GPU is sound");
    let first = StepPlan {
        vision: slice(&pixels, 0..2),
        ..text_step(0)
    };
    let second = StepPlan {
        vision: slice(&pixels, 2..UNITS),
        ..plan(1)
    };
    for step in [&first, &second] {
        assert!(matches!(executor.launch(step), Ok(Launch::UnderWay)));
        assert!(executor.take_encoded().is_empty());
    }
    assert!(executor.is_finished());
    let output = executor.finish().expect("the step runs");
    assert_eq!(output.rows[0].tokens[..], expected[..1]);
    assert!(executor.take_encoded().is_empty());
    assert!(executor.finish().expect("the step runs").rows.is_empty());
    assert_eq!(executor.take_encoded().len(), 1);
}

#[test]
fn slices_that_follow_no_other_are_lost_and_those_without_a_tower_refused() {
    let (mut executor, pixels) = (with_counter(), Arc::new(Pixels((1, 2, 2))));
    let with = |step, vision| StepPlan {
        vision,
        ..plan(step)
    };
    executor
        .run(&with(0, slice(&pixels, 0..2)))
        .expect("it runs");
    let empty = executor.run(&with(1, slice(&pixels, 2..2)));
    assert!(matches!(empty, Err(StepError::Rejected(_))), "{empty:?}");
    executor.reset().expect("the GPU is sound");
    let lost = executor.run(&with(2, slice(&pixels, 2..UNITS)));
    assert!(matches!(lost, Err(StepError::Lost(_))), "{lost:?}");
    executor.reset().expect("the GPU is sound");
    executor
        .run(&with(3, slice(&pixels, 0..UNITS)))
        .expect("it runs");
    assert_eq!(executor.take_encoded().len(), 1);
    let refused = load("llama", &options()).run(&with(0, slice(&pixels, 0..1)));
    assert!(
        matches!(refused, Err(StepError::Rejected(_))),
        "{refused:?}"
    );
}
