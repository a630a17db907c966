//! The disk tier of the KV store: keeps record files, index and log consistent.

mod eviction;
mod reading;
mod recovery;
#[cfg(test)]
mod tests;
mod writing;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::dropped::DroppedBlocks;
use crate::files::Files;
use crate::folder::Folder;
use crate::log::{IndexLog, LogEntry};
use crate::record::RecordSize;
use crate::segments::Segments;
use crate::stats::Counts;
use crate::{Geometry, Outcome, Shared, StoreError};
pub(crate) use reading::AT_ONCE;
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::tiers::{BlockIndex, BlockKey, BlockKind, BlockPlace, Keys, StoredBlock};
pub(crate) use writing::PartialWrite;

/// Bytes written between two syncs.
const SYNC_BYTES: u64 = 64 << 20;
/// How long writes pause after a failed write.
const PAUSE: Duration = Duration::from_secs(60);
/// The shortest time between two warnings of damage.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Clone, Debug)]
pub(super) struct TierSetup {
    pub root: PathBuf,
    pub disk_bytes: u64,
    pub drop_behind: bool,
    pub geometry: Geometry,
}

impl TierSetup {
    /// Checks that the model has KV blocks, and that the disk bound allows one record of each kind.
    pub fn check(&self) -> Result<(), StoreError> {
        if self.geometry.payload_bytes(BlockKind::Kv) == 0 {
            return Err(StoreError::NoBlocks);
        }
        for kind in self.geometry.kinds() {
            let record_bytes = RecordSize::new(&self.geometry, kind).slot_bytes();
            if record_bytes > self.disk_bytes {
                return Err(StoreError::DiskBytes {
                    disk_bytes: self.disk_bytes,
                    kind,
                    record_bytes,
                });
            }
        }
        Ok(())
    }
}

pub(super) struct DiskTier {
    files: Box<dyn Files>,
    folder: Folder,
    setup: TierSetup,
    /// By [`BlockKind::index`].
    segments: [Segments; 3],
    index: BlockIndex,
    log: IndexLog,
    /// Bytes of the folders of other fingerprints, at the last scan.
    foreign_bytes: u64,
    /// Bytes written since the last scan.
    written_since_scan: u64,
    can_punch: bool,
    unsynced_bytes: u64,
    /// Writes are refused before this time.
    paused_until: Option<Instant>,
    warned_at: Option<Instant>,
    pub(crate) dropped: DroppedBlocks,
    shared: Arc<Shared>,
}

impl DiskTier {
    /// Opens the files of a folder. [`recover`](Self::recover) then reads the index of their records.
    ///
    /// # Errors
    /// A sentence that says why the store is off.
    pub fn open(
        files: Box<dyn Files>,
        folder: Folder,
        setup: TierSetup,
        shared: Arc<Shared>,
    ) -> Result<Self, String> {
        let open = |kind| {
            let size = RecordSize::new(&setup.geometry, kind);
            let opened = Segments::open(&*files, &folder.path, kind, size);
            opened.map_err(|error| {
                let shown = folder.path.display();
                format!("failed to read the KV store {shown}: {error}")
            })
        };
        let segments = [
            open(BlockKind::Kv)?,
            open(BlockKind::Window)?,
            open(BlockKind::State)?,
        ];
        let log = IndexLog::closed(&folder.log());
        Ok(Self {
            files,
            folder,
            setup,
            segments,
            index: BlockIndex::default(),
            log,
            foreign_bytes: 0,
            written_since_scan: 0,
            can_punch: true,
            unsynced_bytes: 0,
            paused_until: None,
            warned_at: None,
            dropped: DroppedBlocks::default(),
            shared,
        })
    }

    pub fn keys(&self) -> &Keys {
        &self.folder.keys
    }

    pub fn index(&self) -> &BlockIndex {
        &self.index
    }

    pub fn geometry(&self) -> &Geometry {
        &self.setup.geometry
    }

    pub fn read_ahead(&mut self, key: BlockKey, kind: BlockKind) {
        if let Some(slot) = self.index.location(key, kind) {
            self.segments[kind.index()].read_ahead(&*self.files, slot);
        }
    }

    pub fn touch(&mut self, key: BlockKey) {
        if let Some(used) = self.index.touch(key) {
            self.log.append(&*self.files, &LogEntry::Touch(key, used));
        }
    }

    pub fn sync(&mut self) {
        if self.unsynced_bytes == 0 {
            return;
        }
        self.unsynced_bytes = 0;
        let drop_behind = self.setup.drop_behind;
        let files = &*self.files;
        let mut segments = self.segments.iter_mut();
        let synced = segments.try_for_each(|each| each.sync(files, drop_behind));
        if let Err(error) = synced.and_then(|()| self.log.sync()) {
            tracing::warn!(
                folder = %self.folder.path.display(),
                %error,
                "failed to sync the KV store to disk: a power cut may lose its latest blocks"
            );
        }
    }

    /// Syncs everything. A log that was closed by a failed write is rewritten from the index first.
    pub fn close(mut self) {
        if !self.log.is_open() {
            self.rewrite_log();
        }
        // Forces the sync: changes of only the log do not count as unsynced bytes.
        self.unsynced_bytes = self.unsynced_bytes.max(1);
        self.sync();
    }

    fn forget(&mut self, key: BlockKey, kind: BlockKind) -> Option<StoredBlock> {
        let removed = self.index.remove(key, kind)?;
        self.segments[kind.index()].free(removed.location);
        let entry = LogEntry::Drop(key, kind);
        self.log.append(&*self.files, &entry);
        self.update_counts();
        Some(removed)
    }

    /// Records why the keys and values of a block were dropped.
    fn record_drop(&mut self, key: BlockKey, kind: BlockKind, why: StoredMiss) {
        if kind == BlockKind::Kv {
            self.dropped.record(key, why);
        }
    }

    fn log_put(&mut self, key: BlockKey, kind: BlockKind) {
        if let Some(stored) = self.index.get(key, kind) {
            self.log.append(&*self.files, &LogEntry::Put(stored));
        }
    }

    fn pause(&mut self, error: &io::Error, now: Instant) -> Outcome {
        self.paused_until = Some(now + PAUSE);
        let seconds = PAUSE.as_secs();
        tracing::warn!(
            folder = %self.folder.path.display(),
            %error,
            "failed to write to the KV store: pausing saves for {seconds} s"
        );
        match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Outcome::NoSpace,
            _ => Outcome::Failed,
        }
    }

    fn warn_of_damage(&mut self, place: &BlockPlace, error: Option<io::Error>, now: Instant) {
        let is_recent = self.warned_at.is_some_and(|at| now < at + WARNING_INTERVAL);
        if is_recent {
            return;
        }
        self.warned_at = Some(now);
        let error = error.map_or_else(|| "checksum mismatch".to_owned(), |e| e.to_string());
        let key = place.key;
        tracing::warn!(
            folder = %self.folder.path.display(),
            ?key,
            %error,
            "failed to read a KV store record: recomputing its tokens"
        );
    }

    fn update_counts(&self) {
        let counts: &Counts = &self.shared.counts;
        counts.records.set(self.index.len() as u64);
        counts.disk_bytes.set(self.bytes());
        counts.foreign_bytes.set(self.foreign_bytes);
    }
}
