//! The tree's record of blocks in the KV store, and the queue of paths whose blocks are to be saved.
//!
//! A block is a fixed number of consecutive tokens of a path, at a multiple of that number, and belongs to the node of
//! its last token. The queue holds the tokens of published paths instead of nodes, which may be evicted before their
//! blocks are taken. The tree walks a path again when it takes its blocks, and counts the tokens evicted since.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{Key, RadixTree};
use crate::cache::namespace::Namespace;
use crate::cache::prefix_cache::{
    SaveCounts, SaveDemand, StoreRecordChange, UnsavedBlock, UnsavedPart,
};

/// Capacity of the queue in paths: a new path is dropped when it is full.
const MAX_QUEUED: usize = 4096;
/// Capacity of the queue in tokens: 32 MiB of ids, which stay in memory after their requests have ended. Few trees hold
/// more tokens, and evicted tokens are not saved.
const MAX_QUEUED_TOKENS: usize = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct SaveRules {
    pub block_tokens: usize,
    /// Number of prompts and outputs that must contain a node before it is saved: 1 saves everything.
    pub min_hits: u32,
}

pub(super) struct Saves {
    rules: SaveRules,
    /// Indexed by node.
    nodes: Vec<NodeSaves>,
    /// Incremented to forget all stored blocks: records of an earlier epoch are void.
    epoch: u32,
    queue: VecDeque<QueuedPath>,
    /// Tokens of all arrays in the queue. An entry may keep the whole array of its request.
    queued_tokens: usize,
    /// The store has stopped: nothing is queued.
    is_stopped: bool,
    dropped_tokens: u64,
}

#[derive(Clone, Copy, Default)]
struct NodeSaves {
    epoch: u32,
    /// The store has, or is receiving, the node's blocks that end within this many tokens of the path.
    stored_to: u32,
    /// The store has, or is receiving, the state at the node's end.
    has_state: bool,
}

struct QueuedPath {
    namespace: Namespace,
    tokens: Arc<[u32]>,
    len: usize,
    /// The epoch in which the path was last published.
    epoch: u32,
    /// Blocks and states that end within this many tokens were taken. They are not taken again even if the record is
    /// reset: a store that rejects everything would otherwise be offered them forever.
    blocks_to: usize,
    states_to: usize,
}

/// A node on a path.
struct PathNode {
    node: u32,
    start: usize,
    /// The end of the path's tokens in the node.
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

    /// The record of a node of which nothing is stored.
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

    /// The end of the last whole block within `tokens`.
    fn floor_to_block(&self, tokens: usize) -> usize {
        tokens - tokens % self.rules.block_tokens
    }
}

impl RadixTree {
    pub fn with_saves(mut self, rules: SaveRules) -> Self {
        debug_assert!(rules.block_tokens.is_multiple_of(self.page_size.get()));
        self.saves = Some(Box::new(Saves {
            rules,
            nodes: Vec::new(),
            epoch: 0,
            queue: VecDeque::new(),
            queued_tokens: 0,
            is_stopped: false,
            dropped_tokens: 0,
        }));
        self
    }

    /// Resets the record of a new leaf, whose index may be reused.
    pub(super) fn note_unsaved(&mut self, leaf: u32) {
        if let Some(saves) = &mut self.saves {
            *saves.at(leaf) = saves.fresh();
        }
    }

    /// Divides the record of a split node: `upper` is new.
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

    /// Queues a path that was just published down to `node`. The store has the path's first `stored_tokens`.
    pub(super) fn queue_saves(&mut self, node: u32, key: Key<'_>, stored_tokens: usize) {
        if self.saves.as_ref().is_none_or(|saves| saves.is_stopped) {
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
        let end = saves.floor_to_block(key.tokens.len());
        // Only a walk finds states that are not stored.
        let may_lack_state = || self.states.is_some();
        if end > 0 && ((saves.at(node).stored_to as usize) < end || may_lack_state()) {
            saves.push(key);
        }
        self.saves = Some(saves);
    }

    /// Takes cached blocks and states that the store does not have, path by path and in the order of each path. They
    /// count as stored from then on. Empty if the tree does not track the store's blocks.
    ///
    /// Mutates nothing else: no touch, no split, no lock. The same plan may still evict the pages and drop the states.
    pub fn take_unsaved(&mut self, demand: SaveDemand) -> Vec<UnsavedBlock> {
        let Some(mut saves) = self.saves.take() else {
            return Vec::new();
        };
        saves.apply(demand.account);
        let mut batch = SaveBatch {
            blocks: Vec::new(),
            blocks_left: demand.blocks,
            states_left: demand.states,
        };
        while batch.blocks_left > 0
            && let Some(mut entry) = saves.queue.pop_front()
        {
            if !self.take_path(&mut saves, &mut entry, &mut batch) {
                saves.queue.push_front(entry);
                break;
            }
            saves.queued_tokens -= entry.tokens.len();
        }
        self.saves = Some(saves);
        batch.blocks
    }

    /// Takes blocks and states of a path until `batch` is full. Returns true if the path has no more of them.
    fn take_path(&self, saves: &mut Saves, entry: &mut QueuedPath, batch: &mut SaveBatch) -> bool {
        let block_tokens = saves.rules.block_tokens;
        let path = self.path_along(&entry.namespace, &entry.tokens[..entry.len]);
        for PathNode { node, start, end } in &path {
            if self.arena[*node].hits < saves.rules.min_hits {
                // Deeper nodes have no more hits than this one. The next published path queues them again.
                return true;
            }
            for block in start / block_tokens..end / block_tokens {
                let block_end = (block + 1) * block_tokens;
                let stored_to = saves.at(*node).stored_to as usize;
                if stored_to.max(entry.blocks_to) >= block_end {
                    continue;
                }
                if batch.blocks_left == 0 {
                    return false;
                }
                batch.blocks_left -= 1;
                let first_page = self.page_size.full_pages(block_end - block_tokens);
                let pages = self.page_run(*node, first_page);
                let n_pages = self.page_size.full_pages(block_tokens);
                let pages = pages.iter().take(n_pages).collect();
                batch.push(entry, block, UnsavedPart::Pages(pages));
                entry.blocks_to = block_end;
                saves.note_stored(*node, block_end);
            }
            let is_whole = *end == self.end_of(*node) && end % block_tokens == 0;
            let state = self.state_of(*node).filter(|_| is_whole);
            if let Some(state) =
                state.filter(|_| !saves.at(*node).has_state && entry.states_to < *end)
            {
                if batch.states_left == 0 {
                    return false;
                }
                batch.states_left -= 1;
                batch.push(entry, end / block_tokens - 1, UnsavedPart::State(state));
                entry.states_to = *end;
                saves.at(*node).has_state = true;
            }
        }
        let found = path.last().map_or(0, |last| last.end);
        saves.dropped_tokens += saves.floor_to_block(entry.len).saturating_sub(found) as u64;
        true
    }

    /// The nodes along a path, as far as the path is cached. Touches nothing.
    fn path_along(&self, namespace: &Namespace, tokens: &[u32]) -> Vec<PathNode> {
        let mut path = Vec::new();
        let Some(&root) = self.roots.get(namespace) else {
            return path;
        };
        let (mut at, mut start) = (root, 0);
        let mut tag = self.arena.tag_below(root, tokens);
        while let Some(step) = self.arena.step(at, tag, &tokens[start..]) {
            let end = start + step.common;
            path.push(PathNode {
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

    pub fn save_counts(&self) -> SaveCounts {
        let saves = self.saves.as_ref();
        saves.map_or_else(SaveCounts::default, |saves| SaveCounts {
            queued: saves.queue.len(),
            dropped_tokens: saves.dropped_tokens,
        })
    }

    /// Empties the queue: the tree was emptied, except for locked paths.
    pub(super) fn clear_saves(&mut self) {
        if let Some(saves) = &mut self.saves {
            saves.clear();
        }
    }
}

/// The blocks taken so far, and how many more may be taken.
struct SaveBatch {
    blocks: Vec<UnsavedBlock>,
    blocks_left: usize,
    states_left: usize,
}

impl SaveBatch {
    fn push(&mut self, entry: &QueuedPath, block: usize, part: UnsavedPart) {
        self.blocks.push(UnsavedBlock {
            namespace: entry.namespace.clone(),
            tokens: entry.tokens.clone(),
            block: block as u32,
            part,
        });
    }
}

impl Saves {
    fn apply(&mut self, account: StoreRecordChange) {
        if account == StoreRecordChange::Keep {
            return;
        }
        self.epoch = self.epoch.wrapping_add(1);
        self.is_stopped = account == StoreRecordChange::End;
        if self.is_stopped {
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.queue = VecDeque::new();
        self.queued_tokens = 0;
    }

    /// Queues a path, or extends the last queued path if both use equal arrays of tokens. A replay of a log has an array
    /// for each output of a prompt, which share one in the recording, so the identity of arrays decides nothing.
    fn push(&mut self, key: Key<'_>) {
        let len = key.tokens.len();
        if let (Some(last), Some(owner)) = (self.queue.back_mut(), key.owner)
            && is_equal(&last.tokens, owner)
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
            self.dropped_tokens += self.floor_to_block(len) as u64;
            return;
        }
        self.queued_tokens = queued_tokens;
        self.queue.push_back(QueuedPath {
            namespace: key.namespace.clone(),
            tokens: key.owner.cloned().unwrap_or_else(|| key.tokens.into()),
            len,
            epoch: self.epoch,
            blocks_to: 0,
            states_to: 0,
        });
    }
}

fn is_equal(one: &Arc<[u32]>, other: &Arc<[u32]>) -> bool {
    Arc::ptr_eq(one, other) || one == other
}

#[cfg(test)]
mod tests;
