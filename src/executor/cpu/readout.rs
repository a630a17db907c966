//! From the residual stream to tokens and log probabilities.

use super::{CpuExecutor, LogitsProbe};
use crate::executor::{LogprobWish, RowResult, RowWork, StepPlan};
use crate::kernels::cpu::tensor::Tensor;
use crate::state::sampling::token_logprobs;

/// Rows of logits computed at once: enough for a batch of decodes, and bounded for the log probabilities of a prompt.
pub const LOGIT_ROWS: usize = 64;

/// A row of logits that the step needs.
struct Wanted {
    /// Index in the plan's rows.
    work: usize,
    /// Index of the token in the step.
    token: u32,
    /// Its position in the sequence.
    position: usize,
    /// The logits choose the next token; otherwise they are the prompt's.
    sample: bool,
}

impl CpuExecutor {
    /// Computes the logits that the plan asks for, samples, and fills in the results.
    pub(super) fn read_out(
        &mut self,
        plan: &StepPlan,
        hidden: &Tensor,
        results: &mut [RowResult],
        probe: LogitsProbe<'_>,
    ) {
        let wanted = self.wanted(plan);
        for slice in wanted.chunks(LOGIT_ROWS) {
            let tokens: Vec<u32> = slice.iter().map(|wanted| wanted.token).collect();
            let mut logits = self.model.logits(&mut self.backend, hidden, &tokens);
            for (index, wanted) in slice.iter().enumerate() {
                let row = logits.row_mut(index);
                probe(plan.rows[wanted.work].seq, wanted.position as u32, row);
                let wish = plan.rows[wanted.work].logprobs.as_deref();
                match wanted.sample {
                    true => self.sample(plan, wanted, wish, row, &mut results[wanted.work]),
                    false => self.score_input(plan, wanted, wish, row, &mut results[wanted.work]),
                }
            }
        }
    }

    fn wanted(&self, plan: &StepPlan) -> Vec<Wanted> {
        let mut wanted = Vec::with_capacity(plan.rows.len());
        for (work, (row, segment)) in plan.rows.iter().zip(self.batch.segments()).enumerate() {
            let positions = row.work.positions();
            let token_at =
                |position: usize| (segment.first_token + position - segment.first_position) as u32;
            let start = row.logprobs.as_ref().and_then(|wish| wish.start);
            if let (Some(start), RowWork::Prefill { .. }) = (start, &row.work) {
                let prompt_tokens = self.rows[row.row.index()]
                    .as_ref()
                    .map_or(0, |row| row.prompt_tokens);
                let first = positions.start.max(start) as usize;
                let end = (positions.end as usize).min(prompt_tokens.saturating_sub(1));
                for position in first..end {
                    wanted.push(Wanted {
                        work,
                        token: token_at(position),
                        position,
                        sample: false,
                    });
                }
            }
            if row.sample {
                let position = positions.end as usize - 1;
                wanted.push(Wanted {
                    work,
                    token: token_at(position),
                    position,
                    sample: true,
                });
            }
        }
        wanted
    }

    fn sample(
        &mut self,
        plan: &StepPlan,
        wanted: &Wanted,
        wish: Option<&LogprobWish>,
        logits: &mut [f32],
        result: &mut RowResult,
    ) {
        if wish.is_some() {
            self.raw_logits.clear();
            self.raw_logits.extend_from_slice(logits);
        }
        let row = self.rows[plan.rows[wanted.work].row.index()]
            .as_mut()
            .expect("the plan was checked");
        let sampled = row.sampler.sample(logits, None);
        row.last_sampled = sampled.token;
        row.sampled_tokens += 1;
        result.tokens.push(sampled.token);
        result.nan |= sampled.nan;
        if let (Some(wish), Some(logprobs)) = (wish, &mut result.logprobs) {
            logprobs.output.push(token_logprobs(
                &self.raw_logits,
                sampled.token,
                wish.top,
                &wish.token_ids,
            ));
        }
    }

    fn score_input(
        &self,
        plan: &StepPlan,
        wanted: &Wanted,
        wish: Option<&LogprobWish>,
        logits: &[f32],
        result: &mut RowResult,
    ) {
        let row = self.rows[plan.rows[wanted.work].row.index()]
            .as_ref()
            .expect("the plan was checked");
        let next = row.tokens[wanted.position + 1];
        if let (Some(wish), Some(logprobs)) = (wish, &mut result.logprobs) {
            logprobs
                .input
                .push(token_logprobs(logits, next, wish.top, &wish.token_ids));
        }
    }
}
