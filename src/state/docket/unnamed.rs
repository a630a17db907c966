//! The last death of each unit for which no request was named.
//!
//! Two such deaths by one cause make those requests suspects that were posted at both and made no progress between
//! them. With replicas, the second one may be that of the unit to which the requests have moved.

use std::collections::BTreeMap;

use super::named::is_stalled;
use crate::supervision::blame::Signature;
use souffleur_base::ids::{IntakeId, UnitId};

#[derive(Debug, Default)]
pub(super) struct LastDeaths(BTreeMap<UnitId, LastDeath>);

#[derive(Debug)]
struct LastDeath {
    cause: Signature,
    /// The number of told tokens of each request that the unit had.
    told: BTreeMap<IntakeId, usize>,
}

impl LastDeaths {
    /// Takes a death that no request is named for. Returns those of the requests `posted`, with their numbers of told
    /// tokens, that were told hardly more since another death by the same cause: only they may have caused both.
    pub(super) fn without_progress(
        &mut self,
        unit: UnitId,
        cause: &Signature,
        posted: &[(IntakeId, usize)],
        is_open: impl Fn(IntakeId) -> bool,
    ) -> Vec<IntakeId> {
        let mut told: BTreeMap<IntakeId, usize> = BTreeMap::new();
        for last in self.0.values().filter(|last| last.cause == *cause) {
            for (&intake, &n) in &last.told {
                let known = told.entry(intake).or_default();
                *known = n.max(*known);
            }
        }
        let has_stalled = |&&(intake, n): &&(IntakeId, usize)| {
            let before = told.get(&intake);
            before.is_some_and(|before| is_stalled(*before, n))
        };
        let stalled = posted.iter().filter(has_stalled);
        let stalled: Vec<IntakeId> = stalled.map(|(intake, _)| *intake).collect();
        told.extend(posted.iter().copied());
        told.retain(|intake, _| is_open(*intake));
        let cause = cause.clone();
        self.0.insert(unit, LastDeath { cause, told });
        stalled
    }
}
