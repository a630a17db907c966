//! Tests on the GPU that the embeddings of tokens, sent as a prompt or as an image's vectors, give the log probabilities
//! of these tokens bit for bit.

use souffleur_config::EngineConfig;
use souffleur_request::{
    GenerateRequest, ImageDigest, ImageGrid, ImagePrompt, Prompt, PromptImage,
};

use crate::embeddings::embeddings;
use crate::model::fixture;
use crate::requests::{bits, request};
use crate::setups::{BF16_PAGES_OF_16_GRAPHS, F32_PAGES_OF_1_GRAPHS, Setup};
use crate::world::collect;

/// Indices of requests of different lengths, the last in more than one chunk.
const INDICES: [u32; 3] = [0, 2, 14];
const CHUNK: usize = 64;

fn token_request(index: u32) -> GenerateRequest {
    let mut request = request(index);
    // This penalty counts only output tokens: a prompt of embeddings has no tokens to count.
    request.sampling.frequency_penalty = 0.5;
    request
}

fn embeddings_request(model: &str, index: u32) -> GenerateRequest {
    let mut request = token_request(index);
    let Prompt::Tokens(tokens) = &request.prompt else {
        panic!("the prompt is not a list of tokens");
    };
    request.prompt = Prompt::Vectors(embeddings(&fixture(model), tokens));
    request
}

/// The request with an image in place of most of its tokens, whose vectors are the tokens' embeddings.
fn image_request(model: &str, index: u32) -> GenerateRequest {
    let mut request = token_request(index);
    let Prompt::Tokens(tokens) = &request.prompt else {
        panic!("the prompt is not a list of tokens");
    };
    let n_tokens = tokens.len();
    let pads = 3..n_tokens - 3;
    // `positions` includes a token on each side, as begin and end of the image. The pad id must not occur in the
    // prompt.
    let mut ids = (0..).filter(|id| !tokens.contains(id));
    let pad = ids.next().expect("an id that the prompt lacks");
    let vectors = embeddings(&fixture(model), &tokens[pads.clone()]);
    let mut with_pads = tokens.to_vec();
    with_pads[pads.clone()].fill(pad);
    let image = PromptImage {
        positions: 2..n_tokens as u32 - 2,
        pad,
        digest: ImageDigest([index as u8; 32]),
        grid: ImageGrid {
            rows: 1,
            columns: pads.len() as u32,
        },
        vectors: Some(vectors),
        input: None,
    };
    request.prompt = Prompt::from(ImagePrompt {
        tokens: with_pads.into(),
        images: vec![image],
    });
    request
}

async fn check(setup: Setup, model: &str) {
    let config = EngineConfig {
        chunked_prefill_size: CHUNK as i64,
        // Both prompts must be computed from the first token on.
        disable_radix_cache: true,
        ..setup.config(&fixture(model))
    };
    let world = setup.start_on_gpu(config);
    for index in INDICES {
        // Requests run one after the other, so that the steps have the same shapes.
        let expected = bits(world.generate(token_request(index))).await;
        let got = bits(world.generate(embeddings_request(model, index))).await;
        assert_eq!(got, expected, "{model}, request {index}, {setup:?}");
        let got = bits(world.generate(image_request(model, index))).await;
        assert_eq!(got, expected, "{model}, image {index}, {setup:?}");
    }
    // In a batch with prompts of tokens, the output is the same in f32; bfloat16 may round differently.
    let alone = collect(world.generate(token_request(2))).await.tokens;
    let sent: Vec<_> = (0..4)
        .map(|index| match index {
            1 => world.generate(embeddings_request(model, 2)),
            other => world.generate(token_request(other)),
        })
        .collect();
    let mut tokens = Vec::new();
    for generation in sent {
        tokens.push(collect(generation).await.tokens);
    }
    if setup.dtype == F32_PAGES_OF_1_GRAPHS.dtype {
        assert_eq!(tokens[1], alone, "{model}, with others, {setup:?}");
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn prompt_embeddings_give_the_same_bits_as_their_tokens() {
    check(F32_PAGES_OF_1_GRAPHS, "llama").await;
    check(BF16_PAGES_OF_16_GRAPHS, "qwen3").await;
}
