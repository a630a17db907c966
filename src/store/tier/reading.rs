//! Reads records from the disk, large ones in parallel with one thread each: a disk reaches its full rate only with
//! several reads in flight, and checksums need more than one core.

use std::io;
use std::thread::Builder;
use std::time::Instant;

use super::DiskTier;
use crate::record::{self, RecordName};
use crate::segments::SlotReader;
use crate::{HostBlock, Short};
use souffleur_state::cache::prefix_history::StoredMiss;
use souffleur_state::tiers::{BlockPlace, Fingerprint};

/// Maximum number of records read in parallel.
pub(crate) const AT_ONCE: usize = if cfg!(unix) { 4 } else { 1 };
/// A smaller record is read faster than a thread starts.
const MIN_PARALLEL_BYTES: usize = 1 << 20;

impl DiskTier {
    /// Reads the records of some blocks and checks them. Returns the number of intact records before the first failure,
    /// and the reason for the failure. Removes the failed record if it is damaged.
    pub fn read_all(
        &mut self,
        places: &[BlockPlace],
        blocks: &mut [HostBlock],
        now: Instant,
    ) -> (usize, Option<Short>) {
        let mut n_good = 0;
        let results = self.read_records(places, blocks);
        let n_results = results.len();
        for (result, (place, block)) in results.into_iter().zip(places.iter().zip(&*blocks)) {
            match result {
                Some(Ok(true)) => {
                    n_good += 1;
                    self.shared.counts.read.add(1);
                    let bytes = block.bytes().len() as u64;
                    self.shared.counts.read_bytes.add(bytes);
                }
                // No thread could be started; the record may be intact.
                None => return (n_good, Some(Short::Memory)),
                Some(found) => {
                    self.shared.counts.damaged.add(1);
                    self.warn_of_damage(place, found.err(), now);
                    self.forget(place.key, block.kind());
                    self.record_drop(place.key, block.kind(), StoredMiss::Damaged);
                    return (n_good, Some(Short::Damaged));
                }
            }
        }
        let is_short = n_results < blocks.len();
        (n_good, is_short.then_some(Short::Evicted))
    }

    /// Reads a record of the block's kind and checks it. Removes a damaged record.
    ///
    /// # Errors
    /// [`Short::Evicted`] if the record is missing, [`Short::Damaged`] if it is damaged.
    #[cfg(test)]
    pub fn read(
        &mut self,
        place: &BlockPlace,
        block: &mut HostBlock,
        now: Instant,
    ) -> Result<(), Short> {
        let places = std::slice::from_ref(place);
        let (_, short) = self.read_all(places, std::slice::from_mut(block), now);
        short.map_or(Ok(()), Err)
    }

    /// Reads records up to the first that is not in the index, and returns a result for each.
    fn read_records(
        &mut self,
        places: &[BlockPlace],
        blocks: &mut [HostBlock],
    ) -> Vec<Option<io::Result<bool>>> {
        let mut jobs = Vec::with_capacity(blocks.len());
        for (place, block) in places.iter().zip(blocks) {
            let kind = block.kind();
            let Some(slot) = self.index.location(place.key, kind) else {
                break;
            };
            let reader = self.segments[kind.index()].reader(&*self.files, slot);
            jobs.push((reader, place, block));
        }
        let fingerprint = &self.folder.fingerprint;
        let read =
            |(reader, place, block): Job<'_>| read_record(&reader?, fingerprint, place, block);
        let is_large = |(_, _, block): &Job<'_>| block.bytes().len() >= MIN_PARALLEL_BYTES;
        if jobs.len() <= 1 || !jobs.iter().all(is_large) {
            return jobs.into_iter().map(|job| Some(read(job))).collect();
        }
        let mut jobs = jobs.into_iter();
        let first = jobs.next();
        std::thread::scope(|scope| {
            let read = &read;
            let others = jobs.map(|job| {
                let thread = Builder::new().name("souffleur-read".to_owned());
                thread.spawn_scoped(scope, move || read(job)).ok()
            });
            let others: Vec<_> = others.collect();
            let first = first.map(read);
            let others = others
                .into_iter()
                .map(|thread| thread.and_then(|thread| thread.join().ok()));
            std::iter::once(first).chain(others).collect()
        })
    }
}

type Job<'a> = (io::Result<SlotReader>, &'a BlockPlace, &'a mut HostBlock);

/// Reads and checks a record. False if the slot holds another record, or a damaged one.
fn read_record(
    reader: &SlotReader,
    fingerprint: &Fingerprint,
    place: &BlockPlace,
    block: &mut HostBlock,
) -> io::Result<bool> {
    let kind = block.kind();
    let header = reader.header()?;
    let name = record::read_header(&header, reader.size(), fingerprint, kind, block.planes());
    let expected = RecordName {
        place: *place,
        kind,
    };
    if name != Some(expected) {
        return Ok(false);
    }
    reader.payload(block.bytes_mut())?;
    Ok(record::is_intact(&header, block))
}
