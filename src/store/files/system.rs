//! The KV store's file operations on a real file system.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{Advice, DataFile, Files, Lock};
use crate::record::ALIGN;

#[derive(Debug, Default)]
pub(crate) struct SystemFiles;

impl Files for SystemFiles {
    fn make_folder(&self, path: &Path) -> io::Result<()> {
        let mut folder = fs::DirBuilder::new();
        folder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
        folder.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DataFile>> {
        let mut options = OpenOptions::new();
        let file = private(options.read(true).create(true).truncate(false)).open(path)?;
        Ok(Box::new(SystemFile {
            file,
            past_cache: open_past_cache(path),
        }))
    }

    fn read(&self, path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        let mut bytes = Vec::new();
        file.take(max_bytes + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > max_bytes {
            return Err(ErrorKind::FileTooLarge.into());
        }
        Ok(bytes)
    }

    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let new = write_temporary(path, bytes)?;
        fs::rename(&new, path).inspect_err(|_| drop(fs::remove_file(&new)))
    }

    fn create(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let new = write_temporary(path, bytes)?;
        // Linking is atomic: of two engines that start together, only one creates the file.
        let made = fs::hard_link(&new, path);
        fs::remove_file(&new)?;
        match made {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
            // The file system has no hard links.
            Err(_) if !path.exists() => self.replace(path, bytes),
            made => made,
        }
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(path)?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.collect())
    }

    fn usage(&self, path: &Path) -> io::Result<(u64, u64)> {
        let (mut bytes, mut written) = (0, 0);
        for entry in fs::read_dir(path)? {
            let found = entry?.metadata()?;
            let modified = found.modified().unwrap_or(UNIX_EPOCH);
            let since = modified.duration_since(UNIX_EPOCH).unwrap_or_default();
            bytes += bytes_on_disk(&found);
            written = written.max(since.as_secs());
        }
        Ok((bytes, written))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        absent_is_fine(fs::remove_file(path))
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        absent_is_fine(fs::remove_dir_all(path))
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Lock>> {
        let mut options = OpenOptions::new();
        let file = private(options.read(true).create(true).truncate(false)).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
}

/// Opens for writing; a new file is accessible to its owner only.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options.write(true)
}

/// Writes a temporary file in the folder of `path`, for a rename or a link later.
fn write_temporary(path: &Path, bytes: &[u8]) -> io::Result<PathBuf> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(name);
    absent_is_fine(fs::remove_file(&new))?;
    let write = || {
        let mut options = OpenOptions::new();
        let mut file = private(options.create_new(true)).open(&new)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().inspect_err(|_| drop(fs::remove_file(&new)))?;
    Ok(new)
}

fn absent_is_fine(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(unix)]
fn bytes_on_disk(found: &fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(found) * 512
}

#[cfg(not(unix))]
fn bytes_on_disk(found: &fs::Metadata) -> u64 {
    found.len()
}

/// A second handle, whose writes bypass the kernel's page cache; `None` where that is not supported.
#[cfg(target_os = "linux")]
fn open_past_cache(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(direct).open(path).ok()
}

#[cfg(not(target_os = "linux"))]
fn open_past_cache(_: &Path) -> Option<File> {
    None
}

struct SystemFile {
    file: File,
    past_cache: Option<File>,
}

impl SystemFile {
    /// The handle for direct I/O, if the bytes are aligned to disk blocks, in memory and in the file.
    fn past_cache_for(&self, bytes: &[u8], offset: u64) -> Option<&File> {
        let numbers = [bytes.as_ptr() as u64, bytes.len() as u64, offset];
        let is_aligned = numbers.iter().all(|n| n.is_multiple_of(ALIGN as u64));
        self.past_cache.as_ref().filter(|_| is_aligned)
    }
}

impl DataFile for SystemFile {
    #[cfg(unix)]
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, bytes, offset)
    }

    #[cfg(unix)]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(&self.file, bytes, offset)
    }

    #[cfg(unix)]
    fn write_past_cache(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::os::unix::fs::FileExt;
        match self.past_cache_for(bytes, offset) {
            Some(file) => match file.write_all_at(bytes, offset) {
                // The blocks of this disk are larger than `ALIGN`.
                Err(error) if error.kind() == ErrorKind::InvalidInput => {
                    self.write_at(bytes, offset)
                }
                done => done,
            },
            None => self.write_at(bytes, offset),
        }
    }

    #[cfg(not(unix))]
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        // Only one thread uses the file (`tier::AT_ONCE` is 1 here), so no other thread moves its position.
        (&self.file).seek(SeekFrom::Start(offset))?;
        (&self.file).read_exact(bytes)
    }

    #[cfg(not(unix))]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        use std::io::{Seek, SeekFrom};
        (&self.file).seek(SeekFrom::Start(offset))?;
        (&self.file).write_all(bytes)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.file.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    #[cfg(target_os = "linux")]
    fn punch(&self, range: Range<u64>) -> io::Result<()> {
        use rustix::fs::{FallocateFlags, fallocate};
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, flags, range.start, range.end - range.start)?;
        Ok(())
    }

    #[cfg(not(target_os = "linux"))]
    fn punch(&self, _: Range<u64>) -> io::Result<()> {
        Err(ErrorKind::Unsupported.into())
    }

    fn advise(&self, range: Range<u64>, advice: Advice) {
        #[cfg(target_os = "linux")]
        {
            let advice = match advice {
                Advice::WillNeed => rustix::fs::Advice::WillNeed,
                Advice::DontNeed => rustix::fs::Advice::DontNeed,
            };
            let len = std::num::NonZeroU64::new(range.end - range.start);
            let _ = rustix::fs::fadvise(&self.file, range.start, len, advice);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (range, advice);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_made_once_and_replaced_whole() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("file");
        let files = SystemFiles;
        files.create(&path, b"first").expect("no I/O error");
        files.create(&path, b"second").expect("no I/O error");
        assert_eq!(files.read(&path, 5).ok().as_deref(), Some(&b"first"[..]));
        files.replace(&path, b"third").expect("no I/O error");
        assert_eq!(files.read(&path, 5).ok().as_deref(), Some(&b"third"[..]));
        assert!(files.read(&path, 4).is_err());
        assert_eq!(files.list(folder.path()).expect("no I/O error"), ["file"]);
        let (bytes, written) = files.usage(folder.path()).expect("no I/O error");
        assert!(bytes >= 5 && written > 1_600_000_000);
    }

    #[test]
    fn direct_writes_are_read_back_like_cached_ones() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let file = SystemFiles
            .open(&folder.path().join("file"))
            .expect("no I/O error");
        let bytes: Vec<u8> = (0..4 * ALIGN).map(|i| (i / 7) as u8).collect();
        let start = bytes.as_ptr().align_offset(ALIGN);
        let mut expected = vec![0; 5 * ALIGN];
        // The first write is still in the page cache when the second write bypasses the cache.
        let (aligned, other) = (start..start + 2 * ALIGN, 3..ALIGN);
        for (part, at) in [(other.clone(), 10), (aligned, ALIGN), (other, ALIGN + 1)] {
            file.write_past_cache(&bytes[part.clone()], at as u64)
                .expect("the disk has space");
            expected[at..][..part.len()].copy_from_slice(&bytes[part]);
        }
        let mut found = vec![0; 3 * ALIGN];
        file.read_at(&mut found, 0).expect("no I/O error");
        assert!(found == expected[..3 * ALIGN]);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_has_access() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder can be made");
        let inner = folder.path().join("a/b");
        let files = SystemFiles;
        files.make_folder(&inner).expect("no I/O error");
        files.open(&inner.join("open")).expect("no I/O error");
        files
            .create(&inner.join("create"), b"x")
            .expect("no I/O error");
        let _lock = files.lock(&inner.join("lock")).expect("no I/O error");
        let mode = |path: &Path| {
            let found = fs::metadata(path).expect("no I/O error");
            found.permissions().mode() & 0o777
        };
        assert_eq!(mode(&inner), 0o700);
        for name in ["open", "create", "lock"] {
            assert_eq!(mode(&inner.join(name)), 0o600, "{name}");
        }
    }

    #[test]
    fn a_lock_is_held_once_and_released_on_drop() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("lock");
        let lock = SystemFiles.lock(&path).expect("no I/O error");
        assert!(lock.is_some());
        assert!(SystemFiles.lock(&path).expect("no I/O error").is_none());
        drop(lock);
        assert!(SystemFiles.lock(&path).expect("no I/O error").is_some());
    }
}
