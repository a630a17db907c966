//! The radix tree's queues for eviction policies that implement [`QueuePolicy`].
//!
//! Only unlocked leaves have entries in a queue. A node that is locked or has children keeps its position, and gets an
//! entry when it is an unlocked leaf. A match writes nothing here; an insertion hashes its tokens once.

use super::RadixTree;
use super::arena::Arena;
use super::evict::Victims;
use crate::cache::eviction::queues::{QueuePolicy, Scan, ScannedLeaf};
use crate::cache::prefix_history::PrefixHash;

pub(super) struct Queues {
    policy: Box<dyn QueuePolicy>,
    /// Indexed by node; the elements of roots and removed nodes are never read.
    places: Vec<Place>,
    leaves: Vec<Victims>,
    /// Tokens of the unlocked leaves, by queue.
    tokens: Vec<usize>,
    last_position: i64,
}

#[derive(Clone, Copy)]
struct Place {
    queue: u32,
    /// Hits that the policy no longer counts.
    spent_hits: u32,
    /// Grows from the oldest node of a queue to the youngest.
    position: i64,
    /// Hash of the prefix down to the node's end.
    path: PrefixHash,
    /// The node's share of the tokens of its queue.
    counted: usize,
}

impl Queues {
    pub(super) fn new(policy: Box<dyn QueuePolicy>) -> Self {
        let n_queues = policy.n_queues();
        Self {
            policy,
            places: Vec::new(),
            leaves: (0..n_queues).map(|_| Victims::default()).collect(),
            tokens: vec![0; n_queues],
            last_position: 0,
        }
    }

    fn next_position(&mut self) -> i64 {
        self.last_position += 1;
        self.last_position
    }

    fn set_place(&mut self, node: u32, place: Place) {
        let index = node as usize;
        if index >= self.places.len() {
            self.places.resize(index + 1, place);
        }
        self.places[index] = place;
    }

    /// Updates a node's share of the tokens of its queue: all of its tokens if it can be evicted, else 0.
    pub(super) fn recount(&mut self, arena: &Arena, node: u32) {
        if arena[node].is_root() {
            return;
        }
        let place = &mut self.places[node as usize];
        let tokens = &mut self.tokens[place.queue as usize];
        *tokens -= place.counted;
        place.counted = counted(arena, node);
        *tokens += place.counted;
    }

    pub(super) fn push(&mut self, node: u32) {
        let place = self.places[node as usize];
        self.leaves[place.queue as usize].push(((0, place.position), node));
    }

    pub(super) fn clear_order(&mut self) {
        self.leaves.iter_mut().for_each(Victims::clear);
    }

    fn pop(&mut self, arena: &Arena) -> Option<u32> {
        let Self { places, leaves, .. } = self;
        let key_of = |node: u32| (0, places[node as usize].position);
        let mut pop = |queue: usize| leaves[queue].pop(|node| Some(key_of(node)));
        let first = self.policy.next_queue(&self.tokens);
        let others = (0..self.tokens.len()).filter(|queue| *queue != first);
        let node = std::iter::once(first).chain(others).find_map(&mut pop);
        debug_assert!(node.is_none_or(|node| arena[node].is_live));
        node
    }

    /// Returns true if the policy evicts the leaf. Otherwise moves the leaf.
    fn scan(&mut self, arena: &Arena, node: u32, entry: PrefixHash) -> bool {
        let place = self.places[node as usize];
        let leaf = ScannedLeaf {
            queue: place.queue as usize,
            hits: arena[node].hits.saturating_sub(place.spent_hits),
            tokens: place.counted,
            entry,
        };
        let Scan::Move { queue, hits } = self.policy.scan(leaf, &self.tokens) else {
            return true;
        };
        self.tokens[leaf.queue] -= place.counted;
        self.tokens[queue] += place.counted;
        let position = self.next_position();
        self.places[node as usize] = Place {
            queue: queue as u32,
            spent_hits: arena[node].hits.saturating_sub(hits),
            position,
            ..place
        };
        false
    }

    pub(super) fn n_entries(&self) -> usize {
        let entries = self.leaves.iter();
        entries
            .map(|leaves| leaves.queued().len() + leaves.others().len())
            .sum()
    }
}

fn counted(arena: &Arena, node: u32) -> usize {
    if arena[node].is_evictable() {
        arena[node].edge.len()
    } else {
        0
    }
}

impl RadixTree {
    pub(super) fn enter_queue(&mut self, leaf: u32) {
        if self.queues.is_some() {
            self.hash_path(leaf);
            self.admit(leaf);
        }
    }

    /// Makes new queues for the policy and adds all nodes to them.
    pub(super) fn fill_queues(&mut self) {
        let policy = self.policy.queues();
        self.queues = policy.map(|policy| Box::new(Queues::new(policy)));
        if self.queues.is_none() {
            return;
        }
        let nodes = self.arena.iter().filter(|(_, node)| !node.is_root());
        let mut nodes: Vec<u32> = nodes.map(|(index, _)| index).collect();
        // A node's hash needs its parent's. The parent may be newer: the upper half of a split is.
        nodes.sort_unstable_by_key(|node| self.arena.usage(*node).start_tokens);
        nodes.iter().for_each(|node| self.hash_path(*node));
        nodes.sort_unstable_by_key(|node| self.arena.usage(*node).created);
        nodes.iter().for_each(|node| self.admit(*node));
    }

    fn hash_path(&mut self, node: u32) {
        let Some(above) = self.hash_to_end(self.arena[node].parent) else {
            return;
        };
        let place = Place {
            queue: 0,
            spent_hits: self.arena[node].hits.min(1),
            position: 0,
            path: above.then(self.arena[node].edge.tokens()),
            counted: 0,
        };
        if let Some(queues) = &mut self.queues {
            queues.set_place(node, place);
        }
    }

    fn admit(&mut self, node: u32) {
        let entry = self.entry_of(node);
        let (Some(queues), Some(entry)) = (&mut self.queues, entry) else {
            return;
        };
        let queue = queues.policy.admit(entry) as u32;
        let position = queues.next_position();
        let place = queues.places[node as usize];
        queues.places[node as usize] = Place {
            queue,
            position,
            ..place
        };
        queues.recount(&self.arena, node);
        queues.recount(&self.arena, self.arena[node].parent);
    }

    /// To be called after a split: `upper` is new, and `lower` its only child.
    pub(super) fn split_queued(&mut self, upper: u32, lower: u32) {
        let above = self.hash_to_end(self.arena[upper].parent);
        let (Some(queues), Some(above)) = (&mut self.queues, above) else {
            return;
        };
        let place = Place {
            path: above.then(self.arena[upper].edge.tokens()),
            counted: 0,
            ..queues.places[lower as usize]
        };
        queues.set_place(upper, place);
        queues.recount(&self.arena, lower);
    }

    /// Recounts a node that was locked, unlocked or removed, or that has lost its last child.
    #[inline(always)]
    pub(super) fn recount_queued(&mut self, node: u32) {
        if let Some(queues) = &mut self.queues {
            queues.recount(&self.arena, node);
        }
    }

    pub(super) fn next_in_queues(&mut self) -> Option<u32> {
        loop {
            let node = self.queues.as_deref_mut()?.pop(&self.arena)?;
            self.arena[node].is_queued = false;
            if !self.arena[node].is_evictable() {
                continue;
            }
            let entry = self.entry_of(node)?;
            let queues = self.queues.as_deref_mut()?;
            if queues.scan(&self.arena, node, entry) {
                return Some(node);
            }
            self.enqueue(node);
        }
    }

    /// The hash of the prefix up to the end of a node's first page.
    fn entry_of(&self, index: u32) -> Option<PrefixHash> {
        let node = &self.arena[index];
        let above = self.hash_to_end(node.parent)?;
        let page = &node.edge.tokens()[..self.page_size.get()];
        Some(above.then(page))
    }

    /// The hash of the prefix down to a node's end, under a policy with queues.
    fn hash_to_end(&self, node: u32) -> Option<PrefixHash> {
        let queues = self.queues.as_deref()?;
        Some(if self.arena[node].is_root() {
            PrefixHash::empty(&self.root_names[&node])
        } else {
            queues.places[node as usize].path
        })
    }

    /// Compares the queues with the nodes, and names the first inconsistency.
    pub(super) fn check_queues(&self) -> Result<(), String> {
        let Some(queues) = self.queues.as_deref() else {
            return Ok(());
        };
        let mut tokens = vec![0; queues.tokens.len()];
        for (index, node) in self.arena.iter().filter(|(_, node)| !node.is_root()) {
            let place = &queues.places[index as usize];
            tokens[place.queue as usize] += counted(&self.arena, index);
            let above = self.hash_to_end(node.parent);
            if above.map(|above| above.then(node.edge.tokens())) != Some(place.path) {
                return Err(format!("node {index} has a wrong path hash in its queue"));
            }
        }
        if tokens != queues.tokens {
            return Err(format!(
                "queues: recorded {:?} tokens, counted {tokens:?}",
                queues.tokens
            ));
        }
        for (queue, leaves) in queues.leaves.iter().enumerate() {
            let place_of = |node: u32| &queues.places[node as usize];
            let is_own = |node: u32| {
                let (place, node) = (place_of(node), &self.arena[node]);
                node.is_live && node.is_queued && place.queue as usize == queue
            };
            let positions = leaves.queued().map(|node| place_of(node).position);
            let keys_are_right = leaves
                .others()
                .all(|((_, position), node)| position == place_of(node).position && is_own(node));
            if !positions.is_sorted() || !leaves.queued().all(is_own) || !keys_are_right {
                return Err(format!("queue {queue} has a wrong entry"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
