//! Records the events of the simulated engine, and checks its invariants.

use std::collections::HashSet;

use souffleur_base::error::{RequestError, StepError};
use souffleur_base::ids::{PageId, SeqId, StateSlot};
use souffleur_state::plan::{PlanStep, Reservation, Settle, StepPlanned};
use souffleur_state::scheduler::Next;
use souffleur_state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur_state::step::StepPlan;

use crate::scheduler_requests::Loss;
use crate::scheduler_waits::Guarantee;

use super::{End, MAX_EVICTED_PAGES, RequestView, World};

impl World {
    pub(super) fn note_failure(&mut self, plan: &StepPlan, error: &StepError) {
        self.has_failures = true;
        self.void_until = self.steps.back().map_or(plan.step, |last| last.step);
        let later = self.steps.iter().flat_map(|step| &step.rows);
        let seqs: HashSet<SeqId> = plan.rows.iter().chain(later).map(|row| row.seq).collect();
        let is_alone = seqs.len() == 1;
        self.lost_steps += usize::from(matches!(error, StepError::Lost(_)));
        // The steps after a lost one are lost with it; after a rejected one, only its requests fail.
        let seqs = match error {
            StepError::Lost(_) => seqs,
            StepError::Rejected(_) => plan.rows.iter().map(|row| row.seq).collect(),
        };
        for seq in seqs {
            let number = self.number_of(seq);
            let view = &mut self.views[number];
            if view.end.is_some() {
                continue;
            }
            match error {
                StepError::Rejected(_) => view.rejected_steps += 1,
                StepError::Lost(cause) => view.losses.push(Loss {
                    cause: cause.clone(),
                    is_alone,
                }),
            }
        }
    }

    /// Records that a plan begins, with the order that its policy guarantees.
    pub(super) fn note_plan(&mut self, next: &Next) {
        let policy = self.states.scheduler.policy_name();
        match next {
            Next::ProbePrefixes(_) => self.waits.begin_plan(Guarantee::Nothing, false),
            Next::PlanStep(_) => {
                let guarantee = match policy {
                    "lof" => Guarantee::LongestOutput,
                    "random" => Guarantee::Nothing,
                    _ => Guarantee::Arrival,
                };
                self.waits.begin_plan(guarantee, policy != "fcfs");
            }
            Next::ReservePages(_) | Next::RunStep(_) => {
                self.waits.begin_plan(Guarantee::Nothing, false)
            }
            Next::Nothing => {}
        }
    }

    pub(super) fn note_grants(&mut self, planned: &StepPlanned) {
        let Reservation::Granted { grants, .. } = &planned.reservation else {
            return self.waits.refused();
        };
        for grant in grants.iter().filter(|grant| grant.row.is_some()) {
            let number = self.number_of(grant.seq);
            assert!(!self.views[number].holds_memory);
            self.views[number].holds_memory = true;
            if !self.unfinished.contains(&number) {
                self.unfinished.push(number);
            }
            self.order.note_start(number);
        }
    }

    pub(super) fn check_order(&mut self, plan: &PlanStep) {
        let mut order = std::mem::take(&mut self.order);
        order.check(self, plan);
        self.order = order;
    }

    pub(super) fn note_releases(&mut self, settlements: &[Settle]) {
        let mut put_back = Vec::new();
        for settle in settlements {
            if let Settle::Release(release) = settle {
                let number = self.number_of(release.seq);
                self.views[number].holds_memory = false;
                if self.views[number].end.is_none() {
                    put_back.push(number);
                }
            }
        }
        if settlements
            .iter()
            .any(|settle| matches!(settle, Settle::Unlock(_)))
        {
            // This frees memory without an end of a request, and the check covers only memory that an end frees.
            self.waits.suspend_memory_check();
        }
        let preemptions = self.stats().preemptions;
        let is_preempted = self.watch.note_preemptions(preemptions, &put_back);
        for number in put_back {
            self.waits.put_back(number, is_preempted);
        }
        for settle in settlements {
            if let Settle::Release(release) = settle {
                self.watch.released(self.number_of(release.seq));
            }
        }
    }

    pub(super) fn take_news(&mut self) {
        for news in self.states.scheduler.take_news() {
            let RequestTokens {
                intake,
                tokens,
                logprobs,
                cached_tokens,
                loaded_tokens: _,
                num_retractions,
                drafts: _,
                end,
            } = news;
            let (number, end) = (intake.index(), end.map(|end| *end));
            let view = &mut self.views[number];
            assert_eq!(view.end, None, "r{number} gets tokens after its end");
            assert!(view.retractions <= num_retractions);
            view.delivered.extend(tokens);
            view.cached_tokens = cached_tokens;
            view.retractions = num_retractions;
            let input = logprobs.into_iter().flat_map(|logprobs| logprobs.input);
            view.input_logprobs.extend(input.map(|entry| entry.token));
            assert_eq!(
                view.natural_output().get(..view.delivered.len()),
                Some(&view.delivered[..])
            );
            if self.setup.clips {
                assert_ne!(end, Some(RequestEnd::Failed(RequestError::OutOfMemory)));
            }
            view.end = end.map(End::Reported);
            if view.end.is_some() {
                self.watch.ended(number);
                self.waits.ended(number);
            }
            if view.is_cancelled() || view.timed_out() {
                view.steps_since_cancel.get_or_insert(0);
            }
        }
        self.states.scheduler.take_pinned();
        for event in self.states.scheduler.take_prefix_events() {
            let rid = self.misses.take(event, self.now_s).map(|r| r.rid.clone());
            let is_first = rid.is_none_or(|rid| self.reported.insert(rid));
            assert!(is_first, "a first admission is reported twice");
        }
        assert!(self.misses.evicted_pages() <= MAX_EVICTED_PAGES);
    }

    pub(super) fn check_counters(&self) {
        let page_size = self.states.cache.page_size();
        let private = self.states.scheduler.private_pages().count();
        let pages = self.states.pools.pages.free_pages() + private;
        let cached = self.states.cache.evictable_size() + self.states.cache.protected_size();
        let total = page_size.tokens_in(self.setup.n_pages as usize);
        assert_eq!(page_size.tokens_in(pages) + cached, total);
        let holds_memory = |number: &&usize| self.views[**number].holds_memory;
        let held = self.unfinished.iter().filter(holds_memory).count();
        assert_eq!(
            self.states.pools.rows.free_rows() + held,
            self.setup.n_rows as usize
        );
        let slots = self.setup.states.map_or(0, |states| states.total_slots);
        let pools = &self.states.pools.states;
        let free_and_cached = pools.free_slots() + self.states.cache.cached_states();
        let of_sequences = self.states.scheduler.held_states().count();
        assert_eq!(free_and_cached + of_sequences, slots);
        let cache = &self.states.cache;
        let cached = cache.evictable_windows() + cache.protected_windows();
        let free = self.states.pools.windows.free_pages();
        let private = self.states.scheduler.private_windows().count();
        assert_eq!(free + cached + private, self.n_windows());
    }

    /// Checks that every page is free, cached or private to one sequence.
    pub(super) fn check_pages(&self) {
        let mut pages: Vec<PageId> = self.states.pools.pages.iter().collect();
        pages.extend(self.states.cache.iter_pages());
        pages.extend(self.states.scheduler.private_pages());
        pages.sort_unstable();
        let all: Vec<PageId> = (1..=self.setup.n_pages).map(PageId::new).collect();
        assert_eq!(pages, all);
    }

    /// Checks that every state slot is free, cached or private to one sequence.
    pub(super) fn check_states(&self) {
        let mut slots: Vec<StateSlot> = self.states.pools.states.iter().collect();
        slots.extend(self.states.cache.iter_states());
        slots.extend(self.states.scheduler.held_states());
        slots.sort_unstable();
        let total = self.setup.states.map_or(0, |states| states.total_slots);
        let all: Vec<StateSlot> = (1..=total as u32).map(StateSlot::new).collect();
        assert_eq!(slots, all);
    }

    fn n_windows(&self) -> usize {
        self.setup.windows.map_or(0, |windows| windows.total_pages)
    }

    /// Checks that every window page is free, cached or private to one sequence.
    pub(super) fn check_windows(&self) {
        let mut pages: Vec<PageId> = self.states.pools.windows.iter().collect();
        pages.extend(self.states.cache.iter_window_pages());
        pages.extend(self.states.scheduler.private_windows());
        pages.sort_unstable();
        let all: Vec<PageId> = (1..=self.n_windows() as u32).map(PageId::new).collect();
        assert_eq!(pages, all);
    }

    pub fn assert_clean(&mut self) {
        self.drain();
        self.expire_pins(u64::MAX);
        self.finish_plan();
        let stats = self.stats();
        assert!(stats.is_idle_and_whole(), "{stats:?}");
        let pins = (stats.pins, stats.soft_pins, stats.protected_tokens);
        assert_eq!(pins, (0, 0, 0), "{stats:?}");
        assert!(
            (stats.new_token_ratio - 0.7 * self.setup.conservativeness).abs() < 1e-9,
            "{stats:?}"
        );
        assert_eq!(stats.mixed_steps as usize, self.watch.mixed_steps);
        assert_eq!(self.states.cache.check_integrity(), Ok(()));
        self.check_pages();
        self.check_states();
        self.check_windows();
        self.views.iter().for_each(RequestView::check_end);
        // Not for requests that ended early: an open plan may admit one after its end, which only the report counts.
        let ended_by_itself = |view: &&RequestView| {
            let was_stopped = view.end == Some(End::StopFound) || view.is_cancelled();
            !was_stopped && view.failure().is_none()
        };
        for view in self.views.iter().filter(ended_by_itself) {
            if let Some(report) = self.misses.report(&view.rid) {
                assert_eq!(
                    report.cached_tokens, view.cached_tokens as usize,
                    "{}",
                    view.rid
                );
            }
        }
        assert!(self.views.iter().all(|view| !view.holds_memory));
        self.states.pools.pages.free(self.states.cache.clear());
        for state in self.states.cache.take_freed_states() {
            self.states.pools.states.free(state);
        }
        let windows = self.states.cache.take_freed_windows();
        self.states.pools.windows.free(windows);
        assert_eq!(self.states.pools.windows.free_pages(), self.n_windows());
        assert_eq!(self.states.pools.windows.double_frees(), 0);
        let states = &self.states.pools.states;
        assert_eq!(states.free_slots(), states.total_slots());
        assert_eq!(
            self.states.pools.pages.free_pages(),
            self.states.pools.pages.total_pages()
        );
        assert_eq!(
            (
                self.states.ledger.lost_pages(),
                self.states.ledger.lost_locks(),
                self.states.ledger.lost_states()
            ),
            (0, 0, 0)
        );
    }
}
