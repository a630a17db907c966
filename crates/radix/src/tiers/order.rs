//! The eviction order of a tier's index: the least recently used record first, if no other record needs it.

use std::collections::BTreeSet;

use crate::tiers::{BlockKey, BlockKind};

/// The evictable records, by their last use. Among equally recent records, states are evicted before windows, and
/// windows before keys and values: without states or windows, a shorter part of the path is still usable.
#[derive(Clone, Debug, Default)]
pub(super) struct EvictionOrder {
    by_use: [BTreeSet<(u64, BlockKey)>; 3],
}

impl EvictionOrder {
    const FIRST_TO_LAST: [BlockKind; 3] = [BlockKind::State, BlockKind::Window, BlockKind::Kv];

    pub fn insert(&mut self, kind: BlockKind, used: u64, key: BlockKey) {
        self.by_use[kind.index()].insert((used, key));
    }

    pub fn remove(&mut self, kind: BlockKind, used: u64, key: BlockKey) {
        self.by_use[kind.index()].remove(&(used, key));
    }

    pub fn first(&self, kind: Option<BlockKind>) -> Option<(BlockKind, BlockKey)> {
        let kinds = Self::FIRST_TO_LAST.into_iter();
        let wanted = kinds.filter(|each| kind.is_none_or(|kind| kind == *each));
        let firsts = wanted.filter_map(|each| {
            let (used, key) = self.by_use[each.index()].first()?;
            Some((*used, each, *key))
        });
        // Among equals, `min_by_key` returns the first.
        let first = firsts.min_by_key(|(used, _, _)| *used);
        first.map(|(_, kind, key)| (kind, key))
    }

    pub fn len(&self) -> usize {
        self.by_use.iter().map(BTreeSet::len).sum()
    }
}
