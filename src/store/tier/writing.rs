//! Writes records of the disk tier in parts, so that the thread can serve requests in between.

use std::time::Instant;

use super::{DiskTier, SYNC_BYTES};
use crate::segments::WriteMode;
use crate::{HostBlock, Outcome, record};
use souffleur_state::tiers::{BlockKind, BlockPlace, Stored};

/// Least bytes of a part, which has whole planes: small enough to stay in the CPU cache between checksum and copy.
const PART_BYTES: usize = 256 << 10;
/// Least bytes of a part in direct writes, which need no CPU cache: a disk is faster with few long writes.
const PART_PAST_CACHE_BYTES: usize = 1 << 20;

pub(crate) struct PartialWrite {
    place: BlockPlace,
    kind: BlockKind,
    slot: u64,
    /// The CRC-32 of each written plane.
    sums: Vec<u32>,
    /// Bytes of the written planes.
    written: usize,
}

impl DiskTier {
    /// Starts writing a block: takes a slot for it, evicting other records if needed.
    ///
    /// # Errors
    /// The outcome, if the block is not to be written.
    pub fn begin_write(
        &mut self,
        place: &BlockPlace,
        kind: BlockKind,
        now: Instant,
    ) -> Result<PartialWrite, Outcome> {
        match self.index.check(place, kind) {
            Stored::New => (),
            Stored::Known => {
                self.touch(place.key);
                return Err(Outcome::Known);
            }
            Stored::Orphan => return Err(Outcome::Orphan),
        }
        if self.paused_until.is_some_and(|until| now < until) {
            return Err(Outcome::NoSpace);
        }
        let slot = self.take_slot(place, kind).ok_or(Outcome::NoSpace)?;
        Ok(PartialWrite {
            place: *place,
            kind,
            slot,
            sums: Vec::with_capacity(self.geometry().planes(kind).len()),
            written: 0,
        })
    }

    /// Writes the next part of a block; after the last part, the header. Returns the outcome once the block is done.
    pub fn write_more(
        &mut self,
        writing: &mut PartialWrite,
        (block, mode): (&HostBlock, WriteMode),
        now: Instant,
    ) -> Option<Outcome> {
        let is_whole = match self.write_part(writing, (block, mode)) {
            Ok(is_whole) => is_whole,
            Err(error) => {
                self.segments[writing.kind.index()].free(writing.slot);
                return Some(self.pause(&error, now));
            }
        };
        is_whole.then(|| self.end_write(writing, block))
    }

    #[cfg(test)]
    pub fn write(&mut self, place: &BlockPlace, block: &HostBlock, now: Instant) -> Outcome {
        let mut writing = match self.begin_write(place, block.kind(), now) {
            Ok(writing) => writing,
            Err(outcome) => return outcome,
        };
        loop {
            if let Some(outcome) = self.write_more(&mut writing, (block, WriteMode::Cached), now) {
                return outcome;
            }
        }
    }

    /// Writes the next part. True if the block is complete, with its header.
    fn write_part(
        &mut self,
        writing: &mut PartialWrite,
        (block, mode): (&HostBlock, WriteMode),
    ) -> std::io::Result<bool> {
        let files = &*self.files;
        let segments = &mut self.segments[writing.kind.index()];
        let size = *segments.size();
        let slot = writing.slot;
        if writing.sums.is_empty() {
            segments.erase(files, slot)?;
        }
        let least_bytes = match mode {
            WriteMode::Cached => PART_BYTES,
            WriteMode::PastCache => PART_PAST_CACHE_BYTES,
        };
        let mut bytes = 0;
        for (_, plane) in block.split().skip(writing.sums.len()) {
            writing.sums.push(record::sum(plane));
            bytes += plane.len();
            if bytes >= least_bytes {
                break;
            }
        }
        let at = writing.written;
        let part = &block.bytes()[at..at + bytes];
        segments.write_part(files, slot, (at, part), mode)?;
        writing.written += bytes;
        if writing.sums.len() < block.planes().len() {
            return Ok(false);
        }
        let name = (&writing.place, writing.kind);
        let header = record::header(&size, &self.folder.fingerprint, name, &writing.sums);
        segments.write_header(files, slot, &header)?;
        Ok(true)
    }

    /// Inserts a written block into the index, unless its predecessor was evicted meanwhile.
    fn end_write(&mut self, writing: &PartialWrite, block: &HostBlock) -> Outcome {
        let PartialWrite {
            place, kind, slot, ..
        } = writing;
        let segments = &mut self.segments[kind.index()];
        let bytes = segments.size().slot_bytes();
        let outcome = match self.index.insert(*place, *kind, *slot) {
            Stored::New => Outcome::Written,
            Stored::Known => Outcome::Known,
            Stored::Orphan => Outcome::Orphan,
        };
        if outcome != Outcome::Written {
            segments.free(*slot);
            return outcome;
        }
        self.log_put(place.key, *kind);
        self.unsynced_bytes += bytes;
        self.written_since_scan += bytes;
        let counts = &self.shared.counts;
        counts.written.add(1);
        counts.written_bytes.add(block.bytes().len() as u64);
        if self.unsynced_bytes >= SYNC_BYTES {
            self.sync();
        }
        self.rewrite_log_if_due();
        self.update_counts();
        Outcome::Written
    }
}
