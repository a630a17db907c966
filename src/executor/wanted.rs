//! Finds the rows of logits that a step needs, and the hidden states for embeddings.

use std::ops::Range;

use crate::rows::Rows;
use souffleur_state::step::{RowWork, StepPlan};

/// A row of logits, or a hidden state, that the step needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedOutput {
    /// Index in the plan's rows.
    pub(super) work: usize,
    /// Index among the step's tokens.
    pub(super) token_index: u32,
    pub(super) position: usize,
    /// Number of positions of the same row before this one whose logits choose tokens.
    pub(super) ahead: usize,
    /// Whether the logits choose the next token; otherwise they give the prompt's log probabilities.
    pub(super) sample: bool,
    /// Whether the step needs the normed hidden state instead of logits.
    pub(super) pools: bool,
}

/// The next entries of `wanted` from `first` on, at most `max`: all logits or all states. `None` at the end.
pub(super) fn next_run(wanted: &[WantedOutput], first: usize, max: usize) -> Option<Range<usize>> {
    let kind = wanted.get(first)?.pools;
    let rest = wanted[first..].iter().take(max);
    let len = rest.take_while(|wanted| wanted.pools == kind).count();
    Some(first..first + len)
}

/// Finds the logits and states that a plan needs. `order` has the indices of the plan's rows in the order of their
/// tokens in the step, with the positions of the tokens; the results have the same order.
pub(super) fn find_wanted(
    plan: &StepPlan,
    order: impl IntoIterator<Item = (usize, Range<u32>)>,
    rows: &Rows,
    wanted: &mut Vec<WantedOutput>,
) {
    wanted.clear();
    let mut first_token = 0;
    for (work, positions) in order {
        let row = &plan.rows[work];
        let wanted_at = |position: u32, sample| WantedOutput {
            work,
            token_index: first_token + position - positions.start,
            position: position as usize,
            ahead: 0,
            sample,
            pools: false,
        };
        let start = row.logprobs.as_ref().and_then(|wish| wish.start);
        if let (Some(start), RowWork::Prefill { .. }) = (start, &row.work) {
            let prompt_tokens = rows.row(row.row).prompt_tokens as u32;
            let first = positions.start.max(start);
            let end = positions.end.min(prompt_tokens.saturating_sub(1));
            wanted.extend((first..end).map(|position| wanted_at(position, false)));
        }
        if let RowWork::Prefill { .. } = &row.work {
            let pooled = rows.pooled(row.row, positions.clone());
            wanted.extend(pooled.map(|position| WantedOutput {
                pools: true,
                ..wanted_at(position, false)
            }));
        }
        if row.sample {
            let first = match row.work {
                RowWork::Prefill { .. } => positions.end - 1,
                RowWork::Decode { .. } => positions.start,
            };
            wanted.extend((first..positions.end).map(|position| WantedOutput {
                ahead: (position - first) as usize,
                ..wanted_at(position, true)
            }));
        }
        first_token += positions.len() as u32;
    }
}
