//! Finds the request that caused a death, without failing any other. The Scheduler uses the same search for lost steps.
//!
//! The requests that may have caused a death become suspects. A death that names the request in hand makes none: the
//! docket counts such deaths. Each suspect is tried alone: it is the only request in its unit, until it was told the
//! results of enough steps to pass the place where it was before the death. A suspect that dies alone, by the same
//! cause as before, is convicted: after two deaths. A death by another cause convicts no request, so unrelated faults
//! fail none. Until the first result of a trial, steps with the suspect before it may still run: a death then convicts
//! only if that one was cleared of its cause.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::step::PIPELINE_DEPTH;
use souffleur_base::ids::IntakeId;

/// Results after which a suspect is cleared: each step that was in flight at the death was repeated.
const CLEARING_RESULTS: usize = PIPELINE_DEPTH;
/// Causes that a suspect is remembered with.
const MAX_CAUSES: usize = 4;

/// What died, and where: equal for deaths with the same cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    pub actor: &'static str,
    /// The place of the panic in the source.
    pub place: Arc<str>,
}

/// The requests that may have caused a death.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Suspicion {
    /// None: the unit was restarted for another reason.
    Nothing,
    /// The request that was in hand.
    One(IntakeId, Signature),
    /// Any request of the unit.
    All(Signature),
}

impl Suspicion {
    /// The suspicion after two deaths before the unit was started again: the first one names the cause.
    pub fn or(self, later: Self) -> Self {
        match self {
            Self::Nothing => later,
            Self::One(..) | Self::All(_) => self,
        }
    }

    /// The suspicion against the requests of another unit that lost its executor by the same death.
    pub fn of_others(&self) -> Self {
        match self {
            Self::Nothing => Self::Nothing,
            Self::One(_, cause) | Self::All(cause) => Self::All(cause.clone()),
        }
    }
}

/// The suspects of one unit.
#[derive(Clone, Debug, Default)]
pub struct Blame {
    suspects: BTreeMap<IntakeId, Vec<Cause>>,
    /// Deaths alone by one cause that a suspect survives, if the suspicion names no request.
    patience: u8,
    trial: Option<Trial>,
    /// The last suspect whose trial is over, until the first result of the next one.
    previous: Option<Previous>,
}

#[derive(Clone, Debug)]
struct Cause {
    signature: Signature,
    /// Deaths by this cause while the suspect was alone.
    alone: u8,
}

#[derive(Clone, Debug)]
struct Trial {
    intake: IntakeId,
    results: usize,
}

/// A request that steps in flight may still contain.
#[derive(Clone, Debug)]
struct Previous {
    intake: IntakeId,
    cleared_of: Vec<Signature>,
}

impl Blame {
    /// A search that convicts a suspect only after `patience` more deaths alone by one cause: an unrelated fault that
    /// meets a suspect in its trial once convicts no request.
    pub fn patient(patience: u8) -> Self {
        Self {
            patience,
            ..Self::default()
        }
    }

    /// Takes the death of the unit, which one of `posted` may have caused if the suspicion names no request. Returns
    /// the convicted request, if any.
    pub fn died(
        &mut self,
        suspicion: &Suspicion,
        posted: impl Iterator<Item = IntakeId>,
    ) -> Option<IntakeId> {
        let tried = self.trial.take().map(|trial| trial.intake);
        let previous = self.previous.take();
        let (one, cause) = match suspicion {
            Suspicion::Nothing => return None,
            Suspicion::One(intake, cause) => (Some(*intake), cause),
            Suspicion::All(cause) => (None, cause),
        };
        if let Some(tried) = tried
            && previous.is_none_or(|previous| previous.cleared_of.contains(cause))
            && one.is_none_or(|one| one == tried)
            && let Some(known) = self.known(tried, cause)
        {
            known.alone += 1;
            let alone = known.alone;
            if one.is_none() && alone <= self.patience {
                return None;
            }
            self.convict(tried, cause);
            return Some(tried);
        }
        if one.is_none() {
            posted.for_each(|intake| self.suspect(intake, cause));
        }
        None
    }

    pub fn is_suspect(&self, intake: IntakeId) -> bool {
        self.suspects.contains_key(&intake)
    }

    pub fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// The request before the one on trial, if steps in flight may contain it.
    pub fn may_run(&self) -> Option<IntakeId> {
        self.previous.as_ref().map(|previous| previous.intake)
    }

    /// The suspect that must be alone in its unit.
    pub fn on_trial(&self) -> Option<IntakeId> {
        self.trial.as_ref().map(|trial| trial.intake)
    }

    /// No step in flight contains the request before the next suspect: its trial is certain from the start.
    pub fn drained(&mut self) {
        self.previous = None;
    }

    /// Begins the trial of the oldest suspect, and returns it.
    pub fn begin(&mut self) -> Option<IntakeId> {
        let intake = *self.suspects.keys().next()?;
        self.trial = Some(Trial { intake, results: 0 });
        Some(intake)
    }

    /// Takes a result of a step for a request. Returns true if it clears the request.
    pub fn passed_step(&mut self, intake: IntakeId) -> bool {
        let Some(trial) = self.trial.as_mut().filter(|trial| trial.intake == intake) else {
            return false;
        };
        trial.results += 1;
        let is_cleared = trial.results >= CLEARING_RESULTS;
        self.previous = None;
        if is_cleared {
            self.trial = None;
            let causes = self.suspects.remove(&intake).unwrap_or_default();
            let cleared_of = causes.into_iter().map(|cause| cause.signature).collect();
            self.previous = Some(Previous { intake, cleared_of });
        }
        is_cleared
    }

    /// The request has ended with the result of its last step.
    pub fn ended(&mut self, intake: IntakeId) {
        self.suspects.remove(&intake);
        if self.trial.take_if(|trial| trial.intake == intake).is_some() {
            self.previous = None;
        }
    }

    /// The request has ended for a reason that no step's result shows: steps with it may still run.
    pub fn left(&mut self, intake: IntakeId) {
        self.suspects.remove(&intake);
        if self.trial.take_if(|trial| trial.intake == intake).is_some() {
            let cleared_of = Vec::new();
            self.previous = Some(Previous { intake, cleared_of });
        }
    }

    fn known(&mut self, suspect: IntakeId, cause: &Signature) -> Option<&mut Cause> {
        let causes = self.suspects.get_mut(&suspect)?;
        causes.iter_mut().find(|known| known.signature == *cause)
    }

    fn suspect(&mut self, intake: IntakeId, cause: &Signature) {
        let causes = self.suspects.entry(intake).or_default();
        if causes.iter().any(|known| known.signature == *cause) {
            return;
        }
        if causes.len() == MAX_CAUSES {
            causes.remove(0);
        }
        causes.push(Cause {
            signature: cause.clone(),
            alone: 0,
        });
    }

    /// Ends the search for a cause: the others are cleared of it.
    pub fn convict(&mut self, convicted: IntakeId, cause: &Signature) {
        self.suspects.remove(&convicted);
        self.suspects.retain(|_, causes| {
            causes.retain(|other| other.signature != *cause);
            !causes.is_empty()
        });
    }
}
