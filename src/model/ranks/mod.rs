//! The part of a model that a rank has (tensor parallelism).
//!
//! A rank's part is a smaller model of the same family: [`of_rank`] returns its configuration, with fewer heads and
//! narrower MLPs and experts, and [`Part`] says which rows and columns of a tensor it has. So the layers of a rank are
//! loaded and computed by the code of whole models.
//!
//! | tensors | divided by |
//! |---|---|
//! | projections to queries, keys, values and gates; up projections of latents; sinks | outputs, by heads |
//! | norms over all heads of a token | heads |
//! | input projections, convolution, decays of a delta net | outputs, by key heads with their value heads |
//! | gate and up projections of MLPs and experts | outputs |
//! | output projections of attention and delta nets | inputs, by heads |
//! | down projections of MLPs and experts | inputs |
//! | `lm_head` | outputs, by the vocabulary |
//! | embeddings, routers, other norms, projections to latents, short convolutions, per-layer inputs | not divided |
//!
//! Key heads are replicated if there are fewer than ranks. A bias of a matrix that is divided by inputs is added by
//! rank 0: the others have zeros.

mod config;
mod cut;
#[cfg(test)]
mod tests;

use std::ops::Range;

pub use self::config::of_rank;
pub use self::cut::{Cut, Span, cut};
use crate::tensor_spec::TensorSpec;
use souffleur_kernels::shard::{Rank, Shard};

/// The elements of a tensor that a rank has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub shard: Shard,
    /// The shape of the whole tensor, outermost dimension first.
    pub whole: Vec<usize>,
    /// Ascending.
    pub rows: Vec<Range<usize>>,
    /// Ascending; elements of a row, over all dimensions but the outermost.
    pub columns: Vec<Range<usize>>,
    /// Whether the rank has zeros in place of the values, because another rank adds these.
    pub is_zero: bool,
}

impl Part {
    /// The part of `spec` that `rank` has; `None` if it has all. `inputs_per_scale` consecutive inputs, as those
    /// of a quantised block, must not be divided between ranks.
    ///
    /// # Errors
    /// If the tensor cannot be divided. The text continues a sentence that begins with `tp_size`.
    pub fn of(
        spec: &TensorSpec,
        (cut, rank): (&Cut, Rank),
        inputs_per_scale: usize,
    ) -> Result<Option<Self>, String> {
        let width: usize = spec.shape[1..].iter().product();
        let all = |len: usize| std::iter::once(0..len).collect::<Vec<_>>();
        let whole = Self {
            shard: Shard::Whole,
            whole: spec.shape.clone(),
            rows: all(spec.shape[0]),
            columns: all(width),
            is_zero: false,
        };
        Ok(match cut {
            _ if rank == Rank::ONLY => None,
            Cut::Whole => None,
            Cut::First => Some(Self {
                is_zero: !rank.is_first(),
                ..whole
            }),
            Cut::Outputs(spans) => Some(Self {
                shard: Shard::Outputs,
                rows: ranges(spec, spans, rank)?,
                ..whole
            }),
            Cut::Inputs(spans) => {
                let columns = ranges(spec, spans, rank)?;
                check_scale_groups(spec, &columns, (rank, inputs_per_scale))?;
                Some(Self {
                    shard: Shard::Inputs,
                    columns,
                    ..whole
                })
            }
        })
    }

    /// The shape of the part.
    pub fn shape(&self) -> Vec<usize> {
        let rows = count(&self.rows);
        match self.shard {
            Shard::Inputs => vec![rows, count(&self.columns)],
            Shard::Whole | Shard::Outputs => {
                let inner = self.whole[1..].iter().copied();
                std::iter::once(rows).chain(inner).collect()
            }
        }
    }
}

fn count(ranges: &[Range<usize>]) -> usize {
    ranges.iter().map(Range::len).sum()
}

/// The elements of `spans`, which follow each other, that `rank` has.
fn ranges(spec: &TensorSpec, spans: &[Span], rank: Rank) -> Result<Vec<Range<usize>>, String> {
    let mut first = 0;
    let ranges = spans.iter().map(|span| {
        let units = span.share.of(span.units, rank).ok_or_else(|| {
            format!(
                "is {}, but tensor {} can be cut only into {} parts of {} elements each: choose a tp_size that divides the \
                 number of parts",
                rank.count(),
                spec.name,
                span.units,
                span.unit
            )
        })?;
        let range = first + units.start * span.unit..first + units.end * span.unit;
        first += span.units * span.unit;
        Ok::<_, String>(range)
    });
    ranges.collect()
}

fn check_scale_groups(
    spec: &TensorSpec,
    columns: &[Range<usize>],
    (rank, inputs_per_scale): (Rank, usize),
) -> Result<(), String> {
    let width = spec.shape[1];
    let ends = columns.iter().flat_map(|range| [range.start, range.end]);
    let mut inner = ends.filter(|end| *end < width);
    match inner.find(|end| !end.is_multiple_of(inputs_per_scale)) {
        None => Ok(()),
        Some(end) => Err(format!(
            "is {}, but tensor {} has {width} inputs in blocks of {inputs_per_scale}, and a rank's part \
             would end inside a block, at input {end}: use fewer ranks, or weights that are not quantised in blocks",
            rank.count(),
            spec.name
        )),
    }
}
