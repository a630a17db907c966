//! Tests that short and long sequences share no prefixes on models whose rotary frequencies depend on the length.

use std::sync::Arc;
use std::time::Duration;

use souffleur_config::DtypeChoice;
use souffleur_request::{GenerateRequest, Prompt};
use souffleur_state::cache::namespace::Namespace;
use souffleur_state::sampling::LogprobWish;

use crate::identity::{plain, start};
use crate::requests::{VOCAB, bits};
use crate::world::within;

const MODEL: &str = "tests/fixtures/models/phi3-longrope";
const PROMPT_TOKENS: u32 = 20;
/// Numbers of new tokens with which a sequence ends within the original context of 32 tokens, and beyond it.
const SHORT: u32 = 5;
const LONG: u32 = 40;

fn prompt() -> Vec<u32> {
    (0..PROMPT_TOKENS).map(|i| (i * 29 + 5) % VOCAB).collect()
}

fn request(max_new_tokens: u32) -> GenerateRequest {
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt().into()));
    request.logprobs = Some(LogprobWish::default());
    let sampling = &mut request.sampling;
    (sampling.max_new_tokens, sampling.temperature) = (max_new_tokens, 0.0);
    sampling.ignore_eos = true;
    request
}

#[tokio::test]
async fn short_and_long_sequences_share_no_prefix() {
    let mut expected = Vec::new();
    for length in [SHORT, LONG] {
        let world = start(plain(MODEL, DtypeChoice::Float32));
        expected.push(bits(world.generate(request(length))).await.0);
        world.stop().await;
    }
    let same = expected[0].iter().zip(&expected[1]).all(|(a, b)| a == b);
    assert!(!same, "the length makes no difference");
    let world = start(plain(MODEL, DtypeChoice::Float32));
    let all_but_one = PROMPT_TOKENS - 1;
    for (length, cached) in [
        (SHORT, 0),
        (LONG, 0),
        (SHORT, all_but_one),
        (LONG, all_but_one),
    ] {
        let (got, hit) = bits(world.generate(request(length))).await;
        assert_eq!(hit, cached, "at most {length} tokens");
        let index = if length == SHORT { 0 } else { 1 };
        assert_eq!(got, expected[index], "at most {length} tokens");
    }
    world.stop().await;
}

#[tokio::test]
async fn prefixes_of_long_sequences_are_found_and_pinned_too() {
    for length in [SHORT, LONG] {
        let world = start(plain(MODEL, DtypeChoice::Float32));
        bits(world.generate(request(length))).await;
        let tokens: Arc<[u32]> = prompt().into();
        let peeked = world
            .engine
            .peek_prefix(Namespace::default(), tokens.clone());
        assert_eq!(
            within(peeked).await.expect("the engine runs"),
            PROMPT_TOKENS as usize
        );
        let pinned = world
            .engine
            .pin_prefix(Namespace::default(), tokens, Duration::from_secs(60));
        let pinned = within(pinned).await.expect("the prefix can be pinned");
        assert_eq!(pinned.tokens, PROMPT_TOKENS as usize, "{length}");
        world.stop().await;
    }
}
