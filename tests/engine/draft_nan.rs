//! Tests of NaN where steps have drafts: it ends a request at the same token, and in rejected drafts it reaches no output.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use serde_json::Value;
use souffleur_base::error::RequestError;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_engine::Generation;
use souffleur_request::{Delta, Event, GenerateRequest, Prompt};
use souffleur_state::sampling::LogprobWish;
use tempfile::TempDir;

use crate::identity::{plain, start as start_plain};
use crate::images::folder;
use crate::requests::Bits;
use crate::scripted_drafts::{Script, ScriptedDrafts};
use crate::speculating::{learn, start};
use crate::world::within;

/// Models whose output matrix is not their embeddings, with full attention, with states, and with windows.
const MODELS: [&str; 3] = [
    "tests/fixtures/models/llama",
    "tests/fixtures/models/qwen3-5",
    "tests/fixtures/models/gpt-oss",
];
const VOCAB: u32 = 288;
/// Prompts have only tokens below this one.
const OF_PROMPTS: u32 = 40;
const PROMPT: u32 = 21;
const OUTPUT: u32 = 24;
const REQUESTS: u32 = 4;
/// NaN is tested after tokens of these places in the output.
const PLACES: usize = 10;

/// One of a few requests: greedy if `index` is even, otherwise seeded.
fn request(index: u32) -> GenerateRequest {
    let tokens = (0..PROMPT).map(|i| (i * 17 + index * 5 + 3) % OF_PROMPTS);
    let mut request = GenerateRequest::new(Prompt::Tokens(tokens.collect()));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = OUTPUT;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(u64::from(index));
    sampling.temperature = if index.is_multiple_of(2) { 0.0 } else { 1.0 };
    request
}

/// The output, and the error that ended it.
async fn observe(mut generation: Generation) -> (Bits, Option<RequestError>) {
    let mut all = Bits::new();
    let mut take = |delta: Delta| {
        let entries = delta.output_logprobs.into_iter();
        let bit = |logprob: Option<f32>| logprob.expect("a log probability").to_bits();
        all.extend(entries.map(|entry| (entry.token, bit(entry.logprob))));
    };
    let error = loop {
        let event = within(generation.next()).await;
        match event.expect("the stream ends with a terminal event") {
            Event::Delta(delta) => take(delta),
            Event::Finished(end) => {
                take(end.delta);
                break None;
            }
            Event::Failed(error) => break Some(error),
            Event::Cancelled(_) => panic!("the request was cancelled"),
        }
    };
    (all, error)
}

fn tokens(bits: &[(u32, u32)]) -> Vec<u32> {
    bits.iter().map(|(token, _)| *token).collect()
}

/// A copy of a fixture in which the embeddings of these tokens begin with NaN.
fn poisoned(model: &str, tokens: impl IntoIterator<Item = u32>) -> TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(folder(model).join(name), copy.path().join(name)).expect("a fixture");
    }
    let file = copy.path().join("model.safetensors");
    let mut bytes = std::fs::read(&file).expect("the file can be read");
    let header_end = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..header_end]).expect("valid JSON");
    let tensors = header.as_object().expect("an object");
    let mut tensors = tensors.iter();
    let table = tensors.find(|(name, _)| name.ends_with("embed_tokens.weight"));
    let (_, table) = table.expect("token embeddings");
    let nan = match table["dtype"].as_str() {
        Some("F32") => f32::NAN.to_le_bytes().to_vec(),
        Some("BF16") => half::bf16::NAN.to_le_bytes().to_vec(),
        other => panic!("embeddings in {other:?}"),
    };
    let number = |value: &Value| value.as_u64().expect("a number") as usize;
    let first = header_end + number(&table["data_offsets"][0]);
    let row_bytes = number(&table["shape"][1]) * nan.len();
    for token in tokens {
        let at = first + token as usize * row_bytes;
        bytes[at..at + nan.len()].copy_from_slice(&nan);
    }
    std::fs::write(&file, bytes).expect("the file can be written");
    copy
}

fn config(model: &str) -> EngineConfig {
    plain(model, DtypeChoice::Auto)
}

fn config_of(copy: &TempDir) -> EngineConfig {
    config(copy.path().to_str().expect("the path is UTF-8"))
}

/// The outputs of all requests, without drafts and without NaN.
async fn whole_outputs(model: &str) -> Vec<Bits> {
    let world = start_plain(config(model));
    let mut all = Vec::new();
    for index in 0..REQUESTS {
        let (output, error) = observe(world.generate(request(index))).await;
        assert_eq!((output.len(), error), (OUTPUT as usize, None), "{model}");
        all.push(output);
    }
    world.stop().await;
    all
}

/// The drafts are those that the model would accept without NaN: many steps have NaN at later positions than the first.
async fn check_end(model: &str, index: u32, whole: &[(u32, u32)], place: usize) -> u64 {
    let copy = poisoned(model, [whole[place].0]);
    let world = start_plain(config_of(&copy));
    let expected = observe(world.generate(request(index))).await;
    world.stop().await;
    let what = format!("{model}, request {index}, NaN after token {place}");
    let nan = Some(RequestError::NanLogits);
    assert_eq!(expected, (whole[..=place].to_vec(), nan), "{what}");
    let drafts = ScriptedDrafts::new(Script::Random(1.0), 1, VOCAB);
    learn(&drafts, &request(index), &tokens(whole));
    let (world, tally) = start(config_of(&copy), &drafts, None);
    let got = observe(world.generate(request(index))).await;
    assert_eq!(got, expected, "{what}");
    world.assert_no_leaks().await;
    world.stop().await;
    tally.totals().0
}

#[tokio::test]
async fn nan_after_accepted_drafts_ends_a_request_at_the_same_token() {
    for model in MODELS {
        let outputs = whole_outputs(model).await;
        let mut accepted = 0;
        for index in [0, 1] {
            let whole = &outputs[index as usize];
            let is_first = |place: &usize| {
                let token = whole[*place].0;
                token >= OF_PROMPTS && whole[..*place].iter().all(|(before, _)| *before != token)
            };
            // The first model has NaN after each number of accepted drafts.
            let every = if index == 1 && model == MODELS[0] {
                1
            } else {
                4
            };
            for place in (0..PLACES).filter(is_first).step_by(every) {
                accepted += check_end(model, index, whole, place).await;
            }
        }
        assert!(accepted > 0, "{model}: no draft was accepted before NaN");
    }
}

/// Most wrong drafts make NaN, since no output has their tokens.
async fn check_rejected(model: &str, page_size: u32) {
    let outputs = whole_outputs(model).await;
    let used: BTreeSet<u32> = outputs.iter().flat_map(|output| tokens(output)).collect();
    let is_unused = |token: &u32| !used.contains(token);
    let unused: Vec<u32> = (OF_PROMPTS..VOCAB).filter(is_unused).collect();
    assert!(unused.len() > 100, "{model}: {} tokens", unused.len());
    let copy = poisoned(model, unused);
    let drafts = ScriptedDrafts::new(Script::Random(0.7), u64::from(page_size), VOCAB);
    for (index, output) in (0..).zip(&outputs) {
        learn(&drafts, &request(index), &tokens(output));
    }
    let paged = EngineConfig {
        page_size,
        ..config_of(&copy)
    };
    let (world, tally) = start(paged, &drafts, None);
    // Then again, with prefix hits and pages that rejected drafts have written.
    for turn in 0..2 {
        let sent = (0..REQUESTS).map(|index| observe(world.generate(request(index))));
        let got = join_all(sent).await;
        for (index, (got, expected)) in got.into_iter().zip(&outputs).enumerate() {
            let what = format!("{model}, pages of {page_size}, request {index}, turn {turn}");
            assert_eq!(got, (expected.clone(), None), "{what}");
        }
    }
    world.assert_no_leaks().await;
    world.stop().await;
    let (accepted, rejected) = tally.totals();
    assert!(
        accepted > 0 && rejected > 10,
        "{model}: {accepted} drafts accepted, {rejected} rejected"
    );
}

#[tokio::test]
async fn nan_of_rejected_drafts_reaches_no_output() {
    for model in MODELS {
        for page_size in [1, 16] {
            check_rejected(model, page_size).await;
        }
    }
}
