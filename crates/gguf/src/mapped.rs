//! Read-only memory maps of regular files.

// Unsafe code only maps files and releases their pages.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use souffleur_base::error::{LoadError, load_error};

pub struct MappedFile {
    file: PathBuf,
    map: Mmap,
}

impl MappedFile {
    /// # Errors
    /// [`LoadError::Io`]; [`LoadError::Format`] if it is not a regular file.
    pub fn open(file: PathBuf) -> Result<Self, LoadError> {
        let io = |source| LoadError::Io {
            file: file.clone(),
            source,
        };
        let opened = File::open(&file).map_err(io)?;
        if !opened.metadata().map_err(io)?.is_file() {
            return Err(load_error(&file, "is not a regular file"));
        }
        // SAFETY: the map is read-only, slices of it do not outlive this type, and bytes have no invalid values. The
        // user must not truncate the file meanwhile.
        let map = unsafe { Mmap::map(&opened) }.map_err(io)?;
        Ok(Self { file, map })
    }

    pub fn path(&self) -> &Path {
        &self.file
    }

    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Releases pages from memory; they are read again from the file on access.
    pub fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            let (start, len) = (range.start, range.len());
            // SAFETY: the map is a read-only view of a file, so pages that are dropped come back with the same bytes.
            let dropped = unsafe {
                self.map
                    .unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, len)
            };
            if let Err(error) = dropped {
                tracing::debug!(file = %self.file.display(), %error, "failed to release the pages of a loaded tensor");
            }
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}
