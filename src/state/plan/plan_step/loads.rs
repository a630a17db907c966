//! Loads blocks of the KV store for candidates: decides which candidates wait for a fetch, and which load blocks.
//!
//! The store has read and checked the blocks before the plan that uses them. The step copies them to pages that the
//! plan grants to the row, and the next checkpoint publishes these pages like computed ones. The same step computes the
//! rest of the prompt. A long load takes several rounds, one per step. Its request counts as the chunked request and
//! computes nothing before the last round; meanwhile no other prompt is chunked.

use super::Planning;
use super::admission::shared_tokens;
use crate::plan::prefill_adder::{Decision, PrefillAdder};
use crate::plan::{Candidate, FetchDemand, LoadGrant, StoredPrefix};

impl Planning<'_> {
    /// True if a candidate waits for stored blocks of its prefix. Requests a fetch, unless an earlier candidate already
    /// waits for the same blocks. Fetches have a deadline, so neither candidate waits forever.
    pub(super) fn waits_for_blocks(
        &mut self,
        candidate: &Candidate,
        cached: usize,
        limit: usize,
        fetching: &[&Candidate],
    ) -> bool {
        let StoredPrefix::Found { tokens } = candidate.stored else {
            return false;
        };
        let min_stored = cached + self.block_tokens.max(1);
        if tokens.min(limit) < min_stored {
            return false;
        }
        let is_shared = |other: &&Candidate| {
            candidate.namespace == other.namespace
                && shared_tokens(candidate, other, limit) >= min_stored
        };
        if !fetching.iter().any(is_shared) {
            self.verdict.fetches.push(FetchDemand {
                seq: candidate.seq,
                cached_tokens: cached,
            });
        }
        true
    }

    /// The fetched blocks that continue the tree's prefix, if there are any.
    pub(super) fn load_after(
        &self,
        candidate: &Candidate,
        cached: usize,
        limit: usize,
    ) -> Option<LoadGrant> {
        let StoredPrefix::Ready {
            ticket,
            from,
            to,
            until,
        } = candidate.stored
        else {
            return None;
        };
        // The stored recurrent state belongs to the end of the run, so with states the run must be used whole.
        let is_whole = to <= limit || !self.cache.keeps_states();
        let end = to.min(limit);
        let end = end - end % self.page_size;
        (is_whole && from <= cached && cached < end).then_some(LoadGrant {
            ticket,
            begins: from,
            to: end,
            continues: end == to && until.min(limit) >= to + self.block_tokens.max(1),
        })
    }

    /// The next blocks of the chunked request, limited by the free pages. Reserves nothing.
    pub(super) fn load_round(
        &self,
        adder: &PrefillAdder,
        candidate: &Candidate,
        prefix_len: usize,
    ) -> Option<LoadGrant> {
        let limit = candidate.match_limit.min(candidate.tokens.len());
        let load = self.load_after(candidate, prefix_len, limit)?;
        let unloaded = load.to - prefix_len;
        let loaded = adder.load_chunked(unloaded, self.available());
        (loaded > 0).then_some(LoadGrant {
            to: prefix_len + loaded,
            continues: load.continues && loaded == unloaded,
            ..load
        })
    }

    /// True if the chunked request waits for more blocks of its prefix. Requests a fetch if none is running.
    pub(super) fn waits_for_round(&mut self, candidate: &Candidate, prefix_len: usize) -> bool {
        match candidate.stored {
            StoredPrefix::Fetching => true,
            StoredPrefix::Found { tokens } => {
                let limit = candidate.match_limit.min(candidate.tokens.len());
                let is_enough = tokens.min(limit) >= prefix_len + self.block_tokens.max(1);
                if is_enough {
                    self.verdict.fetches.push(FetchDemand {
                        seq: candidate.seq,
                        cached_tokens: prefix_len,
                    });
                }
                is_enough
            }
            StoredPrefix::None | StoredPrefix::Ready { .. } => false,
        }
    }

    /// Decides on the part of a candidate that follows its cached and its loaded tokens.
    pub(super) fn add_with_load(
        &self,
        adder: &mut PrefillAdder,
        candidate: &Candidate,
        cached: usize,
        load: Option<LoadGrant>,
    ) -> Decision {
        let (len, max_new) = (candidate.tokens.len(), candidate.max_new_tokens);
        let is_first = self.verdict.admitted.is_empty();
        match load {
            None => adder.add(len, cached, max_new, self.available(), is_first),
            Some(LoadGrant {
                to,
                continues: true,
                ..
            }) => adder.add_round(len, (cached, to), max_new, self.available()),
            Some(LoadGrant { to, .. }) => {
                adder.add_loaded(len, (cached, to), max_new, self.available(), is_first)
            }
        }
    }
}

/// Reserves memory for the rest of the candidate if it is the chunked request; otherwise returns false.
pub(super) fn reserve_if_chunked(adder: &mut PrefillAdder, candidate: &Candidate) -> bool {
    let Some(computed) = candidate.continues_at else {
        return false;
    };
    let missing = candidate.tokens.len() - computed;
    adder.reserve_chunked(missing, candidate.max_new_tokens);
    true
}
