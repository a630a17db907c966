//! Sampling, log probabilities and batch setup on the GPU: launches, and mirrors of structs in `kernels/sampling.cuh`.
//!
//! State persists on the device from step to step. It is indexed by row of the page table, except counts of tokens:
//! rows with penalties have slots of counts.

use bytemuck::{Pod, Zeroable};

use super::driver::{DevicePtr, KernelArg};
use super::params::Segment;

mod launch;

pub use launch::{SamplingKernels, SamplingShape};

/// Marks a missing slot of counts, mask or sampled token.
pub const NONE: u32 = u32::MAX;
/// Maximum `top_logprobs` that [`SamplingKernels::logprobs`] ranks.
pub const MAX_TOP: u32 = 64;
pub const MAX_VOCAB: usize = 1 << 19;

/// A cumulative sum this close to a sampling threshold, relative to the total, is recomputed in the CPU's order.
pub const TIE_MARGIN: f64 = 4e-12;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct RowSampler {
    /// At least 1e-6.
    pub temperature: f64,
    pub inverse_temperature: f64,
    pub seed: u64,
    /// In [0, 1]; 0 keeps only the most likely token.
    pub top_p: f32,
    /// In [0, 1].
    pub min_p: f32,
    /// Subtracted from a logit per occurrence of the token in the output.
    pub frequency_penalty: f32,
    /// Subtracted from a logit if the output holds the token.
    pub presence_penalty: f32,
    /// Divides positive logits of tokens in prompt or output, and multiplies others.
    pub repetition_penalty: f32,
    /// No limit if it is the vocabulary's size or more.
    pub top_k: u32,
    /// 1: argmax.
    pub is_greedy: u32,
    /// Banned tokens are not sampled before the row has this number of output tokens.
    pub min_new_tokens: u32,
    /// Slot of [`SampleParams::counts`]; [`NONE`] if no penalty is set.
    pub count_slot: u32,
    /// Index of the row's first bias in [`SampleParams::biases`].
    pub first_bias: u32,
    pub n_biases: u32,
    /// Index of the row's first banned token in [`SampleParams::bans`].
    pub first_ban: u32,
    pub n_bans: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RowState {
    pub last_token: u32,
    pub n_output: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct TokenBias {
    pub token: u32,
    pub bias: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct RowBegin {
    pub row: u32,
    /// Number of output tokens among the row's initial tokens.
    pub n_output: u32,
    pub sampler: RowSampler,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BeginRowsParams {
    /// By row.
    pub samplers: DevicePtr<RowSampler>,
    /// By row.
    pub states: DevicePtr<RowState>,
    /// Rows of a list are distinct.
    pub begins: DevicePtr<RowBegin>,
    pub n_begins: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct CountRun {
    /// Slot of the counts, which are cleared first.
    pub slot: u32,
    /// Index of the run's first token in [`CountParams::tokens`]: the prompt, then the output.
    pub first_token: u32,
    pub n_prompt: u32,
    pub n_output: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CountParams {
    /// `[n_slots, vocab]`.
    pub counts: DevicePtr<u32>,
    /// Slots of a list are distinct.
    pub runs: DevicePtr<CountRun>,
    /// Tokens of all runs.
    pub tokens: DevicePtr<u32>,
    pub n_runs: u32,
    pub vocab: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct RecordedToken {
    pub row: u32,
    pub token: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct RecordParams {
    /// By row.
    pub states: DevicePtr<RowState>,
    /// By row.
    pub samplers: DevicePtr<RowSampler>,
    /// `[n_slots, vocab]`.
    pub counts: DevicePtr<u32>,
    /// Rows of a list are distinct.
    pub tokens: DevicePtr<RecordedToken>,
    pub n_tokens: u32,
    pub vocab: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct SampleWork {
    /// 0: padding.
    pub row: u32,
    pub logits_row: u32,
    /// Index of the row's mask, or [`NONE`].
    pub mask: u32,
    /// 0 if the mask allows only banned tokens: then no ban applies. Else 1.
    pub may_ban: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Sampled {
    pub token: u32,
    /// Bit 0: the logits hold a NaN, or every token is excluded.
    pub flags: u32,
    /// Log probability of the token, if it was requested.
    pub logprob: f32,
    /// Output tokens of the row including this one; 0: padding.
    pub n_output: u32,
}

impl Sampled {
    pub fn is_nan(&self) -> bool {
        self.flags & 1 != 0
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleParams {
    /// One per work.
    pub out: DevicePtr<Sampled>,
    /// `[rows of logits, stride]`; not modified.
    pub logits: DevicePtr<f32>,
    /// At most one per row.
    pub works: DevicePtr<SampleWork>,
    /// By row.
    pub samplers: DevicePtr<RowSampler>,
    /// By row.
    pub states: DevicePtr<RowState>,
    /// `[n_slots, vocab]`.
    pub counts: DevicePtr<u32>,
    /// Biases of all rows; those of a row by ascending token.
    pub biases: DevicePtr<TokenBias>,
    /// Banned tokens of all rows; those of a row ascending, each once.
    pub bans: DevicePtr<u32>,
    /// `[n_masks, mask_words]`.
    pub masks: DevicePtr<u32>,
    /// Workspaces, of the sizes in [`SamplingShape`].
    pub peaks: DevicePtr<u8>,
    pub block_sums: DevicePtr<u8>,
    pub classes: DevicePtr<u8>,
    pub tie_margin: f64,
    pub vocab: u32,
    /// Floats from one row of logits to the next.
    pub stride: u32,
    pub n_works: u32,
    /// Tokens per thread block.
    pub chunk: u32,
    /// Thread blocks per row.
    pub n_chunks: u32,
    pub mask_words: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct LogprobWork {
    pub logits_row: u32,
    /// The token whose log probability is requested, unless it was sampled.
    pub token: u32,
    /// Index of the sampled token in [`LogprobParams::sampled`], or [`NONE`].
    pub sampled: u32,
    /// Number of most likely tokens requested, at most [`MAX_TOP`].
    pub top: u32,
    /// Index of the first requested token in [`LogprobParams::ids`].
    pub first_id: u32,
    pub n_ids: u32,
    /// Index in [`LogprobParams::out`] of the first of `1 + top + n_ids` results: for `token`, the most likely, `ids`.
    pub first_out: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct TokenLogprob {
    pub token: u32,
    pub logprob: f32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LogprobParams {
    /// Results of all works.
    pub out: DevicePtr<TokenLogprob>,
    /// Tokens are read, log probabilities written.
    pub sampled: DevicePtr<Sampled>,
    /// `[rows of logits, stride]`.
    pub logits: DevicePtr<f32>,
    pub works: DevicePtr<LogprobWork>,
    /// Requested tokens of all works.
    pub ids: DevicePtr<u32>,
    pub masses: DevicePtr<u8>,
    pub highest: DevicePtr<u8>,
    pub vocab: u32,
    pub stride: u32,
    pub n_works: u32,
    pub n_chunks: u32,
    /// Maximum `top` of all works.
    pub max_top: u32,
    pub reserved: u32,
}

/// Contiguous pages of a row of the page table, to write.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct TableRun {
    pub row: u32,
    pub first_index: u32,
    pub n_pages: u32,
    /// Index of the run's first page in [`EditTableParams::pages`].
    pub first_page: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EditTableParams {
    /// `[n_rows, table_stride]`.
    pub page_table: DevicePtr<u32>,
    /// Where runs overlap, the last one counts.
    pub runs: DevicePtr<TableRun>,
    /// Pages of all runs.
    pub pages: DevicePtr<u32>,
    pub n_runs: u32,
    pub table_stride: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct DecodeRow {
    /// 0: padding.
    pub row: u32,
    pub position: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BeginDecodeParams {
    /// By token of the step.
    pub tokens: DevicePtr<u32>,
    /// By token of the step.
    pub positions: DevicePtr<u32>,
    /// By token of the step.
    pub slots: DevicePtr<u32>,
    /// By token of the step.
    pub segments: DevicePtr<Segment>,
    /// Padding last.
    pub rows: DevicePtr<DecodeRow>,
    /// By row.
    pub states: DevicePtr<RowState>,
    /// `[n_rows, table_stride]`.
    pub page_table: DevicePtr<u32>,
    /// Including padding.
    pub n_rows: u32,
    pub table_stride: u32,
    pub page_size: u32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BeginPrefillParams {
    /// By token of the step.
    pub tokens: DevicePtr<u32>,
    /// By token of the step.
    pub positions: DevicePtr<u32>,
    /// By token of the step.
    pub slots: DevicePtr<u32>,
    /// By ascending first token.
    pub segments: DevicePtr<Segment>,
    /// Tokens from `first_token` on.
    pub uploaded: DevicePtr<u32>,
    /// `[n_rows, table_stride]`.
    pub page_table: DevicePtr<u32>,
    /// The first token after the decodes.
    pub first_token: u32,
    pub n_tokens: u32,
    pub n_segments: u32,
    pub table_stride: u32,
    pub page_size: u32,
    pub reserved: u32,
}

const _: () = {
    assert!(size_of::<RowSampler>() == 80);
    assert!(size_of::<RowState>() == 8);
    assert!(size_of::<TokenBias>() == 8);
    assert!(size_of::<RowBegin>() == 88);
    assert!(size_of::<BeginRowsParams>() == 32);
    assert!(size_of::<CountRun>() == 16);
    assert!(size_of::<CountParams>() == 32);
    assert!(size_of::<RecordedToken>() == 8);
    assert!(size_of::<RecordParams>() == 40);
    assert!(size_of::<SampleWork>() == 16);
    assert!(size_of::<Sampled>() == 16);
    assert!(size_of::<SampleParams>() == 128);
    assert!(size_of::<LogprobWork>() == 32);
    assert!(size_of::<TokenLogprob>() == 8);
    assert!(size_of::<LogprobParams>() == 80);
    assert!(size_of::<TableRun>() == 16);
    assert!(size_of::<EditTableParams>() == 32);
    assert!(size_of::<DecodeRow>() == 8);
    assert!(size_of::<BeginDecodeParams>() == 72);
    assert!(size_of::<BeginPrefillParams>() == 72);
};

// SAFETY: all of these are `repr(C)` structs of numbers and device pointers, in the order of `kernels/sampling.cuh`,
// whose sizes are asserted on both sides.
unsafe impl KernelArg for BeginRowsParams {}
// SAFETY: as above.
unsafe impl KernelArg for CountParams {}
// SAFETY: as above.
unsafe impl KernelArg for RecordParams {}
// SAFETY: as above.
unsafe impl KernelArg for SampleParams {}
// SAFETY: as above.
unsafe impl KernelArg for LogprobParams {}
// SAFETY: as above.
unsafe impl KernelArg for EditTableParams {}
// SAFETY: as above.
unsafe impl KernelArg for BeginDecodeParams {}
// SAFETY: as above.
unsafe impl KernelArg for BeginPrefillParams {}
