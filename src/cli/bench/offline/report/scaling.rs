//! The JSON record of `--scaling`, for programs.

use serde::Serialize;

use super::rows::Row;
use crate::cli::statistics::{Line, Quartiles};

/// The results of `--scaling`.
#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    /// Seconds per generated token, for each context.
    pub decode_by_context: Vec<ContextCost>,
    /// Through the medians, against tokens of context; absent with fewer than two contexts.
    pub line: Option<Line>,
    /// Through the bytes that a token reads, by the median of the read bandwidths.
    pub floor_line: Option<Line>,
    /// The floor's slope over the measured one.
    pub slope_fraction: Option<f64>,
    /// The prefill of a long prompt.
    pub long_prefill: Option<Row>,
    /// Streams that decode together: 1, 2, 4 and so on.
    pub batch_curve: Vec<Row>,
}

/// Decoding after one context.
#[derive(Clone, Debug, Serialize)]
pub struct ContextCost {
    /// Tokens before the first one that was timed.
    pub context_tokens: u32,
    /// Seconds per token, in the order in which they were taken.
    pub samples_s: Vec<f64>,
    /// Median and quartiles of the samples.
    #[serde(flatten)]
    pub quartiles: Quartiles,
    /// The median of the least seconds per token.
    pub floor_s: f64,
    /// Bytes of weights and K/V that a token reads.
    pub bytes: u64,
    /// Read bandwidth of the machine after each sample.
    pub read_bytes_per_s: Vec<f64>,
}
