//! Remembers recently dropped blocks and the reasons, to explain cache misses.

use rustc_hash::FxHashMap;

use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::tiers::BlockKey;

/// The number of blocks in a generation; two generations take about 5 MiB.
const MAX_BLOCKS: usize = 1 << 15;

/// Recently dropped blocks, in two generations: a full generation is kept until the next one is full.
#[derive(Debug, Default)]
pub(super) struct DroppedBlocks {
    young: FxHashMap<BlockKey, StoredMiss>,
    old: FxHashMap<BlockKey, StoredMiss>,
}

impl DroppedBlocks {
    pub fn record(&mut self, key: BlockKey, why: StoredMiss) {
        if self.young.len() >= MAX_BLOCKS {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, why);
    }

    /// Why a missing block was dropped, if it was dropped recently.
    pub fn why(&self, key: BlockKey) -> Option<StoredMiss> {
        let generations = [&self.young, &self.old];
        generations.iter().find_map(|part| part.get(&key)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u32) -> BlockKey {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&number.to_le_bytes());
        BlockKey(bytes)
    }

    #[test]
    fn the_last_reason_counts_and_the_oldest_are_forgotten() {
        let mut dropped = DroppedBlocks::default();
        dropped.record(key(1), StoredMiss::Evicted);
        dropped.record(key(2), StoredMiss::Evicted);
        dropped.record(key(2), StoredMiss::Damaged);
        assert_eq!(dropped.why(key(1)), Some(StoredMiss::Evicted));
        assert_eq!(dropped.why(key(2)), Some(StoredMiss::Damaged));
        assert_eq!(dropped.why(key(3)), None);
        for token in 0..MAX_BLOCKS as u32 * 2 {
            dropped.record(key(100 + token), StoredMiss::Evicted);
        }
        assert_eq!(dropped.why(key(1)), None);
        assert_eq!(
            dropped.why(key(100 + MAX_BLOCKS as u32)),
            Some(StoredMiss::Evicted)
        );
        assert!(dropped.young.len() + dropped.old.len() <= 2 * MAX_BLOCKS);
    }
}
