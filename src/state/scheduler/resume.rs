//! Takes over requests that a dead unit has left.
//!
//! A resumed request continues after the tokens that its client was told, as after a retraction. The tokens that the
//! dead unit computed but did not tell are computed again.

use crate::scheduler::news::RequestEnd;
use crate::scheduler::sequence::Sequence;
use crate::scheduler::submission::{IdFloor, Resume, Resumption};
use souffleur_base::error::RequestError;
use souffleur_base::ids::StepId;
use souffleur_base::in_hand;

use super::Scheduler;

impl Scheduler {
    /// Queues requests of earlier generations or other units, oldest first. They were accepted before, so the limit of
    /// the queue does not apply. Those that have run come before the policy's order, like retracted ones. A request
    /// whose id is in flight is rejected. `now_s` is the time on the clock of later `submitted_s`.
    pub fn resume(&mut self, resume: Resume, now_s: f64) {
        self.requests.forget_cancels_seen();
        self.begin_after(resume.floor);
        for resumption in resume.requests {
            in_hand::hold(resumption.submission.intake);
            self.resume_one(resumption, now_s);
        }
        in_hand::clear();
    }

    /// Has an effect only before the first plan: later ids are above the floor.
    fn begin_after(&mut self, floor: IdFloor) {
        if !self.has_open_plan() {
            self.pipeline.number_from(StepId::new(floor.step));
        }
        self.requests.begin_after(floor.sequences);
        self.hosts.pins_mut().number_after(floor.step);
        if let Some(tier) = &mut self.tier {
            tier.begin_after(floor.step);
        }
    }

    fn resume_one(&mut self, resumption: Resumption, now_s: f64) {
        let request = &resumption.submission;
        if self.requests.find_by_rid(&request.rid).is_some() {
            let error = RequestError::DuplicateRequest(request.rid.as_str().to_owned());
            return self
                .outbox
                .reject(request.intake, RequestEnd::Failed(error));
        }
        self.pipeline.note_change();
        let is_cancelled = request.cancel.is_raised();
        if is_cancelled {
            self.requests.note_cancel_seen(request.intake);
        }
        let has_run = resumption.has_run();
        let mut sequence = Sequence::resumed(resumption, now_s);
        self.note_images(&mut sequence);
        sequence.arrival_prefilled_tokens = self.queue.order().prefilled_tokens();
        let seq = self.requests.insert(sequence);
        if has_run {
            self.queue.push_retracted(seq);
        } else {
            self.queue.push(seq);
        }
        if is_cancelled {
            self.abort(seq);
        } else {
            self.find_stored(seq);
        }
    }
}
