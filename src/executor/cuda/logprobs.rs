//! Computes log probabilities: with kernels, or on the host if a request ranks more tokens than kernels can.

use super::CudaExecutor;
use super::layout::Lists;
use super::row_outputs::{LOGPROB_WORDS, Logprobs, SAMPLED_WORDS};
use super::stage::Upload;
use super::step::LogitRows;
use souffleur_kernels::cuda::backend::{CudaFailure, Tensor};
use souffleur_kernels::cuda::driver::DriverError;
use souffleur_kernels::cuda::sampling::LogprobParams;
use souffleur_state::sampling::{TokenLogprobs, token_logprobs};

impl CudaExecutor {
    pub(super) fn reserve_logprobs(&mut self, n_logprobs: usize) -> Result<(), DriverError> {
        let n_words = n_logprobs * LOGPROB_WORDS;
        if self.arrays.logprobs.len() < n_words {
            self.arrays.logprobs = self.device.alloc(n_words.next_power_of_two())?;
        }
        Ok(())
    }

    /// Computes log probabilities of rows of logits, from list entry `first_work` on. Returns the next entry's index.
    pub(super) fn find_logprobs(
        &mut self,
        rows: &LogitRows,
        first_work: usize,
        lists: &Lists,
        uploaded: &Upload,
    ) -> Result<usize, CudaFailure> {
        let row_outputs = &self.layout.row_outputs[rows.first..rows.first + rows.len];
        let on_device = row_outputs
            .iter()
            .filter(|output| matches!(output.logprobs, Logprobs::Device { .. }));
        let n_works = on_device.count();
        if n_works == 0 {
            return Ok(first_work);
        }
        let shape = self.sampling_shape(n_works);
        let highest_bytes = shape.highest_bytes_per_top * lists.max_top as usize;
        let space = shape.masses_bytes + highest_bytes;
        if self.arrays.logprob_space.len() < space {
            self.arrays.logprob_space = self.device.alloc(space.next_power_of_two())?;
        }
        let params = LogprobParams {
            out: self.arrays.logprobs.ptr().cast(),
            sampled: self.arrays.sampled.ptr().cast(),
            logits: rows.logits.start,
            works: lists.logprob_works.at(uploaded.start).add(first_work),
            ids: lists.logprob_ids.at(uploaded.start),
            masses: self.arrays.logprob_space.ptr(),
            highest: self.arrays.logprob_space.at(shape.masses_bytes),
            vocab: self.vocab_size as u32,
            stride: rows.logits.stride,
            n_works: n_works as u32,
            n_chunks: shape.n_logprob_chunks,
            max_top: lists.max_top,
            reserved: 0,
        };
        // SAFETY: as in `sample`.
        unsafe { self.kernels.logprobs(&self.compute, &params) }?;
        Ok(first_work + n_works)
    }

    /// Ranks tokens on the host for outputs with [`Logprobs::Host`]: waits for the step and reads its logits.
    pub(super) fn rank_on_host(
        &mut self,
        rows: &LogitRows,
        logits: &Tensor,
        ranked: &mut Vec<(usize, TokenLogprobs)>,
    ) -> Result<(), CudaFailure> {
        for index in rows.first..rows.first + rows.len {
            let output = &self.layout.row_outputs[index];
            let Logprobs::Host { token, wish } = &output.logprobs else {
                continue;
            };
            let token = if output.sample {
                let first = index * SAMPLED_WORDS;
                self.compute.read(&self.arrays.sampled, first..first + 1)?[0]
            } else {
                *token
            };
            let row = self.backend.read_row(logits, index - rows.first)?;
            let row = &row[..self.vocab_size];
            let found = token_logprobs(row, token, wish.top, &wish.token_ids);
            ranked.push((index, found));
        }
        Ok(())
    }
}
