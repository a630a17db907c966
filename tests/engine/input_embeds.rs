//! Tests of prompt embeddings (`input_embeds`): outputs equal those of the tokens bit for bit, and nothing is cached.

use std::path::Path;

use futures_util::future::join_all;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_request::{Event, GenerateRequest, Prompt};

use crate::embeddings::embeddings;
use crate::identity::{assert_same, plain, start, start_gated};
use crate::requests::{Bits, REQUESTS, bits, first_of, request};
use crate::world::{Build, World, collect};

/// A model with attention, one with recurrent states, and one with latent attention and experts.
const MODELS: [&str; 3] = [
    "tests/fixtures/models/llama",
    "tests/fixtures/models/qwen3-5",
    "tests/fixtures/models/deepseek-v2",
];

/// Like [`request`], without a repetition penalty, because prompt embeddings have no tokens to penalise.
fn with_tokens(index: u32) -> GenerateRequest {
    let mut request = request(index);
    request.sampling.repetition_penalty = 1.0;
    request.sampling.max_new_tokens += 20;
    request
}

fn with_embeds(model: &str, index: u32) -> GenerateRequest {
    let mut request = with_tokens(index);
    let Prompt::Tokens(tokens) = &request.prompt else {
        panic!("the prompt has no tokens");
    };
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(model);
    request.prompt = Prompt::Vectors(embeddings(&folder, tokens));
    request
}

async fn run_with_embeds(world: &World, model: &str) -> Vec<(Bits, u32)> {
    let sent = (0..REQUESTS).map(|index| bits(world.generate(with_embeds(model, index))));
    join_all(sent).await
}

/// Checks that no request hit the cache, and that nothing is cached.
async fn assert_nothing_cached(world: &World, got: &[(Bits, u32)]) {
    assert!(got.iter().all(|(_, cached)| *cached == 0));
    let stats = world.assert_no_leaks().await;
    assert_eq!((stats.evictable_tokens, stats.cached_states), (0, 0));
    assert_eq!(stats.free_tokens, stats.total_tokens);
}

async fn check(model: &str) {
    const DTYPE: DtypeChoice = DtypeChoice::Float32;
    let world = start(plain(model, DTYPE));
    let mut expected = Vec::new();
    for index in 0..REQUESTS {
        expected.push(bits(world.generate(with_tokens(index))).await);
    }
    world.stop().await;
    let (unchunked, mut tight) = (plain(model, DTYPE), plain(model, DTYPE));
    let chunked = EngineConfig {
        chunked_prefill_size: 7,
        schedule_policy: "lpm".to_owned(),
        page_size: 4,
        ..unchunked.clone()
    };
    for config in [unchunked, chunked] {
        let world = start(config);
        let got = run_with_embeds(&world, model).await;
        assert_same(&got, &expected, model);
        assert_nothing_cached(&world, &got).await;
        world.stop().await;
    }
    // Each of the longest two requests fits alone, but both together do not.
    tight.max_total_tokens = Some(310);
    // Admits all prompts in one step, even on a slow machine.
    tight.max_prefill_step_ms = 0;
    tight.schedule_conservativeness = 0.01;
    let (open, gate) = crossbeam_channel::bounded(0);
    let world = start_gated(gate, tight);
    let requests = first_of([15, 14], REQUESTS).into_iter().map(|index| {
        let mut request = with_embeds(model, index);
        // With `ignore_eos`, the scheduler would reserve pages for the whole output.
        request.sampling.ignore_eos = false;
        request.sampling.min_new_tokens = request.sampling.max_new_tokens;
        request
    });
    let sent = world.send_first_alone(requests).await;
    drop(open);
    let got = join_all(sent.into_iter().map(bits)).await;
    assert_nothing_cached(&world, &got).await;
    let stats = world.assert_no_leaks().await;
    assert!(stats.retractions > 0, "{model}: {stats:?}");
    world.stop().await;
}

#[tokio::test]
async fn prompt_embeddings_give_the_output_of_their_tokens_and_are_not_cached() {
    for model in MODELS {
        check(model).await;
    }
}

async fn refusal(world: &World, request: GenerateRequest) -> String {
    match collect(world.generate(request)).await.end {
        Event::Failed(error) => error.to_string(),
        other => panic!("ended with {other:?}"),
    }
}

#[tokio::test]
async fn unsupported_and_invalid_prompt_embeddings_are_refused() {
    let model = MODELS[0];
    let without_embeddings = Build::default().start();
    let text = refusal(&without_embeddings, with_embeds(model, 0)).await;
    assert!(text.contains("does not accept input_embeds"), "{text}");
    without_embeddings.stop().await;
    let world = start(plain(model, DtypeChoice::Float32));
    let narrow = souffleur_request::PromptVectors::new(32, vec![0.5; 64]).expect("valid values");
    let mut request = with_embeds(model, 0);
    request.prompt = Prompt::Vectors(narrow.into());
    let text = refusal(&world, request).await;
    assert!(text.contains("vectors of 32 values"), "{text}");
    let mut request = with_embeds(model, 0);
    if let Some(wish) = &mut request.logprobs {
        wish.start = Some(0);
    }
    let text = refusal(&world, request).await;
    assert!(text.contains("logprob_start_len is 0"), "{text}");
    let mut request = with_embeds(model, 0);
    let long = vec![0.5; 64 * 300];
    let long = souffleur_request::PromptVectors::new(64, long).expect("valid values");
    request.prompt = Prompt::Vectors(long.into());
    let text = refusal(&world, request).await;
    assert!(text.contains("300 tokens"), "{text}");
    world.assert_no_leaks().await;
    world.stop().await;
}
