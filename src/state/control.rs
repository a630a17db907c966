//! How the control states begin: the same for an engine's actors and for a replay.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::state::cache::plain_cache::PlainCache;
use crate::state::cache::prefix_cache::PrefixCache;
use crate::state::cache::radix_tree::RadixTree;
use crate::state::pool::pages::PoolLedger;
use crate::state::pool::pools::Pools;
use crate::state::scheduler::policy::schedule_policy;
use crate::state::scheduler::{Scheduler, SchedulerLimits};

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

/// The states of one unit, with nothing inside.
pub struct ControlStates {
    /// The Scheduler's.
    pub scheduler: Scheduler,
    /// The RadixCache's.
    pub cache: Box<dyn PrefixCache>,
    /// The Allocator's.
    pub pools: Pools,
    /// Where they count what is lost.
    pub ledger: Arc<PoolLedger>,
}

impl ControlSetup {
    /// Makes the states.
    ///
    /// # Errors
    /// Names a policy that is not known, or a pool that is too large for its ids.
    pub fn build(&self) -> Result<ControlStates, String> {
        let limits = &self.limits;
        let ledger = Arc::new(PoolLedger::new(limits.page_size));
        let n_pages = id_count("total_pages", limits.total_pages)?;
        let n_rows = id_count("total_rows", limits.total_rows)?;
        let pools = Pools::new(n_pages, n_rows, limits.page_size, ledger.clone());
        let cache = self.cache(&ledger);
        let policy = schedule_policy(&self.schedule_policy)
            .map_err(|reason| format!("schedule_policy {reason}"))?;
        Ok(ControlStates {
            scheduler: Scheduler::new(limits.clone(), policy, ledger.clone()),
            cache,
            pools,
            ledger,
        })
    }

    fn cache(&self, ledger: &Arc<PoolLedger>) -> Box<dyn PrefixCache> {
        let page_size = self.limits.page_size;
        let tree = |policy| RadixTree::new(page_size, policy, ledger.clone());
        match (self.limits.queue.eviction_policy, self.diagnoses_misses) {
            (Some(policy), true) => Box::new(tree(policy).with_diagnostics()),
            (Some(policy), false) => Box::new(tree(policy)),
            (None, true) => Box::new(PlainCache::new(page_size).with_diagnostics()),
            (None, false) => Box::new(PlainCache::new(page_size)),
        }
    }
}

fn id_count(what: &str, count: usize) -> Result<u32, String> {
    // Id 0 is padding, so there is one more id than pages or rows.
    let limit = u32::MAX - 1;
    let count = u32::try_from(count).ok().filter(|count| *count <= limit);
    count.ok_or_else(|| format!("{what} is larger than {limit}"))
}
