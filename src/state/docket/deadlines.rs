//! Time limits of requests that no Scheduler checks: of held ones, and of those that a dead Scheduler had.

use super::Docket;
use super::entry::Place;
use souffleur_base::error::RequestError;
use souffleur_base::ids::IntakeId;

/// The time that a posted request has beyond its limit. A Scheduler that lives ends it before.
const GRACE_S: f64 = 1.0;

impl Docket {
    /// The requests whose waiting or running time limit has passed, with their errors, oldest first. The owner sends
    /// the errors to the clients and removes the requests. Call it periodically, also while no unit runs.
    pub fn overdue(&mut self, now_s: f64) -> Vec<(IntakeId, RequestError)> {
        if !self.has_timeouts {
            return Vec::new();
        }
        let mut has_timeouts = false;
        let mut overdue = Vec::new();
        for (&intake, entry) in self.entries.iter().filter(|(_, entry)| entry.is_open()) {
            has_timeouts |= entry.request().timeouts.any();
            let grace_s = match entry.place {
                Place::Held => 0.0,
                Place::Posted | Place::Ended => GRACE_S,
            };
            if let Some(error) = entry.overrun(now_s - grace_s) {
                overdue.push((intake, error));
            }
        }
        self.has_timeouts = has_timeouts;
        overdue.sort_unstable_by_key(|(intake, _)| *intake);
        overdue
    }
}
