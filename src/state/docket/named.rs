//! The requests that were in hand at deaths.
//!
//! Two deaths by one cause that name the same request convict it, if it made no progress between them. The progress of
//! others does not matter: they are in hand at other times. A death by another cause does not count, so random deaths
//! convict no request. The first death holds no request back for a trial, so that all streams continue at once. An
//! innocent request fails only if the same fault meets it twice at the same place: that cannot be told from a request
//! that causes the fault.

use std::collections::VecDeque;

use crate::step::PIPELINE_DEPTH;
use crate::supervision::blame::Signature;
use souffleur_base::ids::IntakeId;

/// Deaths that are remembered; the oldest is forgotten first.
const MAX_DEATHS: usize = 16;

/// True if a request that was told these numbers of tokens made no progress between two deaths. The results of the
/// steps in flight at a death are lost, so fewer or more of them are told before the next.
pub(super) fn is_stalled(told_before: usize, told: usize) -> bool {
    told <= told_before + PIPELINE_DEPTH
}

#[derive(Debug, Default)]
pub(super) struct Named(VecDeque<NamedDeath>);

#[derive(Debug)]
struct NamedDeath {
    intake: IntakeId,
    cause: Signature,
    /// The number of told tokens of the request.
    told: usize,
}

impl Named {
    /// Takes a death that names a request, and the request's number of told tokens. Returns true if it is convicted.
    pub(super) fn died(&mut self, intake: IntakeId, cause: &Signature, told: usize) -> bool {
        let is_same = |death: &NamedDeath| death.intake == intake && death.cause == *cause;
        let place = self.0.iter().position(is_same);
        let earlier = place.and_then(|place| self.0.remove(place));
        let is_convicted = earlier.is_some_and(|earlier| is_stalled(earlier.told, told));
        if self.0.len() == MAX_DEATHS {
            self.0.pop_front();
        }
        self.0.push_back(NamedDeath {
            intake,
            cause: cause.clone(),
            told,
        });
        is_convicted
    }

    pub(super) fn forget(&mut self, intake: IntakeId) {
        self.0.retain(|death| death.intake != intake);
    }
}
