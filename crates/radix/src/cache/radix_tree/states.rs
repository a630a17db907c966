//! Recurrent states of nodes: the positions from which prompts may resume, and the order in which states are dropped.
//!
//! A node's state is the state after exactly its last token. A split leaves it with the lower half, which ends where
//! the node did. Dropping a state keeps the node's pages: they still show where prompts diverge.
//!
//! A state cannot be truncated: a match ends at the deepest node that has one. K/V that is cached beyond it is computed
//! again, and its pages come back as duplicates.

use rustc_hash::{FxHashMap, FxHashSet};

use super::arena::{Arena, NO_NODE};
use super::{Key, KeyUse, RadixTree};
use crate::cache::eviction::EvictionKey;
use crate::cache::prefix_cache::Thinning;
use crate::pool::pages::{NodeLock, Pages};
use crate::pool::state_pool::{OwnedState, SaveReason, SavedState};
use souffleur_base::ids::StateSlot;

#[derive(Default)]
pub(super) struct States {
    nodes: FxHashMap<u32, NodeState>,
    /// The number of pins on each node whose state is kept by pins.
    pinned: FxHashMap<u32, u32>,
    /// Nodes from whose states rows of the current plan start. The states are kept until the plan is made.
    sources: Vec<u32>,
    /// Nodes at anchors of the current plan's prompts: positions at which other prompts are likely to diverge. Their
    /// states are not dropped to free a slot for a copy.
    anchored: Vec<u32>,
    /// Nodes whose state was dropped to free its slot.
    thinned: FxHashSet<u32>,
    /// States that their nodes have lost, until the caller returns them to the pool.
    freed: Vec<OwnedState>,
}

struct NodeState {
    state: OwnedState,
    reason: SaveReason,
    /// A reading of the tree's clock.
    last_used: u64,
    /// Prompts have resumed from deeper nodes on the only path below, and none is known to diverge at this node.
    is_passed: bool,
}

impl States {
    pub(super) fn has(&self, node: u32) -> bool {
        self.nodes.contains_key(&node)
    }

    fn is_protected(&self, node: u32) -> bool {
        self.sources.contains(&node) || self.pinned.contains_key(&node)
    }

    pub(super) fn was_thinned(&self, node: u32) -> bool {
        self.thinned.contains(&node)
    }

    fn drops(&self, thinning: Thinning, (node, kept): (&u32, &NodeState)) -> bool {
        let is_protected = match thinning {
            Thinning::Later => self.pinned.contains_key(node),
            _ => self.is_protected(*node),
        };
        !is_protected && thinning.drops(kept.reason, self.anchored.contains(node))
    }

    pub(super) fn drop_state(&mut self, node: u32) {
        self.thinned.remove(&node);
        if let Some(kept) = self.nodes.remove(&node) {
            self.freed.push(kept.state);
        }
    }

    /// Drops the node's state to free its slot.
    fn thin(&mut self, node: u32) {
        self.drop_state(node);
        self.thinned.insert(node);
    }

    fn forget_plan(&mut self) {
        self.sources.clear();
        self.anchored.clear();
    }

    pub(super) fn clear(&mut self) {
        let freed = self.nodes.drain().map(|(_, kept)| kept.state);
        let mut freed: Vec<OwnedState> = freed.collect();
        // Makes the order deterministic.
        freed.sort_unstable_by_key(OwnedState::slot);
        self.freed.append(&mut freed);
        self.forget_plan();
        self.thinned.clear();
    }
}

impl RadixTree {
    /// Makes the tree keep states: a prefix is then cached up to a node that has one.
    pub fn with_states(mut self) -> Self {
        self.states = Some(Box::default());
        self
    }

    pub fn keeps_states(&self) -> bool {
        self.states.is_some()
    }

    pub fn cached_states(&self) -> usize {
        self.states.as_ref().map_or(0, |states| states.nodes.len())
    }

    /// The deepest node on the path of a match of `tokens` tokens that a sequence can resume from, and its end.
    pub(super) fn resumable(&self, node: u32, tokens: usize) -> (u32, usize) {
        if let Some(windows) = &self.windows {
            return self.resumable_in_windows(windows, node);
        }
        let Some(states) = &self.states else {
            return (node, tokens);
        };
        let mut at = node;
        while at != NO_NODE && !self.arena[at].is_root() {
            if states.has(at) {
                return (at, self.end_of(at));
            }
            at = self.arena[at].parent;
        }
        (NO_NODE, 0)
    }

    pub(super) fn state_of(&self, node: u32) -> Option<StateSlot> {
        let states = self.states.as_ref()?;
        states.nodes.get(&node).map(|kept| kept.state.slot())
    }

    /// Whether a sequence can resume from the end of a node.
    pub(super) fn is_resumable(&self, node: u32) -> bool {
        self.states.as_ref().is_none_or(|states| states.has(node))
    }

    /// Attaches each saved state to the node at its position. Frees states beyond the key and duplicates.
    pub(super) fn keep_states(&mut self, key: Key<'_>, saved: Vec<SavedState>, key_use: KeyUse) {
        let is_long = saved.iter().any(|saved| saved.reason == SaveReason::Grid);
        let mut deepest = None;
        for SavedState {
            position,
            reason,
            state,
        } in saved
        {
            let is_page_end = position > 0 && self.page_size.floor(position) == position;
            let tokens = key.tokens.get(..position).filter(|_| is_page_end);
            let node = tokens.map(|tokens| {
                // Splits the path at the position, without counting a hit.
                let uncounted = KeyUse {
                    counted_tokens: usize::MAX,
                    ..key_use
                };
                let key = Key { tokens, ..key };
                self.insert_key(key, 0, &mut Pages::empty(), uncounted).0
            });
            self.keep_state(node, reason, state);
            deepest = node.or(deepest);
        }
        if let Some(node) = deepest.filter(|_| is_long) {
            self.level_states_above(node);
        }
    }

    /// Makes the states above a node as old as the node's state. States of a long prompt are then dropped evenly, not
    /// from the start of the prompt on, and those of the grid before those at boundaries.
    fn level_states_above(&mut self, node: u32) {
        let now = self.clock;
        let mut at = self.arena[node].parent;
        while at != NO_NODE && !self.arena[at].is_root() {
            if let Some(states) = self.states.as_deref_mut()
                && let Some(kept) = states.nodes.get_mut(&at)
            {
                kept.last_used = now;
            }
            at = self.arena[at].parent;
        }
    }

    fn keep_state(&mut self, node: Option<u32>, reason: SaveReason, state: OwnedState) {
        let now = self.clock;
        let Some(states) = &mut self.states else {
            debug_assert!(false, "only a tree with states may be given states");
            return drop(state);
        };
        let Some(node) = node else {
            return states.freed.push(state);
        };
        match states.nodes.get_mut(&node) {
            Some(kept) => {
                kept.reason = kept.reason.min(reason);
                kept.is_passed = false;
                states.freed.push(state);
            }
            None => {
                let kept = NodeState {
                    state,
                    reason,
                    last_used: now,
                    is_passed: false,
                };
                states.nodes.insert(node, kept);
                states.thinned.remove(&node);
                // With a state, the node has a larger eviction key.
                self.arena[node].is_used_since = true;
            }
        }
    }

    /// The state at the end of a prefix that was just locked, for a row that may start from it.
    ///
    /// Mutates: the state is not dropped before [`forget_used_states`](Self::forget_used_states).
    pub fn hold_state(&mut self, lock: &NodeLock) -> Option<StateSlot> {
        let node = lock.node()?;
        let states = self.states.as_deref_mut()?;
        let slot = states.nodes.get(&node)?.state.slot();
        states.sources.push(node);
        Some(slot)
    }

    /// Records that a row starts from a [held](Self::hold_state) state. `anchors` are positions at which other prompts
    /// are likely to diverge from the row's. All states of the plan must be held before the first call.
    ///
    /// Mutates: the state and the prefix's states at the anchors count as just used. Those at the anchors are not
    /// dropped to free a slot for a copy before [`forget_used_states`](Self::forget_used_states).
    pub fn use_state(&mut self, lock: &NodeLock, anchors: &[u32]) {
        let Some(node) = lock.node() else {
            return;
        };
        self.pass_states_above(node, anchors);
        let now = self.clock;
        let states = self.states.as_deref_mut();
        if let Some(kept) = states.and_then(|states| states.nodes.get_mut(&node)) {
            kept.last_used = now;
            kept.is_passed = false;
        }
    }

    /// Updates the states above a node from which a prompt with these anchors resumes.
    fn pass_states_above(&mut self, node: u32, anchors: &[u32]) {
        let (now, page_size) = (self.clock, self.page_size);
        let mut at = self.arena[node].parent;
        while at != NO_NODE && !self.arena[at].is_root() {
            let end = self.end_of(at);
            let is_anchor = |anchor: &u32| page_size.floor(*anchor as usize) == end;
            let is_branch = self.arena[at].n_children > 1;
            if let Some(states) = self.states.as_deref_mut()
                && let Some(kept) = states.nodes.get_mut(&at)
            {
                if anchors.iter().any(is_anchor) {
                    kept.last_used = now;
                    kept.is_passed = false;
                    states.anchored.push(at);
                } else {
                    // Rows of this plan that start from the state may become branches, but have no nodes yet.
                    kept.is_passed = !is_branch && !states.sources.contains(&at);
                }
            }
            at = self.arena[at].parent;
        }
    }

    /// Undoes [`hold_state`](Self::hold_state): no row starts from the state.
    pub fn forget_held_state(&mut self, lock: &NodeLock) {
        if let (Some(states), Some(node)) = (self.states.as_deref_mut(), lock.node())
            && let Some(at) = states.sources.iter().position(|source| *source == node)
        {
            states.sources.swap_remove(at);
        }
    }

    /// The plan is made: states that rows start from may be dropped, since only a later step overwrites them.
    pub fn forget_used_states(&mut self) {
        if let Some(states) = &mut self.states {
            states.forget_plan();
        }
    }

    /// Keeps the state at the end of a pinned prefix, unless pins already keep `max_pinned` other states.
    pub fn pin_state(&mut self, lock: &NodeLock, max_pinned: usize) {
        if let (Some(states), Some(node)) = (self.states.as_deref_mut(), lock.node())
            && states.has(node)
            && (states.pinned.contains_key(&node) || states.pinned.len() < max_pinned)
        {
            *states.pinned.entry(node).or_default() += 1;
        }
    }

    /// Undoes [`pin_state`](Self::pin_state), before the lock is released.
    pub fn unpin_state(&mut self, lock: &NodeLock) {
        let (Some(states), Some(node)) = (self.states.as_deref_mut(), lock.node()) else {
            return;
        };
        if let Some(pins) = states.pinned.get_mut(&node) {
            *pins -= 1;
            if *pins == 0 {
                states.pinned.remove(&node);
            }
        }
    }

    /// States that [`thin_states`](Self::thin_states) could drop.
    pub fn droppable_states(&self, thinning: Thinning) -> usize {
        let Some(states) = &self.states else {
            return 0;
        };
        let matching = states.nodes.iter();
        matching.filter(|one| states.drops(thinning, *one)).count()
    }

    /// Drops `n` states, or as many as it can; their pages stay.
    ///
    /// States at turns after which the conversation has continued are dropped first, because they are rarely used
    /// again. Then the least recently used ones are dropped, with ages rounded to powers of two. At equal age, states
    /// without an anchor of the plan are dropped first, then those of the grid, then those nearest to the state above.
    pub fn thin_states(&mut self, n: usize, thinning: Thinning) {
        for _ in 0..n {
            let Some(node) = self.next_to_thin(thinning) else {
                return;
            };
            if let Some(states) = &mut self.states {
                states.thin(node);
            }
            // A leaf without a state has a smaller eviction key.
            self.order_is_stale |= self.arena[node].is_queued;
        }
    }

    fn next_to_thin(&self, thinning: Thinning) -> Option<u32> {
        let states = self.states.as_deref()?;
        let droppable = || {
            let all = states.nodes.iter();
            all.filter(|one| states.drops(thinning, *one))
        };
        let rank = |kept: &NodeState| {
            let age = (self.clock.saturating_sub(kept.last_used) + 1).ilog2();
            let is_passed = kept.is_passed && kept.reason == SaveReason::Boundary;
            (is_passed, age)
        };
        let first = droppable().map(|(_, kept)| rank(kept)).max()?;
        let oldest = droppable().filter(|(_, kept)| rank(kept) == first);
        let order = |(node, kept): &(&u32, &NodeState)| {
            let is_anchored = states.anchored.contains(node);
            let is_grid = kept.reason == SaveReason::Grid;
            let distance = self.distance_to_state_above(**node);
            (is_anchored, !is_grid, distance, **node)
        };
        oldest.min_by_key(order).map(|(node, _)| *node)
    }

    /// Tokens whose computation the state of a node saves.
    fn distance_to_state_above(&self, node: u32) -> usize {
        let (_, end) = self.resumable(self.arena[node].parent, 0);
        self.end_of(node) - end
    }

    /// Tokens of the path down to the end of a node.
    pub(super) fn end_of(&self, node: u32) -> usize {
        self.arena.usage(node).start_tokens as usize + self.arena[node].edge.len()
    }

    /// The states that left the tree since the last call.
    pub fn take_freed_states(&mut self) -> Vec<OwnedState> {
        let states = self.states.as_deref_mut();
        states.map_or_else(Vec::new, |states| std::mem::take(&mut states.freed))
    }

    /// The slots of the cached states, in no order.
    pub fn iter_states(&self) -> impl Iterator<Item = StateSlot> + '_ {
        let states = self.states.iter().flat_map(|states| states.nodes.values());
        states.map(|kept| kept.state.slot())
    }

    /// Compares the states with the nodes, and names the first inconsistency.
    pub(super) fn check_states(&self) -> Result<(), String> {
        let Some(states) = self.states.as_deref() else {
            return Ok(());
        };
        for (&node, kept) in &states.nodes {
            let n_nodes = self.arena.indices().end;
            let is_live = node < n_nodes && self.arena[node].is_live;
            if !is_live || self.arena[node].is_root() {
                return Err(format!(
                    "{:?} belongs to node {node}, which does not exist",
                    kept.state
                ));
            }
        }
        for &node in &states.thinned {
            let is_live = node < self.arena.indices().end && self.arena[node].is_live;
            if !is_live || states.has(node) {
                return Err(format!(
                    "node {node} is recorded as thinned, but has a state or does not exist"
                ));
            }
        }
        for node in states.pinned.keys() {
            if !states.has(*node) || self.arena[*node].lock_ref == 0 {
                return Err(format!("node {node} is pinned without a state or a lock"));
            }
        }
        let mut slots: Vec<StateSlot> = self.iter_states().collect();
        slots.sort_unstable();
        match slots.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("state {} is cached twice", pair[0])),
            None => Ok(()),
        }
    }
}

/// The eviction key of a leaf. Leaves without a state come first, because no prompt can resume from them.
pub(super) fn rank(
    arena: &Arena,
    states: Option<&States>,
    policy: &crate::cache::eviction::EvictionPolicy,
    index: u32,
) -> EvictionKey {
    let usage = arena.usage(index);
    match states {
        Some(states) if !states.has(index) => (
            i64::MIN,
            i64::try_from(usage.last_access).unwrap_or(i64::MAX),
        ),
        _ => policy.key(&usage),
    }
}
