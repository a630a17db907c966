//! Counts the memory of a template's values, and the work that is left to a rendering.
//!
//! Values never leave their thread, so both counts are the thread's.

use std::cell::Cell;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Bytes that are counted until this is dropped.
#[derive(Debug)]
pub(super) struct Charge(usize);

impl Charge {
    pub(super) fn new(bytes: usize) -> Self {
        LIVE.set(LIVE.get() + bytes);
        Self(bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        LIVE.set(LIVE.get().saturating_sub(self.0));
    }
}

/// Begins a rendering on this thread, bounded by `instructions`. Outside of a rendering there is no bound.
pub(super) fn begin(instructions: u64) {
    LEFT.set(instructions);
}

/// Spends instructions, and returns whether there were enough. After a failure none are left.
pub(super) fn spend(instructions: usize) -> bool {
    match LEFT.get().checked_sub(instructions as u64) {
        Some(left) if left > 0 => {
            LEFT.set(left);
            true
        }
        _ => {
            LEFT.set(0);
            false
        }
    }
}

pub(super) fn live() -> usize {
    LIVE.get()
}
