//! The requests that a step may admit, and what a store has of them.

use std::sync::Arc;

use crate::ids::{SeqId, Ticket};
use crate::state::cache::namespace::Namespace;
use crate::state::plan::preemption::Rank;

/// The part of a candidate's prefix that the store has, and how far it is on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredPrefix {
    /// None, or none that is worth it.
    #[default]
    None,
    /// So many tokens, which can be fetched.
    Found {
        /// From the beginning on.
        tokens: usize,
    },
    /// Some of it is on its way.
    Fetching,
    /// Some of it is in memory.
    Ready {
        /// Names the run of blocks.
        ticket: Ticket,
        /// The first token of the run.
        from: usize,
        /// Behind its last token.
        to: usize,
        /// Behind the last token of what can be fetched in further rounds: `to`, if there is no more.
        until: usize,
    },
}

/// A run of blocks that an admitted sequence begins with, behind the prefix that the tree has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadGrant {
    /// Names the run.
    pub ticket: Ticket,
    /// The first token of the run, before or at the end of the tree's prefix.
    pub begins: usize,
    /// Where the loaded K/V ends and the extent begins: whole pages.
    pub to: usize,
    /// More is fetched and loaded behind it in a further round: nothing is computed before.
    pub goes_on: bool,
}

/// A candidate whose blocks are to be fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchWish {
    /// The candidate.
    pub seq: SeqId,
    /// Tokens that the tree has.
    pub cached_tokens: usize,
}

/// One waiting request, or the one whose prefill goes on.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The sequence.
    pub seq: SeqId,
    /// Where its prefix may be shared.
    pub namespace: Namespace,
    /// Prompt and output so far.
    pub tokens: Arc<[u32]>,
    /// Longest prefix that may come from the cache: at least one token must be computed.
    pub match_limit: usize,
    /// Tokens it may still generate.
    pub max_new_tokens: usize,
    /// It will generate all of them.
    pub ignore_eos: bool,
    /// How many plans it was held back for a prefix in flight.
    pub waits: u8,
    /// Its place by priority.
    pub rank: Rank,
    /// It keeps a step to itself.
    pub wants_logprobs: bool,
    /// For the chunked one: tokens whose K/V it has (cached, written or under way).
    pub continues_at: Option<usize>,
    /// Positions that other prompts are likely to leave this one at, ascending: ends of turns, and one beyond the prompt's
    /// end if other outputs of it are asked for.
    pub anchors: Arc<[u32]>,
    /// Its K/V neither comes from the cache nor goes there: its tokens are placeholders.
    pub bypasses_cache: bool,
    /// For the chunked one: tokens that had K/V in the cache when it was admitted.
    pub kv_tokens: usize,
    /// The part of it that the store has.
    pub stored: StoredPrefix,
}

impl Candidate {
    /// Other outputs of the prompt are asked for: they go on from a state before its last token.
    pub(super) fn has_siblings(&self) -> bool {
        let last = self.anchors.last();
        last.is_some_and(|anchor| *anchor as usize > self.tokens.len())
    }

    /// How many of the anchors are ends of turns.
    pub(super) fn n_turns(&self) -> usize {
        self.anchors.len() - usize::from(self.has_siblings())
    }
}
