//! The KV store's configuration and start errors.

use std::path::PathBuf;
use std::time::Duration;

use crate::BlockKind;

#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    /// The root folder, with a subfolder for each fingerprint; created if it is missing.
    pub path: PathBuf,
    /// Upper bound on bytes on the disk, of all fingerprints together.
    pub disk_bytes: u64,
    /// Upper bound on bytes of buffers in memory.
    pub host_bytes: u64,
    pub prefetch_timeout: PrefetchTimeout,
    /// Drops writes from the kernel's page cache once they are on the disk. Otherwise, writes of an idle engine stay
    /// cached until the memory is needed, and a restart reads them from the cache.
    pub drop_behind: bool,
    /// The share of one core that writing may take while the engine computes: between 0 and 1.
    pub write_share: f64,
}

/// How long a fetch may take: SGLang's `prefetch_timeout_base` and `prefetch_timeout_per_ki_token`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefetchTimeout {
    pub base: Duration,
    pub per_ki_token: Duration,
}

impl PrefetchTimeout {
    pub const MAX: Duration = Duration::from_secs(600);

    pub fn of(&self, tokens: usize) -> Duration {
        let seconds = self.per_ki_token.as_secs_f64() * tokens as f64 / 1024.0;
        let all = self.base.as_secs_f64() + seconds;
        Duration::from_secs_f64(all.clamp(0.0, Self::MAX.as_secs_f64()))
    }
}

impl Default for PrefetchTimeout {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(1),
            per_ki_token: Duration::from_millis(250),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error(
        "the KV store needs two buffers of each kind, which do not fit into {host_bytes} bytes (one of each kind takes \
        {needed_bytes}): raise kv_host_bytes to {limit_bytes}"
    )]
    HostBytes {
        host_bytes: u64,
        needed_bytes: u64,
        limit_bytes: u64,
    },
    #[error(
        "kv_disk_bytes is {disk_bytes}, but one {} record takes {record_bytes} bytes: raise \
         kv_disk_bytes",
        kind.name()
    )]
    DiskBytes {
        disk_bytes: u64,
        kind: BlockKind,
        record_bytes: u64,
    },
    #[error(
        "the KV store needs a layer that keeps keys and values of all tokens: remove kv_disk_path"
    )]
    NoBlocks,
    #[error("failed to start the KV store thread: {0}; raise the limit of threads (ulimit -u)")]
    Thread(std::io::Error),
}
