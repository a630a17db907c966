//! The lookup from a node and a page of tokens to the child that starts with it: one table for the whole tree.
//!
//! Seven children share a bucket of one cache line. What finds its bucket full stands in one behind it, and every bucket
//! that it passed counts it: a search goes on only where something passed, and a removal moves nothing. Children are found
//! by 32 bits of a hash; whoever asks looks at the node to know whether it is the one.

use super::arena::NO_NODE;

/// Children in a bucket.
const WIDTH: usize = 7;
/// Buckets are added when more than this part of the places is in use.
const MAX_LOAD: (usize, usize) = (3, 4);
const FIRST_BUCKETS: usize = 2;

/// Places for children. The eighth of each array is none: one line is compared as a whole.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Bucket {
    tags: [u32; WIDTH + 1],
    /// [`NO_NODE`] where there is none; last, how many children belong here or before and stand behind.
    children: [u32; WIDTH + 1],
}

impl Bucket {
    const EMPTY: Self = {
        let mut children = [NO_NODE; WIDTH + 1];
        children[WIDTH] = 0;
        Self {
            tags: [0; WIDTH + 1],
            children,
        }
    };

    fn passed(&mut self) -> &mut u32 {
        &mut self.children[WIDTH]
    }

    /// The place of a child, or with [`NO_NODE`] a free one.
    fn place_of(&self, child: u32) -> Option<usize> {
        first(places(&self.children, child))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Children {
    buckets: Vec<Bucket>,
    n_used: usize,
}

impl Children {
    /// Number of children.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.n_used
    }

    /// What `look` makes of the first child under a tag that it makes something of.
    #[inline]
    pub(super) fn find<T>(&self, tag: u32, mut look: impl FnMut(u32) -> Option<T>) -> Option<T> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut at = self.home(tag);
        loop {
            let bucket = &self.buckets[at];
            let mut found = places(&bucket.tags, tag);
            while let Some(place) = first(found) {
                found &= found - 1;
                let child = bucket.children[place];
                if child != NO_NODE
                    && let Some(seen) = look(child)
                {
                    return Some(seen);
                }
            }
            if bucket.children[WIDTH] == 0 {
                return None;
            }
            at = self.next(at);
        }
    }

    pub(super) fn insert(&mut self, tag: u32, child: u32) {
        if (self.n_used + 1) * MAX_LOAD.1 > self.buckets.len() * WIDTH * MAX_LOAD.0 {
            self.grow();
        }
        self.n_used += 1;
        self.put(tag, child);
    }

    /// # Panics
    /// If the child is not under the tag, as with [`Children::replace`].
    #[inline(always)]
    pub(super) fn remove(&mut self, tag: u32, child: u32) {
        let home = self.home(tag);
        let (at, place) = self.find_place(home, child);
        self.buckets[at].children[place] = NO_NODE;
        self.n_used -= 1;
        let mut passed = home;
        while passed != at {
            *self.buckets[passed].passed() -= 1;
            passed = self.next(passed);
        }
    }

    /// Puts `child` in the place of `before`.
    pub(super) fn replace(&mut self, tag: u32, before: u32, child: u32) {
        let (at, place) = self.find_place(self.home(tag), before);
        self.buckets[at].children[place] = child;
    }

    /// Reads where a tag belongs, for the memory to be near; the value means nothing.
    pub(super) fn glance(&self, tag: u32) -> u32 {
        match self.buckets.is_empty() {
            true => 0,
            false => self.buckets[self.home(tag)].tags[0],
        }
    }

    /// The bucket of a child that belongs into `home`, and its place there.
    #[inline(always)]
    fn find_place(&self, home: usize, child: u32) -> (usize, usize) {
        let mut at = home;
        loop {
            let bucket = &self.buckets[at];
            if let Some(place) = bucket.place_of(child) {
                return (at, place);
            }
            assert!(bucket.children[WIDTH] != 0, "the tree holds its children");
            at = self.next(at);
        }
    }

    fn put(&mut self, tag: u32, child: u32) {
        let mut at = self.home(tag);
        loop {
            let bucket = &mut self.buckets[at];
            if let Some(place) = bucket.place_of(NO_NODE) {
                bucket.tags[place] = tag;
                bucket.children[place] = child;
                return;
            }
            *bucket.passed() += 1;
            at = self.next(at);
        }
    }

    fn grow(&mut self) {
        let n = (self.buckets.len() * 5).div_ceil(4).max(FIRST_BUCKETS);
        let before = std::mem::replace(&mut self.buckets, vec![Bucket::EMPTY; n]);
        for bucket in before {
            for (&tag, &child) in bucket.tags.iter().zip(&bucket.children[..WIDTH]) {
                if child != NO_NODE {
                    self.put(tag, child);
                }
            }
        }
    }

    /// The bucket that a tag belongs into.
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

/// A bit for each place of a bucket that holds `wanted`.
#[inline]
fn places(items: &[u32; WIDTH + 1], wanted: u32) -> u32 {
    let all = (0..).zip(items);
    let found = all.fold(0, |found, (place, &item)| {
        found | u32::from(item == wanted) << place
    });
    found & ((1 << WIDTH) - 1)
}

#[inline]
fn first(places: u32) -> Option<usize> {
    (places != 0).then(|| places.trailing_zeros() as usize)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Few homes, the last bucket's among them, so that what finds no place goes on to the first.
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

    #[test]
    fn children_that_find_their_bucket_full_are_found_until_they_are_removed() {
        let all: Vec<(u32, u32)> = tags().zip(0..200).collect();
        for step in [1, 7, 63, 199] {
            let mut children = Children::default();
            all.iter()
                .for_each(|&(tag, child)| children.insert(tag, child));
            let mut left = all.clone();
            for removed in 0..all.len() {
                let (tag, child) = left.remove(removed * step % left.len());
                children.remove(tag, child);
                for tag in tags().take(3) {
                    let expected = left.iter().filter(|(of, _)| *of == tag);
                    let expected: Vec<u32> = expected.map(|(_, child)| *child).collect();
                    assert_eq!(under(&children, tag), expected);
                }
            }
            assert_eq!(children.len(), 0);
            let mut buckets = children.buckets.iter();
            assert!(buckets.all(|bucket| bucket.children[WIDTH] == 0));
        }
    }

    #[test]
    fn a_child_is_replaced_where_it_stands_behind_its_full_bucket() {
        let mut children = Children::default();
        (0..20).for_each(|child| children.insert(u32::MAX, child));
        children.replace(u32::MAX, 19, 40);
        let expected: Vec<u32> = (0..19).chain([40]).collect();
        assert_eq!(under(&children, u32::MAX), expected);
    }
}
