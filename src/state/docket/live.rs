//! Lists the docket's requests for hosts.

use super::Docket;
use super::entry::Place;
use crate::scheduler::live::LiveRequest;
use souffleur_base::ids::IntakeId;

impl Docket {
    /// The first `most` requests that have not ended, held ones before posted ones, each from the oldest on; and the
    /// number of all. A posted request that its Scheduler does not list waits in the mailbox of the Scheduler.
    pub fn live_requests(&self, now_s: f64, most: usize) -> (Vec<LiveRequest>, usize) {
        let open = self.entries.iter().filter(|(_, entry)| entry.is_open());
        let order = open.map(|(intake, entry)| (entry.place != Place::Held, *intake));
        let mut order: Vec<(bool, IntakeId)> = order.collect();
        order.sort_unstable();
        let n_requests = order.len();
        let listed = order.into_iter().take(most);
        let listed = listed.filter_map(|(_, intake)| self.live_request(intake, now_s));
        (listed.collect(), n_requests)
    }

    pub fn live_request(&self, intake: IntakeId, now_s: f64) -> Option<LiveRequest> {
        let entry = self.get(intake).filter(|entry| entry.is_open())?;
        Some(entry.live(now_s))
    }
}
