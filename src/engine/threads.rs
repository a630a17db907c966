//! The number of compute threads of a replica, configured or by default.

use souffleur_config::EngineConfig;
use souffleur_kernels::cpu::default_threads;

/// By default, the replicas share the cores.
pub(super) fn threads(config: &EngineConfig) -> usize {
    if config.threads > 0 {
        return config.threads;
    }
    (default_threads() / config.dp_size.max(1)).max(1)
}
