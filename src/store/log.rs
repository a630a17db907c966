//! The index log `index.log`: lists each change of a record slot, so that a restart need not read all record headers.
//!
//! The log is not trusted: each read of a record checks the record's header. Entries have a fixed size and a CRC-32
//! each. A log with a bad or truncated entry is not used.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use crate::files::{DataFile, Files};
use crate::record::VERSION;
use souffleur_state::tiers::{BlockKey, BlockKind, BlockPlace, Fingerprint, StoredBlock};

/// Size of an entry and of the header, in bytes.
pub(super) const ENTRY_BYTES: usize = 96;
const MAGIC: &[u8; 8] = b"SFKVLOG1";
const MAX_LOG_BYTES: u64 = 1 << 30;
/// A log is rewritten once it has this many entries more than twice the number of records.
const SLACK_ENTRIES: u64 = 1 << 14;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogEntry {
    /// A record is in a slot.
    Put(StoredBlock),
    /// A record was dropped.
    Drop(BlockKey, BlockKind),
    /// A block was used.
    Touch(BlockKey, u64),
}

pub(super) struct IndexLog {
    path: PathBuf,
    /// `None` after a failed write: the next start reads the headers of all records.
    file: Option<Box<dyn DataFile>>,
    n_entries: u64,
}

impl IndexLog {
    pub fn create(
        files: &dyn Files,
        path: &Path,
        fingerprint: &Fingerprint,
        records: impl Iterator<Item = StoredBlock>,
    ) -> io::Result<Self> {
        let mut bytes = header(fingerprint).to_vec();
        for record in records {
            bytes.extend(encode(&LogEntry::Put(record)));
        }
        files.replace(path, &bytes)?;
        Ok(Self {
            path: path.to_owned(),
            file: Some(files.open(path)?),
            n_entries: (bytes.len() / ENTRY_BYTES) as u64 - 1,
        })
    }

    /// A log that ignores all entries.
    pub fn closed(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            file: None,
            n_entries: 0,
        }
    }

    /// Appends an entry. If that fails, removes the file and closes the log: an incomplete log would be wrong.
    pub fn append(&mut self, files: &dyn Files, entry: &LogEntry) {
        let Some(file) = &self.file else {
            return;
        };
        let offset = (self.n_entries + 1) * ENTRY_BYTES as u64;
        match file.write_at(&encode(entry), offset) {
            Ok(()) => self.n_entries += 1,
            Err(error) => {
                tracing::debug!(
                    path = %self.path.display(),
                    %error,
                    "failed to write the KV store's index log: removing it, so that the next start reads all record \
                     headers and takes longer"
                );
                self.file = None;
                let _ = files.remove_file(&self.path);
            }
        }
    }

    /// True if most entries of the log are stale.
    pub fn needs_rewrite(&self, n_records: usize) -> bool {
        self.is_open() && self.n_entries > 2 * n_records as u64 + SLACK_ENTRIES
    }

    /// False after a failed write.
    pub fn is_open(&self) -> bool {
        self.file.is_some()
    }

    pub fn bytes(&self) -> u64 {
        match &self.file {
            Some(_) => (self.n_entries + 1) * ENTRY_BYTES as u64,
            None => 0,
        }
    }

    pub fn sync(&self) -> io::Result<()> {
        self.file.as_ref().map_or(Ok(()), |file| file.sync())
    }
}

/// The records of a log. `None` if there is no log, or an invalid one.
pub(super) fn read(
    files: &dyn Files,
    path: &Path,
    fingerprint: &Fingerprint,
) -> Option<Vec<StoredBlock>> {
    let bytes = files.read(path, MAX_LOG_BYTES).ok()?;
    let mut entries = bytes.chunks_exact(ENTRY_BYTES);
    if !entries.remainder().is_empty() || entries.next()? != header(fingerprint) {
        return None;
    }
    let mut replay = Replay::default();
    for entry in entries {
        replay.apply(decode(entry)?);
    }
    Some(replay.records.into_values().collect())
}

#[derive(Default)]
struct Replay {
    records: HashMap<(BlockKey, BlockKind), StoredBlock>,
    /// The record in each slot: a later record replaces an earlier one, even if the log does not drop the earlier one.
    keys_by_slot: HashMap<(BlockKind, u64), BlockKey>,
}

impl Replay {
    fn apply(&mut self, entry: LogEntry) {
        match entry {
            LogEntry::Put(record) => {
                let StoredBlock { place, kind, .. } = record;
                let previous = self.keys_by_slot.insert((kind, record.location), place.key);
                if let Some(previous) = previous {
                    self.records.remove(&(previous, kind));
                }
                if let Some(old) = self.records.insert((place.key, kind), record)
                    && old.location != record.location
                {
                    self.keys_by_slot.remove(&(kind, old.location));
                }
            }
            LogEntry::Drop(key, kind) => {
                if let Some(old) = self.records.remove(&(key, kind)) {
                    self.keys_by_slot.remove(&(kind, old.location));
                }
            }
            LogEntry::Touch(key, used) => {
                for kind in BlockKind::ALL {
                    if let Some(record) = self.records.get_mut(&(key, kind)) {
                        record.used = used;
                    }
                }
            }
        }
    }
}

fn header(fingerprint: &Fingerprint) -> [u8; ENTRY_BYTES] {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..48].copy_from_slice(&fingerprint.0);
    with_crc(bytes)
}

fn with_crc(mut bytes: [u8; ENTRY_BYTES]) -> [u8; ENTRY_BYTES] {
    let crc = crc32fast::hash(&bytes[..ENTRY_BYTES - 4]);
    bytes[ENTRY_BYTES - 4..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn encode(entry: &LogEntry) -> [u8; ENTRY_BYTES] {
    let zero = BlockKey([0; 32]);
    let (op, kind, key, parent, block, location, used) = match entry {
        LogEntry::Put(r) => {
            let BlockPlace { key, parent, block } = r.place;
            (1, r.kind, key, parent, block, r.location, r.used)
        }
        LogEntry::Drop(key, kind) => (2, *kind, *key, zero, 0, 0, 0),
        LogEntry::Touch(key, used) => (3, BlockKind::Kv, *key, zero, 0, 0, *used),
    };
    let mut bytes = [0; ENTRY_BYTES];
    bytes[0] = op;
    bytes[1] = kind.index() as u8;
    bytes[4..8].copy_from_slice(&block.to_le_bytes());
    bytes[8..16].copy_from_slice(&location.to_le_bytes());
    bytes[16..24].copy_from_slice(&used.to_le_bytes());
    bytes[24..56].copy_from_slice(&key.0);
    bytes[56..88].copy_from_slice(&parent.0);
    with_crc(bytes)
}

fn decode(bytes: &[u8]) -> Option<LogEntry> {
    let bytes: &[u8; ENTRY_BYTES] = bytes.try_into().ok()?;
    if with_crc(*bytes) != *bytes {
        return None;
    }
    let number = |at: usize| Some(u64::from_le_bytes(bytes[at..at + 8].try_into().ok()?));
    let kind = BlockKind::ALL.get(usize::from(bytes[1])).copied()?;
    let key = BlockKey(bytes[24..56].try_into().ok()?);
    match bytes[0] {
        1 => Some(LogEntry::Put(StoredBlock {
            place: BlockPlace {
                key,
                parent: BlockKey(bytes[56..88].try_into().ok()?),
                block: u32::from_le_bytes(bytes[4..8].try_into().ok()?),
            },
            kind,
            location: number(8)?,
            used: number(16)?,
        })),
        2 => Some(LogEntry::Drop(key, kind)),
        3 => Some(LogEntry::Touch(key, number(16)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::MemoryFiles;

    const FINGERPRINT: Fingerprint = Fingerprint([5; 32]);

    fn record(key: u8, location: u64) -> StoredBlock {
        StoredBlock {
            place: BlockPlace {
                key: BlockKey([key; 32]),
                parent: BlockKey([key + 1; 32]),
                block: u32::from(key),
            },
            kind: BlockKind::Kv,
            location,
            used: u64::from(key),
        }
    }

    fn written(entries: &[LogEntry]) -> (MemoryFiles, PathBuf) {
        let files = MemoryFiles::new();
        let path = PathBuf::from("index.log");
        let none = std::iter::empty();
        let mut log =
            IndexLog::create(&files, &path, &FINGERPRINT, none).expect("the disk has space");
        for entry in entries {
            log.append(&files, entry);
        }
        assert_eq!(log.bytes() as usize, (entries.len() + 1) * ENTRY_BYTES);
        (files, path)
    }

    fn read_back(files: &MemoryFiles, path: &Path) -> Option<Vec<StoredBlock>> {
        let mut records = read(files, path, &FINGERPRINT)?;
        records.sort_by_key(|record| record.place.block);
        Some(records)
    }

    #[test]
    fn a_log_is_read_back_with_all_changes_applied() {
        let touched = StoredBlock {
            used: 77,
            ..record(3, 2)
        };
        let (files, path) = written(&[
            LogEntry::Put(record(1, 0)),
            LogEntry::Put(record(2, 1)),
            LogEntry::Put(record(3, 2)),
            LogEntry::Drop(BlockKey([1; 32]), BlockKind::Kv),
            LogEntry::Touch(BlockKey([3; 32]), 77),
            // This slot belonged to record 2, whose drop is not in the log.
            LogEntry::Put(record(4, 1)),
        ]);
        assert_eq!(read_back(&files, &path), Some(vec![touched, record(4, 1)]));
        assert_eq!(read(&files, &path, &Fingerprint([6; 32])), None);
    }

    #[test]
    fn a_damaged_or_truncated_log_is_not_used() {
        let entries = [LogEntry::Put(record(1, 0)), LogEntry::Put(record(2, 1))];
        let (files, path) = written(&entries);
        let whole = files.read(&path, 1 << 20).expect("the log exists");
        for at in 0..whole.len() {
            files.change(&path, |bytes| bytes[at] ^= 0x10);
            assert_eq!(read(&files, &path, &FINGERPRINT), None, "byte {at}");
            files.change(&path, |bytes| bytes[at] ^= 0x10);
        }
        for len in (0..whole.len()).filter(|len| len % ENTRY_BYTES != 0) {
            files.change(&path, |bytes| *bytes = whole[..len].to_vec());
            assert_eq!(read(&files, &path, &FINGERPRINT), None, "{len} bytes");
        }
    }

    #[test]
    fn a_log_that_cannot_be_written_is_removed() {
        let (files, path) = written(&[LogEntry::Put(record(1, 0))]);
        let records = [record(1, 0)].into_iter();
        let mut log =
            IndexLog::create(&files, &path, &FINGERPRINT, records).expect("the disk has space");
        files.set_capacity(Some(0));
        log.append(&files, &LogEntry::Put(record(2, 1)));
        assert!(!log.is_open() && !log.needs_rewrite(1));
        assert_eq!(read(&files, &path, &FINGERPRINT), None);
    }
}
