//! Counts of a store.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counts of a store's operations and sizes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StoreStats {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The same, while it is counted.
        #[derive(Debug, Default)]
        pub(super) struct Counts {
            $(pub $name: Count,)*
        }

        impl Counts {
            /// All counts now.
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
    /// Bytes that they take, with slots that wait for reuse.
    disk_bytes,
    /// Bytes of the folders of other fingerprints, at the last scan.
    foreign_bytes,
    /// Requests that were refused because the store did not serve.
    refused_not_serving,
    /// Requests that were refused because a queue was full.
    refused_full,
    /// Records written.
    written,
    /// Their payloads in bytes.
    written_bytes,
    /// Records read and found intact.
    read,
    /// Their payloads in bytes.
    read_bytes,
    /// Commits of records that were there already.
    known,
    /// Commits of records that no lookup could find.
    orphans,
    /// Commits without room.
    no_space,
    /// Writes that failed.
    failed_writes,
    /// Reads that failed or found other bytes than were written.
    damaged,
    /// Records that were evicted.
    evicted,
    /// Fetches that brought nothing.
    late,
    /// Finds for which computing was faster.
    too_slow,
    /// Folders of other fingerprints that were removed.
    foreign_removed,
    /// Average rate at which records are read, in bytes a second; 0 before the first.
    read_bytes_per_s,
}

/// One count.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    /// Adds.
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// Sets it.
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}
