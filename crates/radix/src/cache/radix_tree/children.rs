//! The hash table of the tree's children: finds the child of a node that starts with a page of tokens.
//!
//! Seven children share a bucket of one cache line. One byte of each child's hash is stored separately, eight buckets
//! to a line: in a large tree, whose buckets are in no CPU cache, a miss or a removal reads only that line. A child
//! whose bucket is full overflows into a later one, and every bucket that it passed counts it: a search continues only
//! past buckets with overflow, and a removal moves nothing. The lookup key is a 32-bit hash; the caller compares the
//! node itself. A child keeps its [`Spot`], so that a removal need not search.

use crate::prefetch::prefetch;

const WIDTH: usize = 7;
/// Buckets are added above this load factor.
const MAX_LOAD: (usize, usize) = (3, 4);
const FIRST_BUCKETS: usize = 2;

/// Slots for children; the content of a free slot has no meaning.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; WIDTH],
    children: [u32; WIDTH],
}

impl Bucket {
    const EMPTY: Self = Self {
        tags: [0; WIDTH],
        children: [0; WIDTH],
    };
}

/// Summary of a bucket: for each slot, the child's [`mark_of`] or [`Outline::FREE`]; in the last byte, the number of
/// children that passed this full bucket and are in later ones. A saturated count stays saturated.
#[derive(Clone, Copy)]
struct Outline([u8; WIDTH + 1]);

impl Outline {
    const FREE: u8 = 0;
    const EMPTY: Self = Self([Self::FREE; WIDTH + 1]);

    fn n_overflowed(self) -> u8 {
        self.0[WIDTH]
    }

    fn add_overflow(&mut self) {
        self.0[WIDTH] = self.0[WIDTH].saturating_add(1);
    }

    fn remove_overflow(&mut self) {
        if self.0[WIDTH] != u8::MAX {
            self.0[WIDTH] -= 1;
        }
    }

    /// The slots with this mark, found as the zero bytes of an XOR.
    #[inline]
    fn slots(self, mark: u8) -> Slots {
        const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
        const COUNT: u64 = 0xff << (8 * WIDTH);
        let differing = u64::from_le_bytes(self.0) ^ u64::from_le_bytes([mark; 8]) | COUNT;
        Slots(!(((differing & LOW_BITS) + LOW_BITS) | differing | LOW_BITS))
    }
}

/// A child's position: the distance of its bucket from that of its tag, and its slot there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot(u8);

impl Spot {
    /// The distance does not fit: the child must be searched.
    pub(super) const FAR: Self = Self(u8::MAX);

    const STRIDE: u8 = WIDTH as u8 + 1;

    fn new(distance: usize, slot: usize) -> Self {
        let spot = distance * usize::from(Self::STRIDE) + slot;
        u8::try_from(spot).map_or(Self::FAR, Self)
    }

    fn distance(self) -> usize {
        usize::from(self.0 / Self::STRIDE)
    }

    fn slot(self) -> usize {
        usize::from(self.0 % Self::STRIDE)
    }
}

/// Slots of a bucket: the highest bit of byte `i` is set for slot `i`.
#[derive(Clone, Copy)]
struct Slots(u64);

impl Iterator for Slots {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        let first = (self.0 != 0).then(|| self.0.trailing_zeros() as usize / 8);
        self.0 &= self.0.wrapping_sub(1);
        first
    }
}

pub(super) struct Children {
    buckets: Vec<Bucket>,
    outlines: Vec<Outline>,
    n_used: usize,
}

impl Default for Children {
    fn default() -> Self {
        Self::of(FIRST_BUCKETS)
    }
}

impl Children {
    fn of(n_buckets: usize) -> Self {
        Self {
            buckets: vec![Bucket::EMPTY; n_buckets],
            outlines: vec![Outline::EMPTY; n_buckets],
            n_used: 0,
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.n_used
    }

    /// The first `Some` that `inspect` returns for a child under the tag.
    #[inline]
    pub(super) fn find<T>(&self, tag: u32, mut inspect: impl FnMut(u32) -> Option<T>) -> Option<T> {
        self.candidates(tag).find_map(|(at, slot)| {
            let bucket = &self.buckets[at];
            (bucket.tags[slot] == tag)
                .then(|| inspect(bucket.children[slot]))
                .flatten()
        })
    }

    /// The child at `spot` under the tag: `child` itself in a consistent table.
    pub(super) fn at(&self, tag: u32, child: u32, spot: Spot) -> u32 {
        let (at, slot) = self.position_of(tag, child, spot);
        self.buckets[at].children[slot]
    }

    /// Adds a child. If the table grows, `on_move` receives the other children with their new spots.
    pub(super) fn insert(&mut self, tag: u32, child: u32, on_move: impl FnMut(u32, Spot)) -> Spot {
        if (self.n_used + 1) * MAX_LOAD.1 > self.buckets.len() * WIDTH * MAX_LOAD.0 {
            self.grow(on_move);
        }
        self.put(tag, child)
    }

    /// Removes a child that is under the tag, at the spot.
    #[inline(always)]
    pub(super) fn remove(&mut self, tag: u32, child: u32, spot: Spot) {
        let home = self.home(tag);
        let (at, slot) = match spot.distance() {
            0 => (home, spot.slot()),
            _ => self.leave_overflow(tag, child, spot),
        };
        self.outlines[at].0[slot] = Outline::FREE;
        self.n_used -= 1;
    }

    /// The position of a child outside of its tag's bucket; the buckets that it passed stop counting it.
    #[inline(never)]
    fn leave_overflow(&mut self, tag: u32, child: u32, spot: Spot) -> (usize, usize) {
        let (at, slot) = self.position_of(tag, child, spot);
        let mut passed = self.home(tag);
        while passed != at {
            self.outlines[passed].remove_overflow();
            passed = self.next(passed);
        }
        (at, slot)
    }

    /// Puts `child` in the slot of `before`, which is under the tag, at the spot.
    pub(super) fn replace(&mut self, tag: u32, before: u32, spot: Spot, child: u32) {
        let (at, slot) = self.position_of(tag, before, spot);
        self.buckets[at].children[slot] = child;
    }

    /// Prefetches the memory that a search for the tag reads and an insertion writes.
    #[inline]
    pub(super) fn prefetch(&self, tag: u32) {
        let home = self.home(tag);
        prefetch(&self.outlines[home]);
        prefetch(&self.buckets[home]);
    }

    /// Reads the memory that a removal needs, to bring it into the CPU cache. The value has no meaning.
    pub(super) fn preload(&self, tag: u32) -> u32 {
        u32::from(self.outlines[self.home(tag)].n_overflowed())
    }

    /// Positions that may hold children under the tag.
    #[inline(always)]
    fn candidates(&self, tag: u32) -> Candidates<'_> {
        let at = self.home(tag);
        Candidates {
            children: self,
            mark: mark_of(tag),
            at,
            slots: self.outlines[at].slots(mark_of(tag)),
            n_left: self.buckets.len(),
        }
    }

    /// The bucket of a child that is under the tag, at the spot, and its slot there.
    fn position_of(&self, tag: u32, child: u32, spot: Spot) -> (usize, usize) {
        if spot == Spot::FAR {
            let mut candidates = self.candidates(tag);
            let found = candidates.find(|&(at, slot)| self.buckets[at].children[slot] == child);
            return found.expect("the table has every child of the tree");
        }
        let home = self.home(tag);
        let at = (0..spot.distance()).fold(home, |at, _| self.next(at));
        (at, spot.slot())
    }

    fn put(&mut self, tag: u32, child: u32) -> Spot {
        self.n_used += 1;
        let mut at = self.home(tag);
        for distance in 0.. {
            let outline = &mut self.outlines[at];
            if let Some(slot) = outline.slots(Outline::FREE).next() {
                outline.0[slot] = mark_of(tag);
                let bucket = &mut self.buckets[at];
                bucket.tags[slot] = tag;
                bucket.children[slot] = child;
                return Spot::new(distance, slot);
            }
            outline.add_overflow();
            at = self.next(at);
        }
        unreachable!("a quarter of the slots must be free")
    }

    #[inline(never)]
    fn grow(&mut self, mut on_move: impl FnMut(u32, Spot)) {
        let n = (self.buckets.len() * 5).div_ceil(4);
        let before = std::mem::replace(self, Self::of(n));
        for (bucket, outline) in before.buckets.iter().zip(&before.outlines) {
            let in_use = (0..WIDTH).filter(|&slot| outline.0[slot] != Outline::FREE);
            for slot in in_use {
                let child = bucket.children[slot];
                on_move(child, self.put(bucket.tags[slot], child));
            }
        }
    }

    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.buckets.len() as u64) >> 32) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() {
            0
        } else {
            at + 1
        }
    }
}

/// Slots with a tag's mark, from its bucket to the first without overflow.
struct Candidates<'a> {
    children: &'a Children,
    mark: u8,
    at: usize,
    /// Remaining slots of this bucket.
    slots: Slots,
    /// Number of buckets left to search, this one included.
    n_left: usize,
}

impl Iterator for Candidates<'_> {
    /// A bucket and a slot in it.
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        loop {
            if let Some(slot) = self.slots.next() {
                return Some((self.at, slot));
            }
            self.n_left -= 1;
            if self.children.outlines[self.at].n_overflowed() == 0 || self.n_left == 0 {
                self.n_left = 1;
                return None;
            }
            self.at = self.children.next(self.at);
            self.slots = self.children.outlines[self.at].slots(self.mark);
        }
    }
}

/// A tag's byte in an [`Outline`]. The higher bits choose the bucket.
#[inline]
fn mark_of(tag: u32) -> u8 {
    (tag as u8).max(Outline::FREE + 1)
}

pub(super) fn tag_of(parent: u32, page: &[u32]) -> u32 {
    const ODD: u64 = 0xf135_7aea_2e62_a9c5;
    let start = u64::from(parent) << 32 | u64::from(page[0]);
    let folded = page[1..].iter().fold(start, |hash, &token| {
        (hash.rotate_left(23) ^ u64::from(token)).wrapping_mul(ODD)
    });
    let product = u128::from(folded ^ ODD) * u128::from(ODD);
    ((product >> 64) as u64 ^ product as u64) as u32
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Tags of only three home buckets, one of them the last, so that overflow wraps around to the first.
    fn tags() -> impl Iterator<Item = u32> {
        (0..).map(|number| u32::MAX - number % 3 * (u32::MAX / 2))
    }

    fn under(children: &Children, tag: u32) -> Vec<u32> {
        let mut found = Vec::new();
        children.find(tag, |child| {
            found.push(child);
            None::<()>
        });
        found.sort_unstable();
        found
    }

    #[derive(Default)]
    struct SpotMap {
        children: Children,
        spots: HashMap<u32, Spot>,
    }

    impl SpotMap {
        fn insert(&mut self, tag: u32, child: u32) {
            let on_move = |child, spot| {
                self.spots.insert(child, spot);
            };
            let spot = self.children.insert(tag, child, on_move);
            self.spots.insert(child, spot);
        }

        fn remove(&mut self, tag: u32, child: u32) {
            let spot = self.spots.remove(&child).expect("the child was inserted");
            self.children.remove(tag, child, spot);
        }

        fn replace(&mut self, tag: u32, before: u32, child: u32) {
            let spot = self.spots.remove(&before).expect("the child was inserted");
            self.children.replace(tag, before, spot, child);
            self.spots.insert(child, spot);
        }
    }

    #[test]
    fn overflowed_children_are_found_until_they_are_removed() {
        let all: Vec<(u32, u32)> = tags().zip(0..200).collect();
        for step in [1, 7, 63, 199] {
            let mut map = SpotMap::default();
            all.iter().for_each(|&(tag, child)| map.insert(tag, child));
            let mut left = all.clone();
            for removed in 0..all.len() {
                let (tag, child) = left.remove(removed * step % left.len());
                map.remove(tag, child);
                for tag in tags().take(3) {
                    let expected = left.iter().filter(|(of, _)| *of == tag);
                    let expected: Vec<u32> = expected.map(|(_, child)| *child).collect();
                    assert_eq!(under(&map.children, tag), expected);
                }
            }
            assert_eq!(map.children.len(), 0);
            let mut outlines = map.children.outlines.iter();
            assert!(outlines.all(|outline| outline.n_overflowed() == 0));
        }
    }

    #[test]
    fn children_beyond_the_overflow_count_are_found_until_they_are_removed() {
        let mut map = SpotMap::default();
        for _ in 0..2 {
            (0..600).for_each(|child| map.insert(u32::MAX, child));
            for removed in 0..600 {
                map.remove(u32::MAX, removed);
                let expected: Vec<u32> = (removed + 1..600).collect();
                assert_eq!(under(&map.children, u32::MAX), expected);
            }
            assert_eq!(map.children.len(), 0);
        }
    }

    #[test]
    fn an_overflowed_child_is_replaced_in_its_place() {
        for replaced in [7, 19, 299] {
            let mut map = SpotMap::default();
            (0..300).for_each(|child| map.insert(u32::MAX, child));
            map.replace(u32::MAX, replaced, 400);
            let mut expected: Vec<u32> = (0..300).filter(|child| *child != replaced).collect();
            expected.push(400);
            assert_eq!(under(&map.children, u32::MAX), expected);
            (0..300)
                .filter(|child| *child != replaced)
                .chain([400])
                .for_each(|child| map.remove(u32::MAX, child));
            assert_eq!(map.children.len(), 0);
        }
    }
}
