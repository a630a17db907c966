//! Finds the request that makes steps fail, without failing any other.
//!
//! When a step is lost, the requests in the steps in flight become suspects, and each is tried alone ([`Blame`]): until
//! all are cleared, only the suspect on trial is admitted, and the others keep their places in the queue. A suspect is
//! cleared by the results of the steps that were lost. It is then retracted, since the next one must be alone; the
//! cache keeps its prefill. The last one continues.
//!
//! A suspect fails if its step is lost twice while it is alone, by the same cause as before: the text of the error. A
//! loss by another cause makes it a suspect of both. So unrelated faults fail no request, unless the same one meets a
//! suspect in two trials by chance.

use crate::plan::Settle;
use crate::scheduler::sequence::{Phase, Sequence};
use crate::supervision::blame::{Blame, Signature, Suspicion};
use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::{IntakeId, SeqId};

use super::Scheduler;
use super::pipeline::StepRecord;

/// Losses that a request survives while it is alone, by whatever causes, without being cleared between them: one that
/// breaks every step by another cause must fail eventually.
const MAX_LONE_LOSSES: u8 = 10;
/// Losses by one cause that a request survives while it is alone.
const PATIENCE: u8 = 1;

pub(super) struct Trials {
    blame: Blame,
    /// The suspect that was cleared last, until the next plan.
    cleared: Option<SeqId>,
}

impl Default for Trials {
    fn default() -> Self {
        Self {
            blame: Blame::patient(PATIENCE),
            cleared: None,
        }
    }
}

impl Trials {
    /// False for a request that waits until the trials are over.
    pub(super) fn admit(&self, intake: IntakeId) -> bool {
        !self.blame.has_suspects() || self.blame.on_trial() == Some(intake)
    }

    pub(super) fn ended(&mut self, intake: IntakeId) {
        self.blame.ended(intake);
    }
}

impl Scheduler {
    /// True while requests are tried, or wait for their trials.
    #[inline]
    pub fn has_suspects(&self) -> bool {
        self.trials.blame.has_suspects()
    }

    /// Takes a loss. The requests of the steps after the lost one are suspects too: a GPU may report the fault of a
    /// step when the result of the step before it is read. The convicted request fails.
    pub(super) fn suspect(&mut self, lost: &StepRecord, reason: &str) {
        self.trials.cleared = None;
        if lost.seqs().next().is_none() {
            // The step only copied blocks, or its requests have ended.
            self.trials
                .blame
                .died(&Suspicion::Nothing, std::iter::empty());
            return;
        }
        let mut rows: Vec<SeqId> = lost.seqs().copied().collect();
        rows.extend(self.pipeline.seqs_in_flight());
        rows.sort_unstable();
        rows.dedup();
        let is_alone = rows.len() == 1;
        rows.retain(|seq| self.requests.get(*seq).is_some_and(is_live));
        for &seq in &rows {
            let sequence = &mut self.requests[seq];
            sequence.losses += 1;
            sequence.lone_losses += u8::from(is_alone);
        }
        let cause = Suspicion::All(Signature {
            actor: "executor",
            place: reason.into(),
        });
        let suspects = rows.iter().map(|seq| self.requests[*seq].request.intake);
        let convicted = self.trials.blame.died(&cause, suspects);
        let must_fail = |seq: &SeqId| {
            let sequence = &self.requests[*seq];
            let is_convicted = convicted == Some(sequence.request.intake);
            is_convicted || sequence.lone_losses > MAX_LONE_LOSSES
        };
        let failing = rows.iter().copied().find(must_fail);
        if let Some(seq) = failing {
            let reason = format!(
                "the engine ran this request alone to find the cause of failed steps, and its step failed again: \
                 {reason}"
            );
            self.fail(seq, RequestError::Step(StepError::Lost(reason)));
        }
    }

    /// Takes a result with tokens for a request that continues.
    #[inline]
    pub(super) fn passed_step(&mut self, seq: SeqId) {
        if self.has_suspects() {
            self.passed_trial(seq);
        }
    }

    #[cold]
    fn passed_trial(&mut self, seq: SeqId) {
        let sequence = &mut self.requests[seq];
        if self.trials.blame.passed_step(sequence.request.intake) {
            sequence.lone_losses = 0;
            self.trials.cleared = Some(seq);
        }
    }

    /// Begins the next trial, if no request is admitted or in a step in flight.
    pub(super) fn begin_trial(&mut self) {
        let is_due = self.has_suspects() && self.trials.blame.on_trial().is_none();
        if !is_due || self.is_paused() || !self.batch.is_empty() {
            return;
        }
        if self.pipeline.seqs_in_flight().next().is_none() {
            self.trials.blame.drained();
            self.trials.blame.begin();
        }
    }

    /// Retracts the suspect that was cleared last, if others are still to be tried.
    pub(super) fn retract_cleared(&mut self) -> Option<Settle> {
        let seq = self.trials.cleared.take()?;
        let is_admitted =
            |sequence: &Sequence| is_live(sequence) && sequence.phase != Phase::Waiting;
        if !self.has_suspects() || !self.requests.get(seq).is_some_and(is_admitted) {
            return None;
        }
        let settle = self.release_for_restart(seq);
        self.queue_retracted(seq);
        self.batch.set_full(false);
        // The next trial begins with a plan after this one.
        self.pipeline.note_change();
        settle
    }
}

fn is_live(sequence: &Sequence) -> bool {
    !sequence.has_ended
}
