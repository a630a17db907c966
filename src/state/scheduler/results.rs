//! What a step produced.

use crate::error::{RequestError, StepError};
use crate::ids::{SeqId, StepId};
use crate::state::plan::PlanRequest;
use crate::state::scheduler::news::FinishReason;
use crate::state::scheduler::news::RequestEnd;
use crate::state::scheduler::sequence::Sequence;
use crate::state::step::{RowResult, StepOutput};

use super::planning::retract_of;
use super::{Next, OpenPlan, Scheduler, StepRecord};

/// Lost steps that one request survives: a request that breaks every step it is in must not break them for ever.
const MAX_LOSSES: u32 = 2;

impl Scheduler {
    /// Takes a step's result. Steps end in their order; anything else is stale, counted and dropped.
    pub fn step_done(&mut self, step: StepId, result: Result<StepOutput, StepError>) {
        self.is_dirty = true;
        if self.steps.front().is_none_or(|record| record.step != step) {
            self.counters.stale_messages += 1;
            return;
        }
        let Some(record) = self.steps.pop_front() else {
            return;
        };
        for &seq in &record.rows {
            if let Some(sequence) = self.sequences.get_mut(seq) {
                sequence.rows_in_flight -= 1;
            }
        }
        if record.is_void {
            return;
        }
        match result {
            Ok(mut output) => {
                self.news.reserve(output.rows.len());
                for row in &mut output.rows {
                    self.take_row(row);
                }
                output.rows.clear();
                self.spent = Some(output.rows);
            }
            Err(error) => self.lose(&record, &error),
        }
    }

    /// Takes the emptied rows of the last result, if nobody has: the next step's result can use their memory.
    pub fn take_spent(&mut self) -> Option<Vec<RowResult>> {
        self.spent.take()
    }

    /// A sequence that ended while this step was queued is a zombie in it: its token is dropped. One that was
    /// retracted takes its token.
    fn take_row(&mut self, row: &mut RowResult) {
        let (seq, logprobs) = (row.seq, row.logprobs.take());
        let Some(sequence) = self
            .sequences
            .get_mut(seq)
            .filter(|sequence| !sequence.has_ended)
        else {
            return;
        };
        if row.nan {
            let kept = sequence.output.len();
            return self.finish(
                seq,
                RequestEnd::Failed(RequestError::NanLogits),
                kept,
                false,
            );
        }
        if let Some(logprobs) = &logprobs {
            sequence.count_input_logprobs(logprobs.input.len());
        }
        let mut end = None;
        let mut n_taken = 0;
        for &token in &row.tokens {
            sequence.output.push(token);
            n_taken += 1;
            end = finish_reason(sequence, token, &self.limits.eos_token_ids);
            if end.is_some() {
                break;
            }
        }
        sequence.planned_output = sequence.planned_output.max(sequence.output.len());
        if sequence.is_prefill_alone_done() {
            end = Some(FinishReason::Length { max_new_tokens: 0 });
        }
        let kept = sequence.output.len();
        row.tokens.truncate(n_taken);
        if n_taken > 0 || logprobs.is_some() {
            self.tell(seq, std::mem::take(&mut row.tokens), logprobs, None);
        }
        if let Some(reason) = end {
            self.finish(seq, RequestEnd::Finished(reason), kept, true);
        }
    }

    /// A step failed: nothing that it or a later one wrote can be trusted. Its requests fail if it was refused, and
    /// are computed again if it was lost; then the tree is flushed.
    fn lose(&mut self, record: &StepRecord, error: &StepError) {
        self.recovering = true;
        for later in &mut self.steps {
            later.is_void = true;
        }
        for &seq in &record.rows {
            let Some(sequence) = self.sequences.get_mut(seq).filter(|seq| !seq.has_ended) else {
                continue;
            };
            sequence.losses += 1;
            let is_given_up =
                matches!(error, StepError::Rejected(_)) || sequence.losses > MAX_LOSSES;
            if is_given_up {
                let kept = sequence.output.len();
                let failed = RequestEnd::Failed(RequestError::Step(error.clone()));
                self.finish(seq, failed, kept, false);
            }
        }
    }

    /// Once the steps under way are back: everything is retracted, pins are revoked, the tree is flushed.
    pub(super) fn recover(&mut self) -> Next {
        if !self.steps.is_empty() {
            return Next::Nothing;
        }
        self.recovering = false;
        // What is retracted here is admitted again by the plan after this one, and nothing else need happen first.
        self.is_dirty = true;
        self.extended.clear();
        self.deltas.clear();
        for seq in self.ended.clone() {
            if let Some(sequence) = self.sequences.get_mut(seq) {
                sequence.publish = false;
            }
        }
        self.pins.revoke_all();
        let mut settle = self.take_settlements();
        self.running.clear();
        self.chunked = None;
        self.batch_is_full = false;
        let holders = self
            .sequences
            .iter()
            .filter(|(_, sequence)| sequence.kv.is_some());
        let holders: Vec<SeqId> = holders.map(|(seq, _)| seq).collect();
        for &seq in &holders {
            // A plan that was open when the step was lost has counted rows that were never sent.
            self.sequences[seq].rows_in_flight = 0;
            settle.extend(retract_of(seq, &mut self.sequences[seq]));
            self.queue_retracted(seq);
        }
        let step = self.next_step;
        self.open = Some(OpenPlan {
            step,
            decode: Vec::new(),
            flush: None,
        });
        let request = PlanRequest {
            settle,
            flush: true,
            ..self.empty_request()
        };
        Next::Plan(Box::new(request))
    }
}

fn finish_reason(sequence: &Sequence, token: u32, eos: &[u32]) -> Option<FinishReason> {
    let is_stop =
        || eos.contains(&token) || sequence.request.sampling.stop_token_ids.contains(&token);
    if sequence.heeds_stops() && is_stop() {
        return Some(FinishReason::StopToken(token));
    }
    let max_new_tokens = sequence.max_new_tokens();
    let is_full = sequence.output.len() >= max_new_tokens;
    is_full.then_some(FinishReason::Length {
        max_new_tokens: max_new_tokens as u32,
    })
}
