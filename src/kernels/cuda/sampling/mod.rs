//! Sampling, log probabilities and the start of a step, on the device: mirrors of `kernels/sampling.cuh`, and the
//! launches of its kernels.
//!
//! All state here is indexed by row of the page table and carries over from step to step without the host.

use bytemuck::{Pod, Zeroable};

use super::driver::{DevicePtr, KernelArg};
use super::params::Segment;

mod launch;

pub use launch::{SamplingKernels, SamplingShape};

/// No slot of counts, no mask, no sampled row.
pub const NONE: u32 = u32::MAX;
/// Most of the likeliest tokens that [`SamplingKernels::logprobs`] ranks.
pub const MAX_TOP: u32 = 64;
/// Largest vocabulary.
pub const MAX_VOCAB: usize = 1 << 19;

/// A sum this near to its target, relative to the mass, is recomputed in the host's order.
pub const TIE_MARGIN: f64 = 4e-12;

/// How a row samples.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct RowSampler {
    /// At least 1e-6.
    pub temperature: f64,
    /// The reciprocal of the temperature.
    pub inverse_temperature: f64,
    /// The seed of its random numbers.
    pub seed: u64,
    /// In [0, 1]; 0 keeps the most likely token.
    pub top_p: f32,
    /// In [0, 1].
    pub min_p: f32,
    /// Subtracted from a logit once for each occurrence of the token in the output.
    pub frequency_penalty: f32,
    /// Subtracted from a logit if the output holds the token.
    pub presence_penalty: f32,
    /// Divides positive logits of tokens in prompt or output, and multiplies others.
    pub repetition_penalty: f32,
    /// No limit if it is the vocabulary's size or more.
    pub top_k: u32,
    /// 1: takes the most likely token.
    pub is_greedy: u32,
    /// Output tokens before which the banned ones are not sampled.
    pub min_new_tokens: u32,
    /// Slot of [`SampleParams::counts`]; [`NONE`] if no penalty is set.
    pub count_slot: u32,
    /// First of its [`SampleParams::biases`].
    pub first_bias: u32,
    /// Number of them.
    pub n_biases: u32,
    /// First of its [`SampleParams::bans`].
    pub first_ban: u32,
    /// Number of them.
    pub n_bans: u32,
    /// Padding.
    pub reserved: u32,
}

/// The sampled output of a row.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
pub struct RowState {
    /// Sampled last.
    pub last_token: u32,
    /// Output tokens so far.
    pub n_output: u32,
}

/// Added to a token's logit.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct TokenBias {
    /// The token.
    pub token: u32,
    /// The number that is added.
    pub bias: f32,
}

/// A row that starts.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct RowBegin {
    /// The row.
    pub row: u32,
    /// Output tokens among those it starts with.
    pub n_output: u32,
    /// How it samples.
    pub sampler: RowSampler,
}

/// Arguments of `begin_rows`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BeginRowsParams {
    /// By row.
    pub samplers: DevicePtr<RowSampler>,
    /// By row.
    pub states: DevicePtr<RowState>,
    /// Rows of a list are distinct.
    pub begins: DevicePtr<RowBegin>,
    /// Length of the list.
    pub n_begins: u32,
    /// Padding.
    pub reserved: u32,
}

/// Tokens of a row that starts, to be counted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct CountRun {
    /// Slot of the counts; cleared first.
    pub slot: u32,
    /// First of [`CountParams::tokens`]: the prompt, then the output.
    pub first_token: u32,
    /// Tokens of the prompt.
    pub n_prompt: u32,
    /// Tokens of the output.
    pub n_output: u32,
}

/// Arguments of `clear_counts` and `count_tokens`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CountParams {
    /// `[n_slots, vocab]`.
    pub counts: DevicePtr<u32>,
    /// Slots of a list are distinct.
    pub runs: DevicePtr<CountRun>,
    /// Of all runs.
    pub tokens: DevicePtr<u32>,
    /// Number of runs.
    pub n_runs: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
}

/// A token that the host chose.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct RecordedToken {
    /// Its row.
    pub row: u32,
    /// The token.
    pub token: u32,
}

/// Arguments of `record_tokens`.
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
    /// Length of the list.
    pub n_tokens: u32,
    /// Size of the vocabulary.
    pub vocab: u32,
}

/// A row of logits from which a token is to be sampled.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct SampleWork {
    /// 0: padding.
    pub row: u32,
    /// Its row of logits.
    pub logits_row: u32,
    /// Its mask, or [`NONE`].
    pub mask: u32,
    /// 1 if banned tokens may be excluded.
    pub may_ban: u32,
}

/// The tokens that were sampled.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct Sampled {
    /// The token.
    pub token: u32,
    /// Bit 0: the logits hold a NaN, or every token is ruled out.
    pub flags: u32,
    /// Log probability of the token, if it was requested.
    pub logprob: f32,
    /// Output tokens of the row with this one; 0: padding.
    pub n_output: u32,
}

impl Sampled {
    /// Whether the token is invalid.
    pub fn is_nan(&self) -> bool {
        self.flags & 1 != 0
    }
}

/// Arguments of `sample_peaks`, `sample_weights` and `sample_choose`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct SampleParams {
    /// One for each work.
    pub out: DevicePtr<Sampled>,
    /// `[rows of logits, stride]`; not changed.
    pub logits: DevicePtr<f32>,
    /// A row has at most one of them.
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
    /// Workspace.
    pub peaks: DevicePtr<u8>,
    /// Workspace.
    pub block_sums: DevicePtr<u8>,
    /// Workspace.
    pub classes: DevicePtr<u8>,
    /// See the kernels.
    pub tie_margin: f64,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Floats from one row of logits to the next.
    pub stride: u32,
    /// Number of works.
    pub n_works: u32,
    /// Tokens of a block.
    pub chunk: u32,
    /// Blocks of a row.
    pub n_chunks: u32,
    /// Words of a mask.
    pub mask_words: u32,
}

/// A row of logits from which log probabilities are wanted.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct LogprobWork {
    /// The row of logits.
    pub logits_row: u32,
    /// The token whose log probability is requested, unless it was sampled.
    pub token: u32,
    /// Index in [`LogprobParams::sampled`] of the token that was, or [`NONE`].
    pub sampled: u32,
    /// Number of most likely tokens requested, at most [`MAX_TOP`].
    pub top: u32,
    /// First of its [`LogprobParams::ids`].
    pub first_id: u32,
    /// Number of them.
    pub n_ids: u32,
    /// First of its `1 + top + n_ids` places in [`LogprobParams::out`]: the token, the most likely ones, those of ids.
    pub first_out: u32,
    /// Padding.
    pub reserved: u32,
}

/// A token and its log probability.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Its log probability.
    pub logprob: f32,
}

/// Arguments of `logprob_chunks` and `logprob_finish`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct LogprobParams {
    /// Of all works.
    pub out: DevicePtr<TokenLogprob>,
    /// Tokens are read, log probabilities written.
    pub sampled: DevicePtr<Sampled>,
    /// `[rows of logits, stride]`.
    pub logits: DevicePtr<f32>,
    /// Which rows.
    pub works: DevicePtr<LogprobWork>,
    /// Of all works.
    pub ids: DevicePtr<u32>,
    /// Workspace.
    pub masses: DevicePtr<u8>,
    /// Workspace.
    pub highest: DevicePtr<u8>,
    /// Size of the vocabulary.
    pub vocab: u32,
    /// Floats from one row of logits to the next.
    pub stride: u32,
    /// Number of works.
    pub n_works: u32,
    /// Chunks of a row.
    pub n_chunks: u32,
    /// Most that any work wants.
    pub max_top: u32,
    /// Padding.
    pub reserved: u32,
}

/// Pages that are written side by side into a row of the page table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct TableRun {
    /// The row.
    pub row: u32,
    /// Index of the first page in the row.
    pub first_index: u32,
    /// Number of pages.
    pub n_pages: u32,
    /// First of [`EditTableParams::pages`].
    pub first_page: u32,
}

/// Arguments of `edit_table`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct EditTableParams {
    /// `[n_rows, table_stride]`.
    pub page_table: DevicePtr<u32>,
    /// Applied as if one after the other.
    pub runs: DevicePtr<TableRun>,
    /// Of all runs.
    pub pages: DevicePtr<u32>,
    /// Number of runs.
    pub n_runs: u32,
    /// Pages of a row.
    pub table_stride: u32,
}

/// A row that decodes.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub struct DecodeRow {
    /// 0: padding.
    pub row: u32,
    /// Position of its last sampled token.
    pub position: u32,
}

/// Arguments of `begin_decode`.
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
    /// Number of rows that decode, with padding.
    pub n_rows: u32,
    /// Pages of a row.
    pub table_stride: u32,
    /// Tokens of a page.
    pub page_size: u32,
    /// Padding.
    pub reserved: u32,
}

/// Arguments of `begin_prefill`.
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
    /// From `first_token` on.
    pub uploaded: DevicePtr<u32>,
    /// `[n_rows, table_stride]`.
    pub page_table: DevicePtr<u32>,
    /// The first token after the decodes.
    pub first_token: u32,
    /// Number of tokens.
    pub n_tokens: u32,
    /// Number of segments.
    pub n_segments: u32,
    /// Pages of a row.
    pub table_stride: u32,
    /// Tokens of a page.
    pub page_size: u32,
    /// Padding.
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
