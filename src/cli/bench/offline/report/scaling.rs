//! The JSON record of `--scaling`.

use serde::Serialize;

use super::rows::Row;
use crate::cli::statistics::{Line, Quartiles};

#[derive(Clone, Debug, Serialize)]
pub struct Scaling {
    /// Seconds per generated token, for each context.
    pub decode_by_context: Vec<ContextCost>,
    pub line: Option<Line>,
    /// The line fitted to the floors: the bytes that a token reads, divided by the median read bandwidth.
    pub floor_line: Option<Line>,
    /// The floor line's slope divided by the measured line's slope.
    pub slope_fraction: Option<f64>,
    pub long_prefill: Option<Row>,
    pub batch_curve: Vec<Row>,
}

#[derive(Clone, Debug, Serialize)]
pub struct ContextCost {
    pub context_tokens: u32,
    /// Seconds per token of each sample, in order.
    pub samples_s: Vec<f64>,
    #[serde(flatten)]
    pub quartiles: Quartiles,
    /// The median of the floors, in seconds per token.
    pub floor_s: f64,
    pub bytes: u64,
    pub read_bytes_per_s: Vec<f64>,
}
