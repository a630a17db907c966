//! The threads that an engine computes on.

use crate::kernels::cpu::default_threads;

/// How many there are: those that are configured, or as many as suit the machine.
pub(super) fn threads(configured: usize) -> usize {
    if configured > 0 {
        return configured;
    }
    default_threads()
}
