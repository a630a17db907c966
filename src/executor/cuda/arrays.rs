//! The inputs of a step's CUDA kernels, in device buffers at fixed addresses, which CUDA graphs record.

use crate::cuda::options::CudaOptions;
use crate::cuda::row_outputs::SAMPLED_WORDS;
use souffleur_kernels::cuda::driver::{Device, DeviceBuffer, DriverError};
use souffleur_kernels::cuda::params::Segment;
use souffleur_kernels::cuda::sampling::{DecodeRow, SampleWork};

pub(super) struct StepArrays {
    /// `tokens`, `positions` and `slots` have one element for each token of the step.
    pub(super) tokens: DeviceBuffer<u32>,
    pub(super) positions: DeviceBuffer<u32>,
    pub(super) slots: DeviceBuffer<u32>,
    /// Each of the next five arrays has one element for each row that decodes.
    pub(super) decode_segments: DeviceBuffer<Segment>,
    pub(super) decode_rows: DeviceBuffer<u32>,
    /// Rotary positions of the rows that decode, for models with M-RoPE.
    pub(super) rotary: DeviceBuffer<u32>,
    /// Periods of the rows that decode, for models that scale queries by position.
    pub(super) periods: DeviceBuffer<u32>,
    pub(super) sample_works: DeviceBuffer<u32>,
    /// [`SAMPLED_WORDS`] words for each row of logits.
    pub(super) sampled: DeviceBuffer<u32>,
    /// Grows when a step needs more, like `logprob_space`. Neither is in the activation arena: the arena does not know
    /// that a graph's logits occupy a part of it, and could allocate that part again.
    pub(super) logprobs: DeviceBuffer<u32>,
    pub(super) logprob_space: DeviceBuffer<u8>,
}

impl StepArrays {
    pub(super) fn new(device: &Device, options: &CudaOptions) -> Result<Self, DriverError> {
        let n_tokens = options.step_tokens.max(options.max_rows);
        let words = |bytes: usize| options.max_rows * bytes / size_of::<u32>();
        Ok(Self {
            tokens: device.alloc(n_tokens)?,
            positions: device.alloc(n_tokens)?,
            slots: device.alloc(n_tokens)?,
            decode_segments: device.alloc(options.max_rows)?,
            decode_rows: device.alloc(words(size_of::<DecodeRow>()))?,
            rotary: device.alloc(options.max_rows)?,
            periods: device.alloc(options.max_rows)?,
            sample_works: device.alloc(words(size_of::<SampleWork>()))?,
            sampled: device.alloc(n_tokens * SAMPLED_WORDS)?,
            logprobs: device.alloc(0)?,
            logprob_space: device.alloc(0)?,
        })
    }
}
