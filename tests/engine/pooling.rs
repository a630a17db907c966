//! Tests of embedding requests: their prompts use the prefix cache where possible, and stay in the cache.

use std::sync::Arc;

use souffleur_config::{DtypeChoice, EngineConfig};
use souffleur_request::{Event, GenerateRequest, Pooling, Prompt, Usage};
use souffleur_state::sampling::LogprobWish;

use crate::identity::{plain, start};
use crate::world::{Build, World, collect};

const MODEL: &str = "tests/fixtures/models/qwen3";
const PROMPT_TOKENS: u32 = 90;

fn request(pooling: Pooling) -> GenerateRequest {
    let prompt = (0..PROMPT_TOKENS).map(|at| (at * 31 + 7) % 288).collect();
    GenerateRequest {
        pooling: Some(pooling),
        ..GenerateRequest::new(Prompt::Tokens(prompt))
    }
}

async fn embed(world: &World, pooling: Pooling) -> (Arc<[f32]>, Usage) {
    match collect(world.generate(request(pooling))).await.end {
        Event::Finished(end) => {
            let embedding = end.embedding.expect("the request asks for an embedding");
            (embedding, end.delta.usage)
        }
        other => panic!("ended with {other:?}"),
    }
}

#[tokio::test]
async fn last_pooling_computes_one_token_again_and_mean_pooling_all_tokens() {
    let chunked = EngineConfig {
        chunked_prefill_size: 16,
        ..plain(MODEL, DtypeChoice::Float32)
    };
    let world = start(chunked);
    let (last, usage) = embed(&world, Pooling::Last).await;
    assert_eq!((usage.cached_tokens, usage.completion_tokens), (0, 0));
    let (mean, usage) = embed(&world, Pooling::Mean).await;
    assert_eq!(
        (usage.cached_tokens, usage.prompt_tokens),
        (0, PROMPT_TOKENS)
    );
    assert_ne!(last, mean);
    let (again, usage) = embed(&world, Pooling::Last).await;
    assert_eq!(
        (again, usage.cached_tokens),
        (last.clone(), PROMPT_TOKENS - 1)
    );
    let (again, _) = embed(&world, Pooling::Mean).await;
    assert_eq!(again, mean);
    let stats = world.assert_no_leaks().await;
    // One copy of the prompt, regardless of the request that computed it.
    assert_eq!(stats.evictable_tokens, PROMPT_TOKENS as usize);
    world.stop().await;
    let whole = start(plain(MODEL, DtypeChoice::Float32));
    assert_eq!(embed(&whole, Pooling::Mean).await.0, mean);
    assert_eq!(embed(&whole, Pooling::Last).await.0, last);
    whole.stop().await;
}

#[tokio::test]
async fn embeddings_of_a_fake_executor_do_not_depend_on_chunks_or_cached_prefixes() {
    let with_chunks = |chunked_prefill_size| {
        let mut build = Build {
            hidden_size: Some(8),
            embedding_values: 8,
            ..Build::default()
        };
        build.config.chunked_prefill_size = chunked_prefill_size;
        build.start()
    };
    let (whole, parts) = (with_chunks(8192), with_chunks(16));
    for pooling in [Pooling::Last, Pooling::Mean] {
        let (embedding, _) = embed(&whole, pooling).await;
        assert_eq!(embedding.len(), 8);
        assert_eq!(embed(&parts, pooling).await.0, embedding);
        assert_eq!(embed(&parts, pooling).await.0, embedding, "cached or not");
    }
    for world in [whole, parts] {
        world.assert_no_leaks().await;
        world.stop().await;
    }
}

#[tokio::test]
async fn embedding_requests_that_cannot_be_answered_are_refused() {
    let refusal = async |world: &World, request| match collect(world.generate(request)).await.end {
        Event::Failed(error) => error.to_string(),
        other => panic!("ended with {other:?}"),
    };
    let without_embeddings = Build::default().start();
    let text = refusal(&without_embeddings, request(Pooling::Last)).await;
    assert!(text.contains("cannot compute embeddings"), "{text}");
    without_embeddings.stop().await;
    // The engine's configuration has an embedding size, but the executor returns no embeddings.
    let unable = Build {
        hidden_size: Some(8),
        ..Build::default()
    };
    let unable = unable.start();
    let text = refusal(&unable, request(Pooling::Mean)).await;
    assert!(text.contains("cannot compute embeddings"), "{text}");
    unable.assert_no_leaks().await;
    unable.stop().await;
    let world = start(plain(MODEL, DtypeChoice::Float32));
    let mut scored = request(Pooling::Last);
    scored.logprobs = Some(LogprobWish::default());
    let text = refusal(&world, scored).await;
    assert!(text.contains("has no output"), "{text}");
    world.stop().await;
}
