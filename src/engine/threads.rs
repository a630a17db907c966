//! The number of compute threads of an engine, configured or by default.

use souffleur_kernels::cpu::default_threads;

pub(super) fn threads(configured: usize) -> usize {
    if configured > 0 {
        return configured;
    }
    default_threads()
}
