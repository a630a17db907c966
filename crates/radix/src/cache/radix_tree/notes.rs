//! Records for the diagnosis of cache misses: the newest child of each node, and the evicted edges.
//!
//! A match writes nothing here, an insertion two machine words. An eviction hashes the prefix before the edge, at most
//! once per node; the evicted tokens are moved, not copied.

use super::RadixTree;
use super::arena::NO_NODE;
use crate::cache::namespace::Namespace;
use crate::cache::prefix_history::{
    Branch, Departure, Elsewhere, EvictedEdge, MissingState, PrefixHash, WINDOW_TOKENS,
};
use crate::pool::pages::NodeLock;

/// Upper bound on other namespaces searched for one departure.
const MAX_NAMESPACES: usize = 16;

/// Upper bound on pages recorded at a flush, which the history stores in a few milliseconds. Those nearest to the roots
/// come first, because they decide where prompts miss.
const MAX_FLUSHED_PAGES: usize = 1 << 15;

/// Notes on the nodes, by index. A note may outlive its node until the index is reused.
#[derive(Default)]
pub(super) struct Notes {
    nodes: Vec<Note>,
    evicted: Vec<EvictedEdge>,
}

#[derive(Clone, Copy, Default)]
struct Note {
    /// Hash of the path down to the node's end, computed at the first eviction below the node.
    path: Option<PrefixHash>,
    /// The last child added to the node. The child may have been removed, and its index reused.
    newest_child: Option<u32>,
}

impl Notes {
    fn at(&mut self, node: u32) -> &mut Note {
        let index = node as usize;
        if index >= self.nodes.len() {
            self.nodes.resize(index + 1, Note::default());
        }
        &mut self.nodes[index]
    }
}

impl RadixTree {
    /// Makes the tree record the inputs of the diagnosis of misses.
    pub fn with_diagnostics(mut self) -> Self {
        self.notes = Some(Box::default());
        self
    }

    pub(super) fn note_child(&mut self, parent: u32, child: u32) {
        if let Some(notes) = &mut self.notes {
            notes.at(parent).newest_child = Some(child);
        }
    }

    /// To be called after a split: `upper` is new, `lower` its only child.
    pub(super) fn note_split(&mut self, upper: u32, lower: u32) {
        if self.notes.is_some() {
            let parent = self.arena[upper].parent;
            self.note_child(parent, upper);
            self.note_child(upper, lower);
        }
    }

    /// Records the tokens of `leaf`, just before its removal.
    #[inline(never)]
    pub(super) fn note_eviction(&mut self, leaf: u32) {
        let Some(mut notes) = self.notes.take() else {
            return;
        };
        let above = self.path_hash(&mut notes, self.arena[leaf].parent);
        let (buffer, range) = self.arena[leaf].edge.part();
        let edge = EvictedEdge::part_of(above, buffer, range);
        notes.evicted.push(edge);
        *notes.at(leaf) = Note::default();
        self.notes = Some(notes);
    }

    /// Records the nodes that a flush is about to drop: all unlocked nodes, from the roots down.
    pub(super) fn note_flush(&mut self) {
        let Some(mut notes) = self.notes.take() else {
            return;
        };
        let nodes = self.arena.iter();
        let unlocked = nodes.filter(|(_, node)| !node.is_root() && node.lock_ref == 0);
        let mut order: Vec<(u32, u32)> = unlocked
            .map(|(index, _)| (self.arena.usage(index).start_tokens, index))
            .collect();
        order.sort_unstable();
        let mut n_pages = 0;
        for (_, index) in order {
            if n_pages >= MAX_FLUSHED_PAGES {
                break;
            }
            let above = self.path_hash(&mut notes, self.arena[index].parent);
            let (buffer, range) = self.arena[index].edge.part();
            let edge = EvictedEdge::part_of(above, buffer, range);
            n_pages += self.page_size.full_pages(edge.tokens().len());
            notes.evicted.push(edge);
        }
        self.notes = Some(notes);
    }

    /// Replaces the result of the next [`take_evicted_edges`](Self::take_evicted_edges) with `noted`.
    pub(super) fn put_noted_back(&mut self, noted: Vec<EvictedEdge>) {
        if let Some(notes) = &mut self.notes {
            notes.evicted = noted;
        }
    }

    /// The edges that were evicted or flushed since the last call. Empty without [diagnostics](Self::with_diagnostics).
    pub fn take_evicted_edges(&mut self) -> Vec<EvictedEdge> {
        match &mut self.notes {
            Some(notes) => std::mem::take(&mut notes.evicted),
            None => Vec::new(),
        }
    }

    /// To be called when a node is removed, as its index may be reused.
    pub(super) fn forget_note(&mut self, node: u32) {
        if let Some(notes) = &mut self.notes {
            *notes.at(node) = Note::default();
        }
    }

    fn path_hash(&self, notes: &mut Notes, node: u32) -> PrefixHash {
        let mut unknown = Vec::new();
        let mut at = node;
        let mut hash = loop {
            if let Some(hash) = notes.at(at).path {
                break hash;
            }
            unknown.push(at);
            if self.arena[at].is_root() {
                break PrefixHash::empty(&self.root_names[&at]);
            }
            at = self.arena[at].parent;
        };
        for &node in unknown.iter().rev() {
            hash = hash.then(self.arena[node].edge.tokens());
            notes.at(node).path = Some(hash);
        }
        hash
    }

    /// Describes the cache at the miss point of a prompt that was just matched and locked: `matched_tokens` of the
    /// prompt come from the cache, and `kv_tokens` have K/V there. `None` without
    /// [diagnostics](Self::with_diagnostics). Mutates nothing.
    pub fn departure(
        &self,
        namespace: &Namespace,
        lock: &NodeLock,
        tokens: &[u32],
        (matched_tokens, kv_tokens): (usize, usize),
        match_limit: usize,
    ) -> Option<Box<Departure>> {
        let notes = self.notes.as_ref()?;
        let limit = match_limit.min(tokens.len());
        let is_missing = matched_tokens < self.page_size.floor(limit);
        let node = lock.node().or_else(|| self.roots.get(namespace).copied());
        let node = node.filter(|_| is_missing);
        Some(Box::new(Departure {
            matched_tokens,
            kv_tokens,
            missing_state: node
                .filter(|_| kv_tokens > matched_tokens && self.windows.is_none())
                .map(|node| self.missing_state(node, tokens, matched_tokens, kv_tokens)),
            match_limit: limit,
            is_cache_disabled: self.is_disabled,
            branch: node.and_then(|node| self.branch_below(notes, node)),
            elsewhere: is_missing
                .then(|| self.longest_elsewhere(namespace, &tokens[..limit], matched_tokens))
                .flatten(),
        }))
    }

    /// Why the path below `node`, at which `matched` tokens end, has no state within the first `kv_tokens` tokens.
    fn missing_state(
        &self,
        node: u32,
        tokens: &[u32],
        matched: usize,
        kv_tokens: usize,
    ) -> MissingState {
        let (mut at, mut end) = (node, matched);
        let mut tag = self.arena.tag_below(node, &tokens[matched..]);
        let mut missing = MissingState::NeverSaved;
        while let Some(step) = self.arena.step(at, tag, &tokens[end..]) {
            end += step.common;
            if step.common < self.arena[step.child].edge.len() {
                break;
            }
            (at, tag) = (step.child, step.tag);
            if end > kv_tokens && self.is_resumable(at) {
                return MissingState::PastLimit;
            }
            let states = self.states.as_deref().filter(|_| end <= kv_tokens);
            if states.is_some_and(|states| states.was_thinned(at)) {
                missing = MissingState::Thinned;
            }
        }
        missing
    }

    fn branch_below(&self, notes: &Notes, node: u32) -> Option<Branch> {
        let n_branches = self.arena[node].n_children;
        if n_branches == 0 {
            return None;
        }
        let newest = notes.nodes.get(node as usize)?.newest_child;
        let is_child = |child: &u32| {
            let child = &self.arena[*child];
            child.is_live && child.parent == node
        };
        let tokens = newest.filter(is_child).map(|child| {
            let tokens = self.arena[child].edge.tokens();
            // The difference may be at the end of the first page, and the report shows a window after it.
            let n_shown = tokens.len().min(WINDOW_TOKENS + self.page_size.get());
            tokens[..n_shown].to_vec()
        });
        Some(Branch {
            n_branches,
            tokens: tokens.unwrap_or_default(),
        })
    }

    fn longest_elsewhere(
        &self,
        namespace: &Namespace,
        key: &[u32],
        matched: usize,
    ) -> Option<Elsewhere> {
        // A salt hides its namespace from others, and other namespaces from its requests.
        if namespace.is_salted() {
            return None;
        }
        let others = self.roots.iter().take(MAX_NAMESPACES);
        let default = self.roots.get_key_value(&Namespace::default());
        let others = others.chain(default);
        let others = others.filter(|(other, _)| *other != namespace && !other.is_salted());
        let lengths = others.map(|(other, &root)| {
            let tokens = self.peek_from(root, key);
            (tokens, other)
        });
        let (tokens, other) = lengths.max_by_key(|(tokens, _)| *tokens)?;
        (tokens > matched).then(|| Elsewhere {
            namespace: other.clone(),
            tokens,
        })
    }

    /// Tokens of `key` that are cached below `root`, up to where a sequence can resume.
    pub(super) fn peek_from(&self, root: u32, key: &[u32]) -> usize {
        debug_assert!(root != NO_NODE);
        if let Some(windows) = &self.windows {
            return self.peek_in_windows(windows, root, key);
        }
        let (mut node, mut matched, mut resumable) = (root, 0, 0);
        let mut tag = self.arena.tag_below(root, key);
        while let Some(step) = self.arena.step(node, tag, &key[matched..]) {
            matched += step.common;
            if step.common < self.arena[step.child].edge.len() {
                break;
            }
            (node, tag) = (step.child, step.tag);
            if self.is_resumable(node) {
                resumable = matched;
            }
        }
        match self.states {
            Some(_) => resumable,
            None => matched,
        }
    }
}
