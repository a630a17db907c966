//! Checks a request's log probability options against its prompt and the limits.

use souffleur_base::error::{FieldError, RequestError};
use souffleur_state::sampling::LogprobWish;

use super::TokenizerSettings;
use super::prepare::invalid;

/// Refuses prompt log probabilities for prompt embeddings: only tokens have probabilities.
pub(super) fn refuse_input_logprobs(wish: Option<&LogprobWish>) -> Result<(), RequestError> {
    let start = wish.and_then(|wish| wish.start);
    start.map_or(Ok(()), |start| {
        let text = format!(
            "logprob_start_len is {start}, but the prompt is input_embeds, which have no log probabilities: send -1 \
            or no logprob_start_len"
        );
        Err(FieldError::new("logprob_start_len", text).into())
    })
}

/// Refuses positions outside of the prompt and ids outside of the vocabulary, and clips the number of alternatives.
pub(super) fn check_wish(
    wish: &mut LogprobWish,
    prompt_tokens: usize,
    settings: &TokenizerSettings,
) -> Result<(), RequestError> {
    let vocab_size = settings.vocab_size;
    let limit = settings.request_limits.max_logprobs;
    if let Some(start) = wish.start
        && start as usize >= prompt_tokens
    {
        return Err(invalid(format!(
            "logprob_start_len is {start}, but must be below the prompt's length of {prompt_tokens} tokens"
        )));
    }
    let counts = [
        ("top log probabilities per token", wish.top as usize),
        ("tokens in token_ids_logprob", wish.token_ids.len()),
    ];
    for (what, count) in counts {
        if count > limit {
            return Err(invalid(format!(
                "the request asks for {count} {what}, limit is {limit} (--max-logprobs): ask for fewer"
            )));
        }
    }
    if let Some(token) = wish
        .token_ids
        .iter()
        .find(|token| **token as usize >= vocab_size)
    {
        return Err(invalid(format!(
            "token_ids_logprob contains token id {token}, which must be below {vocab_size}, the size of the vocabulary"
        )));
    }
    wish.top = wish.top.min(vocab_size as u32);
    Ok(())
}

/// Counts the prompt log probabilities of a request. Refuses them if they exceed the limit of a call together with
/// those of the requests before it. Output tokens do not count: most outputs are far shorter than their limit.
pub(super) fn check_entries(
    wish: &LogprobWish,
    prompt_tokens: usize,
    before: usize,
    settings: &TokenizerSettings,
) -> Result<usize, RequestError> {
    let Some(start) = wish.start else {
        return Ok(0);
    };
    let limit = settings.max_logprob_entries;
    let positions = prompt_tokens - start as usize;
    let each = 1 + wish.top as usize + wish.token_ids.len();
    let entries = positions.saturating_mul(each);
    if entries > limit {
        return Err(invalid(format!(
            "the request asks for {entries} prompt log probabilities ({positions} positions with {each} each), limit \
             is {limit}: ask for fewer per position, shorten the prompt, raise logprob_start_len or leave out echo"
        )));
    }
    let all = before.saturating_add(entries);
    if all > limit {
        return Err(invalid(format!(
            "the prompts and samples of this call ask for at least {all} log probabilities, the limit per call is \
             {limit}: send fewer at once"
        )));
    }
    Ok(entries)
}
