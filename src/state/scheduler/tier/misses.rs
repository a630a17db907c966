//! Finds why the KV store did not provide more of a prompt, to explain cache misses.

use super::{SequenceTier, TierPhase};
use crate::cache::prefix_history::{StoredMiss, StoredPart};
use crate::scheduler::Scheduler;
use souffleur_base::ids::SeqId;

impl Scheduler {
    /// The tokens that a row got from the store after `prefix_len` tokens from the tree, and why it got no more; `None`
    /// if more may come.
    pub(in crate::scheduler) fn stored_part(
        &self,
        seq: SeqId,
        prefix_len: usize,
    ) -> Option<StoredPart> {
        let sequence = &self.requests[seq];
        let (Some(tier), Some(seq_tier)) = (&self.tier, sequence.tier.as_deref()) else {
            return Some(StoredPart::default());
        };
        if seq_tier.phase != TierPhase::Done {
            return None;
        }
        let loaded_tokens = seq_tier.loaded_tokens as usize;
        let limit = sequence.match_limit_of(sequence.fill.len());
        let reached_and_limit = (prefix_len + loaded_tokens, limit);
        Some(StoredPart {
            loaded_tokens,
            miss: seq_tier.miss_at(reached_and_limit, tier.block_tokens()),
        })
    }
}

impl SequenceTier {
    /// Why nothing came from the store after the first `reached` tokens, of at most `limit`. `None` if, as far as is
    /// known, the store never had the next block.
    fn miss_at(&self, (reached, limit): (usize, usize), block_tokens: usize) -> Option<StoredMiss> {
        if self.end_miss == Some(StoredMiss::Late) {
            return self.end_miss;
        }
        let found = self.found_blocks * block_tokens;
        if reached >= found {
            return self.end_miss.filter(|_| reached < found + block_tokens);
        }
        if let Some((block, miss)) = self.failed
            && reached < (block + 1) * block_tokens
        {
            return Some(miss);
        }
        // A plan fetches only whole blocks.
        let was_wanted = found.min(limit) >= reached + block_tokens;
        let miss = match self.wanted {
            0 => StoredMiss::TooSlow,
            _ => StoredMiss::Late,
        };
        was_wanted.then_some(miss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 64;

    fn check(seq_tier: &SequenceTier, reached: usize, expected: Option<StoredMiss>) {
        let found = seq_tier.miss_at((reached, 1000), BLOCK);
        assert_eq!(found, expected, "{seq_tier:?} at {reached}");
    }

    #[test]
    fn a_late_or_slow_miss_needs_a_whole_missing_block() {
        let five = SequenceTier {
            found_blocks: 5,
            wanted: 5,
            ..SequenceTier::default()
        };
        check(&SequenceTier::default(), 0, None);
        check(&five, 0, Some(StoredMiss::Late));
        check(&five, 256, Some(StoredMiss::Late));
        check(&five, 257, None);
        check(&five, 320, None);
        let slow = SequenceTier { wanted: 0, ..five };
        check(&slow, 64, Some(StoredMiss::TooSlow));
        check(&slow, 320, None);
    }

    #[test]
    fn a_block_that_a_fetch_failed_to_read_has_the_reason_of_the_fetch() {
        let damaged = SequenceTier {
            found_blocks: 5,
            wanted: 5,
            failed: Some((2, StoredMiss::Damaged)),
            end_miss: Some(StoredMiss::Evicted),
            ..SequenceTier::default()
        };
        check(&damaged, 128, Some(StoredMiss::Damaged));
        check(&damaged, 191, Some(StoredMiss::Damaged));
        check(&damaged, 192, Some(StoredMiss::Late));
        check(&damaged, 320, Some(StoredMiss::Evicted));
        check(&damaged, 383, Some(StoredMiss::Evicted));
        check(&damaged, 384, None);
    }

    #[test]
    fn a_store_that_did_not_answer_is_late_at_every_position() {
        let silent = SequenceTier {
            end_miss: Some(StoredMiss::Late),
            ..SequenceTier::default()
        };
        check(&silent, 0, Some(StoredMiss::Late));
        check(&silent, 640, Some(StoredMiss::Late));
    }
}
