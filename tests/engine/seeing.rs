//! Tests of engines whose towers encode the images of prompts: a request has the same bits whatever its neighbours, the
//! chunks, the pages and the cached part of its images are, and images that are cached are not encoded again.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_engine::{Engine, EngineParts, Progress};
use souffleur_record::replay;
use souffleur_request::{
    GenerateRequest, ImageDigest, ImageGrid, ImageInput, ImagePrompt, Prompt, PromptImage,
};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::control::ControlSetup;
use souffleur_state::sampling::LogprobWish;
use souffleur_state::scheduler::stats::EngineStats;
use tempfile::TempDir;

use crate::identity::{assert_same, plain, start};
use crate::images::is_written;
use crate::requests::{self, Bits, at_once, bits};
use crate::seeing_models::{DEEPSTACK, Noise, PAD, PIXTRAL, QWEN, Sight, blind, count_encodings};
use crate::world::{Gated, World};

const MODELS: [Sight; 3] = [QWEN, PIXTRAL, DEEPSTACK];
const CHUNKS: [i64; 3] = [16, 64, 4096];
const PAGES: [u32; 3] = [1, 16, 256];
const NEIGHBOURS: [u32; 3] = [1, 63, 7];
/// How many combinations of these are tried, by default.
const SETTINGS_VARIABLE: &str = "SOUFFLEUR_IMAGE_SETTINGS";
const SETTINGS: u32 = 3;
/// Text before the first image, and after each.
const TEXT: u32 = 20;
const BETWEEN: u32 = 3;
/// The picture of 10 x 10 vectors.
const LARGE: u8 = 0;

/// Rows and columns of vectors of a picture.
fn shape(picture: u8) -> (u32, u32) {
    match picture {
        LARGE => (10, 10),
        other => (1 + u32::from(other % 3), 2 + u32::from(other % 4)),
    }
}

/// The patches of a picture.
#[derive(Debug)]
struct Patches {
    picture: u8,
    grid: ImageGrid,
    /// Values of a patch.
    n_values: usize,
}

impl ImageInput for Patches {
    fn n_views(&self) -> usize {
        1
    }

    fn grid(&self, _: usize) -> ImageGrid {
        self.grid
    }

    fn patches(&self, _: usize) -> Vec<f32> {
        let mut noise = Noise::new(u32::from(self.picture));
        let n_patches = (self.grid.rows * self.grid.columns) as usize;
        (0..n_patches * self.n_values)
            .map(|_| noise.value())
            .collect()
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}

struct Model {
    sight: Sight,
    folder: TempDir,
}

impl Model {
    fn new(sight: Sight) -> Self {
        let folder = sight.folder();
        Self { sight, folder }
    }

    fn config(&self) -> EngineConfig {
        EngineConfig {
            model_path: self.folder.path().to_owned(),
            max_total_tokens: Some(1 << 15),
            max_running_requests: Some(64),
            ..plain(self.sight.name, DtypeChoice::Auto)
        }
    }

    /// The tokens of a picture.
    fn n_tokens(&self, picture: u8) -> u32 {
        let (rows, columns) = shape(picture);
        self.sight.image(rows, columns).len() as u32
    }

    /// Text, pictures with text after each, and a question.
    fn prompt(&self, n_text: u32, pictures: &[u8], question: u32) -> ImagePrompt {
        let mut tokens: Vec<u32> = (0..n_text).map(|i| (i * 17 + 3) % 240).collect();
        let mut images = Vec::new();
        for &picture in pictures {
            let (rows, columns) = shape(picture);
            let first = tokens.len() as u32;
            tokens.extend(self.sight.image(rows, columns));
            let input = Patches {
                picture,
                grid: ImageGrid {
                    rows: 2 * rows,
                    columns: 2 * columns,
                },
                n_values: self.sight.patch_values,
            };
            images.push(PromptImage {
                positions: first..tokens.len() as u32,
                pad: PAD,
                digest: ImageDigest([picture; 32]),
                grid: ImageGrid { rows, columns },
                vectors: None,
                input: Some(Arc::new(input)),
            });
            tokens.extend((0..BETWEEN).map(|i| i + 60));
        }
        tokens.extend((0..6).map(|i| (i * 13 + question * 29) % 240));
        ImagePrompt {
            tokens: tokens.into(),
            images,
        }
    }

    fn ask(&self, n_text: u32, pictures: &[u8], question: u32) -> GenerateRequest {
        request(self.prompt(n_text, pictures, question).into(), question)
    }
}

/// A greedy request if the seed is even, else a seeded one.
fn request(prompt: Prompt, seed: u32) -> GenerateRequest {
    let mut request = GenerateRequest::new(prompt);
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 6;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(seed));
    if seed.is_multiple_of(2) {
        sampling.temperature = 0.0;
    } else {
        sampling.temperature = 0.8;
        sampling.repetition_penalty = 1.1;
    }
    request
}

struct Seeing {
    world: World,
    encodings: Arc<AtomicUsize>,
}

impl Seeing {
    fn start(config: EngineConfig) -> Self {
        Self::start_with(config, |_| ())
    }

    fn start_with(config: EngineConfig, adapt: impl FnOnce(&mut EngineParts)) -> Self {
        let parts = EngineParts::from_model(&config, Progress::silent());
        let mut parts = parts.expect("the model exists");
        let encodings = count_encodings(&mut parts);
        adapt(&mut parts);
        let engine = Engine::start_with(config, parts).expect("the model loads");
        Self {
            world: World { engine },
            encodings,
        }
    }

    async fn one(&self, request: GenerateRequest) -> (Bits, u32) {
        bits(self.world.generate(request)).await
    }

    async fn all(&self, requests: impl IntoIterator<Item = GenerateRequest>) -> Vec<(Bits, u32)> {
        join_all(requests.into_iter().map(|request| self.one(request))).await
    }

    fn encodings(&self) -> usize {
        self.encodings.load(Ordering::SeqCst)
    }

    async fn end(self) -> EngineStats {
        let stats = self.world.assert_no_leaks().await;
        self.world.stop().await;
        stats
    }
}

/// The outputs of requests, each alone in an engine without a prefix cache.
async fn alone(
    model: &Model,
    requests: impl IntoIterator<Item = GenerateRequest>,
) -> Vec<(Bits, u32)> {
    let seeing = Seeing::start(EngineConfig {
        disable_radix_cache: true,
        threads: 2,
        ..model.config()
    });
    let mut all = Vec::new();
    for request in requests {
        all.push(seeing.one(request).await);
    }
    seeing.end().await;
    all
}

/// The requests that are compared, with four pictures.
fn probes(model: &Model) -> Vec<GenerateRequest> {
    let pictures: [&[u8]; 3] = [&[1], &[2, 3], &[4, 4]];
    let probes = (0..).zip(pictures);
    probes
        .map(|(question, pictures)| model.ask(TEXT, pictures, question))
        .collect()
}

#[tokio::test]
async fn neighbours_chunks_and_pages_change_no_bit() {
    let settings = std::env::var(SETTINGS_VARIABLE).map(|n| n.parse::<u32>());
    let settings = settings.map_or(SETTINGS, |n| n.expect("a number"));
    for sight in MODELS {
        let model = Model::new(sight);
        let expected = alone(&model, probes(&model)).await;
        for setting in 0..settings {
            // Each value of each list in the first three; all combinations in the first 27.
            let [a, b, c] = [setting, setting / 3, setting / 9].map(|n| n as usize);
            let (chunk, page_size) = (CHUNKS[a % 3], PAGES[(a + b) % 3]);
            let n_neighbours = NEIGHBOURS[(a + c) % 3];
            let what = format!(
                "{}, chunks of {chunk}, pages of {page_size}, {n_neighbours} neighbours",
                sight.name
            );
            let seeing = Seeing::start(EngineConfig {
                // A chunk has at least a page.
                chunked_prefill_size: chunk.max(i64::from(page_size)),
                page_size,
                ..model.config()
            });
            let neighbours = (0..n_neighbours).map(|n| {
                let picture = 10 + ((n + setting / 27 * 64) % 240) as u8;
                model.ask(TEXT, &[picture], n + 10)
            });
            let neighbours: Vec<GenerateRequest> = neighbours.collect();
            let (got, _) = tokio::join!(seeing.all(probes(&model)), seeing.all(neighbours));
            assert_same(&got, &expected, &what);
            let again = seeing.all(probes(&model)).await;
            assert_same(&again, &expected, &format!("{what}, cached"));
            // Each picture once.
            assert_eq!(seeing.encodings(), 4 + n_neighbours as usize, "{what}");
            seeing.end().await;
        }
    }
}

#[tokio::test]
async fn a_picture_cached_up_to_each_of_its_tokens_gives_the_same_bits() {
    /// The prefix of a whole page is cached: the picture begins as many tokens before its end as are to be cached.
    const PAGE: u32 = 64;
    const PICTURE: u8 = 5;
    for sight in MODELS {
        let model = Model::new(sight);
        let n_tokens = model.n_tokens(PICTURE);
        let asked = |cut: u32| model.ask(PAGE - cut, &[PICTURE], cut);
        let expected = alone(&model, (0..=n_tokens).map(asked)).await;
        let seeing = Seeing::start(EngineConfig {
            page_size: PAGE,
            image_cache_bytes: 0,
            ..model.config()
        });
        for (cut, (expected, _)) in (0..=n_tokens).zip(&expected) {
            let (first, _) = seeing.one(asked(cut)).await;
            let before = seeing.encodings();
            let (again, cached) = seeing.one(asked(cut)).await;
            let what = format!("{}, {cut} tokens of the picture", sight.name);
            assert_eq!((&first, &again), (expected, expected), "{what}");
            assert_eq!(cached, PAGE, "{what}");
            let n_encoded = seeing.encodings() - before;
            // The other tokens need the vectors, but for the mark at the end.
            let is_encoded = cut + 1 < n_tokens;
            assert_eq!(n_encoded, usize::from(is_encoded), "{what}");
        }
        seeing.end().await;
    }
}

#[tokio::test]
async fn retractions_of_requests_whose_images_the_tower_encodes_change_no_bit() {
    // Each of two requests fits alone, but both together do not.
    let long = |model: &Model, index: u32| {
        let mut request = model.ask(TEXT, &[5, 6, 7], index);
        let sampling = &mut request.sampling;
        // With `ignore_eos`, the scheduler would reserve pages for the whole output.
        sampling.ignore_eos = false;
        sampling.max_new_tokens = 120;
        sampling.min_new_tokens = 120;
        request
    };
    for sight in MODELS {
        let model = Model::new(sight);
        let expected = alone(&model, [0, 1].map(|index| long(&model, index))).await;
        let (open, gate) = crossbeam_channel::bounded(0);
        let tight = EngineConfig {
            chunked_prefill_size: 16,
            max_total_tokens: Some(300),
            max_prefill_step_ms: 0,
            schedule_conservativeness: 0.01,
            image_cache_bytes: 0,
            ..model.config()
        };
        let seeing = Seeing::start_with(tight, |parts| {
            let executor = parts.executor.clone();
            parts.executor = Arc::new(move || {
                Ok(Box::new(Gated {
                    inner: executor()?,
                    gate: Some(gate.clone()),
                }))
            });
        });
        let first = seeing.world.generate(long(&model, 0));
        // Steps encode the images of the first request, until it runs.
        while seeing
            .world
            .engine
            .stats()
            .await
            .expect("stats")
            .running_requests
            == 0
        {
            let _ = open.try_send(());
            tokio::task::yield_now().await;
        }
        let second = seeing.world.generate(long(&model, 1));
        seeing.world.until_requests(2).await;
        drop(open);
        let (first, second) = tokio::join!(bits(first), bits(second));
        assert_same(&[first, second], &expected, sight.name);
        let stats = seeing.end().await;
        assert!(stats.retractions > 0, "{}: {stats:?}", sight.name);
    }
}

#[tokio::test]
async fn after_a_restart_with_the_kv_store_pictures_are_not_encoded() {
    for sight in MODELS {
        let model = Model::new(sight);
        let store = TempDir::new().expect("a temporary folder");
        let config = EngineConfig {
            kv_disk_path: Some(store.path().to_owned()),
            kv_disk_bytes: 1 << 28,
            kv_host_bytes: Some(1 << 24),
            page_size: 16,
            image_cache_bytes: 0,
            ..model.config()
        };
        let serve = async || {
            let seeing = Seeing::start(config.clone());
            let serves = |stats: &EngineStats| stats.store.is_some_and(|tier| tier.serves);
            seeing.world.until(serves).await;
            seeing
        };
        // Two blocks of 64 tokens hold the whole picture and the text after it, and each question comes after them.
        let n_text = 128 - BETWEEN - model.n_tokens(LARGE);
        let asked = |question| model.ask(n_text, &[LARGE], question);
        let expected = alone(&model, (0..3).map(asked)).await;
        let seeing = serve().await;
        let first = seeing.one(asked(0)).await;
        assert_same(&[first], &expected, sight.name);
        assert_eq!(seeing.encodings(), 1, "{}", sight.name);
        seeing.world.until(is_written).await;
        seeing.end().await;
        let seeing = serve().await;
        for question in [1, 0, 2] {
            let (got, cached) = seeing.one(asked(question)).await;
            let what = format!("{}, question {question}", sight.name);
            assert_eq!(got, expected[question as usize].0, "{what}");
            assert!(cached >= 128, "{what}: {cached} cached");
        }
        assert_eq!(seeing.encodings(), 0, "{}", sight.name);
        seeing.end().await;
    }
}

#[tokio::test]
async fn samples_and_later_questions_share_an_encoding() {
    for sight in MODELS {
        let model = Model::new(sight);
        let prompt = Prompt::from(model.prompt(TEXT, &[5, 6], 0));
        let samples: Vec<GenerateRequest> =
            (0..4).map(|seed| request(prompt.clone(), seed)).collect();
        let expected = alone(&model, samples.clone()).await;
        let seeing = Seeing::start(model.config());
        let sent = seeing.world.engine.generate_all(samples);
        let sent = sent.expect("the engine runs").into_iter();
        let got = join_all(sent.map(bits)).await;
        assert_same(&got, &expected, sight.name);
        assert_eq!(seeing.encodings(), 2, "{}", sight.name);
        seeing.end().await;
        // Nothing but K/V and states is kept.
        let seeing = Seeing::start(EngineConfig {
            image_cache_bytes: 0,
            ..model.config()
        });
        let end = TEXT + model.n_tokens(5);
        for (question, at_least) in [(0, 0), (1, end), (2, end)] {
            let (_, cached) = seeing.one(model.ask(TEXT, &[5], question)).await;
            assert!(cached >= at_least, "{}: {cached} cached", sight.name);
        }
        assert_eq!(seeing.encodings(), 1, "{}", sight.name);
        seeing.end().await;
    }
}

#[tokio::test]
async fn requests_with_other_salts_share_no_vectors() {
    let model = Model::new(PIXTRAL);
    let seeing = Seeing::start(model.config());
    let salts = [None, Some("a"), None, Some("a"), Some("b")];
    for (salt, n_encoded) in salts.into_iter().zip([1, 2, 2, 2, 3]) {
        let mut request = model.ask(TEXT, &[5], 0);
        request.namespace = Namespace::new(None, salt);
        seeing.one(request).await;
        assert_eq!(seeing.encodings(), n_encoded, "{salt:?}");
        // The prefix cache would have the picture, too.
        seeing.world.until_requests(0).await;
        let flushed = seeing.world.engine.flush_cache().await;
        flushed.expect("no request runs");
    }
    seeing.end().await;
}

/// The outputs of requests without images one after another, and the log's counts of steps and tokens.
async fn texts(folder: &Path, log: &Path) -> (Vec<(Bits, u32)>, [u64; 4]) {
    let world = start(EngineConfig {
        model_path: folder.to_owned(),
        record: Some(log.to_owned()),
        ..plain("", DtypeChoice::Auto)
    });
    let outputs = requests::one_after_another(&world).await;
    world.assert_no_leaks().await;
    world.stop().await;
    let log = File::open(log).expect("the log exists");
    let replayed = replay(log, &ControlSetup::build).expect("the log can be replayed");
    assert_eq!(replayed.difference, None);
    let counts = replayed.counts;
    let counts = [
        counts.requests,
        counts.steps,
        counts.prompt_tokens,
        counts.output_tokens,
    ];
    (outputs, counts)
}

#[tokio::test]
async fn texts_have_the_bits_and_the_steps_of_the_model_without_a_tower() {
    for sight in MODELS {
        let (model, without) = (Model::new(sight), sight.folder());
        blind(without.path());
        let logs = TempDir::new().expect("a temporary folder");
        let at = |name: &str| logs.path().join(name);
        let expected = texts(without.path(), &at("without")).await;
        let seeing = texts(model.folder.path(), &at("with")).await;
        assert_eq!(seeing, expected, "{}", sight.name);
        // In one batch with images.
        let seeing = Seeing::start(model.config());
        let (texts, images) = tokio::join!(at_once(&seeing.world), seeing.all(probes(&model)));
        assert_same(&texts, &expected.0, sight.name);
        assert_same(&images, &alone(&model, probes(&model)).await, sight.name);
        seeing.end().await;
    }
}
