//! The state of a unit and of the actors that outlive it, as the Watchdog publishes it. Readers send no message.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;

use souffleur_state::supervision::{FIRST_GENERATION, Intensity, Level, Restart};

/// The unit that runs, or is started next, and the last death of a member of any unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitStatus {
    pub generation: u64,
    /// False while actors are started again: requests wait. With replicas, true while one of them runs.
    pub is_up: bool,
    /// The units, by their ids; empty before the first start.
    pub replicas: Vec<MemberStatus>,
    pub tokenizer: MemberStatus,
    /// `None` without replicas.
    pub router: Option<MemberStatus>,
    pub executor_thread: MemberStatus,
    /// The KV store has died, and was not started again since.
    pub has_lost_store: bool,
    /// Hosts have paused the engine.
    pub is_paused: bool,
    pub died: Option<UnitDeath>,
    pub restarts: RestartCounts,
    pub allowance: Allowance,
    /// The time of the last restart, from the first death to the start of the unit.
    pub last_outage: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitDeath {
    /// One of `UNIT_MEMBERS`.
    pub actor: &'static str,
    /// The generation of the unit that died; for the Tokenizer, its number.
    pub generation: u64,
    /// The message and the place of the panic, the injected fault, or the error of the device; empty if nothing is
    /// known.
    pub cause: Arc<str>,
    pub at: Instant,
}

/// A unit, or an actor or thread that outlives restarts of the control actors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The generation of the unit that it was started for; for the Tokenizer and the Router, its number.
    pub generation: u64,
    pub is_up: bool,
}

/// The restarts of one engine, each counted at one level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RestartCounts {
    /// Restarts of the control actors alone.
    pub control: u64,
    /// Restarts of the control actors and the Tokenizer.
    pub tokenizer: u64,
    /// Restarts of the control actors and the executor's thread.
    pub executor: u64,
}

/// The restarts that are left before the engine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    pub limit: usize,
    pub period: Duration,
    /// Restarts that were left after the last one.
    left: usize,
    last_restart: Option<Instant>,
}

pub type UnitWatch = watch::Receiver<UnitStatus>;

impl UnitStatus {
    /// Before the first start.
    pub(crate) fn new(allowed: Intensity) -> Self {
        let member = MemberStatus {
            generation: FIRST_GENERATION,
            is_up: false,
        };
        Self {
            generation: FIRST_GENERATION,
            is_up: false,
            replicas: Vec::new(),
            tokenizer: member,
            router: None,
            executor_thread: member,
            has_lost_store: false,
            is_paused: false,
            died: None,
            restarts: RestartCounts::default(),
            allowance: Allowance {
                limit: allowed.limit,
                period: Duration::try_from_secs_f64(allowed.period_s).unwrap_or(Duration::MAX),
                left: allowed.limit,
                last_restart: None,
            },
            last_outage: None,
        }
    }

    /// A restart begins, after which `left` more are allowed at once.
    pub(crate) fn restarting(&mut self, restart: &Restart, left: usize) {
        self.is_up = false;
        match (restart.tokenizer, restart.level) {
            (Some(number), _) => {
                self.restarts.tokenizer += 1;
                self.tokenizer = MemberStatus {
                    generation: number,
                    is_up: false,
                };
            }
            (None, Level::Executor) => {
                self.restarts.executor += 1;
                self.executor_thread.is_up = false;
            }
            (None, _) => self.restarts.control += 1,
        }
        self.allowance.left = left;
        self.allowance.last_restart = Some(Instant::now());
    }

    /// The unit was started, `executor_since` that generation for which its executor's thread was.
    pub(crate) fn started(&mut self, generation: u64, executor_since: u64) {
        self.generation = generation;
        self.is_up = true;
        self.tokenizer.is_up = true;
        self.executor_thread = MemberStatus {
            generation: executor_since,
            is_up: true,
        };
    }

    /// Takes the units: requests are served while the actors of one live.
    pub(crate) fn show(&mut self, replicas: Vec<MemberStatus>) {
        self.is_up = replicas.iter().any(|replica| replica.is_up);
        self.replicas = replicas;
    }

    /// No actor runs any more.
    pub(crate) fn stopped(&mut self) {
        self.is_up = false;
        for replica in &mut self.replicas {
            replica.is_up = false;
        }
        self.tokenizer.is_up = false;
        if let Some(router) = &mut self.router {
            router.is_up = false;
        }
        self.executor_thread.is_up = false;
    }
}

impl Allowance {
    /// The smallest number of restarts that may follow now.
    pub fn left(&self, now: Instant) -> usize {
        let is_over = |last: Instant| now.saturating_duration_since(last) > self.period;
        if self.last_restart.is_none_or(is_over) {
            self.limit
        } else {
            self.left
        }
    }
}

impl RestartCounts {
    pub fn all(&self) -> u64 {
        self.control + self.tokenizer + self.executor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restarts_are_counted_by_level_and_their_allowance_returns_after_the_period() {
        let mut status = UnitStatus::new(Intensity {
            limit: 5,
            period_s: 60.0,
        });
        let restart = |level, tokenizer| Restart {
            level,
            tokenizer,
            units: Vec::new(),
        };
        status.started(1, 1);
        status.restarting(&restart(Level::Executor, None), 4);
        assert!(status.tokenizer.is_up && !status.executor_thread.is_up && !status.is_up);
        status.restarting(&restart(Level::Control, Some(2)), 3);
        assert!(!status.tokenizer.is_up);
        status.started(3, 2);
        status.restarting(&restart(Level::Control, None), 2);
        assert_eq!((status.restarts.all(), status.tokenizer.generation), (3, 2));
        let counts = RestartCounts {
            control: 1,
            tokenizer: 1,
            executor: 1,
        };
        assert_eq!(status.restarts, counts);
        assert_eq!(status.executor_thread.generation, 2);
        let now = Instant::now();
        let left = |seconds| {
            let at = now + Duration::from_secs(seconds);
            status.allowance.left(at)
        };
        assert_eq!((left(0), left(61)), (2, 5));
    }
}
