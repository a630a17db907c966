//! Takes the results of steps: new tokens, ended requests, failed (lost) steps.

use crate::plan::PlanStep;
use crate::scheduler::news::FinishReason;
use crate::scheduler::news::RequestEnd;
use crate::scheduler::sequence::Sequence;
use crate::step::{RowResult, RowVerdict, StepOutput};
use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::{SeqId, StepId};
use souffleur_base::in_hand;

use super::outbox::Counter;
use super::pipeline::StepRecord;
use super::planning::retract_of;
use super::{KvAtEnd, Next, Scheduler};

impl Scheduler {
    /// Takes a step's result. Steps finish in order; any other result is stale, counted and dropped.
    pub fn step_done(&mut self, step: StepId, result: Result<StepOutput, StepError>) {
        self.pipeline.note_change();
        let Some(record) = self.pipeline.take_done(step) else {
            return self.outbox.count(Counter::StaleMessages, 1);
        };
        for (index, &seq) in record.rows.iter().enumerate() {
            if let Some(sequence) = self.requests.get_mut(seq) {
                sequence.rows_in_flight -= 1;
                sequence.unsure -= record.room(index) - 1;
            }
        }
        if let Some(tier) = &mut self.tier {
            tier.step_done(step, !record.is_void && result.is_ok());
        }
        if record.is_void {
            return;
        }
        match result {
            Ok(mut output) => {
                self.outbox.reserve(output.rows.len());
                for (index, row) in output.rows.iter_mut().enumerate() {
                    self.take_row(row, record.room(index));
                    in_hand::clear();
                }
                output.rows.clear();
                self.pipeline.keep_cleared_rows(output.rows);
            }
            Err(error) => self.take_lost_step(&record, &error),
        }
    }

    /// Takes the cleared rows of the last result, unless already taken: the next result can reuse their memory.
    pub fn take_cleared_rows(&mut self) -> Option<Vec<RowResult>> {
        self.pipeline.take_cleared_rows()
    }

    /// Takes a row's result. The tokens of a sequence that ended while the step was in flight are dropped; a retracted
    /// sequence keeps its tokens.
    fn take_row(&mut self, row: &mut RowResult, room: u32) {
        let (seq, logprobs) = (row.seq, row.logprobs.take());
        if row.accepted == 0 {
            return self.take_skipped(seq, room);
        }
        self.take_accepted(seq, room, row.accepted);
        let Some(sequence) = self
            .requests
            .get_mut(seq)
            .filter(|sequence| !sequence.has_ended)
        else {
            return;
        };
        in_hand::hold(sequence.request.intake);
        let failure = failure_of(row.verdict);
        if failure.is_some() {
            // The verdict is on the last token, which is undefined.
            row.tokens.pop();
        }
        if let Some(error) = &failure
            && row.tokens.is_empty()
        {
            return self.fail(seq, error.clone());
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
        let may_end_by_grammar = matches!(end, None | Some(FinishReason::Length { .. }));
        let took_all = n_taken == row.tokens.len();
        if may_end_by_grammar && took_all && row.verdict == RowVerdict::GrammarDone {
            end = Some(FinishReason::Grammar);
        }
        sequence.planned_output = sequence.planned_output.max(sequence.output.len());
        if sequence.is_prefill_only_done() {
            end = Some(FinishReason::Length { max_new_tokens: 0 });
        }
        let kept = sequence.output.len();
        row.tokens.truncate(n_taken);
        if n_taken > 0 || logprobs.is_some() {
            let mut tokens = std::mem::take(&mut row.tokens);
            if !std::mem::replace(&mut sequence.is_opening_sent, true) {
                tokens.insert_many(0, sequence.request.opening.iter().copied());
            }
            self.outbox.report(sequence, tokens, logprobs, None);
            self.outbox.note_drafts(sequence, row.drafts);
        }
        match (end, failure) {
            (Some(reason), _) => {
                self.finish(seq, RequestEnd::Finished(reason), kept, KvAtEnd::Publish);
            }
            (None, Some(error)) => self.fail(seq, error),
            (None, None) if n_taken > 0 => self.passed_step(seq),
            (None, None) => {}
        }
    }

    /// Counts the query tokens of a row that the step accepted, and the copy of its state at the last page end that
    /// these tokens have passed.
    fn take_accepted(&mut self, seq: SeqId, room: u32, accepted: u32) {
        let page = self.limits.page_size;
        let Some(sequence) = self.requests.get_mut(seq) else {
            return;
        };
        sequence.give_back(room, accepted);
        // Each row of a later step in flight computes at least one token.
        let later = (sequence.unsure + sequence.rows_in_flight) as usize;
        let n_prefilled = sequence.fill.len();
        if sequence.max_room() > 1
            && let Some(kv) = &mut sequence.kv
            && let Some(states) = &mut kv.states
        {
            let end = kv.committed - later;
            let passed = page.floor(end);
            // The copies of a prefill are known when it is planned.
            if end > n_prefilled && passed + accepted as usize > end {
                states.note_tail(passed);
            }
        }
    }

    /// Takes a row that the step skipped because the sequence had ended: the last planned token was not computed.
    fn take_skipped(&mut self, seq: SeqId, room: u32) {
        let Some(sequence) = self.requests.get_mut(seq) else {
            return;
        };
        if !sequence.has_ended {
            let reason = "the executor returned no result for this request (a bug)";
            let error = StepError::Lost(reason.to_owned());
            return self.fail(seq, RequestError::Step(error));
        }
        if let Some(kv) = &mut sequence.kv {
            let later = (sequence.unsure + sequence.rows_in_flight) as usize;
            if let Some(states) = &mut kv.states {
                states.revert_tail(kv.committed - later);
            }
            kv.committed -= room as usize;
        }
    }

    /// Takes a failed step: the K/V that this step and later ones wrote may be wrong. The requests of a rejected step
    /// fail. Those of a lost step become suspects, and are computed again. Then the tree is flushed.
    fn take_lost_step(&mut self, record: &StepRecord, error: &StepError) {
        self.pipeline.begin_recovery();
        match error {
            StepError::Lost(reason) => self.suspect(record, reason),
            StepError::Rejected(_) => {
                for &seq in record.seqs() {
                    if self.requests.get(seq).is_some() {
                        self.fail(seq, RequestError::Step(error.clone()));
                    }
                }
            }
        }
    }

    /// When no step is in flight: retracts everything, releases the locks of pins, flushes the tree.
    pub(super) fn recover(&mut self) -> Next {
        if !self.pipeline.is_drained() {
            return Next::Nothing;
        }
        self.pipeline.end_recovery();
        if let Some(tier) = &mut self.tier {
            tier.drop_copies();
        }
        self.drop_encodings();
        // The next plan readmits the sequences retracted here, without waiting for another event.
        self.pipeline.note_change();
        drop(self.batch.take_extended());
        for &seq in self.batch.ended() {
            if let Some(sequence) = self.requests.get_mut(seq) {
                sequence.publish = false;
            }
        }
        self.hosts.pins_mut().lose_all();
        let mut settle = self.take_settlements();
        self.batch.clear_running();
        let seqs_with_memory = self
            .requests
            .iter()
            .filter(|(_, sequence)| sequence.kv.is_some());
        let seqs_with_memory: Vec<SeqId> = seqs_with_memory.map(|(seq, _)| seq).collect();
        for &seq in &seqs_with_memory {
            // A plan that was open when the step was lost has counted rows that were never sent.
            self.requests[seq].rows_in_flight = 0;
            self.requests[seq].unsure = 0;
            settle.extend(retract_of(seq, &mut self.requests[seq]));
            self.release_vectors(seq);
            self.queue_retracted(seq);
        }
        let request = PlanStep {
            settle,
            flush: true,
            ..self.empty_request()
        };
        self.pipeline.open(Vec::new(), None);
        Next::PlanStep(Box::new(request))
    }
}

/// The error of a row whose last token is undefined.
fn failure_of(verdict: RowVerdict) -> Option<RequestError> {
    match verdict {
        RowVerdict::Open | RowVerdict::GrammarDone => None,
        RowVerdict::NanLogits => Some(RequestError::NanLogits),
        RowVerdict::GrammarFailed(failure) => Some(RequestError::Grammar(failure.reason())),
    }
}

fn finish_reason(sequence: &Sequence, token: u32, eos: &[u32]) -> Option<FinishReason> {
    let is_stop =
        || eos.contains(&token) || sequence.request.sampling.stop_token_ids.contains(&token);
    if sequence.ends_at_stop_tokens() && is_stop() {
        return Some(FinishReason::StopToken(token));
    }
    let max_new_tokens = sequence.max_new_tokens();
    let is_full = sequence.output.len() >= max_new_tokens;
    is_full.then_some(FinishReason::Length {
        max_new_tokens: max_new_tokens as u32,
    })
}
