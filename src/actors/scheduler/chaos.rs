//! The Scheduler's points for `--chaos`.

use super::Scheduler;
use souffleur_base::ids::{IntakeId, RequestId};
use souffleur_base::in_hand;
use souffleur_chaos::{Actor, Chaos, Phase};
use souffleur_state::scheduler::submission::Resume;
use souffleur_state::step::StepOutput;

impl Scheduler {
    pub fn with_chaos(self, chaos: Chaos) -> Self {
        Self { chaos, ..self }
    }

    pub(super) fn strike(&self, phase: Phase, message: &'static str) {
        self.chaos.strike(Actor::Scheduler, phase, message);
    }

    /// The entry of the handler of a message about one request.
    pub(super) fn strike_request(&self, message: &'static str, rid: &RequestId) {
        let place = Actor::Scheduler;
        self.chaos
            .strike_request(place, Phase::Entry, message, rid.as_str());
    }

    /// The point of each request that is continued.
    pub(super) fn strike_resumed(&self, resume: &Resume) {
        if !self.chaos.is_on() {
            return;
        }
        for resumption in &resume.requests {
            let request = &resumption.submission;
            self.strike_in_hand("Resumption", (request.intake, &request.rid));
        }
        in_hand::clear();
    }

    /// The point of each row of a result.
    pub(super) fn strike_rows(&self, output: &StepOutput) {
        if !self.chaos.is_on() {
            return;
        }
        for row in &output.rows {
            if let Some(request) = self.state.request_of(row.seq) {
                self.strike_in_hand("Row", request);
            }
        }
        in_hand::clear();
    }

    fn strike_in_hand(&self, message: &'static str, (intake, rid): (IntakeId, &RequestId)) {
        in_hand::hold(intake);
        self.chaos
            .strike_request(Actor::Scheduler, Phase::Middle, message, rid.as_str());
    }

    /// Sends all messages that are due once `message` has changed the state.
    pub(super) fn drive_after(&mut self, message: &'static str) {
        self.strike(Phase::Middle, message);
        self.drive();
        self.strike(Phase::Exit, message);
    }
}
