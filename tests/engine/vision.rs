//! Tests of engines whose executors have a vision tower: the bits of prompts with images, how often the tower encodes,
//! and faults meanwhile.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::Receiver;
use futures_util::future::join_all;
use souffleur_actors::vision::VisionSetup;
use souffleur_base::beat::Beat;
use souffleur_base::error::StepError;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_engine::{Engine, EngineParts, Progress};
use souffleur_executor::fake::{FakeExecutor, FakeOptions, fake_tower_work};
use souffleur_executor::vision::{EncodedImage, Encoder, ImageTower};
use souffleur_executor::{DeviceLost, Executor, Launch};
use souffleur_record::replay;
use souffleur_request::{
    Event, GenerateRequest, ImageDigest, ImageGrid, ImageInput, ImagePrompt, Prompt, PromptImage,
};
use souffleur_state::control::ControlSetup;
use souffleur_state::scheduler::stats::EngineStats;
use souffleur_state::step::{RowResult, StepOutput, StepPlan};
use tempfile::TempDir;

use crate::embeddings::embeddings;
use crate::identity::{assert_same, plain, start};
use crate::images::{
    MODELS, Picture, REQUESTS, ask, folder, is_written, pictures, pixels, prompt, request,
};
use crate::kernel_paths::repeats_floats;
use crate::requests::{Bits, bits};
use crate::store::stored;
use crate::world::{self, World, collect, within};

/// Units of the tower's work on each image.
const UNITS: usize = 12;
/// Operations of a unit: more than the first slices may have, which thereby are one unit each.
const FLOPS: u64 = 1 << 40;
/// The digest of an image that the tower refuses, and of one that makes it panic.
const REFUSED: u8 = 99;
const POISON: u8 = 98;

#[derive(Debug, Default)]
struct Counts {
    /// Images that were encoded to their end.
    encoded: AtomicUsize,
    slices: AtomicUsize,
    /// Slices in steps with rows.
    shared_slices: AtomicUsize,
}

impl Counts {
    fn encoded(&self) -> usize {
        self.encoded.load(Ordering::SeqCst)
    }
}

#[derive(Debug)]
struct Pixels(Picture);

impl ImageInput for Pixels {
    fn n_views(&self) -> usize {
        1
    }

    fn grid(&self, _: usize) -> ImageGrid {
        let (_, rows, columns) = self.0;
        ImageGrid { rows, columns }
    }

    fn patches(&self, _: usize) -> Vec<f32> {
        let (digest, rows, columns) = self.0;
        vec![f32::from(digest), rows as f32, columns as f32]
    }

    fn bytes(&self) -> usize {
        size_of::<Picture>()
    }
}

/// A picture whose patches all have its number.
#[derive(Debug)]
struct Patches(Picture);

impl ImageInput for Patches {
    fn n_views(&self) -> usize {
        1
    }

    fn grid(&self, _: usize) -> ImageGrid {
        let (_, rows, columns) = self.0;
        ImageGrid { rows, columns }
    }

    fn patches(&self, _: usize) -> Vec<f32> {
        let (number, rows, columns) = self.0;
        vec![f32::from(number); (rows * columns) as usize]
    }

    fn bytes(&self) -> usize {
        size_of::<Picture>()
    }
}

/// A tower whose vectors are embeddings of tokens, as those that other tests send.
struct TestTower {
    model: PathBuf,
    counts: Arc<Counts>,
    /// The picture, and the units that are left.
    image: Option<(Picture, usize)>,
}

impl ImageTower<()> for TestTower {
    fn begin(&mut self, _: &mut (), input: &dyn ImageInput) -> Result<(), String> {
        let values = input.patches(0);
        let picture = (values[0] as u8, values[1] as u32, values[2] as u32);
        if picture.0 == REFUSED {
            return Err("is too strange".to_owned());
        }
        self.image = Some((picture, UNITS));
        Ok(())
    }

    fn advance(&mut self, _: &mut (), _: &dyn ImageInput) -> Result<(), String> {
        let (picture, left) = self.image.as_mut().ok_or("was not begun")?;
        assert_ne!(picture.0, POISON, "a poisoned picture");
        *left = left.checked_sub(1).ok_or("has no further unit")?;
        Ok(())
    }

    fn finish(&mut self, _: &mut ()) -> Result<Vec<f32>, String> {
        let (picture, _) = self
            .image
            .filter(|(_, left)| *left == 0)
            .ok_or("lacks units")?;
        self.counts.encoded.fetch_add(1, Ordering::SeqCst);
        let vectors = embeddings(&self.model, &pixels(picture));
        Ok(vectors.values(0..vectors.len()).to_vec())
    }

    fn forget(&mut self) {
        self.image = None;
    }
}

/// An executor with a tower, whose steps wait for the gate if there is one.
struct Towered {
    inner: Box<dyn Executor>,
    encoder: Encoder<()>,
    counts: Arc<Counts>,
    gate: Option<Receiver<()>>,
}

impl Executor for Towered {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        match self.launch(plan)? {
            Launch::Done(output) => Ok(output),
            Launch::UnderWay => self.finish(),
        }
    }

    fn launch(&mut self, plan: &StepPlan) -> Result<Launch, StepError> {
        if let Some(gate) = &self.gate {
            // The gate is open once the sender is dropped.
            let _ = gate.recv();
        }
        let Some(slice) = &plan.vision else {
            return self.inner.launch(plan);
        };
        self.counts.slices.fetch_add(1, Ordering::SeqCst);
        let shares = usize::from(!plan.rows.is_empty());
        self.counts
            .shared_slices
            .fetch_add(shares, Ordering::SeqCst);
        self.encoder.run(&mut (), slice)?;
        self.inner.launch(&StepPlan {
            vision: None,
            ..plan.clone()
        })
    }

    fn is_finished(&mut self) -> bool {
        self.inner.is_finished()
    }

    fn finish(&mut self) -> Result<StepOutput, StepError> {
        self.inner.finish()
    }

    fn recycle(&mut self, rows: Vec<RowResult>) {
        self.inner.recycle(rows);
    }

    fn take_encoded(&mut self) -> Vec<EncodedImage> {
        self.encoder.take_encoded()
    }

    fn set_beat(&mut self, beat: Beat) {
        self.inner.set_beat(beat);
    }

    fn is_lost(&self) -> bool {
        self.inner.is_lost()
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        self.encoder.forget();
        self.inner.reset()
    }
}

struct Build {
    model: &'static str,
    config: EngineConfig,
    cache_bytes: usize,
    gate: Option<Receiver<()>>,
}

impl Build {
    fn new(model: &'static str) -> Self {
        Self {
            model,
            config: plain(model, DtypeChoice::Auto),
            cache_bytes: 1 << 24,
            gate: None,
        }
    }

    fn with_chaos(mut self, spec: &str) -> Self {
        self.config.chaos = vec![spec.parse().expect("a valid spec")];
        self
    }

    fn start(self) -> (World, Arc<Counts>) {
        let progress = Progress::silent();
        let mut parts = EngineParts::from_model(&self.config, progress).expect("the model exists");
        let counts = Arc::new(Counts::default());
        let (inner, model, gate) = (parts.executor.clone(), folder(self.model), self.gate);
        let width = parts.info.hidden_size.expect("the executor takes vectors");
        let of_executor = counts.clone();
        parts.executor = Arc::new(move || {
            let tower = TestTower {
                model: model.clone(),
                counts: of_executor.clone(),
                image: None,
            };
            Ok(Box::new(Towered {
                inner: inner()?,
                encoder: Encoder::new(Box::new(tower), width),
                counts: of_executor.clone(),
                gate: gate.clone(),
            }))
        });
        parts.vision = Some(Arc::new(VisionSetup {
            cache_bytes: self.cache_bytes,
            work: Box::new(|_: &dyn ImageInput| -> Arc<[u64]> { [FLOPS; UNITS].into() }),
            flops_per_token: 1,
        }));
        let engine = Engine::start_with(self.config, parts).expect("the model loads");
        (World { engine }, counts)
    }
}

/// A prompt whose images the engine encodes.
fn unencoded(model: &str, pictures: &[Picture], question: u32) -> ImagePrompt {
    let mut prompt = prompt(model, pictures, question);
    for (image, picture) in prompt.images.iter_mut().zip(pictures) {
        image.vectors = None;
        image.input = Some(Arc::new(Pixels(*picture)));
    }
    prompt
}

fn ask_unencoded(model: &str, pictures: &[Picture], question: u32) -> GenerateRequest {
    request(unencoded(model, pictures, question).into(), question)
}

async fn one(world: &World, request: GenerateRequest) -> (Bits, u32) {
    bits(world.generate(request)).await
}

/// The outputs with given vectors, one after another.
async fn expected(model: &str) -> Vec<(Bits, u32)> {
    let world = start(EngineConfig {
        disable_radix_cache: true,
        ..plain(model, DtypeChoice::Auto)
    });
    let mut all = Vec::new();
    for index in 0..REQUESTS {
        all.push(one(&world, ask(model, pictures(index), index)).await);
    }
    world.stop().await;
    all
}

#[tokio::test]
async fn encoded_images_give_the_bits_of_their_vectors_and_are_encoded_once() {
    if repeats_floats() {
        return;
    }
    for model in MODELS {
        let expected = expected(model).await;
        let (world, counts) = Build::new(model).start();
        let asked = |index| ask_unencoded(model, pictures(index), index);
        let sent = (0..REQUESTS).map(|index| one(&world, asked(index)));
        assert_same(&join_all(sent).await, &expected, model);
        // Four different pictures.
        assert_eq!(counts.encoded(), 4, "{model}");
        for index in 0..REQUESTS {
            let again = [one(&world, asked(index)).await];
            assert_same(&again, &expected[index as usize..], model);
        }
        assert_eq!(counts.encoded(), 4, "{model}");
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn the_second_question_about_a_cached_picture_encodes_nothing() {
    for model in MODELS {
        // No vectors are kept.
        let build = Build {
            cache_bytes: 0,
            ..Build::new(model)
        };
        let (world, counts) = build.start();
        let picture = [(1, 2, 3)];
        let (_, cached) = one(&world, ask_unencoded(model, &picture, 0)).await;
        assert_eq!((cached, counts.encoded()), (0, 1), "{model}");
        let (_, cached) = one(&world, ask_unencoded(model, &picture, 1)).await;
        assert!(cached >= 28, "{model} cached {cached}");
        assert_eq!(counts.encoded(), 1, "{model}");
        // A picture in front of it makes it another prefix.
        let two = [(2, 4, 2), (1, 2, 3)];
        one(&world, ask_unencoded(model, &two, 0)).await;
        assert_eq!(counts.encoded(), 3, "{model}");
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn a_picture_in_the_kv_store_is_not_encoded_after_a_restart() {
    let model = MODELS[0];
    let store = TempDir::new().expect("a temporary folder");
    let serve = async || {
        let build = Build {
            config: stored(model, store.path(), 16),
            ..Build::new(model)
        };
        let (world, counts) = build.start();
        let serves = |stats: &EngineStats| stats.store.is_some_and(|tier| tier.serves);
        world.until(serves).await;
        (world, counts)
    };
    let picture = [(1, 10, 10)];
    let (world, counts) = serve().await;
    let (expected, _) = one(&world, ask_unencoded(model, &picture, 0)).await;
    assert_eq!(counts.encoded(), 1);
    world.until(is_written).await;
    world.stop().await;
    let (world, counts) = serve().await;
    let (got, cached) = one(&world, ask_unencoded(model, &picture, 0)).await;
    assert_eq!((got, cached, counts.encoded()), (expected, 128, 0));
    // Another picture is encoded.
    one(&world, ask_unencoded(model, &[(2, 10, 10)], 0)).await;
    assert_eq!(counts.encoded(), 1);
    world.assert_no_leaks().await;
    world.stop().await;
}

/// A request with three of eleven pictures.
fn three_pictures(index: u32) -> GenerateRequest {
    let pictures = [0, 5, 10].map(|at| (((index * 7 + at) % 11) as u8, 2, 3));
    let mut tokens: Vec<u32> = (1..4).collect();
    let images = pictures.iter().map(|picture| {
        let first = tokens.len() as u32;
        tokens.extend([9; 6]);
        PromptImage {
            positions: first..first + 6,
            pad: 9,
            digest: ImageDigest([picture.0; 32]),
            grid: ImageGrid {
                rows: 2,
                columns: 3,
            },
            vectors: None,
            input: Some(Arc::new(Patches(*picture))),
        }
    });
    let images: Vec<PromptImage> = images.collect();
    tokens.extend([index + 20, 30]);
    let prompt = ImagePrompt {
        tokens: tokens.into(),
        images,
    };
    let mut request = GenerateRequest::new(prompt.into());
    request.sampling.max_new_tokens = 5;
    request.sampling.ignore_eos = true;
    request
}

/// Each row of the fake executor checks that it has the vectors of its own images.
#[tokio::test]
async fn many_pictures_at_once_get_their_own_vectors() {
    const WIDTH: usize = 4;
    let mut parts = world::Build {
        hidden_size: Some(WIDTH),
        ..world::Build::default()
    }
    .parts();
    let options = FakeOptions {
        page_size: parts.info.page_size,
        n_pages: parts.info.max_total_tokens / parts.info.page_size,
        vocab_size: world::VOCAB,
        verify: true,
        n_states: 0,
        hidden_size: 0,
        faults: Vec::new(),
    };
    parts.executor = Arc::new(move || {
        Ok(Box::new(
            FakeExecutor::new(options.clone()).with_tower(WIDTH),
        ))
    });
    parts.vision = Some(Arc::new(VisionSetup {
        // Forty vectors.
        cache_bytes: 40 * WIDTH * size_of::<f32>(),
        work: Box::new(fake_tower_work),
        flops_per_token: 1 << 20,
    }));
    let engine = Engine::start_with(EngineConfig::default(), parts).expect("the engine starts");
    let world = World { engine };
    let sent = (0..60).map(|index| {
        let generation = world.generate(three_pictures(index));
        async move {
            // Every fifth client is gone at once.
            match index % 5 {
                0 => drop(generation),
                _ => assert_eq!(collect(generation).await.tokens.len(), 5, "{index}"),
            }
        }
    });
    within(join_all(sent)).await;
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn slices_share_steps_with_streams() {
    let model = MODELS[0];
    let (world, counts) = Build::new(model).start();
    let mut stream = request(Prompt::Tokens((1..20).collect()), 1);
    stream.sampling.max_new_tokens = 200;
    let mut stream = world.generate(stream);
    let first = within(stream.next()).await.expect("an event");
    assert!(matches!(first, Event::Delta(_)));
    let (_, cached) = one(&world, ask_unencoded(model, &[(1, 2, 3)], 0)).await;
    assert_eq!((cached, counts.encoded()), (0, 1));
    // The first two are planned before any was measured.
    assert!(
        counts.shared_slices.load(Ordering::SeqCst) >= 2,
        "{counts:?}"
    );
    drop(stream);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn requests_cancelled_while_they_wait_for_their_images_leave_nothing() {
    let model = MODELS[1];
    let (open, gate) = crossbeam_channel::bounded(0);
    let build = Build {
        gate: Some(gate),
        ..Build::new(model)
    };
    let (world, counts) = build.start();
    let generation = world.generate(ask_unencoded(model, &[(1, 2, 3), (2, 4, 2)], 0));
    // The first slice waits at the gate.
    let sent = tokio::task::spawn_blocking(move || {
        open.send(()).expect("the executor waits");
        open
    });
    let open = within(sent).await.expect("the slice began");
    drop(generation);
    world.until_requests(0).await;
    drop(open);
    let (_, cached) = one(&world, ask_unencoded(model, &[(3, 5, 4)], 0)).await;
    assert!(cached <= 20);
    // The slice may have had all units of the first image.
    assert!(counts.encoded() <= 2, "{counts:?}");
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn deaths_while_images_are_encoded_lose_no_request() {
    if repeats_floats() {
        return;
    }
    let model = MODELS[1];
    let expected = expected(model).await;
    for spec in [
        "actor=vision,kind=panic,message=VisionOrders,phase=exit,after=1",
        "actor=vision,kind=panic,message=ImageEncoded,phase=entry,after=2",
        "actor=scheduler,kind=panic,message=VisionTold,phase=middle,after=2",
        "actor=executor_thread,kind=panic,message=launch,phase=exit,after=2",
        "actor=executor_thread,kind=lose,after=3",
    ] {
        let (world, _) = Build::new(model).with_chaos(spec).start();
        let asked = |index| ask_unencoded(model, pictures(index), index);
        let sent = (0..REQUESTS).map(|index| one(&world, asked(index)));
        let got = within(join_all(sent)).await;
        assert_same(&got, &expected, spec);
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn images_that_the_tower_cannot_encode_fail_their_requests_alone() {
    let model = MODELS[0];
    let (world, counts) = Build::new(model).start();
    let text = async |digest: u8| {
        let request = ask_unencoded(model, &[(1, 2, 3), (digest, 2, 2)], 0);
        match collect(world.generate(request)).await.end {
            Event::Failed(error) => error.to_string(),
            other => panic!("ended with {other:?}"),
        }
    };
    let refused = text(REFUSED).await;
    assert!(refused.contains("images[1] is too strange"), "{refused}");
    assert_eq!(counts.encoded(), 1);
    let healthy = one(&world, ask_unencoded(model, &[(2, 4, 2)], 1));
    let (poisoned, _) = tokio::join!(text(POISON), healthy);
    assert!(poisoned.contains("ran this request alone"), "{poisoned}");
    one(&world, ask_unencoded(model, &[(1, 2, 3)], 0)).await;
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_message_log_with_images_replays_without_pixels() {
    let model = MODELS[0];
    let folder = TempDir::new().expect("a temporary folder");
    let log = folder.path().join("log");
    let mut build = Build::new(model)
        .with_chaos("actor=vision,kind=panic,message=ImageEncoded,phase=entry,after=2");
    build.config.record = Some(log.clone());
    let (world, _) = build.start();
    let sent = (0..REQUESTS).map(|index| {
        let request = ask_unencoded(model, pictures(index), index);
        bits(world.generate(request))
    });
    join_all(sent).await;
    let refused = ask_unencoded(model, &[(REFUSED, 2, 2)], 0);
    collect(world.generate(refused)).await;
    world.stop().await;
    let log = File::open(log).expect("the log exists");
    let replayed = replay(log, &ControlSetup::build).expect("the log can be replayed");
    assert_eq!(replayed.difference, None);
    assert_eq!(replayed.counts.units, 2);
    assert!(replayed.counts.requests > u64::from(REQUESTS));
}
