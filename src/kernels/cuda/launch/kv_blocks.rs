//! Launch of kv_blocks.cu: copies blocks of the KV store between the pool and staging memory.

use super::super::driver::{DevicePtr, DriverError, Grid, Kernel, KernelArg, Stream};
use super::super::pack::Modules;

const THREADS: u32 = 128;
/// The bytes of a token in a plane are a multiple of this.
pub const WORD_BYTES: usize = 4;
pub const MOST_BLOCK_PAGES: usize = 64;

/// `BlockCopy` of kv_blocks.cu.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockCopy {
    ToBlock = 0,
    ToPool = 1,
}

/// `KvBlockParams` of kv_blocks.cu: copies tokens `first_token..first_token + n_tokens` of a block, whole pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvBlockParams {
    /// Slot 0 of the first plane.
    pub pool: DevicePtr<u8>,
    pub block: DevicePtr<u8>,
    /// Ids of the pages to copy; null to use `pages`.
    pub table: DevicePtr<u32>,
    /// Bytes from a plane of the pool to the next.
    pub plane_stride: u64,
    /// Bytes of a token in a plane; a multiple of [`WORD_BYTES`].
    pub token_bytes: u32,
    pub page_size: u32,
    pub block_tokens: u32,
    pub first_token: u32,
    pub n_tokens: u32,
    pub direction: BlockCopy,
    /// Ids of the pages to copy if `table` is null.
    pub pages: [u32; MOST_BLOCK_PAGES],
}

// SAFETY: the same fields in the same order on both sides; the sizes are compared on both.
unsafe impl KernelArg for KvBlockParams {}

const _: () = assert!(size_of::<KvBlockParams>() == 312);

#[derive(Clone, Debug)]
pub struct KvBlocks(Kernel);

impl KvBlocks {
    pub fn load(modules: &Modules) -> Result<Self, DriverError> {
        modules.kernel("kv_blocks.cu", "copy_block").map(Self)
    }

    /// # Safety
    /// See the module.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        params: &KvBlockParams,
        n_planes: u32,
    ) -> Result<(), DriverError> {
        let grid = Grid::new([params.n_tokens, n_planes, 1], THREADS);
        // SAFETY: guaranteed by the caller; arguments as in kv_blocks.cu.
        unsafe { self.0.launch(stream, grid, &(*params,)) }
    }
}
