//! Prompts generated from their index, so that a million of them need no memory.

use std::sync::Arc;

/// Tokens that all prompts of a large tree share.
pub const SHARED_TOKENS: usize = 256;
/// Tokens of each prompt after the shared ones.
pub const NEW_TOKENS: usize = 64;
const VOCABULARY: u32 = 150_000;

/// `n_tokens` random tokens, with `number` as the seed.
pub fn tokens_of(number: u64, n_tokens: usize) -> Arc<[u32]> {
    let mut random = fastrand::Rng::with_seed(number);
    (0..n_tokens).map(|_| random.u32(..VOCABULARY)).collect()
}

/// 256 shared tokens and 64 others, the first of which occurs in no other prompt.
pub fn prompt(number: u64) -> Arc<[u32]> {
    let mut tokens = tokens_of(u64::MAX, SHARED_TOKENS).to_vec();
    tokens.push(VOCABULARY + number as u32);
    tokens.extend_from_slice(&tokens_of(number, NEW_TOKENS - 1));
    tokens.into()
}
