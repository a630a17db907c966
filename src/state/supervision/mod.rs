//! Decides which actors are started anew after a death, and when the process must end.
//!
//! - [`Supervision`]: which actors a death replaces ([`Level`]), and the generations of units
//! - [`Intensity`]: how many restarts are allowed in a period; one more ends the process
//! - [`blame`]: which request caused a death
//! - [`beats`]: which thread hangs
//!
//! Nothing here reads a clock: callers pass the time in seconds, on any clock that never goes back.

pub mod beats;
pub mod blame;
mod intensity;
#[cfg(test)]
mod tests;

use blame::Suspicion;
use souffleur_base::ids::UnitId;

pub use intensity::{Intensity, Restarts};

/// The generation of each unit when the engine starts.
pub const FIRST_GENERATION: u64 = 1;

/// A unit between two restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation {
    pub unit: UnitId,
    /// Increases with each restart of the unit.
    pub generation: u64,
}

/// The actors and threads of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    Scheduler,
    RadixCache,
    Allocator,
    /// The actor in front of the executor's thread.
    Executor,
    /// The thread with the weights and the KV memory.
    ExecutorThread,
    /// The actor with the queue of images to encode.
    Vision,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// The Tokenizer, which serves all units. Tokenizers are numbered from [`FIRST_GENERATION`].
    Tokenizer { number: u64 },
    /// A member of a unit, with the unit's generation; for the executor's thread [`Supervision::executor_since`].
    /// `in_hand` is the generation whose work the member had in hand: a thread that has not got its reset yet runs a
    /// step of an older one.
    Member {
        member: Member,
        since: Incarnation,
        in_hand: u64,
    },
}

/// How much a restart replaces: each level more than the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// The Scheduler, the RadixCache, the Allocator and the executor's front. The weights stay in memory.
    Control,
    /// These and the executor's thread: the weights are loaded again.
    Executor,
}

impl Level {
    /// The value of metrics' labels.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Executor => "executor",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// The report is late: the member was replaced, or its unit was retired.
    Ignored,
    Restart(Restart),
    /// Too many restarts: every request ends, and the process exits with a failure.
    GivesUp,
}

/// Actors to start. The remaining actors of their units stop first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restart {
    pub level: Level,
    /// The number of the Tokenizer to start, if it died.
    pub tokenizer: Option<u64>,
    pub units: Vec<Incarnation>,
}

/// The limits of restarts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rules {
    /// Restarts of all units and of the Tokenizer together.
    pub restarts: Intensity,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            restarts: Intensity {
                limit: 5,
                period_s: 60.0,
            },
        }
    }
}

/// What hosts have set. Every unit starts with it, also if the unit that received it has died since.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    pub paused: bool,
    /// `None` for the configured policy.
    pub schedule_policy: Option<String>,
    /// `None` for the configured policy.
    pub radix_eviction_policy: Option<String>,
}

#[derive(Debug)]
pub struct Supervision {
    rules: Rules,
    restarts: Restarts,
    units: Vec<Unit>,
    tokenizer: u64,
    pub desired: Desired,
}

#[derive(Clone, Debug)]
struct Unit {
    generation: u64,
    /// The generation in which the executor's thread was started. The other members start with each generation.
    executor_since: u64,
    /// Units with the same device lose their executors together.
    device: u32,
    /// Requests suspected of the deaths since the last start of a generation.
    suspicion: Suspicion,
    /// The generation was started.
    runs: bool,
    is_retired: bool,
}

impl Supervision {
    /// The supervision of units 0 to `n_units`, which are started by the caller in [`FIRST_GENERATION`]. Each unit has
    /// a device.
    pub fn new(rules: Rules, n_units: u32) -> Self {
        let unit = |device| Unit {
            generation: FIRST_GENERATION,
            executor_since: FIRST_GENERATION,
            device,
            suspicion: Suspicion::Nothing,
            runs: false,
            is_retired: false,
        };
        Self {
            rules,
            restarts: Restarts::default(),
            units: (0..n_units).map(unit).collect(),
            tokenizer: FIRST_GENERATION,
            desired: Desired::default(),
        }
    }

    /// Sets the device of each unit. Units on one device are a fault domain: the loss of an executor is the loss of
    /// all, and they are started again together.
    pub fn on_devices(mut self, devices: impl IntoIterator<Item = u32>) -> Self {
        for (unit, device) in self.units.iter_mut().zip(devices) {
            unit.device = device;
        }
        self
    }

    /// Decides on a death, which requests of the unit may have caused. A restart counts once, even if it replaces
    /// several actors.
    pub fn died(&mut self, death: Death, suspicion: Suspicion, now_s: f64) -> Ruling {
        if !self.is_current(death) {
            return Ruling::Ignored;
        }
        if !self.restarts.note(self.rules.restarts, now_s) {
            return Ruling::GivesUp;
        }
        Ruling::Restart(match death {
            Death::Tokenizer { .. } => self.restart_all(),
            Death::Member {
                member,
                since,
                in_hand,
            } => {
                // The results of an older generation are dropped: a suspect may lack more than its trial repeats.
                if self.units[since.unit.index()].generation == in_hand {
                    self.suspect(since.unit, suspicion.clone());
                }
                let units = self.lost_with(member, since.unit);
                for unit in units.iter().filter(|unit| **unit != since.unit) {
                    // The first unit that notices the loss of a device need not be the one that caused it.
                    if self.units[unit.index()].runs {
                        self.suspect(*unit, suspicion.of_others());
                    }
                }
                self.restart(member, units)
            }
        })
    }

    /// Asks whether a generation is still to be started. Returns which of its requests may have caused the deaths
    /// before it, or `None` if a later generation replaces it.
    pub fn start(&mut self, at: Incarnation) -> Option<Suspicion> {
        let unit = self.current_mut(at)?;
        unit.runs = true;
        Some(std::mem::replace(&mut unit.suspicion, Suspicion::Nothing))
    }

    /// The requests that may have caused the deaths since the unit was started last.
    pub fn suspicion(&self, unit: UnitId) -> &Suspicion {
        &self.units[unit.index()].suspicion
    }

    /// The unit in the generation that was decided on last.
    pub fn newest(&self, unit: UnitId) -> Incarnation {
        Incarnation {
            unit,
            generation: self.units[unit.index()].generation,
        }
    }

    /// The generation under which the executor's thread of a unit reports its death, also if a later generation starts
    /// the thread because this one was never built.
    pub fn executor_since(&self, unit: UnitId) -> u64 {
        self.units[unit.index()].executor_since
    }

    /// The unit is not started again; another one takes over its requests.
    pub fn retire(&mut self, unit: UnitId) {
        if let Some(unit) = self.units.get_mut(unit.index()) {
            unit.is_retired = true;
        }
    }

    /// Restarts that are left before the process gives up, if none of the counted ones has expired.
    pub fn restarts_left(&self) -> usize {
        self.restarts.left(self.rules.restarts)
    }

    fn is_current(&self, death: Death) -> bool {
        match death {
            Death::Tokenizer { number } => number == self.tokenizer,
            Death::Member { member, since, .. } => {
                let unit = self.units.get(since.unit.index());
                unit.is_some_and(|unit| {
                    let started = match member {
                        Member::ExecutorThread => unit.executor_since,
                        _ => unit.generation,
                    };
                    !unit.is_retired && since.generation == started
                })
            }
        }
    }

    fn current_mut(&mut self, at: Incarnation) -> Option<&mut Unit> {
        let unit = self.units.get_mut(at.unit.index())?;
        (unit.generation == at.generation && !unit.is_retired).then_some(unit)
    }

    /// The units that must be started again after a death.
    fn lost_with(&self, member: Member, id: UnitId) -> Vec<UnitId> {
        if member != Member::ExecutorThread {
            return vec![id];
        }
        let device = self.units[id.index()].device;
        let units = (0..).map(UnitId::new).zip(&self.units);
        let lost = units.filter(|(_, unit)| unit.device == device && !unit.is_retired);
        lost.map(|(unit, _)| unit).collect()
    }

    fn restart(&mut self, member: Member, units: Vec<UnitId>) -> Restart {
        let level = match member {
            Member::ExecutorThread => Level::Executor,
            _ => Level::Control,
        };
        Restart {
            level,
            tokenizer: None,
            units: self.advance_all(units, level),
        }
    }

    fn advance_all(&mut self, units: Vec<UnitId>, level: Level) -> Vec<Incarnation> {
        let units = units.into_iter();
        units.map(|unit| self.advance(unit, level)).collect()
    }

    /// Notes a suspicion. If several deaths precede a start, the first one shows the cause.
    fn suspect(&mut self, unit: UnitId, suspicion: Suspicion) {
        let unit = &mut self.units[unit.index()];
        let earlier = std::mem::replace(&mut unit.suspicion, Suspicion::Nothing);
        unit.suspicion = earlier.or(suspicion);
    }

    /// The results that were sent to the dead Tokenizer are lost, so all units compute them again. A suspect may lack
    /// more results than its trial repeats, so the suspicion of an earlier death is dropped.
    fn restart_all(&mut self) -> Restart {
        self.tokenizer += 1;
        for unit in &mut self.units {
            unit.suspicion = Suspicion::Nothing;
        }
        let all = (0..self.units.len()).filter(|unit| !self.units[*unit].is_retired);
        let all: Vec<UnitId> = all.map(|unit| UnitId::new(unit as u32)).collect();
        Restart {
            level: Level::Control,
            tokenizer: Some(self.tokenizer),
            units: self.advance_all(all, Level::Control),
        }
    }

    fn advance(&mut self, id: UnitId, level: Level) -> Incarnation {
        let unit = &mut self.units[id.index()];
        unit.generation += 1;
        unit.runs = false;
        if level == Level::Executor {
            unit.executor_since = unit.generation;
        }
        Incarnation {
            unit: id,
            generation: unit.generation,
        }
    }
}
