//! Tests of engines whose model attends to images in both directions: the same bits under any schedule, a real tower,
//! images that no step can compute, and the message log.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_engine::Engine;
use souffleur_record::replay;
use souffleur_request::{
    GenerateRequest, ImageDigest, ImageGrid, ImageInput, ImagePrompt, PromptImage,
};
use souffleur_state::control::ControlSetup;
use souffleur_state::scheduler::stats::EngineStats;
use tempfile::TempDir;

use crate::embeddings::embeddings;
use crate::identity::{assert_same, plain, start};
use crate::images::{
    REQUESTS, ask, at_once, check_retractions, folder, is_written, one_by_one, pictures, pixels,
    prompt, refusal, request,
};
use crate::kernel_paths::repeats_floats;
use crate::requests::bits;
use crate::store::stored;
use crate::world::collect;

const MODEL: &str = "tests/fixtures/models/gemma3";
/// The tokens of the largest of the tests' pictures.
const LARGEST: i64 = 20;

fn of_model() -> EngineConfig {
    plain(MODEL, DtypeChoice::Auto)
}

#[tokio::test]
async fn schedules_change_no_bit_where_images_attend_in_both_directions() {
    if repeats_floats() {
        return;
    }
    let world = start(EngineConfig {
        disable_radix_cache: true,
        threads: 2,
        ..of_model()
    });
    let expected = one_by_one(&world, MODEL).await;
    world.stop().await;
    // Some of these pages end within images, so that cached prefixes do.
    for (chunk, page_size) in [(LARGEST, 1), (33, 1), (32, 16), (256, 64)] {
        let world = start(EngineConfig {
            chunked_prefill_size: chunk,
            page_size,
            ..of_model()
        });
        let what = format!("chunks of {chunk}, pages of {page_size}");
        assert_same(&at_once(&world, MODEL).await, &expected, &what);
        let again = one_by_one(&world, MODEL).await;
        assert_same(&again, &expected, &format!("{what}, cached"));
        let has_hits = again.iter().any(|(_, cached)| *cached > 0);
        assert!(has_hits || page_size == 64, "{what}");
        world.assert_no_leaks().await;
        world.stop().await;
    }
    check_retractions(MODEL).await;
}

/// Decodes take a part of the chunk, which the largest picture thereby exceeds.
#[tokio::test]
async fn decodes_in_the_same_steps_change_no_token() {
    let tokens = async |config: EngineConfig| {
        let world = start(config);
        let sent = (0..REQUESTS).map(|index| {
            let mut request = ask(MODEL, pictures(index), index);
            // Requests with log probabilities share no step with decodes.
            request.logprobs = None;
            request.sampling.max_new_tokens = 30;
            collect(world.generate(request))
        });
        let outcomes = join_all(sent).await.into_iter();
        let tokens: Vec<Vec<u32>> = outcomes.map(|outcome| outcome.tokens).collect();
        world.assert_no_leaks().await;
        world.stop().await;
        tokens
    };
    let expected = tokens(of_model()).await;
    assert!(expected.iter().all(|tokens| tokens.len() == 30));
    let mixed = EngineConfig {
        chunked_prefill_size: LARGEST,
        enable_mixed_chunk: true,
        ..of_model()
    };
    assert_eq!(tokens(mixed).await, expected);
}

#[tokio::test]
async fn chunks_change_no_bit_on_ranks() {
    if repeats_floats() {
        return;
    }
    let on_ranks = |chunk| EngineConfig {
        tp_size: 2,
        chunked_prefill_size: chunk,
        ..of_model()
    };
    let world = start(on_ranks(256));
    let expected = one_by_one(&world, MODEL).await;
    world.stop().await;
    let world = start(on_ranks(LARGEST));
    assert_same(&at_once(&world, MODEL).await, &expected, "small chunks");
    world.stop().await;
}

#[tokio::test]
async fn an_image_that_no_step_can_compute_is_refused() {
    let world = start(EngineConfig {
        chunked_prefill_size: LARGEST - 1,
        ..of_model()
    });
    let text = refusal(&world, prompt(MODEL, &[(3, 5, 4)], 0)).await;
    assert!(
        text.contains("20 tokens that attend to each other"),
        "{text}"
    );
    assert!(text.contains("at most 19"), "{text}");
    bits(world.generate(ask(MODEL, &[(1, 2, 3)], 0))).await;
    world.assert_no_leaks().await;
    world.stop().await;
}

/// Keys tell each image apart, not the other images or parts to which its vectors attend.
#[tokio::test]
async fn images_that_touch_or_have_marks_within_are_refused() {
    let world = start(of_model());
    let valid = prompt(MODEL, &[(1, 2, 3), (2, 2, 3)], 0);
    // Without the marks and the text between the vectors of the two images.
    let mut touching = valid.clone();
    touching.tokens = [&valid.tokens[..27], &valid.tokens[32..]].concat().into();
    touching.images[0].positions = 20..27;
    touching.images[1].positions = 27..34;
    let text = refusal(&world, touching).await;
    assert!(
        text.contains("images[1] directly follows the vectors of images[0]"),
        "{text}"
    );
    // A mark is enough.
    let mut next = valid.clone();
    next.tokens = [&valid.tokens[..28], &valid.tokens[32..]].concat().into();
    next.images[1].positions = 28..35;
    bits(world.generate(request(next.into(), 0))).await;
    let mut divided = prompt(MODEL, &[(1, 2, 3)], 0);
    let mut tokens = divided.tokens.to_vec();
    tokens[23] = 9;
    divided.tokens = tokens.into();
    let five = (1, 1, 5);
    divided.images[0].grid = ImageGrid {
        rows: 1,
        columns: 5,
    };
    divided.images[0].vectors = Some(embeddings(&folder(MODEL), &pixels(five)));
    let text = refusal(&world, divided).await;
    assert!(
        text.contains("images[0] has a mark between its pad tokens"),
        "{text}"
    );
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_message_log_replays_chunks_that_end_before_images() {
    let folder = TempDir::new().expect("a temporary folder");
    let log = folder.path().join("log");
    let world = start(EngineConfig {
        chunked_prefill_size: LARGEST,
        record: Some(log.clone()),
        ..of_model()
    });
    let sent = (0..REQUESTS).map(|index| {
        let request = ask(MODEL, pictures(index), index);
        bits(world.generate(request))
    });
    join_all(sent).await;
    world.stop().await;
    let log = File::open(log).expect("the log exists");
    let replayed = replay(log, &ControlSetup::build).expect("the log can be replayed");
    assert_eq!(replayed.difference, None);
    assert!(replayed.counts.requests >= u64::from(REQUESTS));
}

#[tokio::test]
async fn a_load_from_the_kv_store_may_end_within_an_image() {
    let store = TempDir::new().expect("a temporary folder");
    let serve = async || {
        let world = start(stored(MODEL, store.path(), 16));
        let serves = |stats: &EngineStats| stats.store.is_some_and(|tier| tier.serves);
        world.until(serves).await;
        world
    };
    // Its vectors are at positions 21 to 117, and the store has whole blocks of 64 tokens.
    let picture = [(1, 8, 12)];
    let world = serve().await;
    let (expected, _) = bits(world.generate(ask(MODEL, &picture, 0))).await;
    world.until(is_written).await;
    world.stop().await;
    let world = serve().await;
    let (got, cached) = bits(world.generate(ask(MODEL, &picture, 0))).await;
    assert_eq!(got, expected);
    assert!((22..117).contains(&cached), "{cached}");
    world.assert_no_leaks().await;
    world.stop().await;
}

/// Patches along each side of the tower's images, values of a patch, and vectors of an image.
const SIDE: u32 = 6;
const PATCH: u32 = 3 * 4 * 4;
const VECTORS: u32 = 4;

/// A picture of the tower's size.
#[derive(Debug)]
struct Patches(u8);

impl ImageInput for Patches {
    fn n_views(&self) -> usize {
        1
    }

    fn grid(&self, _: usize) -> ImageGrid {
        ImageGrid {
            rows: SIDE,
            columns: SIDE,
        }
    }

    fn patches(&self, _: usize) -> Vec<f32> {
        let value = |i: u32| ((i * 37 + u32::from(self.0) * 101) % 256) as f32 / 128.0 - 1.0;
        (0..SIDE * SIDE * PATCH).map(value).collect()
    }

    fn bytes(&self) -> usize {
        size_of::<Self>()
    }
}

/// A checkpoint of Gemma 3 with a tower: the fixtures of a text model and of a tower, whose projection is widened.
fn with_tower() -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let parts = ["models/gemma3-wrapped", "towers/gemma3"];
    let parts = parts.map(|part| folder("tests/fixtures").join(part));
    let read = |part: &Path, name: &str| std::fs::read(part.join(name)).expect("a fixture");
    let [mut config, tower]: [Value; 2] = [0, 1].map(|part| {
        let file = read(&parts[part], "config.json");
        serde_json::from_slice(&file).expect("valid JSON")
    });
    for key in ["vision_config", "mm_tokens_per_image"] {
        config[key] = tower[key].clone();
    }
    let width = config["text_config"]["hidden_size"]
        .as_u64()
        .expect("a size") as usize;
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("a new file");
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for part in &parts {
        let file = read(part, "model.safetensors");
        let file = SafeTensors::deserialize(&file).expect("a checkpoint");
        for (name, view) in file.tensors() {
            let (mut shape, mut data) = (view.shape().to_vec(), view.data().to_vec());
            if name.ends_with("mm_input_projection_weight") {
                let rows = data.chunks(2 * shape[1]);
                let wide = rows.flat_map(|row| row.iter().copied().cycle().take(2 * width));
                data = wide.collect();
                shape[1] = width;
            }
            tensors.push((name, view.dtype(), shape, data));
        }
    }
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        let view = TensorView::new(*dtype, shape.clone(), data).expect("a valid tensor");
        (name, view)
    });
    let file = dir.path().join("model.safetensors");
    safetensors::serialize_to_file(views, None, &file).expect("a new file");
    dir
}

/// Text, pictures with text after each, and a question.
fn seen(pictures: &[u8], question: u32) -> GenerateRequest {
    let mut tokens: Vec<u32> = (3..12).collect();
    let images = pictures.iter().map(|picture| {
        let first = tokens.len() as u32;
        tokens.extend([251, 250, 250, 250, 250, 252, 60, 61]);
        PromptImage {
            positions: first..first + VECTORS + 2,
            pad: 250,
            digest: ImageDigest([*picture; 32]),
            grid: ImageGrid {
                rows: 2,
                columns: 2,
            },
            vectors: None,
            input: Some(Arc::new(Patches(*picture))),
        }
    });
    let images: Vec<PromptImage> = images.collect();
    tokens.extend([question + 20, 30, 31]);
    let prompt = ImagePrompt {
        tokens: tokens.into(),
        images,
    };
    request(prompt.into(), question)
}

#[tokio::test]
async fn a_checkpoint_with_a_tower_answers_images() {
    let dir = with_tower();
    let path: PathBuf = dir.path().to_owned();
    let config = |chunked_prefill_size| EngineConfig {
        model_path: path.clone(),
        chunked_prefill_size,
        ..plain(MODEL, DtypeChoice::Float32)
    };
    let world = start(config(256));
    let first = bits(world.generate(seen(&[1, 2, 1], 0))).await;
    let (again, cached) = bits(world.generate(seen(&[1, 2, 1], 0))).await;
    assert!(again == first.0 && first.1 == 0 && cached > 0, "{cached}");
    let other = bits(world.generate(seen(&[1, 3, 1], 0))).await;
    assert_ne!(other.0, first.0, "another picture");
    world.assert_no_leaks().await;
    world.stop().await;
    let world = start(config(i64::from(VECTORS)));
    let (got, _) = bits(world.generate(seen(&[1, 2, 1], 0))).await;
    assert_eq!(got, first.0);
    world.stop().await;
    let Err(error) = Engine::start(config(3)) else {
        panic!("an image does not fit into a chunk");
    };
    let text = error.to_string();
    assert!(text.contains("chunked_prefill_size is 3"), "{text}");
    assert!(text.contains("up to 4 tokens"), "{text}");
}
