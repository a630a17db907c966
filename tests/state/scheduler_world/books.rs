//! What is written down while the engine runs, and what must hold of it.

use souffleur::error::RequestError;
use souffleur::ids::PageId;
use souffleur::state::plan::{PlanRequest, Planned, Reservation, Settle};
use souffleur::state::scheduler::Next;
use souffleur::state::scheduler::news::{RequestEnd, RequestTokens};
use souffleur::state::step::StepPlan;

use crate::scheduler_waits::Promise;

use super::{End, Fate, Life, MAX_EVICTED_PAGES, World};

impl World {
    pub(super) fn note_failure(&mut self, plan: &StepPlan, fate: Fate) {
        self.has_failures = true;
        self.void_until = self.steps.back().map_or(plan.step, |last| last.step);
        for row in &plan.rows {
            let number = self.number_of(row.seq);
            let life = &mut self.lives[number];
            if life.end.is_none() {
                match fate {
                    Fate::Rejected => life.rejected_steps += 1,
                    _ => life.lost_steps += 1,
                }
            }
        }
    }

    /// A plan is begun, in an order that the policy alone decides from here on.
    pub(super) fn note_plan(&mut self, next: &Next) {
        let policy = self.scheduler.policy_name();
        match next {
            Next::Probe(_) => self.waits.begin_plan(Promise::Nothing, false),
            Next::Plan(_) => {
                let promise = match policy {
                    "lof" => Promise::LongestOutput,
                    "random" => Promise::Nothing,
                    _ => Promise::Arrival,
                };
                self.waits.begin_plan(promise, policy != "fcfs");
            }
            Next::Reserve(_) | Next::Run(_) => self.waits.begin_plan(Promise::Nothing, false),
            Next::Nothing => {}
        }
    }

    pub(super) fn note_grants(&mut self, planned: &Planned) {
        let Reservation::Granted { grants, .. } = &planned.reservation else {
            return self.waits.refused();
        };
        for grant in grants.iter().filter(|grant| grant.row.is_some()) {
            let number = self.number_of(grant.seq);
            assert!(!self.lives[number].holds_memory);
            self.lives[number].holds_memory = true;
            if !self.inside.contains(&number) {
                self.inside.push(number);
            }
            self.order.note_start(number);
        }
    }

    pub(super) fn check_order(&mut self, plan: &PlanRequest) {
        let mut order = std::mem::take(&mut self.order);
        order.check(self, plan);
        self.order = order;
    }

    pub(super) fn note_releases(&mut self, settlements: &[Settle]) {
        let mut evacuated = Vec::new();
        for settle in settlements {
            if let Settle::Release(release) = settle {
                let number = self.number_of(release.seq);
                self.lives[number].holds_memory = false;
                if self.lives[number].end.is_none() {
                    evacuated.push(number);
                }
            }
        }
        if settlements
            .iter()
            .any(|settle| matches!(settle, Settle::Unlock(_)))
        {
            self.waits.forget_ends();
        }
        let preemptions = self.stats().preemptions;
        let is_preempted = self.watch.note_preemptions(preemptions, &evacuated);
        for number in evacuated {
            self.waits.evacuated(number, is_preempted);
        }
        for settle in settlements {
            if let Settle::Release(release) = settle {
                self.watch.released(self.number_of(release.seq));
            }
        }
    }

    pub(super) fn hear(&mut self) {
        for news in self.scheduler.take_news() {
            let RequestTokens {
                intake,
                tokens,
                logprobs,
                cached_tokens,
                num_retractions,
                end,
            } = news;
            let (number, end) = (intake.index(), end.map(|end| *end));
            let life = &mut self.lives[number];
            assert_eq!(life.end, None, "r{number} hears of itself after its end");
            assert!(life.retractions <= num_retractions);
            life.delivered.extend(tokens);
            life.cached_tokens = cached_tokens;
            life.retractions = num_retractions;
            let input = logprobs.into_iter().flat_map(|logprobs| logprobs.input);
            life.input_logprobs.extend(input.map(|entry| entry.token));
            assert_eq!(
                life.natural_output().get(..life.delivered.len()),
                Some(&life.delivered[..])
            );
            if self.setup.clips {
                assert_ne!(end, Some(RequestEnd::Failed(RequestError::OutOfMemory)));
            }
            life.end = end.map(End::Told);
            if life.end.is_some() {
                self.watch.ended(number);
                self.waits.ended(number);
            }
            if life.is_cancelled() || life.timed_out() {
                life.steps_since_cancel.get_or_insert(0);
            }
        }
        self.scheduler.take_pinned();
        for event in self.scheduler.take_prefix_events() {
            let rid = self.misses.take(event, self.now_s).map(|r| r.rid.clone());
            let is_first = rid.is_none_or(|rid| self.reported.insert(rid));
            assert!(is_first, "a request is admitted for the first time twice");
        }
        assert!(self.misses.evicted_pages() <= MAX_EVICTED_PAGES);
    }

    /// The sums of what the pools, the tree and the sequences themselves say.
    pub(super) fn check_counters(&self) {
        let page_size = self.cache.page_size();
        let private = self.scheduler.private_pages().count();
        let pages = self.pools.pages.free_pages() + private;
        let cached = self.cache.evictable_size() + self.cache.protected_size();
        let total = page_size.tokens_in(self.setup.n_pages as usize);
        assert_eq!(page_size.tokens_in(pages) + cached, total);
        let holds = |number: &&usize| self.lives[**number].holds_memory;
        let held = self.inside.iter().filter(holds).count();
        assert_eq!(
            self.pools.rows.free_rows() + held,
            self.setup.n_rows as usize
        );
    }

    /// Every page is free, cached or one sequence's own.
    pub(super) fn check_pages(&self) {
        let mut pages: Vec<PageId> = self.pools.pages.iter().collect();
        self.cache.for_each_page(&mut |page| pages.push(page));
        pages.extend(self.scheduler.private_pages());
        pages.sort_unstable();
        let all: Vec<PageId> = (1..=self.setup.n_pages).map(PageId::new).collect();
        assert_eq!(pages, all);
    }

    pub fn assert_clean(&mut self) {
        self.drain();
        self.expire_pins(u64::MAX);
        self.finish_plan();
        let stats = self.stats();
        assert!(stats.is_idle_and_whole(), "{stats:?}");
        assert_eq!((stats.pins, stats.protected_tokens), (0, 0), "{stats:?}");
        assert!(
            (stats.new_token_ratio - 0.7 * self.setup.conservativeness).abs() < 1e-9,
            "{stats:?}"
        );
        assert_eq!(stats.mixed_steps as usize, self.watch.mixed_steps);
        assert_eq!(self.cache.check_integrity(), Ok(()));
        self.check_pages();
        self.lives.iter().for_each(Life::check_end);
        // One that was cancelled while its plan was open is admitted after its end.
        let is_natural = |life: &&Life| {
            let was_stopped = life.end == Some(End::StopFound) || life.is_cancelled();
            !was_stopped && life.failure().is_none()
        };
        for life in self.lives.iter().filter(is_natural) {
            if let Some(report) = self.misses.report(&life.rid) {
                assert_eq!(
                    report.cached_tokens, life.cached_tokens as usize,
                    "{}",
                    life.rid
                );
            }
        }
        assert!(self.lives.iter().all(|life| !life.holds_memory));
        self.pools.pages.free(self.cache.clear());
        assert_eq!(
            self.pools.pages.free_pages(),
            self.pools.pages.total_pages()
        );
        assert_eq!((self.ledger.lost_pages(), self.ledger.lost_locks()), (0, 0));
    }
}
