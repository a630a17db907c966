//! An in-memory file system for tests: it can crash at any write, be full, and lose unsynced writes.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use super::{Advice, DataFile, Files, Lock};

#[derive(Default)]
struct Disk {
    files: BTreeMap<PathBuf, Vec<u8>>,
    folders: BTreeSet<PathBuf>,
    locks: BTreeSet<PathBuf>,
    advised: Vec<(Range<u64>, Advice)>,
    n_changes: usize,
    /// The number of the change during which the machine crashes: half of the change's bytes are written.
    crashes_at: Option<usize>,
    /// The size of the disk in bytes; `None` if unlimited.
    capacity: Option<u64>,
    can_punch: bool,
    is_unreadable: bool,
    /// Writes since [`MemoryFiles::begin_journal`], and the files before these writes.
    journal: Option<Journal>,
}

struct Journal {
    before: BTreeMap<PathBuf, Vec<u8>>,
    /// Path, offset and bytes of each write.
    writes: Vec<(PathBuf, usize, Vec<u8>)>,
}

#[derive(Clone)]
pub(crate) struct MemoryFiles(Arc<Mutex<Disk>>);

impl MemoryFiles {
    pub fn new() -> Self {
        let disk = Disk {
            can_punch: true,
            ..Disk::default()
        };
        Self(Arc::new(Mutex::new(disk)))
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no test panics while it has the lock")
    }

    /// The machine after a crash and a restart: all writes are kept, all locks are released.
    pub fn restarted(&self) -> Self {
        let disk = self.disk();
        let after = Disk {
            files: disk.files.clone(),
            folders: disk.folders.clone(),
            can_punch: disk.can_punch,
            ..Disk::default()
        };
        Self(Arc::new(Mutex::new(after)))
    }

    /// Records writes from now on, for [`Self::restarted_losing`].
    pub fn begin_journal(&self) {
        let mut disk = self.disk();
        disk.journal = Some(Journal {
            before: disk.files.clone(),
            writes: Vec::new(),
        });
    }

    /// The machine after a power cut, with only those journalled writes for which `reached_disk` returns true.
    pub fn restarted_losing(&self, mut reached_disk: impl FnMut() -> bool) -> Self {
        let after = self.restarted();
        let disk = self.disk();
        let journal = disk.journal.as_ref().expect("a journal was begun");
        let mut files = journal.before.clone();
        for (path, offset, bytes) in &journal.writes {
            let file = files.entry(path.clone()).or_default();
            let end = offset + bytes.len();
            if file.len() < end {
                file.resize(end, 0);
            }
            if reached_disk() {
                file[*offset..end].copy_from_slice(bytes);
            }
        }
        after.disk().files = files;
        after
    }

    pub fn crash_at(&self, change: usize) {
        self.disk().crashes_at = Some(change);
    }

    pub fn changes(&self) -> usize {
        self.disk().n_changes
    }

    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.disk().capacity = bytes;
    }

    pub fn forbid_punching(&self) {
        self.disk().can_punch = false;
    }

    pub fn make_unreadable(&self) {
        self.disk().is_unreadable = true;
    }

    pub fn advised(&self) -> Vec<(Range<u64>, Advice)> {
        self.disk().advised.clone()
    }

    pub fn bytes(&self) -> u64 {
        let disk = self.disk();
        disk.files.values().map(|bytes| bytes.len() as u64).sum()
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.disk().files.keys().cloned().collect()
    }

    /// The first path whose file name starts with `name`.
    pub fn path(&self, name: &str) -> PathBuf {
        let paths = self.paths();
        let is_it = |path: &&PathBuf| {
            let found = path.file_name().and_then(|found| found.to_str());
            found.is_some_and(|found| found.starts_with(name))
        };
        let found = paths.iter().find(is_it).cloned();
        found.unwrap_or_else(|| panic!("{name} is not among {paths:?}"))
    }

    pub fn change(&self, path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.disk().files.entry(path.to_owned()).or_default());
    }
}

impl Disk {
    /// Counts a change of `bytes` bytes, and returns how many of the bytes are changed.
    fn begin(&mut self, bytes: usize) -> io::Result<usize> {
        let crashes_at = self.crashes_at.unwrap_or(usize::MAX);
        self.n_changes += 1;
        match self.n_changes.cmp(&crashes_at) {
            std::cmp::Ordering::Less => Ok(bytes),
            std::cmp::Ordering::Equal => Ok(bytes / 2),
            std::cmp::Ordering::Greater => Err(ErrorKind::BrokenPipe.into()),
        }
    }

    fn has_crashed(&self) -> bool {
        self.crashes_at.is_some_and(|at| self.n_changes >= at)
    }

    fn write(&mut self, path: &Path, bytes: &[u8], offset: usize) -> io::Result<()> {
        let part = self.begin(bytes.len())?;
        let all: usize = self.files.values().map(Vec::len).sum();
        let file = self.files.entry(path.to_owned()).or_default();
        let grows = (offset + bytes.len()).saturating_sub(file.len());
        if self
            .capacity
            .is_some_and(|capacity| (all + grows) as u64 > capacity)
        {
            return Err(ErrorKind::StorageFull.into());
        }
        if file.len() < offset + part {
            file.resize(offset + part, 0);
        }
        file[offset..offset + part].copy_from_slice(&bytes[..part]);
        if let Some(journal) = &mut self.journal {
            journal
                .writes
                .push((path.to_owned(), offset, bytes.to_vec()));
        }
        if self.has_crashed() {
            Err(ErrorKind::BrokenPipe.into())
        } else {
            Ok(())
        }
    }
}

impl Files for MemoryFiles {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        self.disk().folders.insert(path.to_owned());
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DataFile>> {
        let mut disk = self.disk();
        if disk.has_crashed() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        disk.files.entry(path.to_owned()).or_default();
        Ok(Box::new(MemoryFile {
            disk: self.clone(),
            path: path.to_owned(),
        }))
    }

    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
        let disk = self.disk();
        let bytes = disk.files.get(path).ok_or(ErrorKind::NotFound)?;
        if bytes.len() as u64 > max_bytes {
            Err(ErrorKind::FileTooLarge.into())
        } else {
            Ok(bytes.clone())
        }
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut disk = self.disk();
        // All or nothing: a crash happens before the rename.
        disk.begin(0)?;
        if disk.has_crashed() {
            return Err(ErrorKind::BrokenPipe.into());
        }
        if disk
            .capacity
            .is_some_and(|capacity| bytes.len() as u64 > capacity)
        {
            return Err(ErrorKind::StorageFull.into());
        }
        disk.files.insert(path.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        if self.disk().files.contains_key(path) {
            return Ok(());
        }
        self.replace(path, bytes)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let disk = self.disk();
        let all = disk.files.keys().chain(&disk.folders);
        let entries = all.filter(|found| found.parent() == Some(path));
        let names = entries.filter_map(|found| found.file_name()?.to_str());
        Ok(names.map(str::to_owned).collect())
    }

    fn usage(&self, path: &Path) -> io::Result<(u64, u64)> {
        let disk = self.disk();
        let entries = disk.files.iter().filter(|(p, _)| p.parent() == Some(path));
        let bytes: usize = entries.map(|(_, bytes)| bytes.len()).sum();
        // In tests, the length of a folder's file `time` is the time of the folder's last write.
        let written = disk.files.get(&path.join("time")).map_or(0, Vec::len);
        Ok((bytes as u64, written as u64))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.begin(0)?;
        if !disk.has_crashed() {
            disk.files.remove(path);
        }
        Ok(())
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        let mut disk = self.disk();
        disk.begin(0)?;
        disk.files.retain(|found, _| !found.starts_with(path));
        disk.folders.retain(|found| !found.starts_with(path));
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        if !self.disk().locks.insert(path.to_owned()) {
            return Ok(None);
        }
        Ok(Some(Box::new(MemoryLock {
            disk: self.clone(),
            path: path.to_owned(),
        })))
    }
}

struct MemoryLock {
    disk: MemoryFiles,
    path: PathBuf,
}

impl Drop for MemoryLock {
    fn drop(&mut self) {
        self.disk.disk().locks.remove(&self.path);
    }
}

struct MemoryFile {
    disk: MemoryFiles,
    path: PathBuf,
}

impl DataFile for MemoryFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let disk = self.disk.disk();
        if disk.is_unreadable {
            return Err(io::Error::other("the disk does not read"));
        }
        let file = disk.files.get(&self.path).ok_or(ErrorKind::NotFound)?;
        let from = offset as usize;
        let found = file.get(from..from + bytes.len());
        bytes.copy_from_slice(found.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.write(&self.path, bytes, offset as usize)
    }

    fn len(&self) -> io::Result<u64> {
        let disk = self.disk.disk();
        Ok(disk.files.get(&self.path).map_or(0, Vec::len) as u64)
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        let mut disk = self.disk.disk();
        disk.begin(0)?;
        if !disk.has_crashed() {
            let file = disk.files.entry(self.path.clone()).or_default();
            file.resize(bytes as usize, 0);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        Ok(())
    }

    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        let mut disk = self.disk.disk();
        if !disk.can_punch {
            return Err(ErrorKind::Unsupported.into());
        }
        disk.begin(0)?;
        if let Some(file) = disk.files.get_mut(&self.path) {
            let end = file.len().min(range.end as usize);
            file[(range.start as usize).min(end)..end].fill(0);
        }
        Ok(())
    }

    fn advise(&self, range: Range<u64>, advice: Advice) {
        self.disk.disk().advised.push((range, advice));
    }
}
