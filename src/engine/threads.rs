//! The number of compute threads of a replica, configured or by default.

use souffleur_config::EngineConfig;
use souffleur_kernels::cpu::default_threads;

/// The number of compute threads of each replica. By default, the replicas share the cores.
pub fn compute_threads(config: &EngineConfig) -> usize {
    if config.threads > 0 {
        return config.threads;
    }
    (default_threads() / config.dp_size.max(1)).max(1)
}
