//! A request that a step may admit, and the part of its prefix that is in the KV store.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::cache::namespace::Namespace;
use crate::plan::preemption::Rank;
use souffleur_base::ids::{IntakeId, SeqId, Ticket};

/// The part of a candidate's prefix that the store has, and the progress of its fetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoredPrefix {
    /// The candidate gets nothing more from the store.
    #[default]
    None,
    Found {
        /// Length of the stored part, from the beginning of the prefix.
        tokens: usize,
    },
    Fetching,
    /// A run of the prefix's blocks is fetched into memory.
    Ready {
        ticket: Ticket,
        from: usize,
        to: usize,
        /// The end of the tokens that further rounds can fetch: `to`, if there are no more.
        until: usize,
    },
}

/// A run of blocks that an admitted sequence starts with, after the tree's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadGrant {
    pub ticket: Ticket,
    /// The first token of the run, before or at the end of the tree's prefix.
    pub begins: usize,
    /// Where the loaded K/V ends, and the tokens to load later or to compute begin: whole pages.
    pub to: usize,
    /// A further round fetches and loads the blocks after this run. The row computes nothing until the last round.
    pub continues: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FetchDemand {
    pub seq: SeqId,
    pub cached_tokens: usize,
}

/// A candidate that waits until its images after the first `cached_tokens` have vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodeDemand {
    pub seq: SeqId,
    pub cached_tokens: usize,
}

/// One waiting request, or the chunked one, whose prefill continues.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub seq: SeqId,
    pub intake: IntakeId,
    pub namespace: Namespace,
    /// Prompt and output so far.
    pub tokens: Arc<[u32]>,
    /// Longest prefix that may come from the cache: at least one token must be computed.
    pub match_limit: usize,
    pub max_new_tokens: usize,
    pub ignore_eos: bool,
    /// Number of plans that held the candidate back because another request's prefill was computing its prefix.
    pub waits: u8,
    pub rank: Rank,
    /// The request asks for log probabilities, so no decode runs in the same step.
    pub wants_logprobs: bool,
    /// For the chunked request: tokens with K/V that is cached, written or in flight.
    pub continues_at: Option<usize>,
    /// Positions at which other prompts are likely to diverge from this one, ascending: ends of turns. If more outputs
    /// of the same prompt are requested, a last position beyond its end says so.
    pub anchors: Arc<[u32]>,
    /// The request's K/V neither comes from the cache nor enters it: its tokens are placeholders.
    pub bypasses_cache: bool,
    /// For the chunked request: tokens that had K/V in the cache when it was admitted.
    pub kv_tokens: usize,
    pub stored: StoredPrefix,
    /// The ends of images without vectors, ascending: the first tokens up to there must come from the cache.
    pub unencoded: SmallVec<[u32; 2]>,
    /// Runs of tokens that no chunk may cut, ascending: images whose positions attend to each other.
    pub whole: Option<Arc<[Range<u32>]>>,
}

impl Candidate {
    /// True if more outputs of the same prompt are requested: they resume from a state before the prompt's last token.
    pub(super) fn wants_more_outputs(&self) -> bool {
        let last = self.anchors.last();
        last.is_some_and(|anchor| *anchor as usize > self.tokens.len())
    }

    /// True if an image that the first `cached` tokens do not cover has no vectors.
    pub(super) fn lacks_vectors_after(&self, cached: usize) -> bool {
        let last = self.unencoded.last();
        last.is_some_and(|end| *end as usize > cached)
    }

    pub(super) fn n_anchors(&self) -> usize {
        self.anchors.len() - usize::from(self.wants_more_outputs())
    }
}
