//! Counts the memory of templates' values and the instructions left for a rendering.
//!
//! Values never leave their thread, so both counters are thread-local.

use std::cell::Cell;

thread_local! {
    static LIVE_BYTES: Cell<usize> = const { Cell::new(0) };
    static INSTRUCTIONS_LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// Counts bytes as live memory until this value is dropped.
#[derive(Debug)]
pub(super) struct Charge(usize);

impl Charge {
    pub(super) fn new(bytes: usize) -> Self {
        LIVE_BYTES.set(LIVE_BYTES.get() + bytes);
        Self(bytes)
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        LIVE_BYTES.set(LIVE_BYTES.get().saturating_sub(self.0));
    }
}

/// Sets the limit of instructions for a rendering on this thread. Outside of a rendering there is no limit.
pub(super) fn begin(instructions: u64) {
    INSTRUCTIONS_LEFT.set(instructions);
}

/// Spends instructions, and returns whether there were enough. After a failure none are left.
pub(super) fn spend(instructions: usize) -> bool {
    match INSTRUCTIONS_LEFT.get().checked_sub(instructions as u64) {
        Some(left) if left > 0 => {
            INSTRUCTIONS_LEFT.set(left);
            true
        }
        _ => {
            INSTRUCTIONS_LEFT.set(0);
            false
        }
    }
}

pub(super) fn live_bytes() -> usize {
    LIVE_BYTES.get()
}
