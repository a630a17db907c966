//! Tests that embeddings on the GPU equal the CPU's up to rounding, also for prompts in several chunks.

use std::sync::Arc;

use futures_util::future::join_all;
use souffleur_config::EngineConfig;
use souffleur_request::{Event, GenerateRequest, Pooling};

use crate::model::fixture;
use crate::requests::request;
use crate::setups::{BF16_PAGES_OF_16_GRAPHS, F32_PAGES_OF_1_GRAPHS, Setup, start_on_cpu};
use crate::world::{World, collect};

/// Indices of requests of different lengths, the last in more than one chunk.
const INDICES: [u32; 3] = [0, 3, 14];

fn embedding_of(index: u32, pooling: Pooling) -> GenerateRequest {
    GenerateRequest {
        logprobs: None,
        pooling: Some(pooling),
        ..request(index)
    }
}

async fn embed(world: &World, index: u32, pooling: Pooling) -> Arc<[f32]> {
    match collect(world.generate(embedding_of(index, pooling)))
        .await
        .end
    {
        Event::Finished(end) => end.embedding.expect("the request asked for an embedding"),
        other => panic!("ended with {other:?}"),
    }
}

/// Requests without pooling.
fn others() -> impl Iterator<Item = GenerateRequest> {
    (5..9).map(request)
}

/// Embeds all prompts at once, between requests that sample, whose outputs must not change.
async fn embed_all(world: &World) -> Vec<Arc<[f32]>> {
    let mut alone = Vec::new();
    for other in others() {
        alone.push(collect(world.generate(other)).await.tokens);
    }
    let before: Vec<_> = others().map(|other| world.generate(other)).collect();
    let wanted = INDICES.into_iter().flat_map(|index| {
        [Pooling::Last, Pooling::Mean].map(|pooling| embed(world, index, pooling))
    });
    let wanted = join_all(wanted);
    let after = async {
        let after: Vec<_> = others().map(|other| world.generate(other)).collect();
        join_all(after.into_iter().map(collect)).await
    };
    let (embeddings, after) = futures_util::future::join(wanted, after).await;
    let before = join_all(before.into_iter().map(collect)).await;
    for (got, expected) in before.into_iter().chain(after).zip(alone.iter().cycle()) {
        assert_eq!(&got.tokens, expected);
    }
    embeddings
}

async fn check(setup: Setup, min_cosine: f32) {
    let config = EngineConfig {
        chunked_prefill_size: 64,
        ..setup.config(&fixture("llama"))
    };
    let cpu = start_on_cpu(config.clone());
    let expected = embed_all(&cpu).await;
    cpu.stop().await;
    let world = setup.start_on_gpu(config);
    let got = embed_all(&world).await;
    world.assert_no_leaks().await;
    world.stop().await;
    for (index, (got, expected)) in got.iter().zip(&expected).enumerate() {
        let cosine: f32 = got.iter().zip(&**expected).map(|(a, b)| a * b).sum();
        assert!(cosine > min_cosine, "{index}: {cosine}, {setup:?}");
    }
}

#[tokio::test]
async fn embeddings_equal_the_cpus() {
    check(F32_PAGES_OF_1_GRAPHS, 0.99999).await;
    check(BF16_PAGES_OF_16_GRAPHS, 0.999).await;
}
