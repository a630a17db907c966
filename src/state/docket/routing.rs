//! Gives requests of an engine with replicas to units, and takes them back when a unit dies.

use super::Docket;
use super::entry::{Entry, Place};
use crate::scheduler::news::RequestTokens;
use crate::scheduler::submission::Submission;
use crate::supervision::blame::Suspicion;
use souffleur_base::ids::{IntakeId, UnitId};

/// The unit of requests that have none yet. It is never started, so nothing is posted to it.
pub(super) const UNROUTED: UnitId = UnitId::new(u32::MAX);

impl Docket {
    /// Enters a request whose unit is chosen later ([`Docket::route`]).
    pub fn enter_unrouted(&mut self, request: Submission, now_s: f64) {
        self.enter(request, UNROUTED, now_s);
    }

    /// Assigns a request without a unit to `to`, which need not run yet. False if the request has ended or has a unit,
    /// or if `to` has died since it was chosen.
    pub fn route(&mut self, intake: IntakeId, to: UnitId) -> bool {
        if self.desks.get(&to).is_some_and(|desk| desk.is_down) {
            return false;
        }
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

    /// Takes the requests from a unit that has died, while others run, and returns them, oldest first: they have no
    /// unit from now on. Those that may have caused the death stay, and are tried when the unit is started again.
    pub fn move_away(&mut self, from: UnitId, suspicion: &Suspicion) -> Vec<IntakeId> {
        let desk = self.desks.entry(from).or_default();
        desk.is_down = true;
        let is_suspect = |intake: IntakeId| {
            desk.blame.on_trial() == Some(intake) || desk.blame.is_suspect(intake)
        };
        let of_unit = self.entries.iter();
        let of_unit = of_unit.filter(|(_, entry)| entry.unit == from && entry.is_open());
        let of_unit = of_unit.filter(|(intake, _)| !is_suspect(**intake));
        let mut moved: Vec<IntakeId> = of_unit.map(|(intake, _)| *intake).collect();
        moved.sort_unstable();
        match suspicion {
            Suspicion::Nothing => {}
            Suspicion::One(named, _) => moved.retain(|intake| intake != named),
            Suspicion::All(cause) => {
                let posted = moved.iter().map(|intake| (*intake, &self.entries[intake]));
                let posted = posted.filter(|(_, entry)| entry.place == Place::Posted);
                let posted: Vec<_> = posted
                    .map(|(intake, entry)| (intake, entry.told().len()))
                    .collect();
                let is_open =
                    |intake: IntakeId| self.entries.get(&intake).is_some_and(Entry::is_open);
                let last = &mut self.last_deaths;
                let suspects = last.without_progress(from, cause, &posted, is_open);
                // Those without progress since another death by this cause may have caused both: they stay.
                moved.retain(|intake| !suspects.contains(intake));
            }
        }
        for intake in &moved {
            self.unroute(*intake, from);
        }
        moved
    }

    /// Takes all requests from a unit that is not started again, and returns the requests that have no unit.
    pub fn retire(&mut self, unit: UnitId) -> Vec<IntakeId> {
        self.hand_over(unit, UNROUTED);
        self.unrouted()
    }

    fn unroute(&mut self, intake: IntakeId, from: UnitId) {
        let Some(entry) = self.entries.get_mut(&intake) else {
            return;
        };
        if let Some(desk) = self.desks.get_mut(&from) {
            desk.remove(intake, entry.place);
        }
        entry.unit = UNROUTED;
        entry.place = Place::Held;
        self.desks.entry(UNROUTED).or_default().held.insert(intake);
    }

    /// Drops results of a unit for requests that have moved away from it: they are computed again. Results of ended
    /// requests stay: they show [`Docket::note`] that the Scheduler has passed the steps before them (`Desk::fence`).
    pub fn drop_results_of_moved(&self, unit: UnitId, batch: &mut Vec<RequestTokens>) {
        let has_moved = |intake: IntakeId| {
            let entry = self.entries.get(&intake);
            entry.is_some_and(|entry| entry.unit != unit)
        };
        batch.retain(|update| !has_moved(update.intake));
    }

    /// The requests that have no unit, oldest first.
    pub fn unrouted(&self) -> Vec<IntakeId> {
        let desk = self.desks.get(&UNROUTED);
        desk.map(|desk| desk.held.iter().copied().collect())
            .unwrap_or_default()
    }

    /// Whether open requests have this unit.
    pub fn has_requests_of(&self, unit: UnitId) -> bool {
        let desk = self.desks.get(&unit);
        desk.is_some_and(|desk| desk.n_posted > 0 || !desk.held.is_empty())
    }

    pub fn is_unrouted(&self, intake: IntakeId) -> bool {
        let desk = self.desks.get(&UNROUTED);
        desk.is_some_and(|desk| desk.held.contains(&intake))
    }

    /// The open requests that have a unit, oldest first, with whether each has got a token from it.
    pub fn routed(&self) -> Vec<(IntakeId, UnitId, bool)> {
        let of_units = self.entries.iter();
        let of_units = of_units.filter(|(_, entry)| entry.is_open() && entry.unit != UNROUTED);
        let of_units = of_units.map(|(&intake, entry)| (intake, entry.unit, entry.is_prefilled()));
        let mut routed: Vec<(IntakeId, UnitId, bool)> = of_units.collect();
        routed.sort_unstable();
        routed
    }
}
