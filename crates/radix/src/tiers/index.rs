//! The index of a tier's blocks: lookups of stored prefixes, and the choice of eviction victims.
//!
//! Blocks form a forest. Keys and values are evicted leaves first; when a block is evicted, its parent inherits the
//! last use if that is more recent. States and windows may be evicted at any time. A block whose keys and values were
//! damaged stays as an empty node as long as other blocks follow it: these are found again once the block is saved
//! again.

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use crate::tiers::order::EvictionOrder;
use crate::tiers::{BlockKey, BlockKind, BlockPlace, Needs};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    pub place: BlockPlace,
    pub kind: BlockKind,
    /// Where the tier keeps the record: a number that the tier assigns.
    pub location: u64,
    /// When the record was last used, in ticks of the index.
    pub used: u64,
}

/// The result of inserting a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    New,
    /// The index has this record already.
    Known,
    /// No lookup would find the record: its parent block is missing or, for states and windows, its keys and values.
    Orphan,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    location: u64,
    used: u64,
}

#[derive(Clone, Debug)]
struct Node {
    parent: BlockKey,
    block: u32,
    /// Number of nodes that follow this one.
    children: u32,
    /// Indexed by [`BlockKind::index`].
    records: [Option<Record>; 3],
}

impl Node {
    fn record(&self, kind: BlockKind) -> Option<Record> {
        self.records[kind.index()]
    }

    fn stored(&self, key: BlockKey, kind: BlockKind, record: Record) -> StoredBlock {
        StoredBlock {
            place: BlockPlace {
                key,
                parent: self.parent,
                block: self.block,
            },
            kind,
            location: record.location,
            used: record.used,
        }
    }

    /// True if there is a record of this kind and no other record needs it.
    fn is_evictable(&self, kind: BlockKind) -> bool {
        let others = [BlockKind::State, BlockKind::Window];
        let is_needed = self.children > 0 || others.iter().any(|k| self.record(*k).is_some());
        self.record(kind).is_some() && (kind != BlockKind::Kv || !is_needed)
    }
}

#[derive(Clone, Debug, Default)]
pub struct BlockIndex {
    nodes: FxHashMap<BlockKey, Node>,
    order: EvictionOrder,
    n_records: [usize; 3],
    clock: u64,
}

impl BlockIndex {
    pub fn records(&self, kind: BlockKind) -> usize {
        self.n_records[kind.index()]
    }

    pub fn len(&self) -> usize {
        self.n_records.iter().sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn location(&self, key: BlockKey, kind: BlockKind) -> Option<u64> {
        let record = self.nodes.get(&key)?.record(kind);
        record.map(|record| record.location)
    }

    pub fn get(&self, key: BlockKey, kind: BlockKind) -> Option<StoredBlock> {
        let node = self.nodes.get(&key)?;
        node.record(kind)
            .map(|record| node.stored(key, kind, record))
    }

    /// How many blocks from the start of a path have keys and values in this tier.
    pub fn prefix(&self, path: &[BlockPlace]) -> usize {
        let has = |place: &BlockPlace| self.location(place.key, BlockKind::Kv).is_some();
        path.iter().take_while(|place| has(place)).count()
    }

    /// The most blocks, up to `end`, after which a sequence can resume. The first `end` must all have keys and values.
    pub fn usable(
        &self,
        path: &[BlockPlace],
        end: usize,
        needs: &Needs,
        block_tokens: usize,
    ) -> usize {
        let has = |block: usize, kind| {
            let place = path.get(block);
            place.is_some_and(|place| self.location(place.key, kind).is_some())
        };
        let is_end = |end: &usize| {
            let mut window = needs.window_blocks(*end, block_tokens);
            let has_state = !needs.state || has(*end - 1, BlockKind::State);
            has_state && window.all(|block| has(block, BlockKind::Window))
        };
        let ends = (1..=end.min(path.len())).rev();
        ends.into_iter().find(is_end).unwrap_or(0)
    }

    pub fn check(&self, place: &BlockPlace, kind: BlockKind) -> Stored {
        let node = self.nodes.get(&place.key);
        if node.is_some_and(|node| node.record(kind).is_some()) {
            return Stored::Known;
        }
        let has_kv = |key| self.location(key, BlockKind::Kv).is_some();
        let is_reachable = match kind {
            BlockKind::Kv if place.block == 0 => place.parent != place.key,
            BlockKind::Kv => {
                let parent = self.nodes.get(&place.parent);
                let next = parent.and_then(|parent| parent.block.checked_add(1));
                has_kv(place.parent) && next == Some(place.block)
            }
            BlockKind::Window | BlockKind::State => has_kv(place.key),
        };
        if is_reachable {
            Stored::New
        } else {
            Stored::Orphan
        }
    }

    /// Inserts a record, as used now.
    pub fn insert(&mut self, place: BlockPlace, kind: BlockKind, location: u64) -> Stored {
        let stored = self.check(&place, kind);
        if stored == Stored::New {
            self.clock += 1;
            let used = self.clock;
            self.put(StoredBlock {
                place,
                kind,
                location,
                used,
            });
        }
        stored
    }

    /// Inserts a tier's records, given in any order. Returns orphans and duplicates.
    pub fn restore(&mut self, mut records: Vec<StoredBlock>) -> Vec<StoredBlock> {
        records.sort_by_key(|record| (record.place.block, record.kind, record.used));
        let mut dropped = Vec::new();
        for record in records {
            match self.check(&record.place, record.kind) {
                Stored::New => self.put(record),
                Stored::Known | Stored::Orphan => dropped.push(record),
            }
        }
        dropped
    }

    /// Marks a block as used now, which also keeps the blocks before it. Returns the tick, `None` for an unknown block.
    pub fn touch(&mut self, key: BlockKey) -> Option<u64> {
        if !self.nodes.contains_key(&key) {
            return None;
        }
        self.clock += 1;
        let clock = self.clock;
        self.change(key, |node| {
            for record in node.records.iter_mut().flatten() {
                record.used = clock;
            }
        });
        Some(clock)
    }

    /// The next victim, of one kind or of any.
    pub fn next_victim(&self, kind: Option<BlockKind>) -> Option<(BlockKind, BlockKey)> {
        self.order.first(kind)
    }

    /// Removes the next victim, of one kind or of any.
    pub fn evict(&mut self, kind: Option<BlockKind>) -> Option<StoredBlock> {
        let (kind, key) = self.next_victim(kind)?;
        self.remove(key, kind)
    }

    pub fn remove(&mut self, key: BlockKey, kind: BlockKind) -> Option<StoredBlock> {
        let removed = self.get(key, kind)?;
        self.change(key, |node| node.records[kind.index()] = None);
        self.n_records[kind.index()] -= 1;
        if kind == BlockKind::Kv {
            self.inherit(removed.place.parent, removed.used);
        }
        self.prune(key);
        Some(removed)
    }

    /// All records, in no order.
    pub fn iter(&self) -> impl Iterator<Item = StoredBlock> + '_ {
        self.nodes.iter().flat_map(|(key, node)| {
            BlockKind::ALL.into_iter().filter_map(|kind| {
                let record = node.record(kind)?;
                Some(node.stored(*key, kind, record))
            })
        })
    }

    fn put(&mut self, stored: StoredBlock) {
        let StoredBlock { place, kind, .. } = stored;
        self.clock = self.clock.max(stored.used);
        if let Entry::Vacant(vacant) = self.nodes.entry(place.key) {
            vacant.insert(Node {
                parent: place.parent,
                block: place.block,
                children: 0,
                records: [None; 3],
            });
            self.change(place.parent, |parent| parent.children += 1);
        }
        self.n_records[kind.index()] += 1;
        let record = Record {
            location: stored.location,
            used: stored.used,
        };
        self.change(place.key, |node| node.records[kind.index()] = Some(record));
    }

    /// A block inherits the time of use of its removed successor.
    fn inherit(&mut self, parent: BlockKey, used: u64) {
        self.change(parent, |node| {
            if let Some(record) = &mut node.records[BlockKind::Kv.index()] {
                record.used = record.used.max(used);
            }
        });
    }

    /// Removes a block without records and successors, and its predecessors that then have neither.
    fn prune(&mut self, mut key: BlockKey) {
        while let Some(node) = self.nodes.get(&key) {
            if node.children > 0 || node.records.iter().any(Option::is_some) {
                return;
            }
            let parent = node.parent;
            self.nodes.remove(&key);
            self.change(parent, |node| node.children -= 1);
            key = parent;
        }
    }

    /// Changes a node, if there is one, and updates its records in the eviction order.
    fn change(&mut self, key: BlockKey, change: impl FnOnce(&mut Node)) {
        let Some(node) = self.nodes.get_mut(&key) else {
            return;
        };
        let ordered = |node: &Node| {
            BlockKind::ALL.map(|kind| node.record(kind).filter(|_| node.is_evictable(kind)))
        };
        let before = ordered(node);
        change(node);
        let after = ordered(node);
        for kind in BlockKind::ALL {
            if let Some(record) = before[kind.index()] {
                self.order.remove(kind, record.used, key);
            }
            if let Some(record) = after[kind.index()] {
                self.order.insert(kind, record.used, key);
            }
        }
    }

    /// Describes an inconsistency of the index; `None`, unless there is a bug.
    pub fn fault(&self) -> Option<String> {
        let mut n_evictable = 0;
        let mut n_records = [0; 3];
        for (key, node) in &self.nodes {
            let children = self.nodes.values().filter(|other| other.parent == *key);
            let children = children.count();
            if children != node.children as usize {
                return Some(format!("{key:?}: {children} children, {node:?}"));
            }
            if children == 0 && node.records.iter().all(Option::is_none) {
                return Some(format!("{key:?} has no records and no children"));
            }
            for kind in BlockKind::ALL {
                n_records[kind.index()] += usize::from(node.record(kind).is_some());
                n_evictable += usize::from(node.is_evictable(kind));
            }
        }
        let counted = (n_records, n_evictable);
        let kept = (self.n_records, self.order.len());
        (counted != kept).then(|| format!("counted {counted:?}, recorded {kept:?}"))
    }
}

#[cfg(test)]
#[path = "index_tests.rs"]
mod tests;
