//! The KV store's counters of operations and sizes.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StoreStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The live counters of [`StoreStats`].
        #[derive(Debug, Default)]
        pub(super) struct Counts {
            $(pub $name: Count,)*
        }

        impl Counts {
            pub fn read(&self) -> StoreStats {
                StoreStats {
                    $($name: self.$name.0.load(Ordering::Relaxed),)*
                }
            }
        }
    };
}

counts! {
    /// Records on the disk now.
    records,
    /// Bytes of the records on the disk, including free slots that still take space.
    disk_bytes,
    /// Bytes of the folders of other fingerprints, at the last scan.
    foreign_bytes,
    refused_not_serving,
    refused_full,
    written,
    /// Payload bytes of the written records.
    written_bytes,
    /// Records read and found intact.
    read,
    /// Payload bytes of the read records.
    read_bytes,
    /// Commits of records that the store already had.
    known,
    /// Commits of records that no lookup could find.
    orphans,
    /// Commits refused for lack of disk space.
    no_space,
    failed_writes,
    /// Reads that failed, or returned other bytes than were written.
    damaged,
    evicted,
    /// Fetches that loaded no block.
    late,
    /// Lookups whose blocks would be computed faster than loaded.
    too_slow,
    foreign_removed,
    /// Average rate at which records are read, in bytes a second; 0 before the first read.
    read_bytes_per_s,
}

#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}
