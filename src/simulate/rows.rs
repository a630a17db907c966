//! The simulated executor's results for the rows of a step.

use smallvec::smallvec;

use super::trace::PROMPT_VOCAB;
use souffleur_base::ids::SeqId;
use souffleur_state::step::{RowResult, RowVerdict, RowWork, StepPlan, StepRow};

/// The tokens that a step prefills, if it does nothing else.
pub(super) fn prefilled_alone(plan: &StepPlan) -> Option<usize> {
    let tokens = plan.rows.iter().map(|row| match &row.work {
        RowWork::Prefill { positions } => Some(positions.len()),
        RowWork::Decode { .. } => None,
    });
    tokens.sum()
}

/// A row that continues, with a token if it samples one.
pub(super) fn row_result(row: &StepRow) -> RowResult {
    RowResult {
        seq: row.seq,
        tokens: if row.sample {
            smallvec![output_token(row.seq)]
        } else {
            smallvec![]
        },
        accepted: row.work.positions().len() as u32,
        logprobs: None,
        verdict: RowVerdict::Open,
    }
}

/// No prompt has it, and no other output either: a trace's prompts contain earlier outputs in their blocks.
fn output_token(seq: SeqId) -> u32 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    PROMPT_VOCAB | (seq.get().wrapping_mul(ODD) >> 33) as u32
}
