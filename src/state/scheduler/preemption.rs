//! Effects of priorities: rejection at intake, order of candidates, preemption of running requests.

use std::cmp::Reverse;

use crate::plan::preemption::{Preemption, Rank, Victim};
use crate::plan::prefill_adder::RunningReserve;
use crate::plan::{PlanStep, Preempt, Settle};
use crate::scheduler::news::RequestEnd;
use souffleur_base::error::RequestError;
use souffleur_base::ids::SeqId;

use super::outbox::Counter;
use super::pipeline::OpenPlan;
use super::planning::MAX_CANDIDATES;
use super::{KvAtEnd, Next, Scheduler};

impl Scheduler {
    pub(super) fn preempts(&self) -> bool {
        let rules = self.limits.rules.priority;
        rules.is_some_and(|rules| rules.preemption_threshold.is_some())
    }

    pub(super) fn rank(&self, seq: SeqId) -> Rank {
        let rules = self.limits.rules.priority;
        rules.map_or_else(Rank::default, |rules| {
            rules.rank(self.requests[seq].request.priority)
        })
    }

    /// The first queued requests that can be admitted now. With priorities, requests are sorted by rank, so that a
    /// retracted request cannot block a request of higher rank.
    pub(super) fn ready_candidates(&self) -> Vec<SeqId> {
        // A retracted sequence waits for its tokens in flight, a new one for the store's lookup, or for its images.
        let is_ready = |seq: &SeqId| {
            let sequence = &self.requests[*seq];
            let tier = sequence.tier.as_ref();
            sequence.rows_in_flight == 0
                && !tier.is_some_and(|tier| tier.is_finding())
                && !self.awaits_vectors(sequence)
                && self.trials.admit(sequence.request.intake)
        };
        let queue = self.queue.candidates().filter(is_ready);
        if self.limits.rules.priority.is_none() {
            return queue.take(MAX_CANDIDATES).collect();
        }
        let mut ready: Vec<SeqId> = queue.collect();
        ready.sort_by_cached_key(|seq| Reverse(self.rank(*seq)));
        ready.truncate(MAX_CANDIDATES);
        ready
    }

    /// The running sequences that may be preempted: those in `decode`. The others have all tokens planned and end soon.
    pub(super) fn preemptible(&self, decode: &[SeqId]) -> Option<Preemption> {
        let threshold = self.limits.rules.priority?.preemption_threshold?;
        let victims = decode.iter().map(|&seq| Victim {
            seq,
            rank: self.rank(seq),
            reserved_tokens: self.reserve_of(seq).tokens(self.batch.ratio().get()),
            window_tokens: self.window_tokens_of(seq),
        });
        Some(Preemption::new(threshold, victims.collect()))
    }

    pub(super) fn reserve_of(&self, seq: SeqId) -> RunningReserve {
        let sequence = &self.requests[seq];
        RunningReserve {
            remaining_new_tokens: sequence.remaining_new_tokens(),
            ignore_eos: sequence.request.sampling.ignore_eos,
            output_tokens: sequence.planned_output,
            held_tokens: sequence.request.prompt.len() + sequence.planned_output,
        }
    }

    /// Removes the victims from the batch and plans the same step again. A victim that ended meanwhile is released
    /// once, as ended. No sequence is preempted if the preempting request has ended, or if soft pins can be released
    /// instead.
    pub(super) fn preempt(&mut self, preempt: Preempt, open: OpenPlan) -> Next {
        if self.pipeline.is_recovering() {
            return Next::Nothing;
        }
        // A preempted request may fit into the plan after this one, even if this one runs nothing.
        self.pipeline.note_change();
        let is_live = |seq: &SeqId| {
            let sequence = self.requests.get(*seq);
            sequence.is_some_and(|sequence| !sequence.has_ended)
        };
        let mut victims = preempt.victims;
        victims.retain(|seq| is_live(seq) && is_live(&preempt.seq));
        if self.hosts.pins_mut().release_all_soft() {
            victims.clear();
        }
        let released: Vec<Settle> = victims
            .into_iter()
            .filter_map(|seq| {
                self.outbox.count(Counter::Preemptions, 1);
                let settle = self.release_for_restart(seq);
                self.requests[seq].retractions += 1;
                self.allow_fetch_again(seq);
                self.queue.push_preempted(seq);
                settle
            })
            .collect();
        self.batch.set_full(false);
        let mut settle = self.take_settlements();
        settle.extend(released);
        self.forget_rooms();
        let decode = self.plan_decode();
        let admit = self.admit_request(&decode.seqs);
        let (decode, decode_demand) = decode.into_demand();
        let request = PlanStep {
            settle,
            admit,
            decode_demand,
            ..self.empty_request()
        };
        self.pipeline.open(decode, open.flush);
        Next::PlanStep(Box::new(request))
    }

    /// At the request limit, rejects the waiting request of lowest priority that never ran (the newest of several), if
    /// the new request has a higher priority.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`].
    pub(super) fn reject_worst(&mut self, priority: Option<i64>) -> Result<(), RequestError> {
        let Some(rules) = self.limits.rules.priority else {
            return Ok(());
        };
        if self.requests.n_live() < rules.max_requests {
            return Ok(());
        }
        let is_client = |seq: &SeqId| !self.requests[*seq].request.intake.is_probe();
        let queued = self.requests.live().filter(is_client).count();
        if queued < rules.max_requests {
            return Ok(());
        }
        let overloaded = RequestError::Overloaded {
            what: "requests",
            queued,
            limit: rules.max_requests,
        };
        let never_ran = |seq: &&SeqId| self.requests[**seq].cached_tokens.is_none();
        let waiting = self.queue.waiting().iter().filter(never_ran);
        let waiting = waiting.filter(|seq| is_client(seq));
        let worst = waiting.min_by_key(|seq| (self.rank(**seq), Reverse(**seq)));
        match worst.copied() {
            Some(worst) if self.rank(worst) < rules.rank(priority) => {
                self.finish(worst, RequestEnd::Failed(overloaded), 0, KvAtEnd::Discard);
                Ok(())
            }
            _ => Err(overloaded),
        }
    }
}
