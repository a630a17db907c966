//! The free list of state slots: the memory of layers that keep a state of fixed size for each sequence.
//!
//! A slot holds the states of all such layers of one sequence at one position. At any time it is free, or owned by a
//! node of the tree, a sequence, or a message in flight; [`OwnedState`] represents this ownership.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::pool::pages::PoolLedger;
use souffleur_base::ids::StateSlot;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateLimits {
    /// Slots that can be granted, ids `1..=total_slots`: more than there are rows.
    pub total_slots: usize,
    /// Long prefills leave a state at each multiple of this many tokens; a multiple of the page size.
    pub grid_tokens: usize,
}

impl StateLimits {
    /// The smallest distance between states in a long prefill, in tokens.
    const MIN_GRID_TOKENS: u64 = 64;

    /// Limits for states of `state_bytes` and pages of `kv_bytes_per_token`. The grid is so coarse that the states of a
    /// long prefill take no more memory than its pages.
    pub fn new(
        total_slots: usize,
        state_bytes: u64,
        kv_bytes_per_token: u64,
        page_tokens: usize,
    ) -> Self {
        let tokens = state_bytes.div_ceil(kv_bytes_per_token.max(1));
        let grid = tokens.max(Self::MIN_GRID_TOKENS).next_power_of_two();
        let grid = usize::try_from(grid).unwrap_or(usize::MAX / 2);
        Self {
            total_slots,
            grid_tokens: grid.next_multiple_of(page_tokens.max(1)),
        }
    }

    /// These limits with a grid of `tokens`, rounded up to whole pages. With 0, prefills save no states on the grid.
    pub fn with_grid(self, tokens: usize, page_tokens: usize) -> Self {
        let tokens = match tokens {
            0 => usize::MAX / 2,
            tokens => tokens,
        };
        Self {
            grid_tokens: tokens.next_multiple_of(page_tokens.max(1)),
            ..self
        }
    }
}

/// An owned slot. The owner must return it to the pool.
#[must_use]
pub struct OwnedState {
    /// `None` after [`Self::surrender`].
    slot: Option<StateSlot>,
    ledger: Arc<PoolLedger>,
}

impl OwnedState {
    fn new(slot: StateSlot, ledger: &Arc<PoolLedger>) -> Self {
        Self {
            slot: Some(slot),
            ledger: ledger.clone(),
        }
    }

    pub fn slot(&self) -> StateSlot {
        self.slot.unwrap_or(StateSlot::new(0))
    }

    /// Transfers the slot to the caller.
    fn surrender(mut self) -> Option<StateSlot> {
        self.slot.take()
    }
}

impl fmt::Debug for OwnedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OwnedState({})", self.slot())
    }
}

impl Drop for OwnedState {
    fn drop(&mut self) {
        if self.slot.is_some() {
            self.ledger.lose_state();
        }
    }
}

/// A copy of a sequence's state, already in its slot or to be written by a planned step.
#[derive(Debug)]
pub struct SavedState {
    /// Number of tokens in the state: whole pages.
    pub position: usize,
    pub reason: SaveReason,
    pub state: OwnedState,
}

/// Why a state is saved at its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SaveReason {
    /// Prompts of other requests are known or likely to diverge at this position.
    Boundary,
    /// The position is on the grid of a long prefill.
    Grid,
}

/// Owns every free slot. Last freed, first granted.
#[derive(Debug)]
pub struct StatePool {
    free: Vec<StateSlot>,
    held: Vec<bool>,
    double_frees: u64,
    ledger: Arc<PoolLedger>,
}

impl StatePool {
    /// Makes a pool of `n_slots` free slots. `ledger` counts slots that are dropped instead of freed.
    pub fn new(n_slots: u32, ledger: Arc<PoolLedger>) -> Self {
        Self {
            free: (1..=n_slots).rev().map(StateSlot::new).collect(),
            held: vec![false; n_slots as usize + 1],
            double_frees: 0,
            ledger,
        }
    }

    /// Grants a slot, `None` when all are held. The slot's content is stale.
    pub fn alloc(&mut self) -> Option<OwnedState> {
        let slot = self.free.pop()?;
        self.held[slot.index()] = true;
        Some(OwnedState::new(slot, &self.ledger))
    }

    /// Takes a slot back.
    ///
    /// # Panics
    /// In debug builds, if the slot is not held. Release builds ignore it and count it in
    /// [`double_frees`](Self::double_frees).
    pub fn free(&mut self, state: OwnedState) {
        let Some(slot) = state.surrender() else {
            return;
        };
        match self.held.get_mut(slot.index()) {
            Some(held) if *held => {
                *held = false;
                self.free.push(slot);
            }
            _ => {
                self.double_frees += 1;
                debug_assert!(false, "state {slot} was freed but is not held");
            }
        }
    }

    pub fn free_slots(&self) -> usize {
        self.free.len()
    }

    /// The free slots, in no order.
    pub fn iter(&self) -> impl Iterator<Item = StateSlot> + '_ {
        self.free.iter().copied()
    }

    pub fn total_slots(&self) -> usize {
        self.held.len() - 1
    }

    /// Number of returned slots that were not granted: 0 unless there is a bug.
    pub fn double_frees(&self) -> u64 {
        self.double_frees
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::pages::PageSize;

    #[test]
    fn states_on_the_grid_take_no_more_memory_than_the_pages_between_them() {
        let grid = |state_bytes, per_token, page| {
            StateLimits::new(9, state_bytes, per_token, page).grid_tokens
        };
        // Qwen3.5-9B, Qwen3.5-35B-A3B and LFM2-1.2B, bf16 K/V and f32 states.
        assert_eq!(grid(50 * 1024 * 1024 + 256 * 1024, 32_768, 16), 2048);
        assert_eq!(grid(65_861_059, 20_480, 1), 4096);
        assert_eq!(grid(160 * 1024, 12_288, 16), 64);
        assert_eq!(grid(160 * 1024, 12_288, 48), 96);
        assert_eq!(grid(1000, 0, 1), 1024);
        let limits = StateLimits::new(9, 1000, 10, 16);
        assert_eq!(limits.with_grid(100, 16).grid_tokens, 112);
        assert!(limits.with_grid(0, 16).grid_tokens > 1 << 40);
    }

    #[test]
    fn slots_are_granted_once_and_counted_when_they_are_dropped() {
        let ledger = Arc::new(PoolLedger::new(PageSize::ONE));
        let mut pool = StatePool::new(2, ledger.clone());
        let first = pool.alloc().expect("a slot is free");
        let second = pool.alloc().expect("a slot is free");
        assert_eq!((first.slot().get(), second.slot().get()), (1, 2));
        assert!(pool.alloc().is_none());
        pool.free(first);
        assert_eq!((pool.free_slots(), pool.total_slots()), (1, 2));
        ledger.close();
        drop(second);
        assert_eq!((ledger.lost_states(), pool.double_frees()), (0, 0));
    }
}
