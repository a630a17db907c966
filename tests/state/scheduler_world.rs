//! A whole engine without actors: scheduler, cache, pools, fake executor, and what every request must get.
//!
//! Events may come between any two legs of a plan. Everything that must hold at every moment is asserted here, so
//! a test only says what happens.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use souffleur::error::{RequestError, StepError};
use souffleur::executor::fake::{FakeExecutor, FakeOptions};
use souffleur::executor::{
    Executor, LogprobWish, RowLogprobs, RowWork, StepOutput, StepPlan, TokenLogprobs,
};
use souffleur::ids::{IntakeId, PageId, RequestId, SeqId, StepId};
use souffleur::request::CancelFlag;
use souffleur::state::eviction::EvictionPolicy;
use souffleur::state::namespace::Namespace;
use souffleur::state::news::{RequestEnd, RequestTokens};
use souffleur::state::pages::{PageSize, PoolLedger};
use souffleur::state::plain_cache::PlainCache;
use souffleur::state::plan::{PlanRequest, Planned, Reservation, ReserveRequest, Settle};
use souffleur::state::policy::{PriorityOrder, schedule_policy};
use souffleur::state::pools::Pools;
use souffleur::state::prefix_cache::PrefixCache;
use souffleur::state::prefix_history::{HistoryLimits, PrefixHistory, PrefixReport};
use souffleur::state::probe::{ProbeReply, ProbeRequest, run_probe};
use souffleur::state::radix_tree::RadixTree;
use souffleur::state::sampling::SamplingParams;
use souffleur::state::scheduler::{
    BatchRules, IntakeLimits, Next, QueueRules, Scheduler, SchedulerLimits,
};
use souffleur::state::sequence::Submission;
use souffleur::state::stats::EngineStats;
use souffleur::state::transaction::run_plan;

use crate::policy_model::OrderCheck;
pub use crate::scheduler_requests::{Ask, EOS, End, Life, VOCAB};
use crate::scheduler_waits::{ChunkRule, WaitLog};
use crate::scheduler_watch::Watch;

/// Evicted pages that the history remembers.
const MAX_EVICTED_PAGES: usize = 4096;
/// Rounds of a drain that are more than any script of these tests needs.
const MAX_ROUNDS: usize = 200_000;

#[derive(Clone, Debug)]
pub struct Setup {
    pub page_size: u32,
    pub n_pages: u32,
    pub n_rows: u32,
    pub chunk_tokens: Option<usize>,
    pub max_prefill_tokens: usize,
    pub prefix_wait: bool,
    pub has_radix_cache: bool,
    /// Of the reservation for outputs: 0 lets requests in that will not fit together.
    pub conservativeness: f64,
    /// Clips `max_new_tokens` as the tokenizer does.
    pub clips: bool,
    pub rules: BatchRules,
    pub policy: &'static str,
    /// Without rules for priorities, which say that themselves.
    pub priority: PriorityOrder,
    pub eviction: &'static str,
    /// Plans between two looks at whole sets: each page, each node, the whole order of the queue.
    pub sets_every: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            page_size: 1,
            n_pages: 1024,
            n_rows: 8,
            chunk_tokens: None,
            max_prefill_tokens: 16384,
            prefix_wait: true,
            has_radix_cache: true,
            conservativeness: 1.0,
            clips: true,
            rules: BatchRules::default(),
            policy: "fcfs",
            priority: PriorityOrder::Ignored,
            eviction: "lru",
            sets_every: 1,
        }
    }
}

impl Setup {
    pub fn priority_order(&self) -> PriorityOrder {
        match self.rules.priority {
            None => self.priority,
            Some(rules) if rules.low_values_first => PriorityOrder::SmallerFirst,
            Some(_) => PriorityOrder::LargerFirst,
        }
    }
}

/// Where the open plan is.
enum Leg {
    Probing(Box<ProbeRequest>),
    Probed(Box<ProbeReply>),
    Asked(Box<PlanRequest>),
    Reserving(Box<ReserveRequest>),
    Answered(Box<Planned>),
}

/// How a step ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Done,
    Rejected,
    LostBeforeItRan,
    LostAfterItRan,
}

pub struct World {
    pub setup: Setup,
    pub scheduler: Scheduler,
    pub cache: Box<dyn PrefixCache>,
    pub pools: Pools,
    pub lives: Vec<Life>,
    /// Every step emitted.
    pub history: Vec<StepPlan>,
    executor: FakeExecutor,
    ledger: Arc<PoolLedger>,
    leg: Option<Leg>,
    steps: VecDeque<StepPlan>,
    /// Steps behind a lost one, whose result means nothing.
    void_until: StepId,
    /// By the order in which the scheduler took them in.
    numbers: Vec<usize>,
    pub watch: Watch,
    pub waits: WaitLog,
    /// Requests that have not ended or still hold memory.
    inside: Vec<usize>,
    /// Plans answered.
    plans: usize,
    pins: Vec<u64>,
    plans_since_progress: usize,
    /// Plans nothing for now.
    holds_back: bool,
    /// A step was made to fail.
    pub has_failures: bool,
    pub misses: PrefixHistory,
    reported: HashSet<RequestId>,
    /// The time that events come with.
    pub now_s: f64,
    order: OrderCheck,
}

impl World {
    pub fn new(setup: Setup) -> Self {
        let page_size = PageSize::new(setup.page_size).expect("tests use positive page sizes");
        let ledger = Arc::new(PoolLedger::default());
        let eviction_policy = setup.has_radix_cache.then(|| {
            EvictionPolicy::from_name(setup.eviction).expect("tests name policies that exist")
        });
        let cache: Box<dyn PrefixCache> = match eviction_policy {
            Some(policy) => {
                Box::new(RadixTree::new(page_size, policy, ledger.clone()).with_diagnostics())
            }
            None => Box::new(PlainCache::new(page_size).with_diagnostics()),
        };
        let queue = QueueRules {
            priority: setup.priority_order(),
            eviction_policy,
        };
        let limits = SchedulerLimits {
            page_size,
            total_pages: setup.n_pages as usize,
            total_rows: setup.n_rows as usize,
            max_prefill_tokens: setup.max_prefill_tokens,
            chunk_tokens: setup.chunk_tokens,
            prefix_wait: setup.prefix_wait,
            rules: setup.rules,
            schedule_conservativeness: setup.conservativeness,
            max_pins: 4,
            queue,
            eos_token_ids: Arc::from([EOS]),
        };
        let policy = schedule_policy(setup.policy).expect("tests name policies that exist");
        let executor = FakeExecutor::new(FakeOptions {
            page_size: page_size.get(),
            n_pages: setup.n_pages as usize,
            vocab_size: VOCAB,
            verify: true,
            faults: Vec::new(),
        });
        let mixed_rows = if setup.rules.mixed_chunk {
            setup.n_rows as usize
        } else {
            0
        };
        let chunks = ChunkRule::new(setup.chunk_tokens, mixed_rows, page_size.get());
        Self {
            scheduler: Scheduler::new(limits, policy, ledger.clone()),
            pools: Pools::new(setup.n_pages, setup.n_rows, page_size, ledger.clone()),
            cache,
            lives: Vec::new(),
            history: Vec::new(),
            executor,
            ledger,
            leg: None,
            steps: VecDeque::new(),
            void_until: StepId::new(0),
            numbers: Vec::new(),
            watch: Watch::new(setup.rules, setup.chunk_tokens),
            waits: WaitLog::new(chunks),
            inside: Vec::new(),
            plans: 0,
            pins: Vec::new(),
            plans_since_progress: 0,
            holds_back: false,
            has_failures: false,
            misses: PrefixHistory::new(HistoryLimits {
                page_size,
                max_requests: usize::MAX,
                max_evicted_pages: MAX_EVICTED_PAGES,
            }),
            reported: HashSet::new(),
            now_s: 0.0,
            order: OrderCheck::default(),
            setup,
        }
    }

    fn intake(&self) -> IntakeLimits {
        let page_size = self.cache.page_size();
        let capacity_tokens = page_size.tokens_in(self.setup.n_pages as usize);
        IntakeLimits {
            context_length: capacity_tokens + 1,
            capacity_tokens,
            page_size,
        }
    }

    /// Submits and returns the request's number; `None` when the prompt can never fit.
    pub fn submit(&mut self, ask: Ask) -> Option<usize> {
        self.submit_flagged(ask, CancelFlag::default())
    }

    pub fn submit_flagged(&mut self, mut ask: Ask, flag: CancelFlag) -> Option<usize> {
        if self.setup.clips {
            let clipped = self
                .intake()
                .clip_max_new_tokens(ask.prompt.len(), ask.max_new_tokens);
            ask.max_new_tokens = clipped.ok()?;
        }
        let number = self.lives.len();
        let (rid, seed) = (RequestId::new(format!("r{number}")), number as u64);
        let sampling = SamplingParams {
            max_new_tokens: ask.max_new_tokens as u32,
            ignore_eos: ask.ignore_eos,
            stop_token_ids: ask.stop_token.into_iter().collect(),
            sampling_seed: Some(seed),
            ..SamplingParams::default()
        };
        let wish = ask.logprob_start.map(|start| LogprobWish {
            start: Some(start),
            ..LogprobWish::default()
        });
        let submission = Submission {
            rid: rid.clone(),
            intake: IntakeId::new(number as u64),
            prompt: Arc::from(ask.prompt.as_slice()),
            namespace: Namespace::new(None, ask.salt),
            sampling: Arc::new(sampling),
            logprobs: wish.map(Arc::new),
            priority: ask.priority,
            cancel: flag.clone(),
            submitted_s: self.now_s,
            timeouts: ask.timeouts,
        };
        self.watch.submitted(&ask);
        self.waits.arrived(ask.max_new_tokens);
        self.inside.push(number);
        self.lives.push(Life::new(ask, rid, seed, flag));
        self.order.note_arrival();
        self.scheduler.submit(submission);
        self.hear();
        // Who is turned away at the door never is a sequence.
        if !matches!(
            self.lives[number].failure(),
            Some(RequestError::Overloaded { .. })
        ) {
            self.numbers.push(number);
        }
        self.after_event();
        Some(number)
    }

    /// Submits all before anything is planned.
    pub fn submit_all(&mut self, asks: &mut dyn Iterator<Item = Ask>) {
        self.holds_back = true;
        for ask in asks {
            self.submit(ask);
        }
        self.holds_back = false;
        self.pump();
    }

    /// True while a request stands in the queue with tokens of its own.
    pub fn is_retracted(&self, number: usize) -> bool {
        let life = &self.lives[number];
        life.end.is_none() && !life.holds_memory && self.was_started(number)
    }

    fn was_started(&self, number: usize) -> bool {
        let mut starts = self.history.iter().flat_map(|step| &step.starts);
        starts.any(|start| self.number_of(start.seq) == number)
    }

    pub fn raise_flag(&mut self, number: usize) {
        self.lives[number].flag.raise();
    }

    pub fn cancel(&mut self, number: usize) {
        self.raise_flag(number);
        let life = &mut self.lives[number];
        life.steps_since_cancel.get_or_insert(0);
        self.scheduler.cancel(&life.rid.clone(), None);
        self.after_event();
        assert!(self.lives[number].end.is_some(), "a cancel ends at once");
    }

    /// The tokenizer found a stop string that ends with output token `kept`.
    pub fn stop_found(&mut self, number: usize, kept: usize) {
        let life = &mut self.lives[number];
        if life.end.is_some() {
            self.scheduler.stop_found(&life.rid.clone(), kept);
            return self.after_event();
        }
        life.end = Some(End::StopFound);
        self.watch.ended(number);
        self.waits.ended(number);
        let life = &mut self.lives[number];
        life.steps_since_cancel.get_or_insert(0);
        self.scheduler.stop_found(&life.rid.clone(), kept);
        self.after_event();
    }

    pub fn pin(&mut self, tokens: &[u32], expires_s: u64) {
        let pinned = self
            .scheduler
            .pin(Namespace::default(), Arc::from(tokens), expires_s);
        match pinned {
            Ok(pin) => self.pins.push(pin),
            Err(error) => assert!(matches!(error, RequestError::Overloaded { limit: 4, .. })),
        }
        self.after_event();
    }

    pub fn unpin_oldest(&mut self) {
        if !self.pins.is_empty() {
            let pin = self.pins.remove(0);
            self.scheduler.unpin(pin);
            self.after_event();
        }
    }

    pub fn expire_pins(&mut self, now_s: u64) {
        self.scheduler.expire_pins(now_s);
        self.after_event();
    }

    /// Lets time pass and ends what is over.
    pub fn pass(&mut self, seconds: f64) {
        self.now_s += seconds;
        self.scheduler.expire_requests(self.now_s);
        self.after_event();
    }

    /// Where the request left the tree.
    #[track_caller]
    pub fn report(&self, number: usize) -> &PrefixReport {
        let report = self.misses.report(&self.lives[number].rid);
        report.unwrap_or_else(|| panic!("request {number} was not admitted"))
    }

    pub fn set_policy(&mut self, name: &str) {
        assert_eq!(self.scheduler.set_policy(name), Ok(()));
        self.after_event();
    }

    pub fn set_eviction_policy(&mut self, name: &str) {
        let set = self.scheduler.set_eviction_policy(name);
        assert_eq!(set.is_ok(), self.setup.has_radix_cache);
        self.after_event();
    }

    /// Plans that touched prefixes: the number among those with candidates, and the requests in order.
    pub fn touched(&self) -> &[(usize, Vec<usize>)] {
        self.order.touched()
    }

    /// Plans of this world whose queue was compared with the naive model's.
    pub fn checked_orders(&self) -> usize {
        self.order.checked
    }

    /// Moves the open plan by one leg; false without one.
    pub fn advance(&mut self) -> bool {
        let Some(leg) = self.leg.take() else {
            return false;
        };
        match leg {
            Leg::Probing(probe) => {
                let numbers: Vec<usize> =
                    probe.keys.iter().map(|k| self.number_of(k.seq)).collect();
                let keys = probe.keys.clone();
                let reply = run_probe(&mut *self.cache, *probe);
                if self.looks_at_sets() {
                    assert_eq!(self.cache.check_integrity(), Ok(()));
                    self.order.note_probe(&*self.cache, &numbers, &keys);
                }
                self.leg = Some(Leg::Probed(Box::new(reply)));
            }
            Leg::Probed(reply) => {
                let next = self.scheduler.probed(*reply);
                self.take_next(next);
                self.hear();
                self.pump();
            }
            Leg::Asked(plan) => {
                assert_eq!(plan.free_pages, self.pools.pages.free_pages());
                assert_eq!(plan.free_rows, self.pools.rows.free_rows());
                let flush = plan.flush;
                let reserve = run_plan(&mut *self.cache, *plan);
                assert!(!flush || self.cache.total_size() == 0, "flushed while busy");
                if self.looks_at_sets() {
                    assert_eq!(self.cache.check_integrity(), Ok(()));
                }
                self.leg = Some(Leg::Reserving(Box::new(reserve)));
            }
            Leg::Reserving(reserve) => {
                let planned = self.pools.reserve(*reserve);
                self.note_grants(&planned);
                self.leg = Some(Leg::Answered(Box::new(planned)));
            }
            Leg::Answered(planned) => {
                let next = self.scheduler.planned(*planned);
                assert_eq!(self.stats().integrity_failures, 0);
                if !matches!(next, Next::Plan(_) | Next::Reserve(_)) {
                    self.check_counters();
                    if self.looks_at_sets() {
                        self.check_pages();
                    }
                }
                self.plans += 1;
                self.order.is_again = true;
                self.take_next(next);
                self.order.is_again = false;
                self.hear();
                self.pump();
            }
        }
        true
    }

    /// Moves the open plan to its end, and those that follow it at once.
    pub fn finish_plan(&mut self) {
        while self.advance() {}
    }

    /// Ends the oldest step under way; false without one.
    pub fn end_step(&mut self, fate: Fate) -> bool {
        let Some(plan) = self.steps.pop_front() else {
            return false;
        };
        let is_void = plan.step <= self.void_until;
        let result = match fate {
            Fate::Done => self.run(&plan),
            Fate::Rejected => Err(StepError::Rejected("injected".into())),
            Fate::LostBeforeItRan => Err(StepError::Lost("injected".into())),
            Fate::LostAfterItRan => {
                let _ = self.run(&plan);
                Err(StepError::Lost("injected".into()))
            }
        };
        if !is_void {
            match &result {
                Ok(_) => {}
                Err(error) if fate == Fate::Done => panic!("step {}: {error}", plan.step),
                Err(_) => self.note_failure(&plan, fate),
            }
        }
        for number in &self.inside {
            if let Some(steps) = &mut self.lives[*number].steps_since_cancel {
                *steps += 1;
            }
        }
        self.scheduler.step_done(plan.step, result);
        self.after_event();
        true
    }

    /// One whole step: plans what can be planned, then ends the oldest step. False when there was none.
    pub fn turn(&mut self) -> bool {
        self.finish_plan();
        self.end_step(Fate::Done)
    }

    /// Lets everything run to its end, then checks that nothing is left and everybody got what they asked for.
    pub fn drain(&mut self) {
        let mut rounds = 0;
        while !self.is_idle() {
            assert!(
                self.advance() || self.end_step(Fate::Done),
                "nothing goes on, but not all is done: {:?}",
                self.stats()
            );
            rounds += 1;
            assert!(rounds < MAX_ROUNDS, "{:?}", self.stats());
        }
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

    pub fn stats(&self) -> EngineStats {
        self.scheduler.stats()
    }

    /// Requests that have not ended.
    pub fn alive(&self) -> Vec<usize> {
        let is_alive = |number: &usize| self.lives[*number].end.is_none();
        self.inside.iter().copied().filter(is_alive).collect()
    }

    /// Nothing is inside and nothing under way.
    pub fn is_idle(&self) -> bool {
        self.scheduler.is_idle() && self.leg.is_none()
    }

    /// True at those plans at which whole sets are looked at.
    pub fn looks_at_sets(&self) -> bool {
        self.plans.is_multiple_of(self.setup.sets_every)
    }

    /// Steps under way.
    pub fn depth(&self) -> usize {
        self.steps.len()
    }

    pub fn number_of(&self, seq: SeqId) -> usize {
        self.numbers[(seq.get() >> 32) as usize - 1]
    }

    fn after_event(&mut self) {
        self.plans_since_progress = 0;
        self.hear();
        self.pump();
    }

    fn pump(&mut self) {
        while self.leg.is_none() && !self.holds_back {
            match self.scheduler.next() {
                Next::Nothing => break,
                next => self.take_next(next),
            }
        }
        self.hear();
    }

    fn take_next(&mut self, next: Next) {
        match next {
            Next::Nothing => return,
            Next::Probe(probe) => {
                self.order.note_asked(self.scheduler.policy_name());
                self.note_releases(&probe.settle);
                self.leg = Some(Leg::Probing(probe));
                return;
            }
            Next::Plan(plan) => {
                self.note_releases(&plan.settle);
                self.check_order(&plan);
                self.leg = Some(Leg::Asked(plan));
            }
            Next::Reserve(reserve) => self.leg = Some(Leg::Reserving(reserve)),
            Next::Run(plan) => return self.take_step(*plan),
        }
        self.plans_since_progress += 1;
        let bound = 2 * self.lives.len() + 10;
        assert!(self.plans_since_progress < bound, "plans without an end");
        for number in &self.inside {
            let life = &self.lives[*number];
            let is_late = life.steps_since_cancel.is_some_and(|steps| steps >= 2);
            assert!(!(is_late && life.holds_memory), "{} holds on", life.rid);
        }
    }

    fn take_step(&mut self, plan: StepPlan) {
        self.plans_since_progress = 0;
        self.order.note_step(&plan);
        let numbers = plan.rows.iter().map(|row| self.number_of(row.seq));
        for number in numbers.chain(plan.starts.iter().map(|start| self.number_of(start.seq))) {
            let life = &self.lives[number];
            assert!(life.end.is_none(), "{} ended and is planned", life.rid);
            assert_eq!(life.steps_since_cancel, None, "{}", life.rid);
        }
        let rows: HashSet<_> = plan.rows.iter().map(|row| row.row).collect();
        let seqs: HashSet<_> = plan.rows.iter().map(|row| row.seq).collect();
        assert_eq!((rows.len(), seqs.len()), (plan.rows.len(), plan.rows.len()));
        assert!(!plan.rows.is_empty());
        assert_eq!(plan.step.get(), self.history.len() as u64 + 1);
        let numbers = &self.numbers;
        self.watch
            .take_step(&plan, |seq| numbers[(seq.get() >> 32) as usize - 1]);
        let starts = plan.starts.iter().map(|start| self.number_of(start.seq));
        let rows = plan.rows.iter().map(|row| self.number_of(row.seq));
        let (starts, rows): (Vec<_>, Vec<_>) = (starts.collect(), rows.collect());
        self.waits.take_step(&plan, &starts, &rows);
        let lives = &self.lives;
        self.inside
            .retain(|number| lives[*number].end.is_none() || lives[*number].holds_memory);
        self.steps.push_back(plan.clone());
        self.history.push(plan);
        assert!(self.steps.len() <= 2);
    }

    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        let mut output = self.executor.run(plan)?;
        for (row, result) in plan.rows.iter().zip(&mut output.rows) {
            let Some(wish) = &row.logprobs else { continue };
            let prompt = &self.lives[self.number_of(row.seq)].ask.prompt;
            let mut logprobs = RowLogprobs::default();
            if let (RowWork::Prefill { positions }, Some(start)) = (&row.work, wish.start) {
                let wished = positions.clone().filter(|position| *position >= start);
                let tokens = wished.filter_map(|position| prompt.get(position as usize + 1));
                logprobs.input.extend(tokens.map(|&token| TokenLogprobs {
                    token,
                    ..TokenLogprobs::default()
                }));
            }
            result.logprobs = Some(Box::new(logprobs));
        }
        Ok(output)
    }

    fn note_failure(&mut self, plan: &StepPlan, fate: Fate) {
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

    fn note_grants(&mut self, planned: &Planned) {
        if let Reservation::Granted(grants) = &planned.reservation {
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
    }

    fn check_order(&mut self, plan: &PlanRequest) {
        let mut order = std::mem::take(&mut self.order);
        order.check(self, plan);
        self.order = order;
    }

    fn note_releases(&mut self, settlements: &[Settle]) {
        let mut evacuated = Vec::new();
        for settle in settlements {
            if let Settle::Release(release) = settle {
                let number = self.number_of(release.seq);
                self.lives[number].holds_memory = false;
                if self.lives[number].end.is_none() {
                    evacuated.push(number);
                    self.waits.evacuated(number);
                }
            }
        }
        let preemptions = self.stats().preemptions;
        self.watch.note_preemptions(preemptions, &evacuated);
        for settle in settlements {
            if let Settle::Release(release) = settle {
                self.watch.released(self.number_of(release.seq));
            }
        }
    }

    fn hear(&mut self) {
        for news in self.scheduler.take_news() {
            let RequestTokens {
                rid,
                tokens,
                logprobs,
                cached_tokens,
                num_retractions,
                end,
                ..
            } = news;
            let number: usize = rid.as_str()[1..].parse().expect("rids are r<number>");
            let life = &mut self.lives[number];
            assert_eq!(life.end, None, "{rid} hears of itself after its end");
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
    fn check_counters(&self) {
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
    fn check_pages(&self) {
        let mut pages: Vec<PageId> = self.pools.pages.iter().collect();
        self.cache.for_each_page(&mut |page| pages.push(page));
        pages.extend(self.scheduler.private_pages());
        pages.sort_unstable();
        let all: Vec<PageId> = (1..=self.setup.n_pages).map(PageId::new).collect();
        assert_eq!(pages, all);
    }
}
