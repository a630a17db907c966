//! The file system interface of the KV store, which tests can cut off at any write.

#[cfg(test)]
mod memory;
mod system;

use std::any::Any;
use std::io;
use std::ops::Range;
use std::path::Path;

#[cfg(test)]
pub(crate) use memory::MemoryFiles;
pub(crate) use system::SystemFiles;

/// A lock that is held until this is dropped.
pub(crate) type Lock = Box<dyn Any + Send>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// The range is read soon.
    WillNeed,
    /// The range is not read soon.
    DontNeed,
}

/// A file system. Only the owner has access to folders and files.
pub(crate) trait Files: Send {
    /// Makes a folder and its parents, if they are missing.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Opens a file for reads and writes; makes it if it is missing.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DataFile>>;
    /// Reads a whole file, refusing one of more than `max_bytes`.
    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Vec<u8>>;
    /// Replaces a file atomically: an open finds the old or the new one, whole.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// The same, unless there is one: then nothing happens.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Bytes that the files of a folder take on the disk, and the time of the last write, in seconds since 1970.
    fn usage(&self, path: &Path) -> io::Result<(u64, u64)>;
    /// Removes a file, if there is one.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder with its files, if there is one.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Takes a file's lock without waiting; `None` where another process has it.
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>>;
}

pub(crate) trait DataFile: Send + Sync {
    /// Fills `bytes`; an error where the file ends before.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// The same, bypassing the kernel's page cache where that is possible: it takes less processor time.
    fn write_past_cache(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
    fn len(&self) -> io::Result<u64>;
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Waits until its bytes are on the disk.
    fn sync(&self) -> io::Result<()>;
    /// Frees a range's space on the disk; an error where that is not possible.
    fn punch(&self, range: Range<u64>) -> io::Result<()>;
    /// Advises the kernel of a range's use. Failures are ignored.
    fn advise(&self, range: Range<u64>, advice: Advice);
}
