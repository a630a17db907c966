//! Enforces the disk tier's space limit, by evicting records and folders.
//!
//! Whole folders of other fingerprints are removed first (unusable ones, then the least recently written); then records
//! of this fingerprint, starting with the least recently used, each block before its predecessor.

use std::io;

use super::DiskTier;
use crate::segments::Segments;
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::tiers::{BlockKey, BlockKind, BlockPlace, StoredBlock};

/// The largest number of records, which bounds the memory of the index: about 300 bytes each.
const MAX_RECORDS: usize = 1 << 20;
/// The largest number of evicted records, removed folders and punched holes for one write.
const MAX_ROUNDS: usize = 4096;
/// Bytes written between two scans of other folders.
const SCAN_BYTES: u64 = 64 << 20;

impl DiskTier {
    pub(super) fn bytes(&self) -> u64 {
        self.segments.iter().map(Segments::bytes).sum()
    }

    /// Bytes that slots may take: the disk bound minus other folders and the log.
    pub(super) fn limit(&self) -> u64 {
        let others = self.foreign_bytes + self.log.bytes();
        self.setup.disk_bytes.saturating_sub(others)
    }

    /// Evicts records until a slot is free. `None` if no record is left to evict, if the next one belongs to a block
    /// that `place` needs, or after too many evictions.
    pub(super) fn take_slot(&mut self, place: &BlockPlace, kind: BlockKind) -> Option<u64> {
        let needed = match kind {
            BlockKind::Kv => place.parent,
            BlockKind::Window | BlockKind::State => place.key,
        };
        // Marks the block as used, so that other records are evicted first.
        self.index.touch(needed);
        let bytes = self.segments[kind.index()].size().slot_bytes();
        if self.bytes() + bytes > self.limit() && self.written_since_scan >= SCAN_BYTES {
            self.scan_other_folders();
            self.shrink();
        }
        for _ in 0..MAX_ROUNDS {
            if self.index.len() < MAX_RECORDS {
                let segments = &mut self.segments[kind.index()];
                if let Some(slot) = segments.take_allocated() {
                    return Some(slot);
                }
                if self.bytes() + bytes <= self.limit() {
                    return Some(self.segments[kind.index()].take_unallocated());
                }
                if self.punch() || self.remove_other_folder() {
                    continue;
                }
            }
            // Without holes, only a slot of the same kind can be used again.
            let only = (!self.can_punch).then_some(kind);
            self.evict(only, Some(needed))?;
        }
        None
    }

    /// Returns space to the file system until the slots fit the limit, if possible.
    pub(super) fn shrink(&mut self) {
        while self.bytes() > self.limit() {
            if self.remove_other_folder() || self.punch() {
                continue;
            }
            if !self.can_punch || self.evict(None, None).is_none() {
                return;
            }
        }
    }

    /// Removes all records: if the file system cannot punch holes, there is no other way to shrink.
    pub(super) fn remove_all(&mut self) -> io::Result<()> {
        while self.index.evict(None).is_some() {}
        let files = &*self.files;
        let mut segments = self.segments.iter_mut();
        segments.try_for_each(|each| each.clear(files))
    }

    /// Evicts the first victim, unless it belongs to the block `needed`.
    fn evict(&mut self, only: Option<BlockKind>, needed: Option<BlockKey>) -> Option<StoredBlock> {
        let (kind, key) = self.index.next_victim(only)?;
        if needed == Some(key) {
            return None;
        }
        self.shared.counts.evicted.add(1);
        self.record_drop(key, kind, StoredMiss::Evicted);
        self.forget(key, kind)
    }

    /// Returns the space of one free slot to the file system. False if no slot is free, or holes are not supported.
    fn punch(&mut self) -> bool {
        if !self.can_punch {
            return false;
        }
        let files = &*self.files;
        let mut segments = self.segments.iter_mut();
        let punched = segments.find_map(|each| match each.punch(files) {
            Ok(false) => None,
            done => Some(done),
        });
        match punched {
            Some(Ok(_)) => true,
            Some(Err(error)) => {
                tracing::debug!(%error, "failed to punch a hole in a KV store file: freed slots keep their disk space");
                self.can_punch = false;
                false
            }
            None => false,
        }
    }

    pub(super) fn scan_other_folders(&mut self) {
        let others = self.folder.other_folders(&*self.files);
        self.foreign_bytes = others.iter().map(|other| other.bytes).sum();
        self.written_since_scan = 0;
        self.update_counts();
    }

    /// Removes folders that were written with another secret.
    pub(super) fn remove_unusable_folders(&mut self) {
        for other in self.folder.other_folders(&*self.files) {
            if !other.is_usable && other.remove(&*self.files) {
                self.shared.counts.foreign_removed.add(1);
            }
        }
    }

    /// Removes the oldest folder of another fingerprint that no engine uses. False if no folder is removed.
    fn remove_other_folder(&mut self) -> bool {
        if self.foreign_bytes == 0 {
            return false;
        }
        let others = self.folder.other_folders(&*self.files);
        let removed = others.iter().any(|other| other.remove(&*self.files));
        if removed {
            self.shared.counts.foreign_removed.add(1);
        }
        self.scan_other_folders();
        removed
    }
}
