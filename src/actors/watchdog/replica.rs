//! The Watchdog's state of one unit: its actors, its executor's thread, and what of them must be replaced.

use std::time::Instant;

use actix::SpawnHandle;

use crate::executor::ExecutorThread;
use crate::messages::HostPins;
use crate::unit::Unit;
use souffleur_state::supervision::Level;

pub(super) struct Replica {
    /// `None` before the start, and while the actors are replaced.
    pub(super) unit: Option<Unit>,
    pub(super) executor: Option<ExecutorThread>,
    /// The pins of hosts, for the next generation.
    pub(super) pins: HostPins,
    /// What must still be replaced: deaths during a restart add to it.
    pub(super) due: Due,
    /// A restart or a stop is under way.
    pub(super) is_busy: bool,
    /// The unit is not started again, although others run.
    pub(super) is_retired: bool,
    /// Failed loads of the executor since the last one that succeeded.
    pub(super) failed_attempts: usize,
    pub(super) next_attempt: Option<SpawnHandle>,
    /// When the first actor died that is being restarted.
    pub(super) down_since: Option<Instant>,
}

#[derive(Debug, Default)]
pub(super) struct Due {
    pub(super) unit: bool,
    pub(super) executor: bool,
}

impl Due {
    pub(super) fn add(&mut self, level: Level) {
        self.unit = true;
        self.executor |= level >= Level::Executor;
    }
}

impl Replica {
    /// A unit that has not started.
    pub(super) fn new() -> Self {
        Self {
            unit: None,
            executor: None,
            pins: HostPins::none(),
            due: Due::default(),
            is_busy: false,
            is_retired: false,
            failed_attempts: 0,
            next_attempt: None,
            down_since: None,
        }
    }

    /// False if the executor's thread has ended, or there is none.
    pub(super) fn has_executor(&self) -> bool {
        self.executor.as_ref().is_some_and(ExecutorThread::is_alive)
    }
}
