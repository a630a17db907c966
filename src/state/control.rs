//! The control states together: how they begin, and how a plan goes from one to the next.
//!
//! An engine's actors, a replay, a simulation, a bench and the tests begin with the same [`ControlSetup`]. Without actors,
//! plans go by [`ControlStates::advance`], or leg by leg by [`ControlStates::carry`]; an actor runs the legs of its own
//! state, which are exported here.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::ConfigError;
use crate::state::cache::plain_cache::PlainCache;
use crate::state::cache::prefix_cache::PrefixCache;
use crate::state::cache::radix_tree::RadixTree;
use crate::state::plan::probe::{PrefixesProbed, ProbePrefixes};
use crate::state::plan::{PlanStep, ReservePages, StepPlanned};
use crate::state::pool::pages::PoolLedger;
use crate::state::pool::pools::Pools;
use crate::state::scheduler::policy::{SchedulePolicy, schedule_policy};
use crate::state::scheduler::{Next, Scheduler, SchedulerLimits};
use crate::state::step::StepPlan;

pub use crate::state::plan::plan_step::plan_step;
pub use crate::state::plan::probe::probe_prefixes;

/// Everything that decides what the control states do with what comes in. A message log begins with it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ControlSetup {
    /// Bounds of the scheduler, of the pools too.
    pub limits: SchedulerLimits,
    /// Order of the waiting queue, a name that [`schedule_policy`] knows.
    pub schedule_policy: String,
    /// The cache tells where prompts leave it. Decides nothing.
    pub diagnoses_misses: bool,
}

/// The states of one unit, which begin with nothing inside. `S` is the Scheduler's own, or something around it.
pub struct ControlStates<S = Scheduler> {
    /// The Scheduler's.
    pub scheduler: S,
    /// The RadixCache's.
    pub cache: Box<dyn PrefixCache>,
    /// The Allocator's.
    pub pools: Pools,
    /// Where they count what is lost.
    pub ledger: Arc<PoolLedger>,
    /// Nodes of the tree that the plans so far have evicted.
    pub evicted_nodes: u64,
}

/// The initiator of plans: a [`Scheduler`], or something around one.
pub trait Plans {
    /// See [`Scheduler::next`].
    fn next(&mut self) -> Next;
    /// See [`Scheduler::prefixes_probed`].
    fn prefixes_probed(&mut self, probed: PrefixesProbed) -> Next;
    /// See [`Scheduler::step_planned`].
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

/// A plan under way between the states.
#[derive(Debug)]
pub enum Leg {
    /// To the tree.
    ProbePrefixes(Box<ProbePrefixes>),
    /// Back to the scheduler.
    PrefixesProbed(Box<PrefixesProbed>),
    /// To the tree.
    PlanStep(Box<PlanStep>),
    /// To the pools.
    ReservePages(Box<ReservePages>),
    /// Back to the scheduler.
    StepPlanned(Box<StepPlanned>),
}

impl TryFrom<Next> for Leg {
    /// No plan goes out: [`Next::Nothing`] or [`Next::RunStep`].
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

/// The outcome of a leg.
#[derive(Debug)]
pub enum Carried {
    /// The plan goes on to another state.
    On(Leg),
    /// The plan came back to the scheduler, which says what comes next.
    Back(Next),
}

impl Carried {
    /// The plan, if it goes on.
    pub fn on(self) -> Option<Leg> {
        match self {
            Self::On(leg) => Some(leg),
            Self::Back(_) => None,
        }
    }

    /// The word of the scheduler, if the plan came back.
    pub fn back(self) -> Option<Next> {
        match self {
            Self::On(_) => None,
            Self::Back(next) => Some(next),
        }
    }
}

impl<S: Plans> ControlStates<S> {
    /// Plans until there is a step to run; `None` once the scheduler waits for something to happen.
    pub fn advance(&mut self) -> Option<Box<StepPlan>> {
        loop {
            let mut next = self.scheduler.next();
            if let Next::Nothing = next {
                return None;
            }
            loop {
                next = match Leg::try_from(next) {
                    Ok(leg) => self.carry_back(leg),
                    Err(Next::RunStep(step)) => return Some(step),
                    // `Nothing` here closes the plan; there may be another one to open all the same.
                    Err(_) => break,
                }
            }
        }
    }

    /// Runs a plan through all states until it is back, as [`ControlStates::carry`] does leg by leg.
    fn carry_back(&mut self, leg: Leg) -> Next {
        match leg {
            Leg::ProbePrefixes(probe) => {
                let probed = probe_prefixes(self.cache.as_mut(), *probe);
                self.scheduler.prefixes_probed(probed)
            }
            Leg::PrefixesProbed(probed) => self.scheduler.prefixes_probed(*probed),
            Leg::PlanStep(plan) => {
                let reserve = self.plan(*plan);
                let planned = self.pools.reserve_pages(reserve);
                self.scheduler.step_planned(planned)
            }
            Leg::ReservePages(reserve) => {
                let planned = self.pools.reserve_pages(*reserve);
                self.scheduler.step_planned(planned)
            }
            Leg::StepPlanned(planned) => self.scheduler.step_planned(*planned),
        }
    }

    fn plan(&mut self, plan: PlanStep) -> ReservePages {
        let reserve = plan_step(self.cache.as_mut(), plan);
        self.evicted_nodes += reserve.verdict.evicted_nodes as u64;
        reserve
    }

    /// Hands a plan to the state that it is for.
    pub fn carry(&mut self, leg: Leg) -> Carried {
        match leg {
            Leg::ProbePrefixes(probe) => {
                let probed = probe_prefixes(self.cache.as_mut(), *probe);
                Carried::On(Leg::PrefixesProbed(Box::new(probed)))
            }
            Leg::PrefixesProbed(probed) => Carried::Back(self.scheduler.prefixes_probed(*probed)),
            Leg::PlanStep(plan) => {
                let reserve = self.plan(*plan);
                Carried::On(Leg::ReservePages(Box::new(reserve)))
            }
            Leg::ReservePages(reserve) => {
                let planned = self.pools.reserve_pages(*reserve);
                Carried::On(Leg::StepPlanned(Box::new(planned)))
            }
            Leg::StepPlanned(planned) => Carried::Back(self.scheduler.step_planned(*planned)),
        }
    }
}

impl<S> ControlStates<S> {
    /// The same states with something around the scheduler.
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
    /// Makes the states.
    ///
    /// # Errors
    /// Names a policy that is not known, or a pool that is too large for its ids.
    pub fn build(&self) -> Result<ControlStates, ConfigError> {
        let policy = schedule_policy(&self.schedule_policy).map_err(|reason| ConfigError {
            key: "schedule_policy".to_owned(),
            reason,
        })?;
        self.build_with(policy)
    }

    /// Makes the states with a policy of the caller's own.
    ///
    /// # Errors
    /// Names a pool that is too large for its ids.
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

    fn cache(&self, ledger: &Arc<PoolLedger>) -> Box<dyn PrefixCache> {
        let page_size = self.limits.page_size;
        let tree = |policy| {
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
        };
        match (self.limits.queue.eviction_policy, self.diagnoses_misses) {
            (Some(policy), true) => Box::new(tree(policy).with_diagnostics()),
            (Some(policy), false) => Box::new(tree(policy)),
            (None, true) => Box::new(PlainCache::new(page_size).with_diagnostics()),
            (None, false) => Box::new(PlainCache::new(page_size)),
        }
    }
}

fn id_count(key: &str, count: usize) -> Result<u32, ConfigError> {
    // Id 0 is padding, so there is one more id than pages or rows.
    let limit = u32::MAX - 1;
    let count = u32::try_from(count).ok().filter(|count| *count <= limit);
    count.ok_or_else(|| ConfigError {
        key: key.to_owned(),
        reason: format!("must be at most {limit}"),
    })
}
