//! Tests that tokens and log probabilities agree with the CPU executor's (see `scores.rs`).

use std::path::Path;

use futures_util::future::join_all;
use souffleur_config::EngineConfig;

use crate::model::{fixture, with_large_heads};
use crate::requests::{REQUESTS, SHARED_TOKENS, at_once, one_after_another, request};
use crate::scores::Reference;
use crate::setups::{
    BF16_PAGES_OF_1, BF16_PAGES_OF_16_GRAPHS, F32_PAGES_OF_1_GRAPHS, F32_PAGES_OF_16, Setup,
};
use crate::world::collect;

async fn check(setup: Setup, model: &Path) {
    let reference = Reference::new(&setup, model, (request, REQUESTS)).await;
    let world = setup.start_on_gpu(setup.config(model));
    let alone = one_after_another(&world).await;
    let reused = SHARED_TOKENS / setup.page_size * setup.page_size;
    assert!(alone[1..].iter().all(|(_, cached)| *cached >= reused));
    let together = at_once(&world).await;
    for (outputs, what) in [(alone, "alone"), (together, "in a batch")] {
        for (index, (got, _)) in (0..).zip(&outputs) {
            reference.check(&setup, index, got, what).await;
        }
    }
    world.assert_no_leaks().await;
    world.stop().await;
    check_mixed(&setup, model, &reference).await;
    reference.stop().await;
}

/// Prompts in small chunks, with decodes in the same steps.
async fn check_mixed(setup: &Setup, model: &Path, reference: &Reference) {
    let (open, gate) = crossbeam_channel::bounded(0);
    let config = EngineConfig {
        enable_mixed_chunk: true,
        chunked_prefill_size: 32,
        disable_radix_cache: true,
        ..setup.config(model)
    };
    let world = setup.start_gated_on_gpu(gate, config);
    // Requests with log probabilities run alone in their steps.
    let send = |index| {
        let mut request = request(index);
        request.logprobs = None;
        world.generate(request)
    };
    let sent: Vec<_> = (0..REQUESTS).map(send).collect();
    // Late requests would find no decode to share a step with.
    world.until_requests(sent.len()).await;
    drop(open);
    for (index, got) in (0..).zip(join_all(sent.into_iter().map(collect)).await) {
        reference
            .check_tokens(setup, index, &got.tokens, "mixed")
            .await;
    }
    let stats = world.assert_no_leaks().await;
    assert!(stats.mixed_steps > 0, "{setup:?}: {stats:?}");
    world.stop().await;
}

#[tokio::test]
async fn f32_with_pages_of_1_and_graphs() {
    check(F32_PAGES_OF_1_GRAPHS, &fixture("llama")).await;
    check(F32_PAGES_OF_1_GRAPHS, &fixture("qwen2")).await;
    check(F32_PAGES_OF_1_GRAPHS, &fixture("ministral3")).await;
}

#[tokio::test]
async fn f32_with_pages_of_16() {
    check(F32_PAGES_OF_16, &fixture("qwen3")).await;
    check(F32_PAGES_OF_16, &fixture("mistral")).await;
    check(F32_PAGES_OF_16, &fixture("phi3")).await;
    check(F32_PAGES_OF_16, &fixture("qwen3-vl")).await;
}

#[tokio::test]
async fn bf16_with_pages_of_16_and_graphs() {
    check(BF16_PAGES_OF_16_GRAPHS, with_large_heads().path()).await;
    check(BF16_PAGES_OF_16_GRAPHS, &fixture("llama")).await;
}

#[tokio::test]
async fn bf16_with_pages_of_1() {
    check(BF16_PAGES_OF_1, with_large_heads().path()).await;
    check(BF16_PAGES_OF_1, &fixture("qwen2-window")).await;
}
