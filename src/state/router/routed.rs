//! The prefixes of prompts routed in the last moments, which the caches do not show yet.

use rustc_hash::FxHashMap;

use super::Prompt;
use crate::cache::prefix_history::PrefixHash;
use souffleur_base::ids::{IntakeId, UnitId};

/// Tokens of a block. Prefixes are recorded in whole blocks.
pub const BLOCK_TOKENS: usize = 64;
/// Bounds the blocks of each generation.
const MAX_BLOCKS: usize = 1 << 15;

/// The request that computes a block, and the time when it was routed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Routing {
    pub(super) request: IntakeId,
    pub(super) at_s: f64,
}

/// The blocks of each replica, keyed by the hash of the prefix that ends with the block. A full generation is kept
/// until the next one is full, then dropped as a whole.
#[derive(Debug, Default)]
pub(super) struct RoutedPrefixes {
    young: FxHashMap<(PrefixHash, UnitId), Routing>,
    old: FxHashMap<(PrefixHash, UnitId), Routing>,
}

impl RoutedPrefixes {
    pub(super) fn record(&mut self, blocks: &[PrefixHash], unit: UnitId, routing: Routing) {
        for &block in blocks {
            if self.young.len() >= MAX_BLOCKS {
                self.old = std::mem::take(&mut self.young);
            }
            self.young.insert((block, unit), routing);
        }
    }

    /// The routings of the leading blocks that were routed to the replica.
    pub(super) fn routings(
        &self,
        blocks: &[PrefixHash],
        unit: UnitId,
    ) -> impl Iterator<Item = Routing> {
        blocks.iter().map_while(move |block| {
            let key = (*block, unit);
            let routing = self.young.get(&key).or_else(|| self.old.get(&key));
            routing.copied()
        })
    }

    /// Removes the blocks of a replica.
    pub(super) fn forget(&mut self, unit: UnitId) {
        self.young.retain(|(_, of), _| *of != unit);
        self.old.retain(|(_, of), _| *of != unit);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

/// The hashes of the prompt's prefixes, one for each whole block.
pub(super) fn block_hashes(prompt: &Prompt<'_>) -> Vec<PrefixHash> {
    let mut hash = PrefixHash::empty(prompt.namespace);
    let blocks = prompt.tokens.chunks_exact(BLOCK_TOKENS);
    blocks
        .map(|block| {
            hash = hash.then(block);
            hash
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::namespace::Namespace;

    #[test]
    fn blocks_are_bounded_and_the_newest_stay() {
        let namespace = Namespace::default();
        let tokens: Vec<u32> = (0..(5 * MAX_BLOCKS / 2 * BLOCK_TOKENS) as u32).collect();
        let blocks = block_hashes(&Prompt {
            namespace: &namespace,
            tokens: &tokens,
            bypasses_cache: false,
        });
        let mut routed = RoutedPrefixes::default();
        let unit = UnitId::new(0);
        let routing = Routing {
            request: IntakeId::new(0),
            at_s: 0.0,
        };
        routed.record(&blocks, unit, routing);
        assert_eq!(blocks.len(), 5 * MAX_BLOCKS / 2);
        assert_eq!(routed.len(), 3 * MAX_BLOCKS / 2);
        let newest = &blocks[blocks.len() - MAX_BLOCKS..];
        assert_eq!(routed.routings(newest, unit).count(), MAX_BLOCKS);
        assert_eq!(routed.routings(&blocks, unit).count(), 0);
        routed.forget(unit);
        assert_eq!(routed.len(), 0);
    }
}
