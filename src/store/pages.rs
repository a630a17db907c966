//! Page-aligned memory for buffers, so that a device can pin each buffer separately.

use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// The unit in which memory is counted and pinned; on systems with larger pages, a buffer still has whole pages.
const PAGE_BYTES: usize = 4096;

pub(super) const fn in_whole_pages(bytes: usize) -> usize {
    bytes.div_ceil(PAGE_BYTES).saturating_mul(PAGE_BYTES)
}

/// Memory that starts at a page boundary and shares no page with other memory. Empty by default.
#[derive(Default)]
pub(super) struct PageBuffer {
    pages: Option<MmapMut>,
    len: usize,
}

impl PageBuffer {
    /// Maps `len` zeroed bytes; the system provides their memory at the first touch.
    ///
    /// # Errors
    /// The operating system's error if it is out of memory.
    pub(super) fn zeroed(len: usize) -> io::Result<Self> {
        let pages = MmapMut::map_anon(in_whole_pages(len))?;
        Ok(Self {
            pages: Some(pages),
            len,
        })
    }

    /// Leaks the memory, because an abandoned transfer may still use it.
    pub(super) fn leak(self) {
        std::mem::forget(self.pages);
    }

    /// All pages of the buffer; the bytes beyond its length are padding.
    pub(super) fn pages_mut(&mut self) -> &mut [u8] {
        self.pages.as_deref_mut().unwrap_or_default()
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.pages.as_deref().unwrap_or_default()[..self.len]
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        let len = self.len;
        &mut self.pages_mut()[..len]
    }
}
