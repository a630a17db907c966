//! The log probabilities of the fake executor.

use super::hashes::fake_logits;
use souffleur_state::sampling::{LogprobWish, TokenLogprobs, token_logprobs};

/// Margin of the chosen token's logit over the highest possible logit of other tokens.
const CHOSEN_MARGIN: f32 = 4.0;

/// The log probabilities after a sampled token, whose logit is raised above all others.
pub(super) fn output_scores(
    hash: u64,
    token: u32,
    vocab_size: u32,
    wish: &LogprobWish,
) -> TokenLogprobs {
    let mut logits = fake_logits(hash, vocab_size);
    if let Some(logit) = logits.get_mut(token as usize) {
        *logit = 1.0 + CHOSEN_MARGIN;
    }
    token_logprobs(&logits, token, wish.top, &wish.token_ids)
}

/// The log probabilities of a prompt's token, after the tokens with this hash.
pub(super) fn input_scores(
    hash: u64,
    token: u32,
    vocab_size: u32,
    wish: &LogprobWish,
) -> TokenLogprobs {
    let logits = fake_logits(hash, vocab_size);
    token_logprobs(&logits, token, wish.top, &wish.token_ids)
}
