//! Tests that a request has drafts from its own text and prediction only: not from those of other requests, in other cache
//! namespaces or in its own, before it or in the same steps.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join_all;
use souffleur_config::EngineConfig;
use souffleur_engine::Generation;
use souffleur_executor::speculation::{NgramProposers, Speculation};
use souffleur_request::{Delta, Event, GenerateRequest, Prompt};
use souffleur_state::cache::namespace::Namespace;

use crate::speculating::start_with;
use crate::world::{World, within};

/// The vocabulary size of the bundled model.
const VOCAB: u32 = 2048;
const PROMPT: u32 = 12;
const OUTPUT: u32 = 16;
/// Seeds that are tried for an output without repetitions.
const SEEDS: u64 = 50;

fn start() -> World {
    let config = EngineConfig {
        model_path: Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .join("models/souffleur-tiny"),
        max_total_tokens: Some(4096),
        max_running_requests: Some(8),
        context_length: Some(256),
        threads: 1,
        ..EngineConfig::default()
    };
    let speculation = Speculation {
        proposers: Arc::new(NgramProposers {
            max_match: 12,
            capacity: 4096,
            vocab_size: VOCAB as usize,
        }),
        // All proposed drafts are verified, and counted.
        is_controlled: false,
    };
    start_with(config, speculation, None).0
}

/// A prompt without repetitions.
fn prompt() -> Vec<u32> {
    (0..PROMPT).map(|i| 300 + i * 37).collect()
}

fn request(prompt: &[u32], salt: &str, seed: u64) -> GenerateRequest {
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt.into()));
    request.namespace = Namespace::new(None, Some(salt));
    let sampling = &mut request.sampling;
    sampling.max_new_tokens = OUTPUT;
    sampling.ignore_eos = true;
    sampling.sampling_seed = Some(seed);
    request
}

/// A request's whole output.
async fn observe(mut generation: Generation) -> Delta {
    let mut whole = Delta::default();
    loop {
        let event = within(generation.next()).await;
        match event.expect("the stream ends with a terminal event") {
            Event::Delta(delta) => whole.merge(delta),
            Event::Finished(end) => {
                whole.merge(end.delta);
                return whole;
            }
            other => panic!("ended with {other:?}"),
        }
    }
}

fn n_drafted(output: &Delta) -> u32 {
    let drafts = output.usage.drafts;
    drafts.expect("the engine speculates").drafted
}

/// Whether two successive tokens occur again: then there are drafts.
fn has_repetition(text: &[u32]) -> bool {
    let mut seen = HashSet::new();
    !text.windows(2).all(|pair| seen.insert(pair))
}

/// A seed whose output has no drafts from its own text, and the output.
async fn without_repetition(world: &World) -> (u64, Delta) {
    for seed in 0..SEEDS {
        let output = observe(world.generate(request(&prompt(), "first", seed))).await;
        let text = [prompt(), output.tokens.clone()].concat();
        if !has_repetition(&text) {
            return (seed, output);
        }
    }
    panic!("{SEEDS} outputs have repetitions");
}

#[tokio::test]
async fn no_draft_comes_from_another_requests_text() {
    let world = start();
    let (seed, first) = without_repetition(&world).await;
    assert_eq!(n_drafted(&first), 0, "{:?}", first.tokens);
    for (salt, hits) in [("second", false), ("second", true), ("first", true)] {
        let again = observe(world.generate(request(&prompt(), salt, seed))).await;
        assert_eq!(again.tokens, first.tokens, "{salt}");
        assert_eq!(n_drafted(&again), 0, "{salt}");
        assert_eq!(again.usage.cached_tokens > 0, hits, "{salt}");
    }
    // The text of one of these has the output of the others, and it repeats itself.
    let text = [prompt(), first.tokens.clone()].concat();
    let mut repeating = request(&text, "third", seed);
    repeating.sampling.logit_bias = [(text[0], 100.0)].into();
    let asked = [
        repeating,
        request(&prompt(), "first", seed),
        request(&prompt(), "third", seed),
        request(&prompt(), "fourth", seed),
    ];
    let sent = asked.map(|request| observe(world.generate(request)));
    let outputs = join_all(sent).await;
    assert!(n_drafted(&outputs[0]) > 0, "{:?}", outputs[0].tokens);
    for (index, output) in outputs.iter().enumerate().skip(1) {
        assert_eq!(output.tokens, first.tokens, "request {index}");
        assert_eq!(n_drafted(output), 0, "request {index}");
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn no_draft_comes_from_another_requests_prediction() {
    let world = start();
    let (seed, first) = without_repetition(&world).await;
    let asked = [true, false, true].map(|predicts| {
        let mut request = request(&prompt(), "first", seed);
        request.prediction = predicts.then(|| first.text.as_str().into());
        observe(world.generate(request))
    });
    let outputs = join_all(asked).await;
    for (output, predicts) in outputs.iter().zip([true, false, true]) {
        assert_eq!(output.tokens, first.tokens);
        assert_eq!(n_drafted(output) > 0, predicts, "{:?}", first.text);
        assert_eq!(output.usage.prediction.is_some(), predicts);
    }
    world.assert_no_leaks().await;
    world.stop().await;
}
