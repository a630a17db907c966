//! The docket's part for one unit: which of its requests are posted, and which are due.

use std::collections::BTreeSet;

use super::entry::Place;
use super::named::Named;
use crate::scheduler::submission::IdFloor;
use crate::supervision::FIRST_GENERATION;
use crate::supervision::blame::{Blame, Signature, Suspicion};
use souffleur_base::ids::IntakeId;

/// Steps of one generation, and its tickets, have the same number above these bits.
const GENERATION_BITS: u32 = 40;

/// The smallest number of the steps and tickets of a unit in a generation. Those of earlier generations are smaller.
pub fn first_number(generation: u64) -> u64 {
    generation.saturating_sub(FIRST_GENERATION) << GENERATION_BITS
}

/// Deaths by one cause that a request survives while it is alone, if no death named it.
const PATIENCE: u8 = 1;

#[derive(Debug)]
pub(super) struct Desk {
    /// `None` before the unit was started.
    pub(super) generation: Option<u64>,
    /// The unit has died, and its next generation has not begun: nothing is posted to it.
    pub(super) is_down: bool,
    /// The Scheduler has not got the first message of its generation.
    pub(super) is_anew: bool,
    pub(super) held: BTreeSet<IntakeId>,
    pub(super) n_posted: usize,
    /// Requests posted in all generations: at least as many as the sequences that the unit's Schedulers numbered.
    pub(super) n_sequences: u64,
    pub(super) blame: Blame,
    named: Named,
    /// The suspect that was cleared last.
    pub(super) passed: Option<IntakeId>,
    /// The request posted after the last withdrawal: before its first result, tokens of the withdrawn one may come.
    pub(super) fence: Option<IntakeId>,
}

impl Default for Desk {
    fn default() -> Self {
        Self {
            generation: None,
            is_down: false,
            is_anew: false,
            held: BTreeSet::new(),
            n_posted: 0,
            n_sequences: 0,
            blame: Blame::patient(PATIENCE),
            named: Named::default(),
            passed: None,
            fence: None,
        }
    }
}

impl Desk {
    /// Takes a death that happened while the unit worked on one request, which was told this number of tokens. Returns
    /// the request if it is convicted.
    pub(super) fn died_with(
        &mut self,
        intake: IntakeId,
        cause: &Signature,
        told: usize,
    ) -> Option<IntakeId> {
        let one = Suspicion::One(intake, cause.clone());
        let convicted = self.blame.died(&one, std::iter::empty());
        if self.named.died(intake, cause, told) {
            self.blame.convict(intake, cause);
            return Some(intake);
        }
        convicted
    }

    /// Begins a generation, which has none of the requests.
    pub(super) fn begin(&mut self, generation: u64) {
        self.generation = Some(generation);
        self.is_down = false;
        self.is_anew = true;
        self.n_posted = 0;
        self.passed = None;
        self.fence = None;
    }

    /// False if no message can be due.
    pub(super) fn is_due(&self) -> bool {
        let has_unit = self.generation.is_some() && !self.is_down;
        has_unit && (self.is_anew || !self.held.is_empty())
    }

    pub(super) fn withdraw(&mut self, intake: IntakeId) {
        self.n_posted -= 1;
        self.held.insert(intake);
    }

    /// Takes the requests to post now: the next suspect alone, or all if there are no suspects.
    pub(super) fn take_due(&mut self, has_withdrawn: bool) -> Vec<IntakeId> {
        if self.blame.on_trial().is_some() {
            return Vec::new();
        }
        if self.blame.has_suspects() {
            let next = if self.n_posted == 0 {
                self.blame.begin()
            } else {
                None
            };
            if has_withdrawn {
                self.fence = next;
            }
            return next
                .into_iter()
                .filter(|next| self.held.remove(next))
                .collect();
        }
        if self.fence.is_some() {
            return Vec::new();
        }
        std::mem::take(&mut self.held).into_iter().collect()
    }

    pub(super) fn remove(&mut self, intake: IntakeId, place: Place) {
        match place {
            Place::Held => {
                self.held.remove(&intake);
            }
            Place::Posted => self.n_posted -= 1,
            Place::Ended => {}
        }
        self.blame.left(intake);
        self.named.forget(intake);
        self.passed.take_if(|passed| *passed == intake);
    }

    /// The ids that no earlier generation can have assigned.
    pub(super) fn floor(&self) -> IdFloor {
        IdFloor {
            step: self.generation.map_or(0, first_number),
            sequences: self.n_sequences,
        }
    }
}
