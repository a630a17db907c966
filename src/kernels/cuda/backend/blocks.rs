//! Copies blocks of tokens between the KV pool and staging memory on the device.
//!
//! A block consists of the pool's planes in order, contiguous, each with the block's tokens in the pool's layout. The
//! planes' lengths are those of [`KvLayout::block_planes`](souffleur_base::kv_layout::KvLayout::block_planes). In a
//! plane the heads of a token are contiguous, whereas on the CPU the tokens of a head are contiguous.

use std::ops::Range;

use super::CudaBackend;
use crate::cuda::driver::{DevicePtr, DriverError, Stream};
use crate::cuda::launch::{BlockCopy, KvBlockParams, MOST_BLOCK_PAGES, WORD_BYTES};
use souffleur_base::ids::{PageId, RowId};

impl CudaBackend {
    /// # Errors
    /// If blocks are not whole pages or have more pages than a launch takes, or if keys are not whole words.
    pub fn block_bytes(&self, block_tokens: usize) -> Result<usize, String> {
        let (planes, page) = (self.kv.planes(), self.page_size);
        if block_tokens == 0 || !block_tokens.is_multiple_of(page) {
            return Err(format!(
                "the KV store's blocks have {block_tokens} tokens, expected a positive multiple of page_size, {page}"
            ));
        }
        if block_tokens / page > MOST_BLOCK_PAGES {
            return Err(format!(
                "the KV store's blocks of {block_tokens} tokens have more than {MOST_BLOCK_PAGES} pages of {page} \
                 tokens: raise page_size"
            ));
        }
        if !planes.token_bytes.is_multiple_of(WORD_BYTES) {
            return Err(format!(
                "the keys of a token in a layer take {} bytes, but the CUDA kernels need a multiple of {WORD_BYTES}: \
                 remove kv_disk_path",
                planes.token_bytes
            ));
        }
        Ok(planes.n * planes.token_bytes * block_tokens)
    }

    /// # Safety
    /// As for [`launch`](crate::cuda::launch). Writes to the pages by other streams are ordered with this copy, and
    /// `to` is as long as a block.
    ///
    /// # Panics
    /// If there are more pages than [`Self::block_bytes`] allows.
    pub unsafe fn gather_block(
        &self,
        stream: &Stream,
        pages: &[PageId],
        to: DevicePtr<u8>,
    ) -> Result<(), DriverError> {
        let mut ids = [0; MOST_BLOCK_PAGES];
        for (id, page) in ids[..pages.len()].iter_mut().zip(pages) {
            *id = page.get();
        }
        let n_tokens = pages.len() * self.page_size;
        let params = KvBlockParams {
            pages: ids,
            ..self.copy_params(to, (n_tokens, 0..n_tokens), BlockCopy::ToBlock)
        };
        // SAFETY: the number of pages was checked; the caller guarantees the rest.
        unsafe { self.copy_block(stream, &params) }
    }

    /// Copies `positions` of a row from a block to the row's pages, by the page table as it is when the copy runs.
    ///
    /// # Safety
    /// As for [`Self::gather_block`]; `from` is the block of `block_tokens` tokens that holds the positions, and these
    /// are whole pages that the row has.
    pub unsafe fn scatter_block(
        &self,
        stream: &Stream,
        (row, positions): (RowId, Range<usize>),
        (from, block_tokens): (DevicePtr<u8>, usize),
    ) -> Result<(), DriverError> {
        let first = positions.start % block_tokens;
        let tokens = first..first + positions.len();
        let index = row.index() * self.table_stride + positions.start / self.page_size;
        let params = KvBlockParams {
            table: self.page_table.at(index),
            ..self.copy_params(from, (block_tokens, tokens), BlockCopy::ToPool)
        };
        // SAFETY: guaranteed by the caller.
        unsafe { self.copy_block(stream, &params) }
    }

    fn copy_params(
        &self,
        block: DevicePtr<u8>,
        (block_tokens, tokens): (usize, Range<usize>),
        direction: BlockCopy,
    ) -> KvBlockParams {
        let planes = self.kv.planes();
        KvBlockParams {
            pool: planes.start,
            block,
            table: DevicePtr::NULL,
            plane_stride: planes.stride as u64,
            token_bytes: planes.token_bytes as u32,
            page_size: self.page_size as u32,
            block_tokens: block_tokens as u32,
            first_token: tokens.start as u32,
            n_tokens: tokens.len() as u32,
            direction,
            pages: [0; MOST_BLOCK_PAGES],
        }
    }

    /// # Safety
    /// See [`Self::gather_block`].
    unsafe fn copy_block(
        &self,
        stream: &Stream,
        params: &KvBlockParams,
    ) -> Result<(), DriverError> {
        let n_planes = self.kv.planes().n as u32;
        // SAFETY: guaranteed by the caller.
        unsafe { self.launches.kv_blocks.launch(stream, params, n_planes) }
    }
}
