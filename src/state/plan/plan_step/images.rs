//! Holds back candidates with images that neither the cache nor the KV store covers, until they have vectors.

use super::Planning;
use crate::plan::{Candidate, EncodeDemand, LoadGrant, StoredPrefix};

impl Planning<'_> {
    /// True if a candidate waits for vectors of images after the first `covered` tokens. Demands them.
    pub(super) fn waits_for_vectors(&mut self, candidate: &Candidate, covered: usize) -> bool {
        let waits = candidate.lacks_vectors_after(covered);
        if waits {
            self.verdict.encodings.push(EncodeDemand {
                seq: candidate.seq,
                cached_tokens: covered,
            });
        }
        waits
    }

    /// Tokens that the cache has, or the store is expected to have: loads end with whole pages. A fetch begins after the
    /// vectors are there: buffers are few, and an encoding takes seconds.
    pub(super) fn expected(&self, candidate: &Candidate, cached: usize, limit: usize) -> usize {
        let stored = match candidate.stored {
            StoredPrefix::None | StoredPrefix::Fetching => 0,
            StoredPrefix::Found { tokens } => tokens,
            StoredPrefix::Ready { until, .. } => until,
        };
        let stored = stored.min(limit);
        cached.max(stored - stored % self.page_size)
    }

    /// Tokens that the cache and this load provide, later rounds of the load included.
    pub(super) fn covered(
        &self,
        candidate: &Candidate,
        cached: usize,
        load: Option<LoadGrant>,
        limit: usize,
    ) -> usize {
        match load {
            None => cached,
            Some(load) if load.continues => self.expected(candidate, cached, limit),
            Some(load) => load.to,
        }
    }
}
