//! Queries scaled by position: the kernel that rotates heads does it.
//!
//! All positions of a period have one factor. A table has a row for each period: a rotation by no angle, stretched by the
//! factor, so that its cosines are the factor and its sines 0. The rows of a step's tokens are picked from the table, and
//! the queries rotate by them in place.

use std::iter::repeat_n;

use super::{CudaBackend, CudaBatch, Tensor};
use crate::cuda::driver::{DevicePtr, DriverError};
use crate::cuda::params::RopeStoreParams;
use crate::rope::PositionScale;

/// Rows of the table: 16 MiB with heads of 256 elements.
const MAX_PERIODS: usize = 1 << 14;

/// Refuses a context whose table would be too large.
///
/// # Errors
/// If it has too many periods.
pub fn check_periods(scale: PositionScale, context_tokens: usize) -> Result<(), DriverError> {
    let n_periods = periods(scale, context_tokens);
    if n_periods <= MAX_PERIODS {
        return Ok(());
    }
    let period = scale.period;
    Err(DriverError::unsupported(format!(
        "the queries of {context_tokens} tokens have {n_periods} factors, one for each {period} positions, but the CUDA \
         backend supports at most {MAX_PERIODS}: lower context_length, or use --device cpu"
    )))
}

fn periods(scale: PositionScale, context_tokens: usize) -> usize {
    context_tokens.div_ceil(scale.period as usize).max(1)
}

impl CudaBackend {
    /// Prepares [`scale_by_position`](crate::Backend::scale_by_position) for the positions of a context, which
    /// [`check_periods`] has accepted.
    ///
    /// # Errors
    /// If memory is exhausted, or the driver reports an error.
    pub fn prepare_factors(&mut self, scale: PositionScale) -> Result<(), DriverError> {
        let (period, half) = (scale.period as usize, self.head_dim / 2);
        let n_periods = periods(scale, self.context_tokens);
        let mut table = Vec::with_capacity(n_periods * 2 * half);
        for first in (0..n_periods).map(|index| index * period) {
            table.extend(repeat_n(scale.at(first as u32), half));
            table.extend(repeat_n(0.0, half));
        }
        let factors = self.device.alloc(table.len())?;
        self.stream.write(&factors, 0, &table)?;
        self.factors = Some(factors);
        Ok(())
    }

    /// Multiplies the heads of each token by the factor of its period.
    ///
    /// # Panics
    /// If [`Self::prepare_factors`] was not called.
    pub(super) fn scale_heads(&mut self, x: &Tensor, batch: &CudaBatch) {
        let factors = self.factors.as_ref();
        let table = factors
            .expect("prepare_factors must be called before")
            .ptr();
        let head_dim = self.head_dim as u32;
        let rows = self.f32(x.rows, self.head_dim);
        let n_tokens = x.rows as u32;
        // SAFETY: the table has a row for each period of the context, and a step's positions are within it; all buffers
        // are used on this stream only.
        self.launch(|launches, stream| unsafe {
            let (out, shape) = (rows.f32(), [n_tokens, head_dim]);
            launches
                .embed
                .pick(stream, out, table, batch.periods, shape)
        });
        let params = RopeStoreParams {
            q: x.elements(),
            k_pool: DevicePtr::NULL,
            v_pool: DevicePtr::NULL,
            qkv: x.elements(),
            q_norm: DevicePtr::NULL,
            k_norm: DevicePtr::NULL,
            rotations: rows.f32(),
            slots: batch.slots,
            n_heads: (x.width / self.head_dim) as u32,
            n_kv_heads: 0,
            head_dim,
            eps: 0.0,
        };
        // SAFETY: as above. Each element is read and written by one lane, which reads it first; without key heads the
        // kernel accesses neither pools nor slots.
        self.launch(|launches, stream| unsafe {
            launches.rope_store.launch(stream, &params, n_tokens)
        });
    }
}
