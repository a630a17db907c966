//! Tests of a tier's index: stored prefixes, eviction and recovery.

use super::*;

/// A block of a path. All paths share their first four blocks.
fn place(path: u8, block: u32) -> BlockPlace {
    let name = |block: i64| {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&block.to_le_bytes());
        key[8] = if block < 4 { 0 } else { path };
        BlockKey(key)
    };
    BlockPlace {
        key: name(i64::from(block)),
        parent: name(i64::from(block) - 1),
        block,
    }
}

fn path(path: u8, blocks: u32) -> Vec<BlockPlace> {
    (0..blocks).map(|block| place(path, block)).collect()
}

fn filled(blocks: u32) -> BlockIndex {
    let mut index = BlockIndex::default();
    for place in path(1, blocks) {
        let stored = index.insert(place, BlockKind::Kv, u64::from(place.block));
        assert_eq!(stored, Stored::New);
    }
    index
}

fn evicted(index: &mut BlockIndex) -> Vec<(BlockKind, u32)> {
    let gone = std::iter::from_fn(|| index.evict(None));
    gone.map(|stored| (stored.kind, stored.place.block))
        .collect()
}

#[test]
fn a_path_is_evicted_from_its_end() {
    let mut index = filled(3);
    assert_eq!(index.prefix(&path(1, 9)), 3);
    assert_eq!(index.fault(), None);
    index.touch(place(1, 0).key);
    let removed = evicted(&mut index);
    assert_eq!(
        removed,
        [2, 1, 0].map(|block| (BlockKind::Kv, block)),
        "though the first was used last"
    );
    assert!(index.is_empty() && index.nodes.is_empty());
}

#[test]
fn use_of_a_successor_keeps_the_blocks_before_it() {
    let mut index = filled(4);
    // Two branches after the same four blocks, and a separate path.
    for path in [1, 2] {
        index.insert(place(path, 4), BlockKind::Kv, 0);
    }
    let other = BlockPlace {
        key: BlockKey([9; 32]),
        parent: BlockKey([8; 32]),
        block: 0,
    };
    index.insert(other, BlockKind::Kv, 0);
    index.touch(place(1, 4).key);
    let first = index.evict(None).expect("a record can be evicted");
    assert_eq!(first.place, place(2, 4));
    // The four blocks are older than `other`, but one of their successors is not.
    let second = index.evict(None).expect("a record can be evicted");
    assert_eq!(second.place, other);
    assert_eq!(index.fault(), None);
}

#[test]
fn a_block_without_its_parent_is_an_orphan() {
    let mut index = filled(2);
    assert_eq!(index.insert(place(1, 3), BlockKind::Kv, 0), Stored::Orphan);
    assert_eq!(
        index.insert(place(1, 2), BlockKind::State, 0),
        Stored::Orphan
    );
    assert_eq!(index.insert(place(1, 1), BlockKind::Kv, 0), Stored::Known);
    let mut skewed = place(1, 2);
    skewed.block = 5;
    assert_eq!(index.insert(skewed, BlockKind::Kv, 0), Stored::Orphan);
    skewed.block = 0;
    skewed.parent = skewed.key;
    assert_eq!(index.insert(skewed, BlockKind::Kv, 0), Stored::Orphan);
}

#[test]
fn blocks_after_a_damaged_one_are_found_again_once_it_is_restored() {
    let mut index = filled(6);
    let removed = index.remove(place(1, 2).key, BlockKind::Kv);
    assert_eq!(removed.map(|stored| stored.location), Some(2));
    assert_eq!(index.prefix(&path(1, 6)), 2);
    assert_eq!(index.fault(), None);
    assert_eq!(index.insert(place(1, 2), BlockKind::Kv, 7), Stored::New);
    assert_eq!(index.prefix(&path(1, 6)), 6);
    index.remove(place(1, 2).key, BlockKind::Kv);
    // Eviction removes the leaves, and with them the empty node.
    assert_eq!(evicted(&mut index).len(), 5);
    assert!(index.nodes.is_empty());
}

#[test]
fn a_path_is_usable_up_to_the_last_required_state_or_window() {
    let mut index = filled(6);
    let path = path(1, 6);
    let state = Needs {
        state: true,
        window_tokens: 0,
    };
    assert_eq!(index.usable(&path, 6, &Needs::default(), 64), 6);
    assert_eq!(index.usable(&path, 6, &state, 64), 0);
    for block in [1, 3] {
        index.insert(place(1, block), BlockKind::State, 0);
    }
    assert_eq!(index.usable(&path, 6, &state, 64), 4);
    assert_eq!(index.usable(&path, 3, &state, 64), 2);
    // With a window of 100, the token after block `end - 1` needs 99 earlier tokens: those of two blocks.
    let window = Needs {
        state: false,
        window_tokens: 100,
    };
    assert_eq!(window.window_blocks(5, 64), 3..5);
    assert_eq!(window.window_blocks(1, 64), 0..1);
    for block in [1, 2, 4, 5] {
        index.insert(place(1, block), BlockKind::Window, 0);
    }
    assert_eq!(index.usable(&path, 6, &window, 64), 6);
    assert_eq!(index.usable(&path, 5, &window, 64), 3);
    assert_eq!(index.usable(&path, 2, &window, 64), 0);
}

#[test]
fn states_are_evicted_before_their_blocks() {
    let mut index = filled(2);
    index.insert(place(1, 1), BlockKind::State, 0);
    index.touch(place(1, 1).key);
    let removed = evicted(&mut index);
    let kinds = [
        (BlockKind::State, 1),
        (BlockKind::Kv, 1),
        (BlockKind::Kv, 0),
    ];
    assert_eq!(removed, kinds);
}

#[test]
fn restoring_accepts_any_order_and_drops_unreachable_records() {
    let mut index = filled(5);
    index.insert(place(1, 2), BlockKind::State, 9);
    let mut records: Vec<StoredBlock> = index.iter().collect();
    records.sort_by_key(|record| std::cmp::Reverse((record.place.block, record.used)));
    let twice = records[0];
    records.push(twice);
    records.retain(|record| record.kind != BlockKind::Kv || record.place.block != 3);
    let mut restored = BlockIndex::default();
    let dropped = restored.restore(records);
    let blocks: Vec<u32> = dropped.iter().map(|record| record.place.block).collect();
    assert_eq!(blocks, [4, 4], "one block after a gap, and its duplicate");
    assert_eq!(restored.prefix(&path(1, 5)), 3);
    assert_eq!(restored.fault(), None);
    assert!(restored.clock >= 3);
}

/// The same rules, implemented over a plain list.
#[derive(Default)]
struct Naive {
    records: Vec<StoredBlock>,
    clock: u64,
}

impl Naive {
    fn find(&self, key: BlockKey, kind: BlockKind) -> Option<usize> {
        let is_it = |r: &StoredBlock| r.place.key == key && r.kind == kind;
        self.records.iter().position(is_it)
    }

    fn insert(&mut self, place: BlockPlace, kind: BlockKind) {
        let base = match kind {
            BlockKind::Kv if place.block == 0 => true,
            BlockKind::Kv => self.find(place.parent, kind).is_some(),
            _ => self.find(place.key, BlockKind::Kv).is_some(),
        };
        if base && self.find(place.key, kind).is_none() {
            self.clock += 1;
            self.records.push(StoredBlock {
                place,
                kind,
                location: 0,
                used: self.clock,
            });
        }
    }

    fn touch(&mut self, key: BlockKey) {
        if self.find(key, BlockKind::Kv).is_none() {
            return;
        }
        self.clock += 1;
        for record in self.records.iter_mut().filter(|r| r.place.key == key) {
            record.used = self.clock;
        }
    }

    /// Removes the next victim. A block is evicted after its successors, its states and its windows.
    fn evict(&mut self) -> Option<(BlockKind, BlockKey)> {
        let is_evictable = |r: &&StoredBlock| {
            let needs_it = |other: &&StoredBlock| {
                let follows = other.place.parent == r.place.key;
                follows || other.place.key == r.place.key && other.kind != BlockKind::Kv
            };
            r.kind != BlockKind::Kv || !self.records.iter().any(|other| needs_it(&other))
        };
        let rank = |kind| match kind {
            BlockKind::State => 0,
            BlockKind::Window => 1,
            BlockKind::Kv => 2,
        };
        let candidates = self.records.iter().filter(is_evictable);
        let first = candidates.min_by_key(|r| (r.used, rank(r.kind)))?;
        let (kind, place, used) = (first.kind, first.place, first.used);
        let at = self.find(place.key, kind)?;
        self.records.remove(at);
        if kind == BlockKind::Kv
            && let Some(parent) = self.find(place.parent, BlockKind::Kv)
        {
            let record = &mut self.records[parent];
            record.used = record.used.max(used);
        }
        Some((kind, place.key))
    }
}

#[test]
fn random_operations_agree_with_a_naive_index() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut index, mut naive) = (BlockIndex::default(), Naive::default());
        for _ in 0..200 {
            let place = place(random.u8(1..4), random.u32(0..8));
            match random.u8(0..10) {
                0 | 1 => {
                    index.touch(place.key);
                    naive.touch(place.key);
                }
                2 | 3 => {
                    let removed = index.evict(None).map(|r| (r.kind, r.place.key));
                    assert_eq!(removed, naive.evict(), "seed {seed}");
                }
                n => {
                    let kind = match n {
                        4 => BlockKind::State,
                        5 => BlockKind::Window,
                        _ => BlockKind::Kv,
                    };
                    index.insert(place, kind, 0);
                    naive.insert(place, kind);
                }
            }
            assert_eq!(index.len(), naive.records.len(), "seed {seed}");
            assert_eq!(index.fault(), None, "seed {seed}");
        }
    }
}
