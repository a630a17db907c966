//! The lookup from a node and a page of tokens to the child that starts with it: one table for the whole tree.
//!
//! Open addressing with linear probing over eight bytes a slot, so that a lookup costs one cache line. Children are
//! found by 32 bits of a hash; whoever asks looks at the node to know whether it is the one.

const EMPTY: u64 = u64::MAX;
/// Slots are added when more than five eighths are in use: a removal looks at all from its own to the next free one.
const MAX_LOAD: (usize, usize) = (5, 8);
const FIRST_SLOTS: usize = 16;

/// See the module.
#[derive(Default)]
pub(super) struct Children {
    /// A tag in the upper half and a child in the lower, ordered by tag but for what had to give way.
    slots: Vec<u64>,
    n_used: usize,
}

impl Children {
    /// Number of children.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.n_used
    }

    /// The children under a tag.
    pub(super) fn find(&self, tag: u32) -> impl Iterator<Item = u32> + '_ {
        let (front, back) = match self.slots.len() {
            0 => (&[][..], &[][..]),
            n => {
                let (back, front) = self.slots.split_at(home(tag, n));
                (front, back)
            }
        };
        let probed = front.iter().chain(back);
        let probed = probed.take_while(|slot| **slot != EMPTY);
        probed
            .filter(move |slot| (**slot >> 32) as u32 == tag)
            .map(|slot| *slot as u32)
    }

    pub(super) fn insert(&mut self, tag: u32, child: u32) {
        if (self.n_used + 1) * MAX_LOAD.1 > self.slots.len() * MAX_LOAD.0 {
            self.grow();
        }
        self.n_used += 1;
        self.put(u64::from(tag) << 32 | u64::from(child));
    }

    /// # Panics
    /// If the child is not under the tag, as with [`Children::replace`].
    pub(super) fn remove(&mut self, tag: u32, child: u32) {
        let n = self.slots.len();
        let mut hole = self.place_of(tag, child);
        let mut at = hole;
        loop {
            at = next(at, n);
            let slot = self.slots[at];
            if slot == EMPTY {
                break;
            }
            let from_home = distance(home((slot >> 32) as u32, n), at, n);
            if from_home >= distance(hole, at, n) {
                self.slots[hole] = slot;
                hole = at;
            }
        }
        self.slots[hole] = EMPTY;
        self.n_used -= 1;
    }

    /// Puts `child` in the place of `before`.
    pub(super) fn replace(&mut self, tag: u32, before: u32, child: u32) {
        let place = self.place_of(tag, before);
        self.slots[place] = u64::from(tag) << 32 | u64::from(child);
    }

    /// Reads where a tag belongs, for the memory to be near; the value means nothing.
    pub(super) fn glance(&self, tag: u32) -> u32 {
        match self.slots.len() {
            0 => 0,
            n => self.slots[home(tag, n)] as u32,
        }
    }

    fn place_of(&self, tag: u32, child: u32) -> usize {
        let slot = u64::from(tag) << 32 | u64::from(child);
        let n = self.slots.len();
        let mut at = home(tag, n);
        while self.slots[at] != slot {
            assert!(self.slots[at] != EMPTY, "the tree holds its children");
            at = next(at, n);
        }
        at
    }

    fn put(&mut self, slot: u64) {
        let n = self.slots.len();
        let mut at = home((slot >> 32) as u32, n);
        while self.slots[at] != EMPTY {
            at = next(at, n);
        }
        self.slots[at] = slot;
    }

    fn grow(&mut self) {
        let n = (self.slots.len() * 5 / 4).max(FIRST_SLOTS);
        let before = std::mem::replace(&mut self.slots, vec![EMPTY; n]);
        for slot in before.into_iter().filter(|slot| *slot != EMPTY) {
            self.put(slot);
        }
    }
}

/// Where a tag belongs among `n` slots.
fn home(tag: u32, n: usize) -> usize {
    ((u64::from(tag) * n as u64) >> 32) as usize
}

fn next(at: usize, n: usize) -> usize {
    if at + 1 == n { 0 } else { at + 1 }
}

/// Steps from one slot to another.
fn distance(from: usize, to: usize, n: usize) -> usize {
    if to >= from { to - from } else { to + n - from }
}

/// Hashes a parent and a page.
pub(super) fn tag_of(parent: u32, page: &[u32]) -> u32 {
    const ODD: u64 = 0xf135_7aea_2e62_a9c5;
    let start = u64::from(parent) << 32 | u64::from(page[0]);
    let folded = page[1..].iter().fold(start, |hash, &token| {
        (hash.rotate_left(23) ^ u64::from(token)).wrapping_mul(ODD)
    });
    let product = u128::from(folded ^ ODD) * u128::from(ODD);
    ((product >> 64) as u64 ^ product as u64) as u32
}
