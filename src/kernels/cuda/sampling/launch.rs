//! Launches of `sampling.cu`, `logprobs.cu` and `batch.cu`.

use super::{
    BeginDecodeParams, BeginPrefillParams, BeginRowsParams, CountParams, EditTableParams,
    LogprobParams, MAX_TOP, RecordParams, SampleParams,
};
use crate::cuda::driver::{DriverError, Grid, Kernel, KernelArg, Stream};
use crate::cuda::pack::Modules;

/// Weights per partial sum.
const SUM_BLOCK: usize = 64;
/// Number of weight classes times the bytes of each.
const CLASS_BYTES: usize = 512 * 24;
const PEAK_BYTES: usize = 16;
const LOGPROB_CHUNK: usize = 4096;
const MASS_BYTES: usize = 16;
const CHUNKS: [usize; 5] = [1024, 2048, 4096, 8192, 16384];
/// Maximum thread blocks per multiprocessor: more blocks, with smaller chunks, are no faster.
const BLOCKS_PER_MULTIPROCESSOR: usize = 8;
const LIST_THREADS: u32 = 128;
const COUNTED_TOKENS: usize = 4096;

pub struct SamplingKernels {
    begin_rows: Kernel,
    clear_counts: Kernel,
    count_tokens: Kernel,
    record_tokens: Kernel,
    edit_table: Kernel,
    begin_decode: Kernel,
    begin_prefill: Kernel,
    sample_peaks: Kernel,
    sample_weights: Kernel,
    sample_choose: Kernel,
    logprob_chunks: Kernel,
    logprob_finish: Kernel,
}

/// Partition of rows of logits, and the workspace in bytes. Results do not depend on the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SamplingShape {
    /// Tokens per thread block.
    pub chunk: u32,
    /// Thread blocks per row.
    pub n_chunks: u32,
    /// For [`SampleParams::peaks`].
    pub peaks_bytes: usize,
    /// For [`SampleParams::block_sums`].
    pub block_sums_bytes: usize,
    /// For [`SampleParams::classes`].
    pub classes_bytes: usize,
    /// Chunks of a row in [`LogprobParams`].
    pub n_logprob_chunks: u32,
    /// For [`LogprobParams::masses`].
    pub masses_bytes: usize,
    /// For [`LogprobParams::highest`], per ranked token.
    pub highest_bytes_per_top: usize,
}

impl SamplingShape {
    pub fn new(n_works: usize, vocab: usize, multiprocessors: u32) -> Self {
        let max_blocks = BLOCKS_PER_MULTIPROCESSOR * multiprocessors as usize;
        let fits = |chunk: &usize| n_works * vocab.div_ceil(*chunk) <= max_blocks;
        let chunk = CHUNKS.into_iter().find(fits);
        let chunk = chunk.unwrap_or(CHUNKS[CHUNKS.len() - 1]);
        let n_chunks = vocab.div_ceil(chunk);
        let n_logprob_chunks = vocab.div_ceil(LOGPROB_CHUNK);
        Self {
            chunk: chunk as u32,
            n_chunks: n_chunks as u32,
            peaks_bytes: n_works * n_chunks * PEAK_BYTES,
            block_sums_bytes: n_works * vocab.div_ceil(SUM_BLOCK) * size_of::<f64>(),
            classes_bytes: n_works * CLASS_BYTES,
            n_logprob_chunks: n_logprob_chunks as u32,
            masses_bytes: n_works * n_logprob_chunks * MASS_BYTES,
            highest_bytes_per_top: n_works * n_logprob_chunks * size_of::<u64>(),
        }
    }

    /// Bytes for sampling or log probabilities, whichever needs more.
    pub fn workspace_bytes(&self) -> usize {
        let sampling = self.peaks_bytes + self.block_sums_bytes + self.classes_bytes;
        let ranking = self.masses_bytes + self.highest_bytes_per_top * MAX_TOP as usize;
        sampling.max(ranking)
    }
}

impl SamplingKernels {
    pub fn load(modules: &Modules) -> Result<Self, DriverError> {
        let find = |unit, name| modules.kernel(unit, name);
        let batch = |name| find("batch.cu", name);
        let (begin_rows, clear_counts) = (batch("begin_rows")?, batch("clear_counts")?);
        let (count_tokens, record_tokens) = (batch("count_tokens")?, batch("record_tokens")?);
        let (begin_decode, begin_prefill) = (batch("begin_decode")?, batch("begin_prefill")?);
        let edit_table = batch("edit_table")?;
        Ok(Self {
            begin_rows,
            clear_counts,
            count_tokens,
            record_tokens,
            edit_table,
            begin_decode,
            begin_prefill,
            sample_peaks: find("sampling.cu", "sample_peaks")?,
            sample_weights: find("sampling.cu", "sample_weights")?,
            sample_choose: find("sampling.cu", "sample_choose")?,
            logprob_chunks: find("logprobs.cu", "logprob_chunks")?,
            logprob_finish: find("logprobs.cu", "logprob_finish")?,
        })
    }

    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn begin_rows(
        &self,
        stream: &Stream,
        params: &BeginRowsParams,
    ) -> Result<(), DriverError> {
        // SAFETY: guaranteed by the caller.
        unsafe { for_each(&self.begin_rows, stream, params.n_begins, *params) }
    }

    /// Clears the counts of starting rows, and counts their tokens; `max_tokens` is the length of the longest row.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn count_tokens(
        &self,
        stream: &Stream,
        params: &CountParams,
        max_tokens: usize,
    ) -> Result<(), DriverError> {
        let parts = |n: usize| (n.div_ceil(COUNTED_TOKENS) as u32).max(1);
        let grid = |n| Grid::new([parts(n), params.n_runs, 1], 256);
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.clear_counts
                .launch(stream, grid(params.vocab as usize), &(*params,))?;
            self.count_tokens
                .launch(stream, grid(max_tokens), &(*params,))
        }
    }

    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn record_tokens(
        &self,
        stream: &Stream,
        params: &RecordParams,
    ) -> Result<(), DriverError> {
        // SAFETY: guaranteed by the caller.
        unsafe { for_each(&self.record_tokens, stream, params.n_tokens, *params) }
    }

    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn edit_table(
        &self,
        stream: &Stream,
        params: &EditTableParams,
    ) -> Result<(), DriverError> {
        let grid = Grid::new([params.n_runs, 1, 1], LIST_THREADS);
        // SAFETY: guaranteed by the caller.
        unsafe { self.edit_table.launch(stream, grid, &(*params,)) }
    }

    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn begin_decode(
        &self,
        stream: &Stream,
        params: &BeginDecodeParams,
    ) -> Result<(), DriverError> {
        // SAFETY: guaranteed by the caller.
        unsafe { for_each(&self.begin_decode, stream, params.n_rows, *params) }
    }

    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn begin_prefill(
        &self,
        stream: &Stream,
        params: &BeginPrefillParams,
    ) -> Result<(), DriverError> {
        // SAFETY: guaranteed by the caller.
        unsafe { for_each(&self.begin_prefill, stream, params.n_tokens, *params) }
    }

    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn sample(&self, stream: &Stream, params: &SampleParams) -> Result<(), DriverError> {
        let chunks = Grid::new([params.n_chunks, params.n_works, 1], 256);
        let rows = Grid::new([params.n_works, 1, 1], 512);
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.sample_peaks.launch(stream, chunks, &(*params,))?;
            self.sample_weights.launch(stream, chunks, &(*params,))?;
            self.sample_choose.launch(stream, rows, &(*params,))
        }
    }

    /// After [`Self::sample`] if the tokens were sampled.
    ///
    /// # Safety
    /// As [`Kernel::launch`].
    pub unsafe fn logprobs(
        &self,
        stream: &Stream,
        params: &LogprobParams,
    ) -> Result<(), DriverError> {
        let chunks = Grid::new([params.n_chunks, params.n_works, 1], 256);
        let rows = Grid::new([params.n_works, 1, 1], 512);
        // SAFETY: guaranteed by the caller.
        unsafe {
            self.logprob_chunks.launch(stream, chunks, &(*params,))?;
            self.logprob_finish.launch(stream, rows, &(*params,))
        }
    }
}

/// Launches a kernel with one thread per item, unless there are no items.
///
/// # Safety
/// As [`Kernel::launch`].
unsafe fn for_each<P: KernelArg>(
    kernel: &Kernel,
    stream: &Stream,
    n_items: u32,
    params: P,
) -> Result<(), DriverError> {
    if n_items == 0 {
        return Ok(());
    }
    let grid = Grid::new([n_items.div_ceil(LIST_THREADS), 1, 1], LIST_THREADS);
    // SAFETY: guaranteed by the caller.
    unsafe { kernel.launch(stream, grid, &(params,)) }
}
