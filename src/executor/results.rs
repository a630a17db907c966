//! Buffers of step results, which later steps reuse.

use smallvec::SmallVec;

use souffleur_state::step::{PIPELINE_DEPTH, RowResult, RowVerdict, StepPlan};

/// Maximum number of buffers kept: one more than the steps in flight.
const MAX_SPARE: usize = PIPELINE_DEPTH + 1;

#[derive(Default)]
pub(super) struct ResultBuffers {
    spare: Vec<Vec<RowResult>>,
}

impl ResultBuffers {
    /// Empty results of a step, one for each row of the plan.
    pub(super) fn begin(&mut self, plan: &StepPlan) -> Vec<RowResult> {
        let mut rows = self.spare.pop().unwrap_or_default();
        rows.extend(plan.rows.iter().map(|work| RowResult {
            seq: work.seq,
            tokens: SmallVec::new(),
            accepted: work.work.positions().len() as u32,
            logprobs: work.logprobs.as_ref().map(|_| Box::default()),
            verdict: RowVerdict::Open,
            drafts: Default::default(),
        }));
        rows
    }

    pub(super) fn recycle(&mut self, mut rows: Vec<RowResult>) {
        rows.clear();
        if self.spare.len() < MAX_SPARE {
            self.spare.push(rows);
        }
    }
}
