//! Tests that drafts change no bit of outputs that follow images, nor how many tokens the next turn finds in the cache: on
//! models with M-RoPE, with recurrent states, with vectors for the first layers, and with images that attend in both
//! directions.

use std::sync::Arc;

use futures_util::future::join_all;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_request::{GenerateRequest, ImagePrompt, Prompt, PromptVectors};
use souffleur_state::sampling::LogprobWish;

use crate::identity::{assert_same, plain, start as start_plain};
use crate::images::{Picture, prompt};
use crate::kernel_paths::repeats_floats;
use crate::requests::bits;
use crate::scripted_drafts::{Script, ScriptedDrafts};
use crate::speculating::start;

/// A model whose images have vectors for its first layers.
const DEEPSTACK: &str = "tests/fixtures/models/qwen3-vl";
const MODELS: [&str; 3] = [
    "tests/fixtures/models/qwen3-5",
    DEEPSTACK,
    "tests/fixtures/models/gemma3",
];
const PICTURES: [&[Picture]; 3] = [&[], &[(1, 2, 3)], &[(1, 2, 3), (2, 4, 2)]];
/// Conversations: one for each number of pictures, greedy, then seeded.
const CONVERSATIONS: u32 = 6;
const OUTPUT: u32 = 20;
/// The vocabulary size of all models.
const VOCAB: u32 = 288;

/// The vectors, each followed by two others for the first layers.
fn deepened(vectors: &PromptVectors) -> PromptVectors {
    let width = vectors.width();
    let each = vectors.values(0..vectors.len()).chunks_exact(width);
    let values = each.flat_map(|vector| {
        let second = vector.iter().rev().map(|x| x / 2.0);
        let third = vector.iter().map(|x| -0.75 * x);
        let all = vector.iter().copied().chain(second).chain(third);
        all.collect::<Vec<f32>>()
    });
    PromptVectors::new(3 * width, values.collect()).expect("finite numbers")
}

fn first_turn(model: &str, conversation: u32) -> ImagePrompt {
    let pictures = PICTURES[conversation as usize % PICTURES.len()];
    let mut first = prompt(model, pictures, conversation);
    if model == DEEPSTACK {
        for image in &mut first.images {
            let vectors = image.vectors.take();
            image.vectors = vectors.map(|vectors| Arc::new(deepened(&vectors)));
        }
    }
    first
}

/// The prompt of the next turn, which begins with the first turn and its output.
fn next_turn(first: &ImagePrompt, output: &[(u32, u32)]) -> ImagePrompt {
    let output = output.iter().map(|(token, _)| *token);
    let tokens = first.tokens.iter().copied().chain(output);
    ImagePrompt {
        tokens: tokens.chain([70, 71, 72]).collect(),
        images: first.images.clone(),
    }
}

/// The request for this prompt; `number` is its seed.
fn request(prompt: &ImagePrompt, number: u32) -> GenerateRequest {
    let prompt = if prompt.images.is_empty() {
        Prompt::Tokens(prompt.tokens.clone())
    } else {
        prompt.clone().into()
    };
    let mut request = GenerateRequest::new(prompt);
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = OUTPUT;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(number));
    if number < CONVERSATIONS {
        sampling.temperature = 0.0;
    } else {
        sampling.top_p = 0.95;
        sampling.repetition_penalty = 1.1;
        sampling.frequency_penalty = 0.2;
    }
    request
}

fn config(model: &str) -> EngineConfig {
    plain(model, DtypeChoice::Auto)
}

async fn check(model: &str) {
    let world = start_plain(config(model));
    // The two turns of each conversation have successive numbers.
    let (mut prompts, mut expected) = (Vec::new(), Vec::new());
    for conversation in 0..CONVERSATIONS {
        let first = first_turn(model, conversation);
        let number = 2 * conversation;
        let answer = bits(world.generate(request(&first, number))).await;
        let second = next_turn(&first, &answer.0);
        let next = bits(world.generate(request(&second, number + 1))).await;
        let images_end = first.images.last().map_or(0, |image| image.positions.end);
        assert!(next.1 >= images_end, "{model} cached {} tokens", next.1);
        prompts.extend([first, second]);
        expected.extend([answer, next]);
    }
    world.assert_no_leaks().await;
    world.stop().await;
    let drafts = ScriptedDrafts::new(Script::Random(0.7), 5, VOCAB);
    for (seed, (bits, _)) in (0..).zip(&expected) {
        let tokens: Vec<u32> = bits.iter().map(|(token, _)| *token).collect();
        // Each engine has its own keys at the positions of images.
        drafts.learn(&[], seed, &tokens);
    }
    let (world, tally) = start(config(model), &drafts, None);
    for (number, (prompt, expected)) in (0_u32..).zip(prompts.iter().zip(&expected)) {
        let got = bits(world.generate(request(prompt, number))).await;
        assert_eq!(got.0, expected.0, "{model}, request {number}");
        // With drafts, rows keep more window pages, so the text before an image may be cached for longer.
        if !number.is_multiple_of(2) {
            assert_eq!(got.1, expected.1, "{model}, request {number}");
        }
    }
    let numbered = (0..).zip(&prompts);
    let sent = numbered.map(|(number, prompt)| bits(world.generate(request(prompt, number))));
    let at_once = join_all(sent).await;
    assert_same(&at_once, &expected, &format!("{model}, cached, in a batch"));
    world.assert_no_leaks().await;
    world.stop().await;
    let (accepted, rejected) = tally.totals();
    assert!(
        accepted > 0 && rejected > 0,
        "{model}: {accepted} drafts accepted, {rejected} rejected"
    );
}

#[tokio::test]
async fn drafts_after_images_change_no_bit() {
    if repeats_floats() {
        return;
    }
    for model in MODELS {
        check(model).await;
    }
}
