//! The docket: all that is needed to continue each live request after a death.
//!
//! An entry has the request's submission and the tokens that its client was told. The rest (position of the draws,
//! penalties, grammar, text) is a function of these. The docket belongs to the owner of the clients' sinks, outside of
//! the units that die, and survives its owner too: it is handed to the next one.
//!
//! The owner follows this protocol:
//!
//! 1. A new request is entered ([`Docket::enter`]) before it is sent to a unit. With replicas, it is entered without
//!    one ([`Docket::enter_unrouted`]), and gets it later ([`Docket::route`]).
//! 2. A batch of results is noted ([`Docket::note`]) before any of it is turned into text or sent to a client. A batch
//!    of an older generation is dropped: its tokens are computed again, so only what was noted counts.
//! 3. When a client has got its terminal event, the entry is removed ([`Docket::ended`]).
//! 4. After each of these, and after a unit was started ([`Docket::open`]), the messages that are due are sent to the
//!    unit's Scheduler in order ([`Docket::posts`]).
//! 5. From time to time, the requests whose time limit has passed are ended ([`Docket::overdue`]).
//!
//! A unit that died has all of its requests posted again, oldest first, by the generation that follows it. While other
//! units run, they get its requests at once, except those that may have caused the death ([`Docket::move_away`]). A
//! request that two deaths by one cause name fails (`named.rs`). If no request was in hand, two deaths by one cause
//! make those that made no progress between them suspects, which are posted one by one ([`Blame`]). A suspect that has
//! passed is withdrawn until all are cleared, and requests that arrive meanwhile are held. Tokens of a withdrawn
//! request may still be in flight. They are noted before the request is posted again, because the Scheduler sends them
//! before it sends a result of the next suspect, and no withdrawn request is posted before such a result
//! (`Desk::fence`).

mod deadlines;
mod desk;
mod entry;
mod live;
mod named;
pub mod quarantine;
mod routing;
#[cfg(test)]
mod tests;
mod unnamed;

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::scheduler::news::{RequestEnd, RequestTokens};
use crate::scheduler::submission::{Resume, Submission};
use crate::supervision::Incarnation;
use crate::supervision::blame::{Blame, Suspicion};
use desk::Desk;
pub use desk::first_number;
pub use entry::Entry;
use entry::Place;
use souffleur_base::error::RequestError;
use souffleur_base::ids::{IntakeId, RequestId, UnitId};
use unnamed::LastDeaths;

/// A message to the Scheduler of a unit.
#[derive(Clone, Debug)]
pub enum Post {
    /// A request that no unit has had. Its `submitted_s` is relative to now.
    Submit(Box<Submission>),
    /// Requests that a unit has had. The first message of each generation, also without requests.
    Resume(Resume),
    /// Ends a request without a report, like a stop string, and publishes the K/V of its first `kept` output tokens.
    /// The request is resumed later.
    Withdraw { rid: RequestId, kept: usize },
}

#[derive(Debug, Default)]
pub struct Docket {
    entries: FxHashMap<IntakeId, Entry>,
    desks: BTreeMap<UnitId, Desk>,
    last_deaths: LastDeaths,
    n_intakes: u64,
    stale_messages: u64,
    /// False only if no live request has a time limit.
    has_timeouts: bool,
}

impl Docket {
    /// A number for a new request. No number is assigned twice, since the docket survives its owner.
    pub fn next_intake(&mut self) -> IntakeId {
        self.n_intakes += 1;
        IntakeId::new(self.n_intakes - 1)
    }

    /// Enters a request for a unit, which need not run yet.
    pub fn enter(&mut self, request: Submission, unit: UnitId, now_s: f64) {
        let intake = request.intake;
        self.has_timeouts |= request.timeouts.any();
        self.desks.entry(unit).or_default().held.insert(intake);
        self.entries
            .insert(intake, Entry::new(request, unit, now_s));
    }

    /// Notes tokens and ends, in their order. Returns false if they are from an older generation, which the caller then
    /// drops. Requests that have ended are left out.
    #[must_use]
    pub fn note(&mut self, from: Incarnation, batch: &[RequestTokens]) -> bool {
        let desk = self.desks.get_mut(&from.unit);
        let Some(desk) = desk.filter(|desk| desk.generation == Some(from.generation)) else {
            self.stale_messages += 1;
            return false;
        };
        for update in batch {
            desk.fence.take_if(|fence| *fence == update.intake);
            let entry = self.entries.get_mut(&update.intake);
            let Some(entry) = entry.filter(|entry| entry.unit == from.unit && entry.is_open())
            else {
                continue;
            };
            entry.note(update);
            if let Some(end) = entry.end() {
                if end.shows_in_results() {
                    desk.blame.ended(update.intake);
                } else {
                    desk.blame.left(update.intake);
                }
            } else if !update.tokens.is_empty() && desk.blame.passed_step(update.intake) {
                desk.passed = Some(update.intake);
            }
        }
        true
    }

    /// Notes the first admission of a request.
    pub fn admitted(&mut self, intake: IntakeId, now_s: f64) {
        if let Some(entry) = self.entries.get_mut(&intake) {
            entry.running_since_s.get_or_insert(now_s);
        }
    }

    /// Removes a request whose client has got the terminal event.
    pub fn ended(&mut self, intake: IntakeId) -> Option<Entry> {
        let entry = self.entries.remove(&intake)?;
        if let Some(desk) = self.desks.get_mut(&entry.unit) {
            desk.remove(intake, entry.place);
        }
        Some(entry)
    }

    /// Takes note that a generation of a unit was started, and who may have caused the death of the one before it. Its
    /// requests become due again. Returns the convicted request, which has ended with an error ([`Docket::ends_due`]).
    pub fn open(&mut self, at: Incarnation, suspicion: &Suspicion) -> Option<IntakeId> {
        let desk = self.desks.entry(at.unit).or_default();
        let of_unit = self.entries.iter_mut();
        let of_unit = of_unit.filter(|(_, entry)| entry.unit == at.unit);
        let mut posted = Vec::new();
        let mut over = Vec::new();
        for (&intake, entry) in of_unit {
            if !entry.is_open() {
                entry.place = Place::Ended;
                over.push(intake);
                continue;
            }
            if entry.place == Place::Posted || desk.blame.may_run() == Some(intake) {
                posted.push(intake);
            }
            entry.place = Place::Held;
            desk.held.insert(intake);
        }
        desk.begin(at.generation);
        let told = |intake: IntakeId| self.entries[&intake].told().len();
        let convicted = match suspicion {
            Suspicion::One(intake, cause) if posted.contains(intake) => {
                desk.died_with(*intake, cause, told(*intake))
            }
            Suspicion::Nothing | Suspicion::One(..) => {
                desk.blame.died(&Suspicion::Nothing, std::iter::empty())
            }
            Suspicion::All(cause) => {
                let posted: Vec<_> = posted
                    .iter()
                    .map(|&intake| (intake, told(intake)))
                    .collect();
                let is_open =
                    |intake: IntakeId| self.entries.get(&intake).is_some_and(Entry::is_open);
                let last = &mut self.last_deaths;
                let suspects = last.without_progress(at.unit, cause, &posted, is_open);
                desk.blame.died(suspicion, suspects.into_iter())
            }
        };
        over.into_iter().for_each(|intake| desk.blame.ended(intake));
        if let Some(convicted) = convicted {
            self.convict(convicted);
        }
        convicted
    }

    /// Moves the requests of a unit that is not started again. They are not suspects in the other unit, whose requests
    /// would have to wait for their trials.
    pub fn hand_over(&mut self, from: UnitId, to: UnitId) {
        self.desks.remove(&from);
        let desk = self.desks.entry(to).or_default();
        for (&intake, entry) in &mut self.entries {
            if entry.unit == from {
                entry.unit = to;
                if entry.is_open() {
                    entry.place = Place::Held;
                    desk.held.insert(intake);
                } else {
                    entry.place = Place::Ended;
                }
            }
        }
    }

    /// Takes the messages that are due to a unit's Scheduler.
    pub fn posts(&mut self, unit: UnitId, now_s: f64) -> Vec<Post> {
        let desk = self.desks.get_mut(&unit);
        let Some(desk) = desk.filter(|desk| desk.is_due()) else {
            return Vec::new();
        };
        let mut posts = Vec::new();
        let is_anew = std::mem::take(&mut desk.is_anew);
        let passed = desk.passed.take().filter(|_| desk.blame.has_suspects());
        if let Some(passed) = passed
            && let Some(entry) = self.entries.get_mut(&passed)
            && entry.is_open()
        {
            desk.withdraw(passed);
            entry.place = Place::Held;
            posts.push(Post::Withdraw {
                rid: entry.request().rid.clone(),
                kept: entry.told().len(),
            });
        }
        let due = desk.take_due(passed.is_some());
        let mut resume = Resume {
            floor: desk.floor(),
            requests: Vec::new(),
        };
        let mut submits = Vec::new();
        for intake in due {
            let entry = self.entries.get_mut(&intake);
            let Some(entry) = entry.filter(|entry| entry.is_open()) else {
                continue;
            };
            desk.n_posted += 1;
            desk.n_sequences += 1;
            entry.place = Place::Posted;
            if std::mem::replace(&mut entry.was_posted, true) {
                resume.requests.push(entry.resume(now_s));
            } else {
                submits.push(Post::Submit(Box::new(entry.submission(now_s))));
            }
        }
        if is_anew || !resume.requests.is_empty() {
            posts.push(Post::Resume(resume));
        }
        posts.extend(submits);
        posts
    }

    /// Requests whose end was noted and which have not been removed, oldest first: their clients lack the terminal
    /// event. A new owner sends it, and the owner after a conviction.
    pub fn ends_due(&self) -> Vec<IntakeId> {
        let over = self.entries.iter().filter(|(_, entry)| !entry.is_open());
        let mut over: Vec<IntakeId> = over.map(|(intake, _)| *intake).collect();
        over.sort_unstable();
        over
    }

    /// All requests, oldest first. Allocates: not for every step.
    pub fn intakes(&self) -> Vec<IntakeId> {
        let mut all: Vec<IntakeId> = self.entries.keys().copied().collect();
        all.sort_unstable();
        all
    }

    pub fn get(&self, intake: IntakeId) -> Option<&Entry> {
        self.entries.get(&intake)
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Messages dropped because they were from an older generation.
    pub fn stale_messages(&self) -> u64 {
        self.stale_messages
    }

    /// The suspects of a unit.
    pub fn blame(&self, unit: UnitId) -> Option<&Blame> {
        self.desks.get(&unit).map(|desk| &desk.blame)
    }

    fn convict(&mut self, intake: IntakeId) {
        let Some(entry) = self.entries.get_mut(&intake) else {
            return;
        };
        let rid = &entry.request().rid;
        let error = RequestError::Poison(format!(
            "request {rid} crashed the engine's actors repeatedly: it fails, and identical ones are refused for ten \
             minutes (please report the bug with the server's log)"
        ));
        entry.end = Some(RequestEnd::Failed(error));
        if let Some(desk) = self.desks.get_mut(&entry.unit) {
            desk.remove(intake, entry.place);
        }
        entry.place = Place::Ended;
    }
}
