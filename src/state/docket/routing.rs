//! Requests of an engine with replicas, before the Router has chosen their units.

use super::Docket;
use super::entry::Place;
use crate::scheduler::submission::Submission;
use souffleur_base::ids::{IntakeId, UnitId};

/// The unit of requests that have none yet. It is never started, so nothing is posted to it.
pub(super) const UNROUTED: UnitId = UnitId::new(u32::MAX);

impl Docket {
    /// Enters a request whose unit is chosen later ([`Docket::route`]).
    pub fn enter_unrouted(&mut self, request: Submission, now_s: f64) {
        self.enter(request, UNROUTED, now_s);
    }

    /// Gives a request that has no unit to one, which need not run yet. False if it has ended, or has a unit.
    pub fn route(&mut self, intake: IntakeId, to: UnitId) -> bool {
        let Some(desk) = self.desks.get_mut(&UNROUTED) else {
            return false;
        };
        let Some(entry) = self.entries.get_mut(&intake) else {
            return false;
        };
        if entry.unit != UNROUTED || entry.place != Place::Held || !desk.held.remove(&intake) {
            return false;
        }
        entry.unit = to;
        self.desks.entry(to).or_default().held.insert(intake);
        true
    }

    /// The requests that have no unit, oldest first.
    pub fn unrouted(&self) -> Vec<IntakeId> {
        let desk = self.desks.get(&UNROUTED);
        desk.map(|desk| desk.held.iter().copied().collect())
            .unwrap_or_default()
    }

    /// The open requests that have a unit, oldest first, with whether each has got a token.
    pub fn routed(&self) -> Vec<(IntakeId, UnitId, bool)> {
        let of_units = self.entries.iter();
        let of_units = of_units.filter(|(_, entry)| entry.is_open() && entry.unit != UNROUTED);
        let of_units =
            of_units.map(|(&intake, entry)| (intake, entry.unit, !entry.told().is_empty()));
        let mut routed: Vec<(IntakeId, UnitId, bool)> = of_units.collect();
        routed.sort_unstable();
        routed
    }
}
