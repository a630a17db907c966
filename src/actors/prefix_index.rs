//! A prefix index without an engine: the RadixCache and the Allocator, driven by an actor of the host program.
//!
//! The host's actor replaces the Scheduler. It sends plans and receives [`StepPlanned`]. It owns the granted pages and
//! locks, and returns them in the settlements of a later plan. It sends a plan only after the last one was answered.

use std::sync::Arc;

use actix::{Actor, Recipient};

use crate::allocator::{Allocator, GrantReceiver};
use crate::death::{DeathNote, StopActor};
use crate::mailbox::Mailbox;
use crate::messages::{PeekPrefix, PlanStep, StepPlanned};
use crate::radix_cache::RadixCache;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::cache::radix_tree::RadixTree;
use souffleur_state::pool::pages::{PageSize, PoolLedger};
use souffleur_state::pool::pools::Pools;

#[derive(Clone, Copy, Debug)]
pub struct IndexCapacity {
    /// Total number of pages.
    pub pages: u32,
    /// Maximum number of sequences that hold private pages at once.
    pub rows: u32,
    /// Tokens per page. Prefixes are cached in whole pages.
    pub page_size: PageSize,
}

/// The two actors, stopped when this is dropped.
pub struct PrefixIndex {
    plan: Mailbox<Box<PlanStep>>,
    peek: Recipient<PeekPrefix>,
    stop: [Recipient<StopActor>; 2],
    ledger: Arc<PoolLedger>,
}

impl PrefixIndex {
    /// Starts both actors on the calling Arbiter; `planned` receives the answer to every plan.
    ///
    /// # Panics
    /// Outside an actix System.
    pub fn start(
        capacity: IndexCapacity,
        policy: EvictionPolicy,
        planned: Recipient<Box<StepPlanned>>,
    ) -> Self {
        let IndexCapacity {
            pages,
            rows,
            page_size,
        } = capacity;
        let ledger = Arc::new(PoolLedger::new(page_size));
        let pools = Pools::new(pages, rows, page_size, ledger.clone());
        let note = DeathNote::unread("allocator", ledger.clone());
        let allocator = Allocator::new(pools, GrantReceiver::Host(planned), note).start();
        let tree = RadixTree::new(page_size, policy, ledger.clone());
        let reserve = Mailbox::of(&allocator, "allocator", "ReservePages");
        let note = DeathNote::unread("radix_cache", ledger.clone());
        let radix_cache = RadixCache::new(tree, reserve, note).start();
        Self {
            plan: Mailbox::of(&radix_cache, "radix_cache", "PlanStep"),
            peek: radix_cache.clone().recipient(),
            stop: [radix_cache.recipient(), allocator.recipient()],
            ledger,
        }
    }

    /// Sends a plan; the answer is one [`StepPlanned`].
    pub fn plan(&self, plan: PlanStep) {
        self.plan.post(Box::new(plan));
    }

    /// The recipient of queries for the cached part of a prompt. Queries change nothing, and need no plan.
    pub fn peek(&self) -> Recipient<PeekPrefix> {
        self.peek.clone()
    }
}

impl Drop for PrefixIndex {
    fn drop(&mut self) {
        self.ledger.close();
        for actor in &self.stop {
            actor.do_send(StopActor);
        }
    }
}
