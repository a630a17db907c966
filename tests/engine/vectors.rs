//! Requests whose prompts are vectors: the same bits as the embedded tokens, and no trace in the cache.

use std::path::Path;

use futures_util::future::join_all;
use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_request::{Event, GenerateRequest, Prompt};

use crate::embeddings::embeddings;
use crate::identity::{assert_same, plain, start, start_behind};
use crate::requests::{Bits, REQUESTS, bits, first_of, request};
use crate::world::{Build, World, collect};

/// Attention, states in addition, and latents with experts.
const MODELS: [&str; 3] = [
    "tests/fixtures/models/llama",
    "tests/fixtures/models/qwen3-5",
    "tests/fixtures/models/deepseek-v2",
];

/// As [`request`], without penalties on tokens of the prompt, which has none.
fn of_tokens(index: u32) -> GenerateRequest {
    let mut request = request(index);
    request.sampling.repetition_penalty = 1.0;
    request.sampling.max_new_tokens += 20;
    request
}

fn of_vectors(model: &str, index: u32) -> GenerateRequest {
    let mut request = of_tokens(index);
    let Prompt::Tokens(tokens) = &request.prompt else {
        panic!("it is tokens");
    };
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(model);
    request.prompt = Prompt::Vectors(embeddings(&folder, tokens));
    request
}

async fn all_of_vectors(world: &World, model: &str) -> Vec<(Bits, u32)> {
    let sent = (0..REQUESTS).map(|index| bits(world.generate(of_vectors(model, index))));
    join_all(sent).await
}

/// No request had a hit, and nothing is cached.
async fn assert_no_trace(world: &World, got: &[(Bits, u32)]) {
    assert!(got.iter().all(|(_, cached)| *cached == 0));
    let stats = world.assert_whole().await;
    assert_eq!((stats.evictable_tokens, stats.cached_states), (0, 0));
    assert_eq!(stats.free_tokens, stats.total_tokens);
}

async fn check(model: &str) {
    const DTYPE: DtypeChoice = DtypeChoice::Float32;
    let world = start(plain(model, DTYPE));
    let mut expected = Vec::new();
    for index in 0..REQUESTS {
        expected.push(bits(world.generate(of_tokens(index))).await);
    }
    world.stop().await;
    let (small, mut tight) = (plain(model, DTYPE), plain(model, DTYPE));
    let chunked = EngineConfig {
        chunked_prefill_size: 7,
        schedule_policy: "lpm".to_owned(),
        page_size: 4,
        ..small.clone()
    };
    for config in [small, chunked] {
        let world = start(config);
        let got = all_of_vectors(&world, model).await;
        assert_same(&got, &expected, model);
        assert_no_trace(&world, &got).await;
        world.stop().await;
    }
    // The longest two fit alone, but not together.
    tight.max_total_tokens = Some(310);
    // Prompts are admitted at once, however slow the machine is.
    tight.max_prefill_step_ms = 0;
    tight.schedule_conservativeness = 0.01;
    let (open, gate) = crossbeam_channel::bounded(0);
    let world = start_behind(gate, tight);
    let requests = first_of([15, 14], REQUESTS).into_iter().map(|index| {
        let mut request = of_vectors(model, index);
        // The scheduler must not reserve its length in full.
        request.sampling.ignore_eos = false;
        request.sampling.min_new_tokens = request.sampling.max_new_tokens;
        request
    });
    let sent = world.send_behind_first(requests).await;
    drop(open);
    let got = join_all(sent.into_iter().map(bits)).await;
    assert_no_trace(&world, &got).await;
    let stats = world.assert_whole().await;
    assert!(stats.retractions > 0, "{model}: {stats:?}");
    world.stop().await;
}

#[tokio::test]
async fn vectors_give_the_bits_of_their_tokens_and_leave_no_trace() {
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
async fn vectors_that_no_model_reads_are_refused() {
    let model = MODELS[0];
    let none = Build::default().start();
    let text = refusal(&none, of_vectors(model, 0)).await;
    assert!(text.contains("does not accept input_embeds"), "{text}");
    none.stop().await;
    let world = start(plain(model, DtypeChoice::Float32));
    let narrow = souffleur_request::PromptVectors::new(32, vec![0.5; 64]).expect("it is whole");
    let mut request = of_vectors(model, 0);
    request.prompt = Prompt::Vectors(narrow.into());
    let text = refusal(&world, request).await;
    assert!(text.contains("vectors of 32 values"), "{text}");
    let mut request = of_vectors(model, 0);
    if let Some(wish) = &mut request.logprobs {
        wish.start = Some(0);
    }
    let text = refusal(&world, request).await;
    assert!(text.contains("logprob_start_len is 0"), "{text}");
    let mut request = of_vectors(model, 0);
    let long = vec![0.5; 64 * 300];
    let long = souffleur_request::PromptVectors::new(64, long).expect("it is whole");
    request.prompt = Prompt::Vectors(long.into());
    let text = refusal(&world, request).await;
    assert!(text.contains("300 tokens"), "{text}");
    world.assert_whole().await;
    world.stop().await;
}
