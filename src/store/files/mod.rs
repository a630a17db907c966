//! The file system as the store needs it, so that tests can cut it off at any write.

#[cfg(test)]
mod memory;
mod system;

use std::any::Any;
use std::io;
use std::ops::Range;
use std::path::Path;

#[cfg(test)]
pub(in crate::store) use memory::MemoryFiles;
pub(in crate::store) use system::SystemFiles;

/// A lock that is held until this is dropped.
pub(in crate::store) type Lock = Box<dyn Any + Send>;

/// What the kernel may know of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::store) enum Advice {
    /// They are read soon.
    WillNeed,
    /// They are not read soon.
    DontNeed,
}

/// A file system. Folders are for their owner alone, and so are files.
pub(in crate::store) trait Files: Send {
    /// Makes a folder, and those above it, if it is not there.
    fn make_folder(&self, path: &Path) -> io::Result<()>;
    /// Opens a file to be read and written; makes it if it is not there.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DataFile>>;
    /// Reads a whole file, refusing one of more than `max_bytes`.
    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Vec<u8>>;
    /// Puts a file in the place of another one: whoever opens it finds the old or the new one, whole.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// The same, unless there is one: then nothing happens.
    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    /// Names in a folder.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Bytes that the files of a folder take on the disk, and when the last of them was written, in seconds since 1970.
    fn usage(&self, path: &Path) -> io::Result<(u64, u64)>;
    /// Removes a file, if there is one.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a folder with its files, if there is one.
    fn remove_folder(&self, path: &Path) -> io::Result<()>;
    /// Takes a file's lock without waiting; `None` where another process has it.
    fn lock(&self, path: &Path) -> io::Result<Option<Lock>>;
}

/// An open file.
pub(in crate::store) trait DataFile: Send + Sync {
    /// Fills `bytes`; an error where the file ends before.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes`.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// The same, and leaves nothing of them in the kernel's cache where that is possible: it takes less of the processor.
    fn write_past_cache(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.write_at(bytes, offset)
    }
    /// Its length.
    fn len(&self) -> io::Result<u64>;
    /// Cuts it, or makes it longer.
    fn set_len(&self, bytes: u64) -> io::Result<()>;
    /// Waits until its bytes are on the disk.
    fn sync(&self) -> io::Result<()>;
    /// Gives a range's room on the disk back; an error where that is not possible.
    fn punch(&self, range: Range<u64>) -> io::Result<()>;
    /// Says how a range is used. Nobody hears of failures.
    fn advise(&self, range: Range<u64>, advice: Advice);
}
