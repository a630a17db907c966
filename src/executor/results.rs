//! Buffers of step results, which later steps reuse.

use smallvec::SmallVec;

use souffleur_state::step::{PIPELINE_DEPTH, RowResult, RowVerdict, RowWork, StepPlan};

/// Maximum number of buffers kept: one more than the steps in flight.
const MAX_SPARE: usize = PIPELINE_DEPTH + 1;
/// Maximum number of long lists of tokens kept.
const MAX_LISTS: usize = 4096;

type Tokens = SmallVec<[u32; 2]>;

#[derive(Default)]
pub(super) struct ResultBuffers {
    spare: Vec<Vec<RowResult>>,
    /// Empty lists that have grown, for rows with drafts.
    lists: Vec<Tokens>,
}

impl ResultBuffers {
    /// Empty results of a step, one for each row of the plan.
    pub(super) fn begin(&mut self, plan: &StepPlan) -> Vec<RowResult> {
        let mut rows = self.spare.pop().unwrap_or_default();
        rows.extend(plan.rows.iter().map(|work| RowResult {
            seq: work.seq,
            tokens: tokens_of(&work.work, &mut self.lists),
            accepted: work.work.positions().len() as u32,
            logprobs: work.logprobs.as_ref().map(|_| Box::default()),
            verdict: RowVerdict::Open,
            drafts: Default::default(),
        }));
        rows
    }

    pub(super) fn recycle(&mut self, mut rows: Vec<RowResult>) {
        for RowResult { mut tokens, .. } in rows.drain(..) {
            if tokens.spilled() && self.lists.len() < MAX_LISTS {
                tokens.clear();
                self.lists.push(tokens);
            }
        }
        if self.spare.len() < MAX_SPARE {
            self.spare.push(rows);
        }
    }
}

/// An empty list with space for all tokens that a row may have.
fn tokens_of(work: &RowWork, lists: &mut Vec<Tokens>) -> Tokens {
    let room = match work {
        RowWork::Decode { room, .. } => *room as usize,
        RowWork::Prefill { .. } => 1,
    };
    let mut tokens = Tokens::new();
    if room > tokens.inline_size() {
        tokens = lists.pop().unwrap_or_default();
        tokens.reserve(room);
    }
    tokens
}
