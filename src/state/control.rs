//! The states of the control plane (scheduler, prefix cache, pools), and how plans pass between them.
//!
//! An engine's actors, replays, simulations, benches and tests all build these states from a [`ControlSetup`]. Code
//! without actors runs plans with [`ControlStates::advance`], or one message ([`Leg`]) at a time with
//! [`ControlStates::carry`]. Each actor handles messages with the functions exported here.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::cache::eviction::EvictionPolicy;
use crate::cache::radix_tree::RadixTree;
use crate::plan::probe::{PrefixesProbed, ProbePrefixes};
use crate::plan::{PlanStep, ReservePages, StepPlanned, reserve_pages};
use crate::pool::pages::PoolLedger;
use crate::pool::pools::Pools;
use crate::scheduler::policy::{SchedulePolicy, schedule_policy};
use crate::scheduler::{Next, Scheduler, SchedulerLimits};
use crate::step::StepPlan;
use souffleur_base::error::ConfigError;

pub use crate::plan::plan_step::plan_step;
pub use crate::plan::probe::probe_prefixes;

/// The configuration of the control states, which determines their decisions. A message log begins with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ControlSetup {
    pub limits: SchedulerLimits,
    /// The scheduling policy, a name for [`schedule_policy`].
    pub schedule_policy: String,
    /// The cache reports where prompts diverge from cached prefixes. Affects no decision.
    pub diagnoses_misses: bool,
}

/// A scheduler with its prefix cache and pools, initially empty. `S` is a [`Scheduler`] or a wrapper of one.
pub struct ControlStates<S = Scheduler> {
    pub scheduler: S,
    pub cache: RadixTree,
    pub pools: Pools,
    pub ledger: Arc<PoolLedger>,
    pub evicted_nodes: u64,
}

/// The part of a [`Scheduler`], or of a wrapper of one, that starts and completes plans.
pub trait Plans {
    fn next(&mut self) -> Next;
    fn prefixes_probed(&mut self, probed: PrefixesProbed) -> Next;
    fn step_planned(&mut self, planned: StepPlanned) -> Next;
}

impl Plans for Scheduler {
    fn next(&mut self) -> Next {
        Self::next(self)
    }

    fn prefixes_probed(&mut self, probed: PrefixesProbed) -> Next {
        Self::prefixes_probed(self, probed)
    }

    fn step_planned(&mut self, planned: StepPlanned) -> Next {
        Self::step_planned(self, planned)
    }
}

/// A message that carries a plan from one state to the next.
#[derive(Debug)]
pub enum Leg {
    ProbePrefixes(Box<ProbePrefixes>),
    PrefixesProbed(Box<PrefixesProbed>),
    PlanStep(Box<PlanStep>),
    ReservePages(Box<ReservePages>),
    StepPlanned(Box<StepPlanned>),
}

impl TryFrom<Next> for Leg {
    /// The value itself if it is no message of a plan: [`Next::Nothing`] or [`Next::RunStep`].
    type Error = Next;

    fn try_from(next: Next) -> Result<Self, Next> {
        match next {
            Next::ProbePrefixes(probe) => Ok(Self::ProbePrefixes(probe)),
            Next::PlanStep(plan) => Ok(Self::PlanStep(plan)),
            Next::ReservePages(reserve) => Ok(Self::ReservePages(reserve)),
            Next::Nothing | Next::RunStep(_) => Err(next),
        }
    }
}

#[derive(Debug)]
pub enum Carried {
    /// The next message of the plan.
    On(Leg),
    /// The plan has returned to the scheduler, which decided what to do next.
    Back(Next),
}

impl Carried {
    pub fn on(self) -> Option<Leg> {
        match self {
            Self::On(leg) => Some(leg),
            Self::Back(_) => None,
        }
    }

    pub fn back(self) -> Option<Next> {
        match self {
            Self::On(_) => None,
            Self::Back(next) => Some(next),
        }
    }
}

impl<S: Plans> ControlStates<S> {
    /// Plans until there is a step to run; returns `None` when the scheduler waits for an event.
    pub fn advance(&mut self) -> Option<Box<StepPlan>> {
        loop {
            let mut next = self.scheduler.next();
            if let Next::Nothing = next {
                return None;
            }
            loop {
                next = match Leg::try_from(next) {
                    Ok(leg) => self.carry_all(leg),
                    Err(Next::RunStep(step)) => return Some(step),
                    // `Nothing` ends this plan; the scheduler may start another one.
                    Err(_) => break,
                }
            }
        }
    }

    /// Runs legs until the plan is back at the scheduler. [`ControlStates::carry`] runs only one.
    fn carry_all(&mut self, leg: Leg) -> Next {
        match leg {
            Leg::ProbePrefixes(probe) => {
                let probed = probe_prefixes(&mut self.cache, *probe);
                self.scheduler.prefixes_probed(probed)
            }
            Leg::PrefixesProbed(probed) => self.scheduler.prefixes_probed(*probed),
            Leg::PlanStep(plan) => {
                let reserve = self.plan(*plan);
                let planned = reserve_pages(&mut self.pools, reserve);
                self.scheduler.step_planned(planned)
            }
            Leg::ReservePages(reserve) => {
                let planned = reserve_pages(&mut self.pools, *reserve);
                self.scheduler.step_planned(planned)
            }
            Leg::StepPlanned(planned) => self.scheduler.step_planned(*planned),
        }
    }

    fn plan(&mut self, plan: PlanStep) -> ReservePages {
        let reserve = plan_step(&mut self.cache, plan);
        self.evicted_nodes += reserve.verdict.evicted_nodes as u64;
        reserve
    }

    pub fn carry(&mut self, leg: Leg) -> Carried {
        match leg {
            Leg::ProbePrefixes(probe) => {
                let probed = probe_prefixes(&mut self.cache, *probe);
                Carried::On(Leg::PrefixesProbed(Box::new(probed)))
            }
            Leg::PrefixesProbed(probed) => Carried::Back(self.scheduler.prefixes_probed(*probed)),
            Leg::PlanStep(plan) => {
                let reserve = self.plan(*plan);
                Carried::On(Leg::ReservePages(Box::new(reserve)))
            }
            Leg::ReservePages(reserve) => {
                let planned = reserve_pages(&mut self.pools, *reserve);
                Carried::On(Leg::StepPlanned(Box::new(planned)))
            }
            Leg::StepPlanned(planned) => Carried::Back(self.scheduler.step_planned(*planned)),
        }
    }
}

impl<S> ControlStates<S> {
    pub fn with_scheduler<T>(self, wrap: impl FnOnce(S) -> T) -> ControlStates<T> {
        ControlStates {
            scheduler: wrap(self.scheduler),
            cache: self.cache,
            pools: self.pools,
            ledger: self.ledger,
            evicted_nodes: self.evicted_nodes,
        }
    }
}

impl ControlSetup {
    /// # Errors
    /// Unknown policy, or a pool too large for its ids.
    pub fn build(&self) -> Result<ControlStates, ConfigError> {
        let policy = schedule_policy(&self.schedule_policy).map_err(|reason| ConfigError {
            key: "schedule_policy".to_owned(),
            reason,
        })?;
        self.build_with(policy)
    }

    /// # Errors
    /// A pool too large for its ids.
    pub fn build_with(
        &self,
        policy: Box<dyn SchedulePolicy>,
    ) -> Result<ControlStates, ConfigError> {
        let limits = &self.limits;
        let ledger = Arc::new(PoolLedger::new(limits.page_size));
        let n_pages = id_count("total_pages", limits.total_pages)?;
        let n_rows = id_count("total_rows", limits.total_rows)?;
        let n_states = limits.states.map_or(0, |states| states.total_slots);
        let n_states = id_count("total_slots", n_states)?;
        let n_windows = limits.windows.map_or(0, |windows| windows.total_pages);
        let n_windows = id_count("window pages", n_windows)?;
        let pools = Pools::new(n_pages, n_rows, limits.page_size, ledger.clone())
            .with_states(n_states, ledger.clone())
            .with_windows(n_windows, ledger.clone());
        let cache = self.cache(&ledger);
        Ok(ControlStates {
            scheduler: Scheduler::new(limits.clone(), policy, ledger.clone()),
            cache,
            pools,
            ledger,
            evicted_nodes: 0,
        })
    }

    fn cache(&self, ledger: &Arc<PoolLedger>) -> RadixTree {
        let tree = match self.limits.queue.eviction_policy {
            Some(policy) => self.tree(policy, ledger),
            None => RadixTree::disabled(self.limits.page_size, ledger.clone()),
        };
        if self.diagnoses_misses {
            tree.with_diagnostics()
        } else {
            tree
        }
    }

    fn tree(&self, policy: EvictionPolicy, ledger: &Arc<PoolLedger>) -> RadixTree {
        let page_size = self.limits.page_size;
        let tree = RadixTree::new(page_size, policy, ledger.clone());
        let tree = match self.limits.tier {
            Some(tier) => tree.with_saves(tier.saves),
            None => tree,
        };
        match (self.limits.states, self.limits.windows) {
            (Some(_), _) => tree.with_states(),
            (None, Some(windows)) => tree.with_windows(windows.window(page_size)),
            (None, None) => tree,
        }
    }
}

fn id_count(key: &str, count: usize) -> Result<u32, ConfigError> {
    // Id 0 is padding, so there is one more id than pages or rows.
    let limit = u32::MAX - 1;
    let fitting = u32::try_from(count).ok().filter(|count| *count <= limit);
    fitting.ok_or_else(|| ConfigError {
        key: key.to_owned(),
        reason: format!("is {count}, must be at most {limit}"),
    })
}
