//! kv_blocks.cu: copies blocks of the KV store between the pool and staging memory.

use super::super::driver::{DevicePtr, DriverError, Grid, Kernel, KernelArg, Stream};
use super::super::pack::Modules;

const THREADS: u32 = 128;
/// Bytes that a token's part of a plane is a multiple of.
pub const WORD_BYTES: usize = 4;
/// Pages of a block.
pub const MOST_BLOCK_PAGES: usize = 64;

/// The direction of a copy: `BlockCopy` of kv_blocks.cu.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockCopy {
    /// From the pool to a block.
    ToBlock = 0,
    /// From a block to the pool.
    ToPool = 1,
}

/// `KvBlockParams` of kv_blocks.cu: copies tokens `first_token..first_token + n_tokens` of a block, whole pages.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct KvBlockParams {
    /// Slot 0 of the first plane.
    pub pool: DevicePtr<u8>,
    /// The block's planes, contiguous.
    pub block: DevicePtr<u8>,
    /// Ids of the pages of the tokens that are copied; null for `pages`.
    pub table: DevicePtr<u32>,
    /// From a plane of the pool to the next one, in bytes.
    pub plane_stride: u64,
    /// Bytes of a token in a plane; a multiple of [`WORD_BYTES`].
    pub token_bytes: u32,
    /// Tokens in a page.
    pub page_size: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// The first copied token of the block.
    pub first_token: u32,
    /// How many are copied.
    pub n_tokens: u32,
    /// Which way.
    pub direction: BlockCopy,
    /// See `table`.
    pub pages: [u32; MOST_BLOCK_PAGES],
}

// SAFETY: the same fields in the same order on both sides; the sizes are compared on both.
unsafe impl KernelArg for KvBlockParams {}

const _: () = assert!(size_of::<KvBlockParams>() == 312);

/// Copies of blocks.
#[derive(Clone, Debug)]
pub struct KvBlocks(Kernel);

impl KvBlocks {
    /// Finds the kernel.
    ///
    /// # Errors
    /// It is missing.
    pub fn load(modules: &Modules) -> Result<Self, DriverError> {
        modules.kernel("kv_blocks.cu", "copy_block").map(Self)
    }

    /// Copies tokens of a block in `n_planes` planes.
    ///
    /// # Safety
    /// See the module.
    ///
    /// # Errors
    /// The driver's error.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        params: &KvBlockParams,
        n_planes: u32,
    ) -> Result<(), DriverError> {
        let grid = Grid::new([params.n_tokens, n_planes, 1], THREADS);
        // SAFETY: by the caller; arguments as in kv_blocks.cu.
        unsafe { self.0.launch(stream, grid, &(*params,)) }
    }
}
