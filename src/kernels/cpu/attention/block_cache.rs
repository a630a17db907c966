//! A thread's cache of packed K/V blocks, shared by the query tiles of a layer that see the same slots.

use super::super::memory::Lines;
use super::kv_element::KvElement;
use super::seen::{BLOCK, KeyRange};
use super::sizes::Sizes;

/// Blocks at the start of a sequence that are cached: with bf16 heads of 128 they take half of an L2 of 1 MiB.
const CACHED_BLOCKS: usize = 8;

/// Packed blocks: a scratch block, overwritten repeatedly, followed by the cached blocks.
#[derive(Default)]
pub struct BlockCache {
    keys: Lines<u32>,
    values: Lines<u32>,
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    head: usize,
    loaded: KeyRange,
    slots: [usize; BLOCK],
}

impl BlockCache {
    pub fn fit<F: KvElement>(&mut self, sizes: Sizes) {
        self.keys.grow_to((1 + CACHED_BLOCKS) * keys_len(sizes));
        self.values
            .grow_to((1 + CACHED_BLOCKS) * values_len::<F>(sizes));
        let empty = Entry {
            head: 0,
            loaded: KeyRange::default(),
            slots: [0; BLOCK],
        };
        self.entries.resize(CACHED_BLOCKS, empty);
    }

    /// Drops the cached blocks. Must be called before keys and values of another layer or step are read.
    pub fn clear(&mut self) {
        for entry in &mut self.entries {
            entry.loaded = KeyRange::default();
        }
    }

    /// Returns the index of a block's entry, and whether the entry already holds the loaded slots. Index 0 is scratch.
    #[inline(always)]
    pub fn claim<F>(
        &mut self,
        (block, head): (usize, usize),
        slots: &[*const F; BLOCK],
        loaded: KeyRange,
    ) -> (usize, bool) {
        let Some(entry) = self.entries.get_mut(block) else {
            return (0, false);
        };
        let has_all = entry.loaded.start <= loaded.start && entry.loaded.end >= loaded.end;
        if has_all && entry.head == head && !loaded.is_empty() {
            let range = loaded.start as usize..loaded.end as usize;
            let pairs = entry.slots[range.clone()].iter().zip(&slots[range]);
            let equal = |all, (cached, slot): (&usize, &*const F)| all & (*cached == slot.addr());
            if pairs.fold(true, equal) {
                return (1 + block, true);
            }
        }
        entry.head = head;
        entry.loaded = loaded;
        entry.slots = slots.map(|slot| slot.addr());
        (1 + block, false)
    }

    /// Keys of an entry, `[depth, BLOCK]` words: each lane is a key.
    #[inline(always)]
    pub fn keys(&mut self, sizes: Sizes, entry: usize) -> &mut [u32] {
        let len = keys_len(sizes);
        &mut self.keys[entry * len..][..len]
    }

    /// Values of an entry, `[BLOCK / PER_WORD, width]` words: each lane is an element of a head.
    #[inline(always)]
    pub fn values<F: KvElement>(&mut self, sizes: Sizes, entry: usize) -> &mut [u32] {
        let len = values_len::<F>(sizes);
        &mut self.values[entry * len..][..len]
    }
}

fn keys_len(sizes: Sizes) -> usize {
    sizes.query_words * BLOCK
}

fn values_len<F: KvElement>(sizes: Sizes) -> usize {
    BLOCK / F::PER_WORD * sizes.width
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::HeadShape;
    use souffleur_base::kv_layout::Values;

    #[test]
    fn a_cached_block_is_found_for_the_same_head_and_slots() {
        let heads = HeadShape {
            n_heads: 2,
            n_kv_heads: 2,
            key_dim: 64,
            values: Values::Own { dim: 64 },
            scale: 1.0,
            score_cap: None,
            window: None,
        };
        let mut blocks = BlockCache::default();
        blocks.fit::<bf16>(Sizes::of::<bf16>(&heads, 1));
        let pool = vec![bf16::ZERO; 3 * BLOCK];
        let slots: [*const bf16; BLOCK] = std::array::from_fn(|i| pool[i..].as_ptr());
        let mut others = slots;
        others[40] = pool[BLOCK..].as_ptr();
        let seen = |start, end| KeyRange { start, end };
        // `others` differs from `slots` in slot 40 only. Block 3 has entry 4, as entry 0 is scratch.
        assert_eq!(blocks.claim((3, 0), &slots, seen(0, 100)), (4, false));
        assert_eq!(blocks.claim((3, 0), &slots, seen(0, 100)), (4, true));
        assert_eq!(blocks.claim((3, 0), &others, seen(0, 40)), (4, true));
        assert_eq!(blocks.claim((2, 0), &slots, seen(0, 100)), (3, false));
        assert_eq!(blocks.claim((3, 0), &slots, seen(0, 101)), (4, false));
        assert_eq!(blocks.claim((3, 1), &slots, seen(0, 101)), (4, false));
        assert_eq!(blocks.claim((3, 1), &others, seen(0, 101)), (4, false));
        assert_eq!(
            blocks.claim((CACHED_BLOCKS, 0), &slots, seen(0, 9)),
            (0, false)
        );
        assert_eq!(blocks.claim((3, 1), &others, seen(0, 101)), (4, true));
        blocks.clear();
        assert_eq!(blocks.claim((3, 1), &others, seen(0, 101)), (4, false));
    }
}
