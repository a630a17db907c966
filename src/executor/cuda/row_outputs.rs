//! The outputs of a step (sampled tokens, log probabilities), and their places in the results that are read back.

use std::sync::Arc;

use souffleur_base::ids::RowId;
use souffleur_kernels::cuda::sampling::{Sampled, TokenLogprob};
use souffleur_state::sampling::{LogprobWish, TokenLogprobs};

pub(super) const SAMPLED_WORDS: usize = size_of::<Sampled>() / size_of::<u32>();
pub(super) const LOGPROB_WORDS: usize = size_of::<TokenLogprob>() / size_of::<u32>();

#[derive(Clone, Debug)]
pub(super) struct RowOutput {
    /// Index in the plan's rows.
    pub(super) work: usize,
    pub(super) row: RowId,
    pub(super) sample: bool,
    /// Whether the grammar that the row had at the step's launch constrains its token.
    pub(super) follows_grammar: bool,
    /// Where the row's log probabilities are computed, if it needs any.
    pub(super) logprobs: Logprobs,
}

#[derive(Clone, Debug)]
pub(super) enum Logprobs {
    Unwanted,
    Device {
        /// Index of the first log probability of the row.
        first_out: usize,
        top: usize,
        n_ids: usize,
    },
    /// The kernels cannot rank enough tokens: the host reads the row of logits.
    Host {
        /// The prompt's next token; 0 where a token is sampled.
        token: u32,
        wish: Arc<LogprobWish>,
    },
}

pub(super) fn read_logprobs(found: &[TokenLogprob], top: usize, n_ids: usize) -> TokenLogprobs {
    let pair = |found: &TokenLogprob| (found.token, found.logprob);
    let (ranked, ids) = found[1..1 + top + n_ids].split_at(top);
    TokenLogprobs {
        token: found[0].token,
        logprob: Some(found[0].logprob),
        top: ranked.iter().map(pair).collect(),
        chosen: ids.iter().map(pair).collect(),
    }
}
