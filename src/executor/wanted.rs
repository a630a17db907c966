//! Which rows of logits a step needs.

use crate::executor::rows::Rows;
use crate::state::step::{RowWork, StepPlan};

/// A row of logits that the step needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Index in the plan's rows.
    pub(super) work: usize,
    /// Index of the token in the step.
    pub(super) token: u32,
    /// Its position in the sequence.
    pub(super) position: usize,
    /// The logits choose the next token; otherwise they are the prompt's.
    pub(super) sample: bool,
}

/// Finds the logits that a plan asks for. `order` has the indices of the plan's rows as their tokens stand side by side
/// in the step.
pub(super) fn find_wanted(
    plan: &StepPlan,
    order: impl IntoIterator<Item = usize>,
    rows: &Rows,
    wanted: &mut Vec<Wanted>,
) {
    wanted.clear();
    let mut first_token = 0;
    for work in order {
        let row = &plan.rows[work];
        let positions = row.work.positions();
        let place = |position: u32, sample| Wanted {
            work,
            token: first_token + position - positions.start,
            position: position as usize,
            sample,
        };
        let start = row.logprobs.as_ref().and_then(|wish| wish.start);
        if let (Some(start), RowWork::Prefill { .. }) = (start, &row.work) {
            let prompt_tokens = rows.row(row.row).prompt_tokens as u32;
            let first = positions.start.max(start);
            let end = positions.end.min(prompt_tokens.saturating_sub(1));
            wanted.extend((first..end).map(|position| place(position, false)));
        }
        if row.sample {
            wanted.push(place(positions.end - 1, true));
        }
        first_token += positions.len() as u32;
    }
}
