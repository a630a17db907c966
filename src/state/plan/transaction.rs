//! The tree's leg of a plan: one serial transaction, in a fixed order.
//!
//! Settle what ended or was written, then match, lock and judge the candidates one after the other against live
//! counters, then evict what is missing. Locks are taken before anything is evicted, so an admitted prefix stays.

use crate::ids::SeqId;
use crate::state::cache::prefix_cache::{Checkpoint, Checkpointed, PrefixCache};
use crate::state::plan::preemption::Preemption;
use crate::state::plan::prefill_adder::{Budget, Decision, PrefillAdder};
use crate::state::plan::{
    AdmitRequest, Admitted, CacheCounts, Candidate, CheckpointedSeq, Demand, PinDemand, Pinned,
    PlanRequest, Preempt, PublishKey, ReserveRequest, Settle, SettleCheckpoint, SettleRelease,
    Verdict,
};
use crate::state::pool::pages::{EvictedPages, PageRun, Pages};

/// Tokens that a candidate must share with a prefill in flight to be worth a wait.
const MIN_SHARED_TOKENS: usize = 32;
/// Plans that a candidate is held back at most.
const MAX_WAITS: u8 = 2;

/// Runs a plan against the tree and returns what the pools are to do.
pub fn run_plan(cache: &mut dyn PrefixCache, request: PlanRequest) -> ReserveRequest {
    let mut plan = Transaction {
        page_size: cache.page_size().get(),
        cache,
        returned: request.returned,
        returned_rows: request.returned_rows,
        demands: Vec::new(),
        growing: Vec::new(),
        verdict: Box::default(),
        free_pages: request.free_pages,
        mixes: false,
    };
    if let Some(policy) = request.eviction_policy {
        plan.cache.set_eviction_policy(policy);
    }
    for settle in request.settle {
        plan.settle(settle);
    }
    if request.flush {
        plan.flush();
    }
    for demand in request.pins {
        plan.pin(demand);
    }
    for key in &request.touch {
        let limit = key.match_limit.min(key.tokens.len());
        plan.cache
            .touch_prefix(&key.namespace, &key.tokens[..limit]);
    }
    let mut target_tokens = request.evict_tokens;
    if let Some(mut admit) = request.admit {
        admit.max_new_rows += plan.returned_rows.len();
        target_tokens = target_tokens.max(plan.admit(admit));
    }
    if let Some(decode) = request.else_decode {
        target_tokens = target_tokens.max(plan.decode(decode.growing));
    }
    let evicted = plan.evict_up_to(target_tokens);
    plan.verdict.cache = Some(CacheCounts {
        evictable_tokens: plan.cache.evictable_size(),
        protected_tokens: plan.cache.protected_size(),
    });
    ReserveRequest {
        step: request.step,
        returned: plan.returned,
        evicted,
        returned_rows: plan.returned_rows,
        demands: plan.demands,
        growing: plan.growing,
        verdict: plan.verdict,
    }
}

struct Transaction<'a> {
    cache: &'a mut dyn PrefixCache,
    page_size: usize,
    returned: Pages,
    returned_rows: Vec<crate::ids::RowId>,
    demands: Vec<Demand>,
    growing: Vec<SeqId>,
    verdict: Box<Verdict>,
    free_pages: usize,
    /// The decode may ride along with what is admitted.
    mixes: bool,
}

impl Transaction<'_> {
    fn settle(&mut self, settle: Settle) {
        match settle {
            Settle::Checkpoint(checkpoint) => self.checkpoint(*checkpoint),
            Settle::Release(release) => self.release(*release),
            Settle::Unlock(lock) => self.cache.unlock(lock),
        }
    }

    fn checkpoint(&mut self, settle: SettleCheckpoint) {
        let SettleCheckpoint {
            seq,
            key,
            protected_pages,
            private,
            lock,
        } = settle;
        let mut done = self
            .cache
            .checkpoint(key.checkpoint(protected_pages, private, lock));
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
        });
    }

    fn release(&mut self, release: SettleRelease) {
        let SettleRelease {
            seq: _,
            row,
            key,
            protected_pages,
            private,
            lock,
        } = release;
        self.returned_rows.extend(row);
        let Some(key) = key else {
            self.cache.unlock(lock);
            self.returned.append(private);
            return;
        };
        let Checkpointed {
            lock,
            private,
            duplicates,
            ..
        } = self
            .cache
            .checkpoint(key.checkpoint(protected_pages, private, lock));
        self.cache.unlock(lock);
        self.returned.append(duplicates);
        self.returned.append(private);
    }

    fn flush(&mut self) {
        let flushed = self.cache.clear();
        self.verdict.flushed_pages = Some(flushed.len());
        self.returned.append(flushed);
    }

    fn pin(&mut self, demand: PinDemand) {
        let locked = self.cache.lock_prefix(&demand.namespace, &demand.tokens);
        self.verdict.pinned.push(Pinned {
            pin: demand.pin,
            lock: locked.lock,
            tokens: locked.tokens,
        });
    }

    /// Free pages, returned ones and what could be evicted, in tokens.
    fn available(&self) -> usize {
        (self.free_pages + self.returned.len()) * self.page_size + self.cache.evictable_size()
    }

    /// Admits candidates in order; returns the tokens that must be free for them (SGLang's conservative target:
    /// a page more for each than its extent).
    fn admit(&mut self, request: AdmitRequest) -> usize {
        let mut adder = request.adder;
        let mut in_flight: Vec<&Candidate> = Vec::new();
        let mut new_rows = 0;
        let mut target_tokens = 0;
        self.mixes = request.mixes;
        for candidate in &request.candidates {
            let wait = if request.prefix_wait {
                in_flight.as_slice()
            } else {
                &[]
            };
            let has_row = new_rows < request.max_new_rows;
            let admitted = match self.judge(&mut adder, candidate, wait, has_row) {
                Ok(admitted) => admitted,
                Err(NotNow::Held) => {
                    self.verdict.held.push(candidate.seq);
                    continue;
                }
                Err(NotNow::Refused(refusal)) => {
                    self.refuse(candidate, refusal);
                    let preempt = request.preemption.as_ref();
                    let preempt =
                        preempt.and_then(|who| self.preempt(&adder, candidate, refusal, who));
                    if preempt.is_some() {
                        self.undo();
                        self.verdict.preempt = preempt;
                        return 0;
                    }
                    break;
                }
            };
            let needs_row = candidate.continues_at.is_none();
            new_rows += usize::from(needs_row);
            target_tokens += admitted.extend_end - admitted.prefix_len + self.page_size;
            self.demand(candidate.seq, &admitted, needs_row);
            self.verdict.admitted.push(admitted);
            self.mixes &= !candidate.wants_logprobs;
            in_flight.push(candidate);
        }
        target_tokens
    }

    fn judge(
        &mut self,
        adder: &mut PrefillAdder,
        candidate: &Candidate,
        in_flight: &[&Candidate],
        has_row: bool,
    ) -> Result<Admitted, NotNow> {
        if !self.verdict.admitted.is_empty() {
            let budget = adder.budget(self.available());
            if budget != Budget::Continue {
                return Err(NotNow::Refused(Refusal::Budget(budget)));
            }
        }
        if let Some(prefix_len) = candidate.continues_at {
            return Ok(self.continue_chunk(adder, candidate, prefix_len));
        }
        if !has_row {
            return Err(NotNow::Refused(Refusal::NoRow));
        }
        self.admit_one(adder, candidate, in_flight)
    }

    fn refuse(&mut self, candidate: &Candidate, refusal: Refusal) {
        self.verdict.refused = Some(candidate.seq);
        self.verdict.budget = Some(match refusal {
            Refusal::Budget(budget) => budget,
            Refusal::NoRow => Budget::Other,
        });
    }

    /// Who gives way to a candidate that was refused for want of a row or of memory.
    fn preempt(
        &self,
        adder: &PrefillAdder,
        candidate: &Candidate,
        refusal: Refusal,
        preemption: &Preemption,
    ) -> Option<Preempt> {
        if refusal == Refusal::Budget(Budget::Other) {
            return None;
        }
        let limit = candidate.match_limit.min(candidate.tokens.len());
        let cached = self
            .cache
            .peek(&candidate.namespace, &candidate.tokens[..limit]);
        let extend = candidate.tokens.len() - cached;
        let deficit = adder.deficit(extend, candidate.max_new_tokens, self.available());
        let victims = preemption.choose(candidate.rank, deficit)?;
        Some(Preempt {
            seq: candidate.seq,
            victims: victims.iter().map(|victim| victim.seq).collect(),
        })
    }

    /// Takes back everything that this plan has admitted: it is planned again.
    fn undo(&mut self) {
        for admitted in std::mem::take(&mut self.verdict.admitted) {
            if let Some(lock) = admitted.lock {
                self.cache.unlock(lock);
            }
        }
        self.demands.clear();
        self.verdict.held.clear();
        self.verdict.budget = None;
        self.verdict.refused = None;
    }

    fn continue_chunk(
        &mut self,
        adder: &mut PrefillAdder,
        candidate: &Candidate,
        prefix_len: usize,
    ) -> Admitted {
        let len = candidate.tokens.len();
        let decision =
            adder.add_chunked(len, prefix_len, candidate.max_new_tokens, self.available());
        let Decision::Admit { end, chunked } = decision else {
            unreachable!("a chunked request is never refused");
        };
        Admitted {
            seq: candidate.seq,
            lock: None,
            prefix: PageRun::empty(),
            prefix_len,
            extend_end: end,
            chunked,
            departure: None,
        }
    }

    fn admit_one(
        &mut self,
        adder: &mut PrefillAdder,
        candidate: &Candidate,
        in_flight: &[&Candidate],
    ) -> Result<Admitted, NotNow> {
        let limit = candidate.match_limit.min(candidate.tokens.len());
        let locked = self
            .cache
            .lock_prefix(&candidate.namespace, &candidate.tokens[..limit]);
        let is_growing = candidate.waits < MAX_WAITS
            && in_flight
                .iter()
                .any(|other| shares_more(candidate, other, locked.tokens, limit));
        if is_growing {
            self.cache.unlock(locked.lock);
            return Err(NotNow::Held);
        }
        let (len, max_new) = (candidate.tokens.len(), candidate.max_new_tokens);
        let decision = if candidate.ignore_eos && self.cache.is_disabled() {
            adder.add_ignoring_eos(len, locked.tokens, max_new, self.available())
        } else {
            let is_first = self.verdict.admitted.is_empty();
            adder.add(len, locked.tokens, max_new, self.available(), is_first)
        };
        match decision {
            Decision::Refuse(budget) => {
                self.cache.unlock(locked.lock);
                Err(NotNow::Refused(Refusal::Budget(budget)))
            }
            Decision::Admit { end, chunked } => Ok(Admitted {
                seq: candidate.seq,
                departure: self.cache.departure(
                    &candidate.namespace,
                    &locked.lock,
                    &candidate.tokens,
                    locked.tokens,
                    limit,
                ),
                lock: Some(locked.lock),
                prefix: locked.pages,
                prefix_len: locked.tokens,
                extend_end: end,
                chunked,
            }),
        }
    }

    fn demand(&mut self, seq: SeqId, admitted: &Admitted, row: bool) {
        let pages = admitted.extend_end.div_ceil(self.page_size)
            - admitted.prefix_len.div_ceil(self.page_size);
        self.demands.push(Demand {
            seq,
            pages: pages as u32,
            row,
        });
    }

    /// The decode runs alone when nothing is admitted, rides along if it may and its pages are there besides the
    /// prefill's, or sits this step out. Returns the tokens that must be free.
    fn decode(&mut self, growing: Vec<SeqId>) -> usize {
        let prefill_pages: usize = self
            .demands
            .iter()
            .map(|demand| demand.pages as usize)
            .sum();
        let target_tokens = (prefill_pages + growing.len()) * self.page_size;
        if !self.verdict.admitted.is_empty() {
            self.verdict.mixed = self.mixes && target_tokens <= self.available();
            if !self.verdict.mixed {
                return 0;
            }
        } else if self.verdict.preempt.is_some() {
            return 0;
        }
        self.growing = growing;
        target_tokens
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

/// Why a candidate is not in this plan.
enum NotNow {
    /// It waits for a prefix that another one computes.
    Held,
    Refused(Refusal),
}

/// What a candidate lacks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    Budget(Budget),
    NoRow,
}

/// True when `other`, whose prefill is under way, computes a good part of what the candidate still misses.
fn shares_more(candidate: &Candidate, other: &Candidate, cached: usize, limit: usize) -> bool {
    let until = cached + MIN_SHARED_TOKENS;
    // The uncached part first: behind a long cached prefix it is where requests differ.
    until <= limit
        && until <= other.tokens.len()
        && candidate.tokens[cached..until] == other.tokens[cached..until]
        && candidate.namespace == other.namespace
        && candidate.tokens[..cached] == other.tokens[..cached]
}

impl PublishKey {
    fn checkpoint(
        &self,
        protected_pages: usize,
        private: Pages,
        lock: crate::state::pool::pages::NodeLock,
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
        }
    }
}
