//! The Scheduler's points for `--chaos`.

use super::Scheduler;
use souffleur_base::ids::RequestId;
use souffleur_chaos::{Actor, Chaos, Phase};

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

    /// Sends all messages that are due once `message` has changed the state.
    pub(super) fn drive_after(&mut self, message: &'static str) {
        self.strike(Phase::Middle, message);
        self.drive();
        self.strike(Phase::Exit, message);
    }
}
