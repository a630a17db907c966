//! The file system interface of the KV store; tests replace it to simulate crashes.

mod chaos;
#[cfg(test)]
mod memory;
mod system;

use std::any::Any;
use std::io;
use std::ops::Range;
use std::path::Path;

pub(crate) use chaos::ChaosFiles;
#[cfg(test)]
pub(crate) use memory::MemoryFiles;
pub(crate) use system::SystemFiles;

/// A lock that is held until the value is dropped.
pub(crate) type Lock = Box<dyn Any + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    WillNeed,
    DontNeed,
}

/// A file system. Folders and files are accessible to their owner only.
pub(crate) trait Files: Send {
    /// Makes a folder and its parents, if they are missing.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Opens a file for reads and writes; makes it if it is missing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DataFile>>;
    /// Reads a whole file; an error if it has more than `max_bytes`.
    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Vec<u8>>;
    /// Replaces a file atomically: a reader finds either the old or the new content, never a part.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Creates a file atomically; does nothing if the file exists.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Bytes that the files of a folder take on the disk, and the time of the last write, in seconds since 1970.
    fn usage(&self, path: &Path) -> io::Result<(u64, u64)>;
    /// Removes a file, if there is one.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder with its files, if there is one.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Takes a file's lock without waiting; `None` if another process holds it.
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>>;
}

pub(crate) trait DataFile: Send + Sync {
    /// Fills `bytes`; an error if the file is too short.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Writes as [`Self::write_at`], but bypasses the kernel's page cache where possible, which takes less CPU time.
    fn write_past_cache(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
    fn len(&self) -> io::Result<u64>;
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Waits until the file's bytes are on the disk.
    fn sync(&self) -> io::Result<()>;
    /// Frees the disk space of a range (punches a hole); an error where that is not supported.
    fn punch(&self, range: Range<u64>) -> io::Result<()>;
    /// Advises the kernel of the use of a range. Failures are ignored.
    fn advise(&self, range: Range<u64>, advice: Advice);
}
