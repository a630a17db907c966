//! Runs a plan against the radix tree: publishes, releases, admits and evicts, in one transaction.
//!
//! The transaction publishes written pages and releases ended sequences; then matches, locks and admits candidates one
//! by one against live counters; then evicts the shortfall. Locks precede evictions, so an admitted prefix stays
//! cached.

mod admission;
mod images;
mod loads;

use crate::cache::prefix_cache::{
    Checkpoint, Checkpointed, CheckpointedWindows, SaveDemand, UnsavedPart,
};
use crate::cache::radix_tree::RadixTree;
use crate::plan::probe_key::ProbeKey;
use crate::plan::window_budget::WindowBudget;
use crate::plan::{
    CacheCounts, CheckpointedSeq, Demand, PinDemand, Pinned, PlanStep, PublishKey, ReservePages,
    SaveBudget, Settle, SettleCheckpoint, SettleRelease, Verdict,
};
use crate::pool::pages::{EvictedPages, PageRun, Pages, RowWindows, WindowPages};
use crate::pool::state_pool::{OwnedState, SavedState};
use souffleur_base::ids::SeqId;
use souffleur_base::in_hand;

pub fn plan_step(cache: &mut RadixTree, request: PlanStep) -> ReservePages {
    let mut plan = Planning {
        page_size: cache.page_size().get(),
        cache,
        returned: request.returned,
        returned_rows: request.returned_rows,
        returned_states: request.returned_states,
        returned_windows: request.returned_windows,
        max_pinned_states: request.max_pinned_states,
        demands: Vec::new(),
        growing: Vec::new(),
        verdict: Box::default(),
        free_pages: request.free_pages,
        free_states: request.free_states,
        free_windows: request.free_windows,
        has_windows: request.has_windows,
        mixes: false,
        windows: None,
        block_tokens: 0,
    };
    if let Some(policy) = request.eviction_policy {
        plan.cache.set_eviction_policy(policy);
    }
    for settle in request.settle {
        plan.settle(settle);
    }
    in_hand::clear();
    if request.flush {
        plan.flush();
    }
    for demand in request.pins {
        plan.pin(demand);
    }
    plan.touch(&request.touch);
    let mut saves = request.saves.unwrap_or_default();
    if request.flush {
        (saves.max_blocks, saves.max_states) = (0, 0);
    }
    let base = saves.base;
    plan.save(&mut saves, base);
    let mut target_tokens = request.evict_tokens;
    if let Some(mut admit) = request.admit {
        admit.max_new_rows += plan.returned_rows.len();
        target_tokens = target_tokens.max(plan.admit(admit));
    }
    // Evicted pages may be saved too: the step copies them before their next owner writes to them.
    plan.save_with_step(&mut saves, request.decode_demand.is_some());
    if let Some(decode) = request.decode_demand {
        target_tokens = target_tokens.max(plan.decode(decode.growing));
    }
    let evicted = plan.evict_up_to(target_tokens);
    plan.evict_windows();
    plan.verdict.cache = Some(cache_counts(plan.cache));
    plan.cache.forget_used_states();
    plan.take_freed_states();
    ReservePages {
        step: request.step,
        returned: plan.returned,
        evicted,
        returned_rows: plan.returned_rows,
        returned_states: plan.returned_states,
        returned_windows: plan.returned_windows,
        demands: plan.demands,
        growing: plan.growing,
        verdict: plan.verdict,
    }
}

fn cache_counts(cache: &RadixTree) -> CacheCounts {
    CacheCounts {
        evictable_tokens: cache.evictable_size(),
        protected_tokens: cache.protected_size(),
        states: cache.cached_states(),
        evictable_windows: cache.evictable_windows(),
        protected_windows: cache.protected_windows(),
        saves: cache.save_counts(),
    }
}

struct Planning<'a> {
    cache: &'a mut RadixTree,
    page_size: usize,
    returned: Pages,
    returned_rows: Vec<souffleur_base::ids::RowId>,
    returned_states: Vec<OwnedState>,
    returned_windows: WindowPages,
    max_pinned_states: usize,
    demands: Vec<Demand>,
    growing: Vec<SeqId>,
    verdict: Box<Verdict>,
    free_pages: usize,
    free_states: usize,
    free_windows: usize,
    has_windows: bool,
    mixes: bool,
    windows: Option<WindowBudget>,
    block_tokens: usize,
}

impl Planning<'_> {
    fn settle(&mut self, settle: Settle) {
        // A lock of no request must not be taken for the work on the request before.
        in_hand::clear();
        match settle {
            Settle::Checkpoint(checkpoint) => self.checkpoint(*checkpoint),
            Settle::Release(release) => self.release(*release),
            Settle::Unlock(lock) => self.cache.unlock(lock),
            Settle::Unpin(lock) => {
                self.cache.unpin_state(&lock);
                self.cache.unlock(lock);
            }
        }
    }

    fn checkpoint(&mut self, settle: SettleCheckpoint) {
        let SettleCheckpoint {
            seq,
            intake,
            key,
            protected_pages,
            private,
            lock,
            states,
            windows,
        } = settle;
        in_hand::hold(intake);
        let states = self.states_to_cache(states);
        let mut done =
            self.cache
                .checkpoint(key.checkpoint(protected_pages, private, lock, states, windows));
        if let Some(windows) = &mut done.windows {
            let duplicates = std::mem::take(&mut windows.duplicates);
            self.returned_windows.append(duplicates);
        }
        let remap = if done.duplicates.is_empty() {
            PageRun::empty()
        } else {
            std::mem::take(&mut done.remap)
        };
        self.returned.append(done.duplicates);
        self.verdict.checkpointed.push(CheckpointedSeq {
            seq,
            lock: done.lock,
            private: done.private,
            protected_pages: done.protected_pages,
            remap_from: protected_pages,
            remap,
            inserted_tokens: done.inserted_tokens,
            windows: done.windows,
        });
    }

    fn release(&mut self, release: SettleRelease) {
        let SettleRelease {
            seq: _,
            intake,
            row,
            key,
            protected_pages,
            private,
            lock,
            states,
            returned_states,
            windows,
        } = release;
        in_hand::hold(intake);
        self.returned_rows.extend(row);
        self.returned_states.extend(returned_states);
        let states = self.states_to_cache(states);
        let Some(key) = key else {
            debug_assert!(
                states.is_empty(),
                "a sequence released without publishing must return its states"
            );
            self.cache.unlock(lock);
            self.returned.append(private);
            if let Some(windows) = windows {
                self.returned_windows.append(windows.pages);
            }
            return;
        };
        let Checkpointed {
            lock,
            private,
            duplicates,
            windows,
            ..
        } = self
            .cache
            .checkpoint(key.checkpoint(protected_pages, private, lock, states, windows));
        if let Some(windows) = windows {
            let CheckpointedWindows {
                own, duplicates, ..
            } = *windows;
            self.returned_windows.append(own.pages);
            self.returned_windows.append(duplicates);
        }
        self.cache.unlock(lock);
        self.returned.append(duplicates);
        self.returned.append(private);
    }

    fn flush(&mut self) {
        let flushed = self.cache.clear();
        self.verdict.flushed_pages = Some(flushed.len());
        self.returned.append(flushed);
        self.take_freed_windows();
    }

    fn pin(&mut self, demand: PinDemand) {
        // The namespaces of prompts with LongRoPE's short factors, and with its long ones.
        let both = demand.namespace.with_and_without_long_rotation();
        let cached = both.map(|namespace| (self.cache.peek(&namespace, &demand.tokens), namespace));
        let [short, long] = &cached;
        let (_, namespace) = if long.0 > short.0 { long } else { short };
        let locked = self.cache.lock_prefix(namespace, &demand.tokens);
        self.cache.pin_state(&locked.lock, self.max_pinned_states);
        self.verdict.pinned.push(Pinned {
            pin: demand.pin,
            lock: locked.lock,
            tokens: locked.tokens,
        });
    }

    fn touch(&mut self, keys: &[ProbeKey]) {
        for key in keys {
            in_hand::hold(key.intake);
            let limit = key.match_limit.min(key.tokens.len());
            self.cache
                .touch_prefix(&key.namespace, &key.tokens[..limit]);
        }
        in_hand::clear();
    }

    /// Returns the states if the cache keeps states; otherwise frees all of them and returns none.
    fn states_to_cache(&mut self, states: Vec<SavedState>) -> Vec<SavedState> {
        if self.cache.keeps_states() {
            return states;
        }
        let freed = states.into_iter().map(|saved| saved.state);
        self.returned_states.extend(freed);
        Vec::new()
    }

    fn take_freed_states(&mut self) {
        self.returned_states.extend(self.cache.take_freed_states());
    }

    fn save(&mut self, budget: &mut SaveBudget, blocks: usize) {
        let demand = SaveDemand {
            blocks: blocks.min(budget.max_blocks),
            states: budget.max_states,
            account: std::mem::take(&mut budget.store_record),
        };
        let taken = self.cache.take_unsaved(demand);
        let is_state = |part: &UnsavedPart| matches!(part, UnsavedPart::State(_));
        let states = taken.iter().filter(|block| is_state(&block.part)).count();
        budget.max_states -= states;
        budget.max_blocks -= taken.len() - states;
        self.verdict.saves.extend(taken);
    }

    /// Takes more blocks to save, as many as the step's other work allows. Call it once that work is decided.
    fn save_with_step(&mut self, budget: &mut SaveBudget, decodes: bool) {
        if budget.max_blocks == 0 || self.verdict.preempt.is_some() {
            return;
        }
        let admitted = self.verdict.admitted.iter();
        let prefills = admitted.map(|admitted| admitted.extend_end - admitted.extend_start());
        let blocks = match prefills.sum::<usize>() {
            0 if decodes || !self.verdict.admitted.is_empty() => 0,
            0 => budget.extra_when_idle,
            tokens => tokens.div_ceil(budget.block_tokens.max(1)),
        };
        self.save(budget, blocks);
    }

    /// Free, returned and evictable pages, in tokens.
    fn available(&self) -> usize {
        (self.free_pages + self.returned.len()) * self.page_size + self.cache.evictable_size()
    }

    /// Plans the decode: alone if nothing is admitted or preempted, together with the prefills if that is allowed and
    /// the pages suffice, otherwise not in this step. Returns the tokens that must be free.
    fn decode(&mut self, growing: Vec<SeqId>) -> usize {
        let prefill_pages: usize = self
            .demands
            .iter()
            .map(|demand| demand.pages as usize)
            .sum();
        let target_tokens = (prefill_pages + growing.len()) * self.page_size;
        if !self.verdict.admitted.is_empty() {
            let fits = target_tokens <= self.available()
                && (!self.has_windows || target_tokens <= self.available_windows());
            self.verdict.mixed = self.mixes && fits;
            if !self.verdict.mixed {
                return 0;
            }
        } else if self.verdict.preempt.is_some() {
            return 0;
        }
        self.growing = growing;
        target_tokens
    }

    /// As [`Self::available`], of window pages.
    fn available_windows(&self) -> usize {
        let free = self.free_windows + self.returned_windows.len();
        (free + self.cache.evictable_windows()) * self.page_size
    }

    fn take_freed_windows(&mut self) {
        if self.has_windows {
            self.returned_windows
                .append(self.cache.take_freed_windows());
        }
    }

    /// Evicts until there is a window page for each demanded page.
    fn evict_windows(&mut self) {
        if !self.has_windows {
            return;
        }
        self.take_freed_windows();
        let demanded = self.demands.iter().map(|demand| demand.pages as usize);
        let wanted = demanded.sum::<usize>() + self.growing.len();
        let free = self.free_windows + self.returned_windows.len();
        self.cache.evict_windows(wanted.saturating_sub(free));
        let before = self.returned_windows.len();
        self.take_freed_windows();
        self.verdict.evicted_windows = self.returned_windows.len() - before;
    }

    fn evict_up_to(&mut self, target_tokens: usize) -> EvictedPages {
        let free_tokens = (self.free_pages + self.returned.len()) * self.page_size;
        let evicted = self.cache.evict(target_tokens.saturating_sub(free_tokens));
        self.verdict.evicted_tokens = evicted.n_tokens();
        self.verdict.evicted_nodes = evicted.n_nodes();
        self.verdict.evicted_edges = self.cache.take_evicted_edges();
        evicted
    }
}

impl PublishKey {
    fn checkpoint(
        &self,
        protected_pages: usize,
        private: Pages,
        lock: crate::pool::pages::NodeLock,
        states: Vec<SavedState>,
        windows: Option<Box<RowWindows>>,
    ) -> Checkpoint<'_> {
        Checkpoint {
            namespace: &self.namespace,
            tokens: &self.tokens[..self.len],
            owner: Some(&self.tokens),
            prompt_tokens: self.prompt_len,
            protected_pages,
            private,
            lock,
            inserted_tokens: self.inserted_tokens,
            priority: self.priority,
            states,
            windows,
            boundaries: &self.boundaries,
            stored_tokens: self.stored_tokens.min(self.len),
        }
    }
}
