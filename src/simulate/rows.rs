//! The simulated executor's results for the rows of a step.

use smallvec::smallvec;

use super::trace::PROMPT_VOCAB;
use souffleur_base::ids::SeqId;
use souffleur_state::step::{RowResult, RowVerdict, RowWork, StepPlan, StepRow};

/// The number of prefilled tokens, if the step has only prefills.
pub(super) fn prefill_only_tokens(plan: &StepPlan) -> Option<usize> {
    let tokens = plan.rows.iter().map(|row| match &row.work {
        RowWork::Prefill { positions } => Some(positions.len()),
        RowWork::Decode { .. } => None,
    });
    tokens.sum()
}

/// The result of a row whose request continues, with a token if the row samples.
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
        drafts: Default::default(),
    }
}

/// A token that occurs in no prompt and probably in no other output. No prompt of a trace repeats a simulated output.
fn output_token(seq: SeqId) -> u32 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    PROMPT_VOCAB | (seq.get().wrapping_mul(MULTIPLIER) >> 33) as u32
}
