//! The record slots of one block kind: each file, of at most 1 GiB, is divided into equal slots of one record each.
//!
//! A slot is live (holds a record) or free. The disk space of a free slot is still allocated, to its old bytes, or
//! unallocated.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::{Advice, DataFile, Files};
use crate::record::RecordSize;
use souffleur_state::tiers::BlockKind;

/// Largest size of a file, in bytes.
const SEGMENT_BYTES: u64 = 1 << 30;
const MAX_NUMBER: u64 = u32::MAX as u64;
const MAX_OPEN: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteMode {
    /// Through the kernel's page cache, from which later reads are served.
    Cached,
    /// Bypassing the page cache, which takes less CPU time.
    PastCache,
}

pub(super) struct Segments {
    folder: PathBuf,
    kind: BlockKind,
    size: RecordSize,
    slots_per_file: u64,
    /// Open files by number, the most recently used last.
    open: Vec<(u64, Arc<dyn DataFile>)>,
    /// Number of slots found at startup, by file number.
    found: BTreeMap<u64, u64>,
    n_live: u64,
    /// Free slots whose disk space is allocated.
    allocated: BTreeSet<u64>,
    /// Free slots without disk space, which have been live.
    unallocated: BTreeSet<u64>,
    /// The first of the slots after all live and all listed free ones. Slots of removed files before it are not used
    /// again.
    end: u64,
    /// Slots written since the last sync.
    unsynced: Vec<u64>,
}

impl Segments {
    /// Opens the slots of a kind in a folder. Their content is unknown until [`Self::set_live`].
    pub fn open(
        files: &dyn Files,
        folder: &Path,
        kind: BlockKind,
        size: RecordSize,
    ) -> io::Result<Self> {
        let mut segments = Self {
            folder: folder.to_owned(),
            kind,
            size,
            slots_per_file: (SEGMENT_BYTES / size.slot_bytes()).max(1),
            open: Vec::new(),
            found: BTreeMap::new(),
            n_live: 0,
            allocated: BTreeSet::new(),
            unallocated: BTreeSet::new(),
            end: 0,
            unsynced: Vec::new(),
        };
        let prefix = segments.prefix();
        let names = files.list(folder)?;
        let numbers = names
            .iter()
            .filter_map(|name| name.strip_prefix(&prefix)?.parse::<u64>().ok())
            .filter(|number| *number <= MAX_NUMBER);
        for number in numbers.collect::<Vec<u64>>() {
            let bytes = segments.file(files, number)?.len()?;
            let slots = bytes
                .div_ceil(size.slot_bytes())
                .min(segments.slots_per_file);
            segments.found.insert(number, slots);
        }
        Ok(segments)
    }

    /// The slots found at startup, in order.
    pub fn found(&self) -> impl Iterator<Item = u64> + '_ {
        let ranges = self.found.iter().map(|(file, slots)| {
            let first = file * self.slots_per_file;
            first..first + slots
        });
        ranges.flatten()
    }

    /// True if the slot was found at startup.
    pub fn has(&self, slot: u64) -> bool {
        let slots = self.found.get(&(slot / self.slots_per_file));
        slots.is_some_and(|slots| slot % self.slots_per_file < *slots)
    }

    /// Marks the live slots. Removes files without live slots, and truncates the others after their last live slot.
    pub fn set_live(&mut self, files: &dyn Files, live: &BTreeSet<u64>) -> io::Result<()> {
        self.n_live = live.len() as u64;
        self.end = live.last().map_or(0, |slot| slot + 1);
        for (number, slots) in std::mem::take(&mut self.found) {
            let first = number * self.slots_per_file;
            let Some(last) = live.range(first..first + slots).next_back() else {
                self.open.retain(|(open, _)| *open != number);
                files.remove_file(&self.path(number))?;
                continue;
            };
            let end = (last % self.slots_per_file + 1) * self.size.slot_bytes();
            let file = self.file(files, number)?;
            if file.len()? > end {
                file.set_len(end)?;
            }
            self.allocated
                .extend((first..*last).filter(|slot| !live.contains(slot)));
        }
        Ok(())
    }

    pub fn clear(&mut self, files: &dyn Files) -> io::Result<()> {
        self.open.clear();
        self.allocated.clear();
        self.unallocated.clear();
        self.unsynced.clear();
        (self.n_live, self.end) = (0, 0);
        for name in files.list(&self.folder)? {
            if name.starts_with(&self.prefix()) {
                files.remove_file(&self.folder.join(name))?;
            }
        }
        Ok(())
    }

    /// Bytes that the slots take on the disk.
    pub fn bytes(&self) -> u64 {
        (self.n_live + self.allocated.len() as u64) * self.size.slot_bytes()
    }

    pub fn size(&self) -> &RecordSize {
        &self.size
    }

    /// Takes a free slot whose disk space is already allocated.
    pub fn take_allocated(&mut self) -> Option<u64> {
        let slot = self.allocated.pop_first()?;
        self.n_live += 1;
        Some(slot)
    }

    /// Takes a free slot that needs more disk space.
    pub fn take_unallocated(&mut self) -> u64 {
        self.n_live += 1;
        self.unallocated.pop_first().unwrap_or_else(|| {
            self.end += 1;
            self.end - 1
        })
    }

    pub fn free(&mut self, slot: u64) {
        self.n_live = self.n_live.saturating_sub(1);
        self.allocated.insert(slot);
    }

    /// Punches a hole over a free slot, which returns its space to the file system. `Ok(false)` if no free slot has
    /// space.
    pub fn punch(&mut self, files: &dyn Files) -> io::Result<bool> {
        let Some(slot) = self.allocated.last().copied() else {
            return Ok(false);
        };
        let (number, offset) = self.locate(slot);
        let range = offset..offset + self.size.slot_bytes();
        self.file(files, number)?.punch(range)?;
        self.allocated.remove(&slot);
        self.unallocated.insert(slot);
        Ok(true)
    }

    /// Starts a record: overwrites the old header with zeros. The caller then writes the payload, in parts, then the
    /// header. A torn record, or one whose parts reach the disk out of order, fails its checksums.
    pub fn erase(&mut self, files: &dyn Files, slot: u64) -> io::Result<()> {
        let (number, offset) = self.locate(slot);
        let zeros = vec![0; self.size.header];
        self.file(files, number)?.write_at(&zeros, offset)
    }

    /// Writes a part of a payload at offset `at` within the payload.
    pub fn write_part(
        &mut self,
        files: &dyn Files,
        slot: u64,
        (at, part): (usize, &[u8]),
        mode: WriteMode,
    ) -> io::Result<()> {
        let (number, offset) = self.locate(slot);
        let part_at = offset + (self.size.header + at) as u64;
        let file = self.file(files, number)?;
        match mode {
            WriteMode::Cached => file.write_at(part, part_at),
            WriteMode::PastCache => file.write_past_cache(part, part_at),
        }
    }

    /// Writes the header, which completes a record.
    pub fn write_header(&mut self, files: &dyn Files, slot: u64, header: &[u8]) -> io::Result<()> {
        let (number, offset) = self.locate(slot);
        self.file(files, number)?.write_at(header, offset)?;
        self.unsynced.push(slot);
        Ok(())
    }

    pub fn read_header(&mut self, files: &dyn Files, slot: u64) -> io::Result<Vec<u8>> {
        self.reader(files, slot)?.header()
    }

    pub fn reader(&mut self, files: &dyn Files, slot: u64) -> io::Result<SlotReader> {
        let (number, offset) = self.locate(slot);
        let size = self.size;
        let file = self.file(files, number)?.clone();
        Ok(SlotReader { file, offset, size })
    }

    pub fn read_ahead(&mut self, files: &dyn Files, slot: u64) {
        self.advise(files, slot, Advice::WillNeed);
    }

    /// Waits until everything written is on the disk; with `drop_behind`, then drops it from the kernel's page cache.
    pub fn sync(&mut self, files: &dyn Files, drop_behind: bool) -> io::Result<()> {
        let written = std::mem::take(&mut self.unsynced);
        let numbers = written.iter().map(|slot| slot / self.slots_per_file);
        for number in numbers.collect::<BTreeSet<u64>>() {
            self.file(files, number)?.sync()?;
        }
        if drop_behind {
            for slot in written {
                self.advise(files, slot, Advice::DontNeed);
            }
        }
        Ok(())
    }

    fn advise(&mut self, files: &dyn Files, slot: u64, advice: Advice) {
        let (number, offset) = self.locate(slot);
        let range = offset..offset + self.size.slot_bytes();
        if let Ok(file) = self.file(files, number) {
            file.advise(range, advice);
        }
    }

    /// The number of a slot's file, and the slot's offset in the file.
    fn locate(&self, slot: u64) -> (u64, u64) {
        let number = slot / self.slots_per_file;
        (number, slot % self.slots_per_file * self.size.slot_bytes())
    }

    fn prefix(&self) -> String {
        format!("seg-{}-", self.kind.name())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{}{number:04}", self.prefix()))
    }

    fn file(&mut self, files: &dyn Files, number: u64) -> io::Result<&Arc<dyn DataFile>> {
        let entry = match self.open.iter().position(|(open, _)| *open == number) {
            Some(at) => self.open.remove(at),
            None => {
                if self.open.len() >= MAX_OPEN {
                    self.open.remove(0);
                }
                (number, Arc::from(files.open(&self.path(number))?))
            }
        };
        self.open.push(entry);
        let last = self.open.last().map(|(_, file)| file);
        last.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

pub(super) struct SlotReader {
    file: Arc<dyn DataFile>,
    offset: u64,
    size: RecordSize,
}

impl SlotReader {
    pub fn size(&self) -> &RecordSize {
        &self.size
    }

    pub fn header(&self) -> io::Result<Vec<u8>> {
        let mut header = vec![0; self.size.header];
        self.file.read_at(&mut header, self.offset)?;
        Ok(header)
    }

    pub fn payload(&self, payload: &mut [u8]) -> io::Result<()> {
        let payload_at = self.offset + self.size.header as u64;
        self.file.read_at(payload, payload_at)
    }
}
