//! Rebuilds the disk tier's index at startup: from the log, or by a scan of the headers of all slots.

use std::collections::BTreeSet;

use super::DiskTier;
use crate::log::{self, IndexLog};
use crate::record;
use souffleur_state::tiers::{BlockKind, StoredBlock};

/// A scan of headers, used if there is no valid log.
pub(crate) struct Scan {
    slots: Vec<(BlockKind, u64)>,
    records: Vec<StoredBlock>,
}

impl DiskTier {
    /// Reads the log. If the log is missing or invalid, returns the scan that is needed instead.
    ///
    /// # Errors
    /// A sentence that says why the store is off.
    pub fn recover(&mut self) -> Result<Option<Scan>, String> {
        let path = self.folder.log();
        let logged = log::read(&*self.files, &path, &self.folder.fingerprint);
        if let Some(records) = logged {
            return self.fill_index(records).map(|()| None);
        }
        let of = |kind: BlockKind| {
            let found = self.segments[kind.index()].found();
            found.map(move |slot| (kind, slot))
        };
        let mut slots: Vec<(BlockKind, u64)> = BlockKind::ALL.into_iter().flat_map(of).collect();
        // `scan` pops slots from the end.
        slots.reverse();
        Ok(Some(Scan {
            slots,
            records: Vec::new(),
        }))
    }

    /// Reads up to `n_headers` headers. Returns the scan if more are left.
    ///
    /// # Errors
    /// A sentence that says why the store is off.
    pub fn scan(&mut self, mut scan: Scan, n_headers: usize) -> Result<Option<Scan>, String> {
        for _ in 0..n_headers {
            let Some((kind, slot)) = scan.slots.pop() else {
                return self.fill_index(scan.records).map(|()| None);
            };
            scan.records.extend(self.read_name(kind, slot));
        }
        Ok(Some(scan))
    }

    fn read_name(&mut self, kind: BlockKind, slot: u64) -> Option<StoredBlock> {
        let segments = &mut self.segments[kind.index()];
        let header = segments.read_header(&*self.files, slot).ok()?;
        let planes = self.setup.geometry.planes(kind);
        let fingerprint = &self.folder.fingerprint;
        let name = record::read_header(&header, segments.size(), fingerprint, kind, planes)?;
        Some(StoredBlock {
            place: name.place,
            kind,
            location: slot,
            // The last use is unknown: all records are equally old.
            used: 0,
        })
    }

    /// Fills the index with the records, then evicts until the disk bound holds.
    fn fill_index(&mut self, mut records: Vec<StoredBlock>) -> Result<(), String> {
        records.retain(|record| self.segments[record.kind.index()].has(record.location));
        // Records that no lookup could find are dropped, and their slots are free.
        let _ = self.index.restore(records);
        for kind in BlockKind::ALL {
            let live = self.index.iter().filter(|record| record.kind == kind);
            let live: BTreeSet<u64> = live.map(|record| record.location).collect();
            let marked = self.segments[kind.index()].set_live(&*self.files, &live);
            marked.map_err(|error| self.read_error(&error))?;
        }
        self.remove_unusable_folders();
        self.scan_other_folders();
        self.shrink();
        if self.bytes() > self.limit() {
            self.remove_all().map_err(|error| self.read_error(&error))?;
        }
        self.rewrite_log();
        self.update_counts();
        Ok(())
    }

    /// Rewrites the log with the present records, ordered by last use.
    pub(super) fn rewrite_log(&mut self) {
        let mut records: Vec<StoredBlock> = self.index.iter().collect();
        records.sort_by_key(|record| (record.used, record.place.block, record.location));
        let files = &*self.files;
        let path = self.folder.log();
        let fingerprint = &self.folder.fingerprint;
        match IndexLog::create(files, &path, fingerprint, records.into_iter()) {
            Ok(log) => self.log = log,
            Err(error) => {
                tracing::debug!(
                    path = %path.display(),
                    %error,
                    "failed to write the KV store's index log: removing it, so that the next start reads all record \
                     headers and takes longer"
                );
                let _ = files.remove_file(&path);
                self.log = IndexLog::closed(&path);
            }
        }
    }

    /// Rewrites the log if many of its entries are stale.
    pub(super) fn rewrite_log_if_due(&mut self) {
        if self.log.needs_rewrite(self.index.len()) {
            self.rewrite_log();
        }
    }

    fn read_error(&self, error: &std::io::Error) -> String {
        let shown = self.folder.path.display();
        format!("failed to read the KV store {shown}: {error}")
    }
}
