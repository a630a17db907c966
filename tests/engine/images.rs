//! Tests of prompts with images: the same bits under any schedule and after a restart, and the parts that are cached.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::join_all;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_engine::Generation;
use souffleur_request::{
    Event, GenerateRequest, ImageDigest, ImageGrid, ImagePrompt, Prompt, PromptImage, PromptVectors,
};
use souffleur_state::prompt_images::is_key;
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};
use souffleur_state::scheduler::stats::EngineStats;
use tempfile::TempDir;

use crate::embeddings::embeddings;
use crate::identity::{assert_same, plain, start, start_gated};
use crate::kernel_paths::repeats_floats;
use crate::requests::{Bits, bits};
use crate::store::stored;
use crate::world::{Build, World, collect, within};

/// A model without M-RoPE, and one with M-RoPE and recurrent states.
pub(super) const MODELS: [&str; 2] = [
    "tests/fixtures/models/llama",
    "tests/fixtures/models/qwen3-5",
];
const PAD: u32 = 250;
const BEGIN: u32 = 251;
const END: u32 = 252;
/// Text before the first image, and after each.
pub(super) const TEXT: u32 = 20;
const BETWEEN: u32 = 3;
pub(super) const REQUESTS: u32 = 8;

/// A digest, rows and columns. The vectors depend on the digest alone.
pub(super) type Picture = (u8, u32, u32);

pub(super) fn folder(model: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(model)
}

/// Tokens whose embeddings are an image's vectors.
pub(super) fn pixels(picture: Picture) -> Vec<u32> {
    let (digest, rows, columns) = picture;
    let pixel = |at| (at * 7 + u32::from(digest) * 31 + 11) % 240;
    (0..rows * columns).map(pixel).collect()
}

/// Text, pictures with text after each, and a question.
pub(super) fn prompt(model: &str, pictures: &[Picture], question: u32) -> ImagePrompt {
    let mut tokens: Vec<u32> = (0..TEXT).map(|i| (i * 17 + 3) % 240).collect();
    let mut images = Vec::new();
    for &picture in pictures {
        let (digest, rows, columns) = picture;
        let first = tokens.len() as u32;
        tokens.push(BEGIN);
        tokens.extend(std::iter::repeat_n(PAD, (rows * columns) as usize));
        tokens.push(END);
        images.push(PromptImage {
            positions: first..tokens.len() as u32,
            pad: PAD,
            digest: ImageDigest([digest; 32]),
            grid: ImageGrid { rows, columns },
            vectors: Some(embeddings(&folder(model), &pixels(picture))),
            input: None,
        });
        tokens.extend((0..BETWEEN).map(|i| i + 60));
    }
    tokens.extend((0..6).map(|i| (i * 13 + question * 29) % 240));
    ImagePrompt {
        tokens: tokens.into(),
        images,
    }
}

/// The prompt with the tokens whose embeddings are the images' vectors.
fn as_text(prompt: &ImagePrompt, pictures: &[Picture]) -> Prompt {
    let mut pixels = pictures.iter().flat_map(|picture| pixels(*picture));
    let tokens = prompt.tokens.iter();
    let tokens = tokens.map(|token| match *token {
        PAD => pixels.next().expect("a pixel for each pad token"),
        other => other,
    });
    Prompt::Tokens(tokens.collect())
}

pub(super) fn request(prompt: Prompt, seed: u32) -> GenerateRequest {
    let mut request = GenerateRequest::new(prompt);
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = 8;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(seed));
    sampling.temperature = 0.7;
    request
}

pub(super) fn ask(model: &str, pictures: &[Picture], question: u32) -> GenerateRequest {
    request(prompt(model, pictures, question).into(), question)
}

/// The pictures of some requests, of which the first is the same in several.
pub(super) fn pictures(index: u32) -> &'static [Picture] {
    match index % 4 {
        0 => &[(1, 2, 3)],
        1 => &[(1, 2, 3), (2, 4, 2)],
        2 => &[(3, 5, 4), (1, 2, 3), (1, 2, 3)],
        _ => &[(4, 1, 1)],
    }
}

fn asked(model: &str, index: u32) -> GenerateRequest {
    ask(model, pictures(index), index)
}

pub(super) async fn one_by_one(world: &World, model: &str) -> Vec<(Bits, u32)> {
    let mut all = Vec::new();
    for index in 0..REQUESTS {
        all.push(bits(world.generate(asked(model, index))).await);
    }
    all
}

pub(super) async fn at_once(world: &World, model: &str) -> Vec<(Bits, u32)> {
    join_all((0..REQUESTS).map(|index| bits(world.generate(asked(model, index))))).await
}

#[tokio::test]
async fn schedules_change_no_bit_of_prompts_with_images() {
    if repeats_floats() {
        return;
    }
    for model in MODELS {
        let world = start(EngineConfig {
            disable_radix_cache: true,
            threads: 2,
            ..plain(model, DtypeChoice::Auto)
        });
        let expected = one_by_one(&world, model).await;
        assert!(expected.iter().all(|(_, cached)| *cached == 0));
        world.stop().await;
        for (chunk, page_size) in [(256, 1), (7, 1), (32, 16)] {
            let world = start(EngineConfig {
                chunked_prefill_size: chunk,
                page_size,
                ..plain(model, DtypeChoice::Auto)
            });
            let what = format!("{model}, chunks of {chunk}, pages of {page_size}");
            assert_same(&at_once(&world, model).await, &expected, &what);
            let again = one_by_one(&world, model).await;
            assert_same(&again, &expected, &format!("{what}, cached"));
            // A prompt resumes only from a saved state on the second model.
            let n_cached = again.iter().filter(|(_, cached)| *cached > 0).count();
            assert!(n_cached == again.len() || (model == MODELS[1] && n_cached > 0));
            world.assert_no_leaks().await;
            world.stop().await;
        }
    }
}

#[tokio::test]
async fn retractions_change_no_bit_of_prompts_with_images() {
    if repeats_floats() {
        return;
    }
    for model in MODELS {
        check_retractions(model).await;
    }
}

pub(super) async fn check_retractions(model: &str) {
    // Each of two requests fits alone, but both together do not.
    let long = |model: &str, index: u32| {
        let mut request = ask(model, pictures(index), index);
        let sampling = &mut request.sampling;
        // With `ignore_eos`, the scheduler would reserve pages for the whole output.
        sampling.ignore_eos = false;
        sampling.max_new_tokens = 120;
        sampling.min_new_tokens = 120;
        request
    };
    let world = start(plain(model, DtypeChoice::Auto));
    let mut expected = Vec::new();
    for index in [2, 1] {
        expected.push(bits(world.generate(long(model, index))).await);
    }
    world.stop().await;
    let (open, gate) = crossbeam_channel::bounded(0);
    let tight = EngineConfig {
        max_total_tokens: Some(300),
        max_prefill_step_ms: 0,
        schedule_conservativeness: 0.01,
        swa_full_tokens_ratio: 1.0,
        ..plain(model, DtypeChoice::Auto)
    };
    let world = start_gated(gate, tight);
    let requests = [2, 1].map(|index| long(model, index));
    let sent = world.send_first_alone(requests).await;
    drop(open);
    let got = join_all(sent.into_iter().map(bits)).await;
    assert_same(&got, &expected, model);
    let stats = world.assert_no_leaks().await;
    assert!(stats.retractions > 0, "{model}: {stats:?}");
    world.stop().await;
}

#[tokio::test]
async fn vectors_of_tokens_give_the_output_of_the_tokens() {
    // With M-RoPE, only an image of one vector has the positions of text.
    let cases: [(&str, &[Picture]); 2] = [
        (MODELS[0], &[(1, 2, 3), (2, 4, 2)]),
        (MODELS[1], &[(1, 1, 1), (2, 1, 1)]),
    ];
    for (model, pictures) in cases {
        let world = start(plain(model, DtypeChoice::Auto));
        let with_images = prompt(model, pictures, 1);
        let text = as_text(&with_images, pictures);
        let (expected, _) = bits(world.generate(request(text, 1))).await;
        let (got, cached) = bits(world.generate(request(with_images.into(), 1))).await;
        assert_eq!(got, expected, "{model}");
        assert!(cached <= TEXT, "{model} cached {cached}");
        world.stop().await;
    }
}

#[tokio::test]
async fn an_image_is_cached_by_its_digest_and_grid() {
    let [model, with_states] = MODELS;
    let world = start(plain(model, DtypeChoice::Auto));
    let cached = async |request: GenerateRequest| bits(world.generate(request)).await.1;
    let picture = (1, 2, 3);
    let end = TEXT + 8;
    let n_tokens = prompt(model, &[picture], 0).tokens.len() as u32;
    assert_eq!(cached(ask(model, &[picture], 0)).await, 0);
    assert_eq!(cached(ask(model, &[picture], 0)).await, n_tokens - 1);
    assert_eq!(cached(ask(model, &[picture], 1)).await, end + BETWEEN);
    // Of another image, of another grid and of the same tokens as text, nothing of the image is cached.
    assert_eq!(cached(ask(model, &[(2, 2, 3)], 0)).await, TEXT);
    assert_eq!(cached(ask(model, &[(1, 3, 2)], 0)).await, TEXT);
    let text = Prompt::Tokens(prompt(model, &[picture], 0).tokens);
    assert_eq!(cached(request(text, 0)).await, TEXT);
    // The second image is another one.
    let two = [picture, (5, 1, 2)];
    assert_eq!(cached(ask(model, &two, 0)).await, end + BETWEEN);
    let two = [picture, (6, 1, 2)];
    assert_eq!(cached(ask(model, &two, 0)).await, end + BETWEEN);
    world.assert_no_leaks().await;
    world.stop().await;
    // A state is saved at the end of the image.
    let world = start(plain(with_states, DtypeChoice::Auto));
    bits(world.generate(ask(with_states, &[picture], 0))).await;
    let (_, cached) = bits(world.generate(ask(with_states, &[picture], 1))).await;
    assert_eq!(cached, end);
    world.stop().await;
}

pub(super) fn is_written(stats: &EngineStats) -> bool {
    let tier = stats.store.expect("the engine has a store");
    let is_idle =
        tier.free_buffers == tier.buffers && tier.free_state_buffers == tier.state_buffers;
    tier.saved_blocks >= 2 && tier.queued_paths == 0 && is_idle
}

#[tokio::test]
async fn images_are_found_in_the_kv_store_after_a_restart() {
    let model = MODELS[0];
    let store = TempDir::new().expect("a temporary folder");
    let serve = async || {
        let world = start(stored(model, store.path(), 16));
        let serves = |stats: &EngineStats| stats.store.is_some_and(|tier| tier.serves);
        world.until(serves).await;
        world
    };
    let picture = [(1, 10, 10)];
    let world = serve().await;
    let (expected, cached) = bits(world.generate(ask(model, &picture, 0))).await;
    assert_eq!(cached, 0);
    world.until(is_written).await;
    world.stop().await;
    let world = serve().await;
    let (got, cached) = bits(world.generate(ask(model, &picture, 0))).await;
    assert_eq!((got, cached), (expected, 128));
    // Another image shares only the page of text before it.
    let (_, cached) = bits(world.generate(ask(model, &[(2, 10, 10)], 0))).await;
    assert_eq!(cached, 16);
    world.stop().await;
}

/// The log probabilities of the prompt, and its tokens.
async fn inputs(mut generation: Generation) -> (Vec<TokenLogprobs>, Arc<[u32]>) {
    let mut entries = Vec::new();
    loop {
        match within(generation.next()).await.expect("a terminal event") {
            Event::Delta(delta) => entries.extend(delta.input_logprobs),
            Event::Finished(end) => {
                let end = *end;
                entries.extend(end.delta.input_logprobs);
                return (entries, end.prompt);
            }
            other => panic!("ended with {other:?}"),
        }
    }
}

#[tokio::test]
async fn positions_of_images_have_no_log_probabilities() {
    let model = MODELS[0];
    let world = start(plain(model, DtypeChoice::Auto));
    let mut request = ask(model, &[(1, 2, 3)], 0);
    request.logprobs = Some(LogprobWish {
        start: Some(0),
        top: 2,
        ..LogprobWish::default()
    });
    let ids = prompt(model, &[(1, 2, 3)], 0).tokens;
    let (entries, tokens) = inputs(world.generate(request)).await;
    assert_eq!(entries.len(), tokens.len());
    for (at, (entry, token)) in (0..).zip(entries.iter().zip(&*tokens)) {
        let is_image = (TEXT..TEXT + 8).contains(&at);
        let id = ids[at as usize];
        assert_eq!((entry.token, is_key(*token)), (id, is_image), "{at}");
        let has_none = entry.logprob.is_none() && entry.top.is_empty();
        assert_eq!(has_none, is_image || at == 0, "{at}");
    }
    world.stop().await;
}

pub(super) async fn refusal(world: &World, prompt: ImagePrompt) -> String {
    match collect(world.generate(request(prompt.into(), 0))).await.end {
        Event::Failed(error) => error.to_string(),
        other => panic!("ended with {other:?}"),
    }
}

#[tokio::test]
async fn invalid_and_unsupported_images_are_refused() {
    let with_states = MODELS[1];
    let world = start(plain(with_states, DtypeChoice::Auto));
    let valid = || prompt(with_states, &[(1, 2, 3)], 0);
    let mut without_vectors = valid();
    without_vectors.images[0].vectors = None;
    let text = refusal(&world, without_vectors).await;
    assert!(text.contains("images[0] has no vectors"), "{text}");
    let mut narrow = valid();
    let vectors = PromptVectors::new(2, vec![0.5; 12]).expect("valid vectors");
    narrow.images[0].vectors = Some(vectors.into());
    let text = refusal(&world, narrow).await;
    assert!(text.contains("vectors of 2 values"), "{text}");
    let mut beyond = valid();
    beyond.images[0].positions.end = 99;
    let text = refusal(&world, beyond).await;
    assert!(text.contains("at positions 20 to 99 of 37"), "{text}");
    // M-RoPE has no positions for a mark between vectors.
    let mut divided = valid();
    let mut tokens = divided.tokens.to_vec();
    tokens[23] = END;
    divided.tokens = tokens.into();
    divided.images[0].grid = ImageGrid {
        rows: 1,
        columns: 5,
    };
    let five = pixels((1, 1, 5));
    divided.images[0].vectors = Some(embeddings(&folder(with_states), &five));
    let text = refusal(&world, divided).await;
    assert!(text.contains("a mark between its pad tokens"), "{text}");
    world.assert_no_leaks().await;
    world.stop().await;
    let without = "tests/fixtures/models/gemma2";
    for (world, missing) in [
        (
            start(plain(without, DtypeChoice::Auto)),
            "no vision tower of this model's family",
        ),
        (Build::default().start(), "its executor takes no vectors"),
    ] {
        let text = refusal(&world, valid()).await;
        assert!(text.contains(missing), "{text}, expected {missing}");
        world.stop().await;
    }
}
