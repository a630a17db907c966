//! Which blocks of the tree the store has, and which it is to get.
//!
//! A block is a fixed number of tokens of a path, from a multiple of that number on, and belongs to the node of its last
//! token. What is published waits in a queue as a path; when its turn comes, the path is walked anew. So an entry never
//! names a node that is gone, and what was evicted meanwhile is found missing and counted.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Key, RadixTree};
use crate::state::cache::namespace::Namespace;
use crate::state::cache::prefix_cache::{
    SaveAccount, SaveCounts, SaveDemand, UnsavedBlock, UnsavedPart,
};

/// Paths that wait at most: the youngest is dropped where there is no room.
const MAX_QUEUED: usize = 4096;
/// Tokens of these paths at most, which the queue keeps in memory after their requests have ended: 32 MiB of ids. Few trees
/// hold more tokens, and what has left the tree before its turn is not saved anyway.
const MAX_QUEUED_TOKENS: usize = 8 << 20;

/// When a block is worth a place in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SaveRules {
    /// Tokens of a block: whole pages.
    pub block_tokens: usize,
    /// Prompts and outputs that went through a node before it is saved: 1 saves everything.
    pub min_hits: u32,
}

/// See the module.
pub(super) struct Saves {
    rules: SaveRules,
    /// By node.
    nodes: Vec<NodeSaves>,
    /// Raised to forget what is stored: an account of an earlier epoch says nothing.
    epoch: u32,
    queue: VecDeque<Entry>,
    /// Of all paths in the queue, as they are kept: to the end of their requests' tokens.
    queued_tokens: usize,
    /// The store has ended: nothing is queued.
    is_over: bool,
    dropped_tokens: u64,
}

/// The account of a node.
#[derive(Clone, Copy, Default)]
struct NodeSaves {
    epoch: u32,
    /// The store has, or is getting, all of its blocks that end within so many tokens of their path.
    stored_to: u32,
    /// The same of the state at its end.
    has_state: bool,
}

/// A path that was published.
struct Entry {
    namespace: Namespace,
    tokens: Arc<[u32]>,
    len: usize,
    /// When it was published last.
    epoch: u32,
    /// Blocks that end within so many tokens were taken in its turn, and states likewise. They are not taken twice in one
    /// turn, whatever is forgotten meanwhile: a store that refuses everything would be offered it for ever.
    blocks_to: usize,
    states_to: usize,
}

/// A node on the way along a path.
struct Stop {
    node: u32,
    start: usize,
    /// Where the path leaves it.
    end: usize,
}

impl Saves {
    fn at(&mut self, node: u32) -> &mut NodeSaves {
        let index = node as usize;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, NodeSaves::default());
        }
        let fresh = self.fresh();
        let saves = &mut self.nodes[index];
        if saves.epoch != fresh.epoch {
            *saves = fresh;
        }
        saves
    }

    /// The account of a node of which nothing is stored.
    fn fresh(&self) -> NodeSaves {
        NodeSaves {
            epoch: self.epoch,
            ..NodeSaves::default()
        }
    }

    fn note_stored(&mut self, node: u32, tokens: usize) {
        let saves = self.at(node);
        saves.stored_to = saves.stored_to.max(tokens as u32);
    }

    /// The end of the last whole block within so many tokens.
    fn whole(&self, tokens: usize) -> usize {
        tokens - tokens % self.rules.block_tokens
    }
}

impl RadixTree {
    /// Makes the tree keep account of what the store has.
    pub fn with_saves(mut self, rules: SaveRules) -> Self {
        debug_assert!(rules.block_tokens.is_multiple_of(self.page_size.get()));
        self.saves = Some(Box::new(Saves {
            rules,
            nodes: Vec::new(),
            epoch: 0,
            queue: VecDeque::new(),
            queued_tokens: 0,
            is_over: false,
            dropped_tokens: 0,
        }));
        self
    }

    /// A leaf is new: nothing of it is stored, whatever had its index before.
    pub(super) fn note_unsaved(&mut self, leaf: u32) {
        if let Some(saves) = &mut self.saves {
            *saves.at(leaf) = saves.fresh();
        }
    }

    /// An edge was cut: `upper` is new.
    pub(super) fn split_saves(&mut self, upper: u32, lower: u32) {
        if let Some(saves) = &mut self.saves {
            let stored_to = saves.at(lower).stored_to;
            // The lower half ends where the node did, and keeps its state.
            *saves.at(upper) = NodeSaves {
                stored_to,
                ..saves.fresh()
            };
        }
    }

    /// Queues a path that was just published down to `node`, of which the store has the first `stored_tokens`.
    pub(super) fn queue_saves(&mut self, node: u32, key: Key<'_>, stored_tokens: usize) {
        if self.saves.as_ref().is_none_or(|saves| saves.is_over) {
            return;
        }
        let Some(mut saves) = self.saves.take() else {
            return;
        };
        if stored_tokens > 0 {
            for above in self.path_to(node) {
                saves.note_stored(above, stored_tokens);
                saves.at(above).has_state |= self.end_of(above) == stored_tokens;
            }
        }
        let end = saves.whole(key.tokens.len());
        // States come one by one, in places that only a walk finds.
        let may_miss = || self.states.is_some();
        if end > 0 && ((saves.at(node).stored_to as usize) < end || may_miss()) {
            saves.push(key);
        }
        self.saves = Some(saves);
    }

    pub(super) fn take_unsaved_blocks(&mut self, demand: SaveDemand) -> Vec<UnsavedBlock> {
        let Some(mut saves) = self.saves.take() else {
            return Vec::new();
        };
        saves.carry_on(demand.account);
        let mut taken = Taken {
            blocks: Vec::new(),
            left: demand.blocks,
            left_states: demand.states,
        };
        while taken.left > 0
            && let Some(mut entry) = saves.queue.pop_front()
        {
            if !self.take_path(&mut saves, &mut entry, &mut taken) {
                saves.queue.push_front(entry);
                break;
            }
            saves.queued_tokens -= entry.tokens.len();
        }
        self.saves = Some(saves);
        taken.blocks
    }

    /// Takes the blocks of a path, and the states on it, as long as more may be taken; true if it has no more.
    fn take_path(&self, saves: &mut Saves, entry: &mut Entry, taken: &mut Taken) -> bool {
        let block_tokens = saves.rules.block_tokens;
        let path = self.path_along(&entry.namespace, &entry.tokens[..entry.len]);
        for Stop { node, start, end } in &path {
            if self.arena[*node].hits < saves.rules.min_hits {
                // What is below was used no more often. It comes again with the next path through here.
                return true;
            }
            for block in start / block_tokens..end / block_tokens {
                let block_end = (block + 1) * block_tokens;
                let stored_to = saves.at(*node).stored_to as usize;
                if stored_to.max(entry.blocks_to) >= block_end {
                    continue;
                }
                if taken.left == 0 {
                    return false;
                }
                taken.left -= 1;
                let first_page = self.page_size.full_pages(block_end - block_tokens);
                let pages = self.run_behind(*node, first_page);
                let n_pages = self.page_size.full_pages(block_tokens);
                let pages = pages.iter().take(n_pages).collect();
                taken.push(entry, block, UnsavedPart::Pages(pages));
                entry.blocks_to = block_end;
                saves.note_stored(*node, block_end);
            }
            let is_whole = *end == self.end_of(*node) && end % block_tokens == 0;
            let state = self.state_of(*node).filter(|_| is_whole);
            if let Some(state) =
                state.filter(|_| !saves.at(*node).has_state && entry.states_to < *end)
            {
                if taken.left_states == 0 {
                    return false;
                }
                taken.left_states -= 1;
                taken.push(entry, end / block_tokens - 1, UnsavedPart::State(state));
                entry.states_to = *end;
                saves.at(*node).has_state = true;
            }
        }
        let found = path.last().map_or(0, |stop| stop.end);
        saves.dropped_tokens += saves.whole(entry.len).saturating_sub(found) as u64;
        true
    }

    /// The nodes along a path, as far as they are there. Touches nothing.
    fn path_along(&self, namespace: &Namespace, tokens: &[u32]) -> Vec<Stop> {
        let mut path = Vec::new();
        let Some(&root) = self.roots.get(namespace) else {
            return path;
        };
        let (mut at, mut start) = (root, 0);
        let mut tag = self.arena.tag_below(root, tokens);
        while let Some(step) = self.arena.step(at, tag, &tokens[start..]) {
            let end = start + step.common;
            path.push(Stop {
                node: step.child,
                start,
                end,
            });
            if step.common < self.arena[step.child].edge.len() {
                break;
            }
            (at, start, tag) = (step.child, end, step.tag);
        }
        path
    }

    pub(super) fn counts_of_saves(&self) -> SaveCounts {
        let saves = self.saves.as_ref();
        saves.map_or_else(SaveCounts::default, |saves| SaveCounts {
            queued: saves.queue.len(),
            dropped_tokens: saves.dropped_tokens,
        })
    }

    /// Forgets everything that is to be saved: the tree was emptied, of all of it but what locks keep.
    pub(super) fn clear_saves(&mut self) {
        if let Some(saves) = &mut self.saves {
            saves.clear();
        }
    }
}

/// The blocks that a plan takes, and how many more it may.
struct Taken {
    blocks: Vec<UnsavedBlock>,
    left: usize,
    left_states: usize,
}

impl Taken {
    fn push(&mut self, entry: &Entry, block: usize, part: UnsavedPart) {
        self.blocks.push(UnsavedBlock {
            namespace: entry.namespace.clone(),
            tokens: entry.tokens.clone(),
            block: block as u32,
            part,
        });
    }
}

impl Saves {
    fn carry_on(&mut self, account: SaveAccount) {
        if account == SaveAccount::Keep {
            return;
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.is_over = account == SaveAccount::End;
        if self.is_over {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.queue = VecDeque::new();
        self.queued_tokens = 0;
    }

    /// A path that goes on from the youngest one takes its place.
    fn push(&mut self, key: Key<'_>) {
        let len = key.tokens.len();
        if let (Some(last), Some(owner)) = (self.queue.back_mut(), key.owner)
            && Arc::ptr_eq(&last.tokens, owner)
            && last.namespace == *key.namespace
        {
            last.len = last.len.max(len);
            if last.epoch != self.epoch {
                (last.epoch, last.blocks_to, last.states_to) = (self.epoch, 0, 0);
            }
            return;
        }
        let n_tokens = key.owner.map_or(len, |owner| owner.len());
        let queued_tokens = self.queued_tokens.saturating_add(n_tokens);
        if self.queue.len() >= MAX_QUEUED || queued_tokens > MAX_QUEUED_TOKENS {
            self.dropped_tokens += self.whole(len) as u64;
            return;
        }
        self.queued_tokens = queued_tokens;
        self.queue.push_back(Entry {
            namespace: key.namespace.clone(),
            tokens: key.owner.cloned().unwrap_or_else(|| key.tokens.into()),
            len,
            epoch: self.epoch,
            blocks_to: 0,
            states_to: 0,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PageId;
    use crate::state::cache::eviction::EvictionPolicy;
    use crate::state::cache::prefix_cache::PrefixCache;
    use crate::state::cache::radix_tree::Insert;
    use crate::state::pool::pages::{PageIds, PageSize, Pages, PoolLedger};

    const BLOCK: usize = 4;

    struct Saver {
        tree: RadixTree,
        ledger: Arc<PoolLedger>,
        next_page: u32,
    }

    impl Saver {
        fn new(page_size: u32, min_hits: u32) -> Self {
            let page_size = PageSize::new(page_size).expect("it is positive");
            let ledger = Arc::new(PoolLedger::new(page_size));
            let tree = RadixTree::new(page_size, EvictionPolicy::default(), ledger.clone());
            let rules = SaveRules {
                block_tokens: BLOCK,
                min_hits,
            };
            Self {
                tree: tree.with_saves(rules),
                ledger,
                next_page: 1,
            }
        }

        /// Publishes a path; the store has the first `stored` tokens.
        fn publish(&mut self, tokens: &[u32], stored: usize) {
            let namespace = Namespace::default();
            let n_pages = self.tree.page_size.full_pages(tokens.len()) as u32;
            let ids: Vec<PageId> = (0..n_pages)
                .map(|page| PageId::new(self.next_page + page))
                .collect();
            self.next_page += n_pages;
            let owner: Arc<[u32]> = tokens.into();
            let inserted = self.tree.insert(Insert {
                namespace: &namespace,
                tokens,
                owner: Some(&owner),
                pages: Pages::adopt(PageIds::from_slice(&ids), &self.ledger),
                priority: 0,
                inserted_tokens: 0,
            });
            self.ledger.close();
            drop((inserted.duplicates, inserted.rest));
            let key = Key {
                namespace: &namespace,
                tokens: &tokens[..self.tree.page_size.floor(tokens.len())],
                owner: Some(&owner),
            };
            let (node, _) = self.tree.match_and_split(&namespace, key.tokens);
            self.tree.queue_saves(node, key, stored);
        }

        fn take(&mut self, blocks: usize) -> Vec<(u32, Vec<u32>)> {
            self.take_with(SaveAccount::Keep, blocks)
        }

        fn take_with(&mut self, account: SaveAccount, blocks: usize) -> Vec<(u32, Vec<u32>)> {
            let blocks = self.tree.take_unsaved(SaveDemand {
                blocks,
                states: 0,
                account,
            });
            let blocks = blocks.into_iter().map(|block| match block.part {
                UnsavedPart::Pages(pages) => {
                    let pages = pages.iter().map(|page| page.get()).collect();
                    (block.block, pages)
                }
                UnsavedPart::State(state) => panic!("{state} of a tree without states"),
            });
            blocks.collect()
        }
    }

    fn tokens(n: u32) -> Vec<u32> {
        (0..n).collect()
    }

    #[test]
    fn whole_blocks_are_taken_once_from_the_beginning_on() {
        let mut saver = Saver::new(1, 1);
        saver.publish(&tokens(10), 0);
        let expected = vec![(0, vec![1, 2, 3, 4]), (1, vec![5, 6, 7, 8])];
        assert_eq!(saver.take(9), expected);
        assert!(saver.take(9).is_empty());
        assert_eq!(saver.tree.save_counts(), SaveCounts::default());
    }

    #[test]
    fn a_block_spans_nodes_and_a_branch_repeats_what_it_shares() {
        let mut saver = Saver::new(1, 1);
        saver.publish(&tokens(6), 0);
        let other: Vec<u32> = (0..6).chain([90, 91]).collect();
        saver.publish(&other, 0);
        saver.publish(&tokens(8), 0);
        let taken = saver.take(9);
        let expected = [
            (0, vec![1, 2, 3, 4]),
            (1, vec![5, 6, 13, 14]),
            (1, vec![5, 6, 21, 22]),
        ];
        assert_eq!(taken, expected);
    }

    #[test]
    fn no_more_are_taken_than_are_asked_for() {
        let mut saver = Saver::new(2, 1);
        saver.publish(&tokens(24), 0);
        let taken = [0, 4, 1, 4].map(|blocks| saver.take(blocks).len());
        assert_eq!(taken, [0, 4, 1, 1]);
    }

    #[test]
    fn what_the_store_has_is_not_taken_and_neither_is_what_was_used_once() {
        let mut saver = Saver::new(1, 1);
        saver.publish(&tokens(12), 8);
        assert_eq!(saver.take(9), [(2, vec![9, 10, 11, 12])]);
        let mut saver = Saver::new(1, 2);
        saver.publish(&tokens(8), 0);
        assert!(saver.take(9).is_empty());
        saver.publish(&tokens(12), 0);
        let blocks: Vec<u32> = saver.take(9).into_iter().map(|taken| taken.0).collect();
        assert_eq!(blocks, [0, 1]);
    }

    #[test]
    fn what_is_evicted_before_its_turn_is_counted() {
        let mut saver = Saver::new(1, 1);
        saver.publish(&tokens(9), 0);
        drop(Pages::from(saver.tree.evict(9)));
        assert!(saver.take(9).is_empty());
        let counts = SaveCounts {
            queued: 0,
            dropped_tokens: 8,
        };
        assert_eq!(saver.tree.save_counts(), counts);
        // The index of the node is another's now, of which nothing is stored.
        saver.publish(&tokens(4), 0);
        assert_eq!(saver.take(9).len(), 1);
    }

    #[test]
    fn what_the_store_did_without_is_taken_again_at_the_next_publish() {
        let mut saver = Saver::new(1, 1);
        saver.publish(&tokens(8), 0);
        let first = saver.take(9);
        assert_eq!(first.len(), 2);
        saver.publish(&tokens(8), 0);
        assert!(saver.take(9).is_empty());
        // Nothing comes again by itself.
        assert!(saver.take_with(SaveAccount::Forget, 9).is_empty());
        saver.publish(&tokens(8), 0);
        assert_eq!(saver.take(9), first);
        saver.publish(&tokens(8), 0);
        assert!(saver.take(9).is_empty());
    }

    #[test]
    fn a_store_that_refuses_everything_is_offered_a_path_once() {
        let mut saver = Saver::new(1, 1);
        saver.publish(&tokens(16), 0);
        assert_eq!(saver.take(1).len(), 1);
        let taken: Vec<u32> = (0..9)
            .flat_map(|_| saver.take_with(SaveAccount::Forget, 1))
            .map(|(block, _)| block)
            .collect();
        assert_eq!(taken, [1, 2, 3]);
        assert_eq!(saver.tree.save_counts().queued, 0);
    }

    #[test]
    fn the_queue_keeps_no_more_tokens_than_its_bound() {
        let mut saver = Saver::new(1, 1);
        let namespace = Namespace::default();
        let whole: Arc<[u32]> = vec![0; MAX_QUEUED_TOKENS].into();
        let saves = saver.tree.saves.as_mut().expect("it keeps account");
        for owner in [whole, tokens(8).into()] {
            saves.push(Key {
                namespace: &namespace,
                tokens: &owner[..8],
                owner: Some(&owner),
            });
        }
        let counts = saver.tree.save_counts();
        assert_eq!((counts.queued, counts.dropped_tokens), (1, 8));
        // Its turn makes room.
        assert!(saver.take(9).is_empty());
        saver.publish(&tokens(8), 0);
        assert_eq!(saver.take(9).len(), 2);
    }

    #[test]
    fn nothing_is_queued_for_a_store_that_has_ended() {
        let mut saver = Saver::new(1, 1);
        saver.publish(&tokens(8), 0);
        assert!(saver.take_with(SaveAccount::End, 0).is_empty());
        assert_eq!(saver.tree.save_counts(), SaveCounts::default());
        saver.publish(&tokens(12), 0);
        assert_eq!(saver.tree.save_counts(), SaveCounts::default());
        // Until one begins.
        assert!(saver.take_with(SaveAccount::Forget, 0).is_empty());
        saver.publish(&tokens(12), 0);
        assert_eq!(saver.take(9).len(), 3);
    }
}
