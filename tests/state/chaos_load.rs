//! Random events for the chaos tests: arrivals, and events between any two legs of a plan.

use souffleur_request::RequestTimeouts;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::plan::preemption::PriorityRules;
use souffleur_state::pool::state_pool::StateLimits;
use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::scheduler::BatchRules;
use souffleur_state::scheduler::policy::{PriorityOrder, schedule_policy_names};

use crate::chaos_table::Factors;
use crate::drafts::{ROOM, drafts};
use crate::grammars::HashedGrammar;
use crate::scheduler_watch::Stage;
use crate::scheduler_world::{Ask, Outcome, Setup, VOCAB, World};

/// Prompts of one family begin with the same tokens.
const N_FAMILIES: usize = 8;
const FAMILY_TOKENS: usize = 240;
/// The number of latest requests whose conversations may be continued.
const RECENT: usize = 40;
const FULL_CHECK_EVERY: usize = 64;
/// The mean number of steps per failed one, in runs with failures.
const STEPS_PER_FAILURE: usize = 150;
/// Texts of lost steps. A request that is lost again alone fails only if the text is the same.
const N_CAUSES: u64 = 3;

/// SplitMix64: the same sequence at every run, on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub fn within(&mut self, range: std::ops::Range<usize>) -> usize {
        range.start + self.below(range.len())
    }

    pub fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> Option<T> {
        (!all.is_empty()).then(|| all[self.below(all.len())])
    }
}

/// How often each situation occurred in a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub retractions: usize,
    pub preemptions: usize,
    pub evicted_tokens: usize,
    pub cached_tokens: usize,
    pub mixed_steps: usize,
    pub chunks: usize,
    pub aborted_waiting: usize,
    pub aborted_prefilling: usize,
    pub aborted_decoding: usize,
    pub aborted_ending: usize,
    pub stopped: usize,
    pub timed_out: usize,
    pub failed_steps: usize,
    /// Steps sent while suspects of lost steps were tried.
    pub trial_steps: usize,
    pub policy_changes: usize,
    pub pins: usize,
    /// How often arrivals stopped until all requests had ended.
    pub drained: usize,
    /// Resumed chunks, and starts that had to keep an order: see [`crate::scheduler_waits`].
    pub resumed: usize,
    pub by_class: usize,
    pub by_arrival: usize,
    pub by_output: usize,
    pub by_fallback: usize,
    pub by_free: usize,
}

impl Seen {
    /// The counts with their names, so that a test can report which situation is missing.
    pub fn all(&self) -> [(&'static str, usize); 23] {
        [
            ("retractions", self.retractions),
            ("preemptions", self.preemptions),
            ("evicted tokens", self.evicted_tokens),
            ("cached tokens", self.cached_tokens),
            ("mixed steps", self.mixed_steps),
            ("chunks", self.chunks),
            ("aborts in the queue", self.aborted_waiting),
            ("aborts in mid-prefill", self.aborted_prefilling),
            ("aborts of decodes", self.aborted_decoding),
            ("aborts in the last step", self.aborted_ending),
            ("stop strings", self.stopped),
            ("timeouts", self.timed_out),
            ("failed steps", self.failed_steps),
            ("steps of suspects", self.trial_steps),
            ("policy swaps", self.policy_changes),
            ("pins", self.pins),
            ("pauses until all had ended", self.drained),
            ("resumed chunks", self.resumed),
            ("orders by priority or retraction", self.by_class),
            ("orders by arrival", self.by_arrival),
            ("orders by output", self.by_output),
            (
                "orders by arrival because the cache was not probed",
                self.by_fallback,
            ),
            ("starts due since memory was free", self.by_free),
        ]
    }
}

pub struct Chaos {
    pub world: World,
    pub seen: Seen,
    changes_policies: bool,
    fails_steps: bool,
    /// Prompts are short and outputs long; little memory is reserved for outputs, so they outgrow the pool.
    long_outputs: bool,
    families: Vec<Vec<u32>>,
    random: Random,
}

impl Chaos {
    pub fn new(factors: Factors, seed: u64) -> Self {
        Self::with_drafts(factors, seed, None)
    }

    /// `accept` is the probability that a draft is right; without it, no request has drafts.
    pub fn with_drafts(factors: Factors, seed: u64, accept: Option<f64>) -> Self {
        let mut random = Random::new(seed);
        let long_outputs = random.percent(50);
        let mut setup = setup(factors, long_outputs, &mut random);
        setup.states = states(&setup, seed);
        setup.windows = windows(&setup, seed);
        setup.drafts = accept.map(|accept| drafts(accept, seed));
        if let (Some(windows), Some(_)) = (&mut setup.windows, &setup.drafts) {
            // A sequence keeps the pages between both bounds of its length, too.
            let page = setup.page_size as usize;
            let pages = windows.total_pages + (4 * ROOM as usize).div_ceil(page);
            windows.total_pages = pages.min(setup.n_pages as usize);
        }
        let family = |random: &mut Random| -> Vec<u32> {
            let tokens = (0..FAMILY_TOKENS).map(|_| random.below(VOCAB as usize) as u32);
            tokens.collect()
        };
        Self {
            world: World::new(setup),
            seen: Seen::default(),
            changes_policies: random.percent(50),
            fails_steps: random.percent(40),
            long_outputs,
            families: (0..N_FAMILIES).map(|_| family(&mut random)).collect(),
            random,
        }
    }

    /// Runs waves of requests; after some of them, no request arrives until all have ended.
    pub fn run(&mut self, n_requests: usize) {
        while self.world.views.len() < n_requests {
            let waves = if self.long_outputs { 10..60 } else { 10..160 };
            let left = n_requests - self.world.views.len();
            let wave = self.random.within(waves).min(left);
            self.arrive(wave);
            // An idle engine resets its estimate of outputs, and overcommits again.
            if self.random.percent(if self.long_outputs { 80 } else { 50 }) {
                self.wait_for_all();
            }
        }
        self.wait_for_all();
        self.world.assert_clean();
        self.take_counters();
    }

    fn take_counters(&mut self) {
        let stats = self.world.stats();
        // A failed step retracts all requests, although memory suffices.
        if !self.world.has_failures {
            self.seen.retractions += stats.retractions as usize;
        }
        self.seen.preemptions += stats.preemptions as usize;
        self.seen.evicted_tokens += stats.evicted_tokens as usize;
        self.seen.cached_tokens += stats.cached_tokens as usize;
        self.seen.mixed_steps += self.world.watch.mixed_steps;
        self.seen.trial_steps += self.world.trial_steps;
        let waits = self.world.waits.seen;
        self.seen.chunks += waits.chunks;
        self.seen.resumed += waits.resumed;
        self.seen.by_class += waits.by_class;
        self.seen.by_arrival += waits.by_arrival;
        self.seen.by_output += waits.by_output;
        self.seen.by_fallback += waits.by_fallback;
        self.seen.by_free += waits.by_free;
        let views = self.world.views.iter();
        self.seen.timed_out += views.filter(|view| view.timed_out()).count();
    }

    fn arrive(&mut self, wave: usize) {
        let target = self.world.views.len() + wave;
        let at_once = self.random.percent(30);
        while self.world.views.len() < target {
            let burst = if at_once { wave } else { self.random.below(4) };
            for _ in 0..burst.min(target - self.world.views.len()) {
                let ask = self.ask();
                self.world.submit(ask).expect("every prompt fits the pool");
            }
            self.turn();
        }
    }

    /// Runs without arrivals until all requests have ended.
    fn wait_for_all(&mut self) {
        while !self.world.not_ended().is_empty() {
            self.turn();
        }
        self.seen.drained += 1;
    }

    fn turn(&mut self) {
        let mut has_advanced = false;
        while self.world.advance() {
            has_advanced = true;
            if self.random.percent(3) {
                self.interfere();
            }
        }
        if self.random.percent(12) {
            self.interfere();
        }
        let outcome = self.outcome();
        let step = self.world.oldest_step().map_or(0, |plan| plan.step.get());
        let cause = format!("fault {}", step % N_CAUSES);
        let has_ended = self.world.end_step_with(outcome, &cause);
        self.seen.failed_steps += usize::from(has_ended && outcome != Outcome::Done);
        if self.random.percent(20) {
            self.world.pass_time(0.25);
        }
        let is_stuck = !has_advanced && !has_ended && !self.world.advance();
        assert!(
            !is_stuck || self.world.is_idle(),
            "{:?}",
            self.world.stats()
        );
    }

    fn outcome(&mut self) -> Outcome {
        if !self.fails_steps || self.random.below(STEPS_PER_FAILURE) > 0 {
            return Outcome::Done;
        }
        let outcomes = [
            Outcome::Rejected,
            Outcome::LostBeforeItRan,
            Outcome::LostAfterItRan,
        ];
        outcomes[self.random.below(outcomes.len())]
    }

    fn interfere(&mut self) {
        match self.random.below(20) {
            0..8 => self.abort(),
            8..12 => self.stop(),
            12 => self.pin(),
            13 => self.pin_softly(),
            14 => self.world.unpin_oldest(),
            15 => {
                let now_s = self.random.below(1000) as u64;
                self.world.expire_pins(now_s);
            }
            16 => self.advance_in_time(),
            _ if self.changes_policies => self.change_policy(),
            _ => {}
        }
    }

    /// Aborts a request in a random stage; each stage is equally likely.
    fn abort(&mut self) {
        let stages = [
            Stage::Waiting,
            Stage::Prefilling,
            Stage::Decoding,
            Stage::Ending,
        ];
        let stage = stages[self.random.below(stages.len())];
        let mut in_stage = self.world.not_ended();
        in_stage.retain(|number| self.world.watch.stage(*number) == stage);
        let Some(number) = self.random.pick(&in_stage) else {
            return;
        };
        match stage {
            Stage::Waiting => self.seen.aborted_waiting += 1,
            Stage::Prefilling => self.seen.aborted_prefilling += 1,
            Stage::Decoding => self.seen.aborted_decoding += 1,
            Stage::Ending => self.seen.aborted_ending += 1,
        }
        // The flag is raised at once; the message follows later or never.
        self.world.raise_flag(number);
        if self.random.percent(75) {
            self.world.cancel(number);
        }
    }

    fn stop(&mut self) {
        let mut decoding = self.world.not_ended();
        decoding.retain(|number| !self.world.views[*number].delivered.is_empty());
        if let Some(number) = self.random.pick(&decoding) {
            let kept = self.random.below(self.world.views[number].delivered.len()) + 1;
            self.world.stop_found(number, kept);
            self.seen.stopped += 1;
        }
    }

    fn pin(&mut self) {
        let family = self.random.below(N_FAMILIES);
        let longest = FAMILY_TOKENS.min(self.longest_prompt() / 2);
        let tokens = self.random.within(1..longest + 1);
        let expires_s = self.random.below(1000) as u64;
        self.world.pin(&self.families[family][..tokens], expires_s);
        self.seen.pins += 1;
    }

    fn pin_softly(&mut self) {
        let family = self.random.below(N_FAMILIES);
        let longest = FAMILY_TOKENS.min(self.longest_prompt() / 2);
        let tokens = self.random.within(1..longest + 1);
        let replaces = self.random.percent(50);
        let prefix = &self.families[family][..tokens];
        let name = self.world.pin_softly(prefix, 999, replaces);
        if self.random.percent(20) {
            self.world.unpin_softly(name);
        }
    }

    fn advance_in_time(&mut self) {
        let seconds = self.random.below(8) as f64 / 4.0;
        self.world.pass_time(seconds);
    }

    fn change_policy(&mut self) {
        self.seen.policy_changes += 1;
        if self.random.percent(60) {
            let names: Vec<_> = schedule_policy_names().collect();
            let name = names[self.random.below(names.len())];
            self.world.set_policy(name);
        } else {
            let names: Vec<_> = EvictionPolicy::names().collect();
            let name = names[self.random.below(names.len())];
            self.world.set_eviction_policy(name);
        }
    }

    /// Half of the pool, so that two of the longest prompts fit together.
    fn longest_prompt(&self) -> usize {
        let setup = &self.world.setup;
        (setup.n_pages * setup.page_size) as usize / 2
    }

    fn ask(&mut self) -> Ask {
        let random = &mut self.random;
        let salt = random.percent(8).then_some("salt");
        let shared = match random.below(4) {
            0 => 0,
            1 => random.below(40),
            _ if self.long_outputs => random.below(60),
            _ => random.below(FAMILY_TOKENS),
        };
        let family = random.below(N_FAMILIES);
        let mut prompt = self.families[family][..shared].to_vec();
        let tail = random.within(1..60);
        prompt.extend((0..tail).map(|_| random.below(VOCAB as usize) as u32));
        self.continue_earlier(&mut prompt);
        prompt.truncate(self.longest_prompt());
        let random = &mut self.random;
        let ignore_eos = random.percent(if self.long_outputs { 5 } else { 20 });
        let waiting_s = random.percent(8).then(|| random.within(1..80) as f64 / 4.0);
        let running_s = random.percent(6).then(|| random.within(1..60) as f64 / 4.0);
        Ask {
            bypasses_cache: random.percent(3),
            max_new_tokens: match random.below(10) {
                0 => 0,
                1..8 if !self.long_outputs => random.within(1..24),
                _ => random.within(24..100),
            },
            ignore_eos,
            stop_token: random
                .percent(20)
                .then(|| random.below(VOCAB as usize) as u32),
            salt,
            logprob_start: random.percent(3).then(|| random.below(prompt.len()) as u32),
            priority: random.percent(75).then(|| random.below(60) as i64 - 30),
            timeouts: RequestTimeouts {
                waiting_s,
                running_s,
            },
            anchors: anchors(&prompt, self.world.views.len()),
            prompt,
            grammar: self.grammar(),
            num_draft_tokens: self.num_draft_tokens(),
        }
    }

    /// From 0 to 8 query tokens, at random but without the load's random numbers.
    fn num_draft_tokens(&self) -> Option<u32> {
        let number = self.world.views.len() as u64;
        let room = Random::new(number).below(9) as u32;
        self.world.setup.drafts.is_some().then_some(room)
    }

    /// Every eighth request has a grammar; grammars consume none of the load's random numbers.
    fn grammar(&self) -> Option<HashedGrammar> {
        let number = self.world.views.len();
        let opening: Vec<u32> = (0..number as u32 / 8 % 6).map(|token| token + 7).collect();
        number.is_multiple_of(8).then(|| HashedGrammar {
            seed: number as u32,
            vocab_size: VOCAB,
            done_after: opening.len() + 1 + number / 8 % 90,
            fails_after: number.is_multiple_of(56).then_some(opening.len() + 9),
            opening,
        })
    }

    /// Turns the prompt into a further turn of a conversation: an earlier request's prompt and output come first.
    fn continue_earlier(&mut self, prompt: &mut Vec<u32>) {
        let n = self.world.views.len();
        if n == 0 || !self.random.percent(15) {
            return;
        }
        let view = &self.world.views[n - 1 - self.random.below(n.min(RECENT))];
        let mut longer = view.ask.prompt.clone();
        longer.extend(&view.delivered);
        longer.extend_from_slice(&prompt[prompt.len().saturating_sub(20)..]);
        *prompt = longer;
    }
}

/// Every second run has a model whose layers keep states; some runs have hardly more state slots than rows.
fn states(setup: &Setup, seed: u64) -> Option<StateLimits> {
    let rows = setup.n_rows as usize;
    let total_slots = [rows + 1, 3 * rows, rows + 4][seed as usize / 2 % 3];
    let grid_tokens = 64_usize.next_multiple_of(setup.page_size as usize);
    seed.is_multiple_of(2).then_some(StateLimits {
        total_slots,
        grid_tokens,
    })
}

/// Half of the other runs with chunks have a model with sliding windows; some of them have hardly more window pages
/// than one sequence needs.
fn windows(setup: &Setup, seed: u64) -> Option<WindowLimits> {
    let page = setup.page_size as usize;
    let chunk = setup.chunk_tokens.filter(|_| seed % 4 == 1)?;
    let tokens = [17, 40, 100][seed as usize / 4 % 3];
    let least = (chunk + 2 * tokens).div_ceil(page) + 8;
    let total_pages = [least, 2 * least][seed as usize / 12 % 2];
    Some(WindowLimits {
        tokens,
        total_pages: total_pages.min(setup.n_pages as usize),
    })
}

/// Two thirds of the prompts have anchors (positions of states to keep), which consume no random numbers.
fn anchors(prompt: &[u32], number: usize) -> Vec<u32> {
    let len = prompt.len() as u32;
    match number % 3 {
        0 => Vec::new(),
        1 => vec![len.saturating_sub(3)],
        _ => vec![len / 2, len + 1],
    }
}

/// A pool for a few requests, which reserves little memory for their outputs.
fn setup(factors: Factors, long_outputs: bool, random: &mut Random) -> Setup {
    let n_pages = match factors.page_size {
        64 => random.within(14..32),
        page_size => random.within(400..1000) / page_size as usize,
    };
    let rules = BatchRules {
        mixed_chunk: factors.mixed_chunk,
        prefill_decode_interval: factors.decode_interval,
        prefill_decode_interval_min_bs: random.below(3),
        priority: factors.priority.then(|| PriorityRules {
            low_values_first: random.percent(50),
            preemption_threshold: Some(random.below(20) as i64),
            max_requests: if random.percent(30) { 100 } else { usize::MAX },
        }),
        max_prefill_step_ms: n_pages.is_multiple_of(3).then_some(40),
    };
    Setup {
        page_size: factors.page_size,
        n_pages: n_pages as u32,
        n_rows: random.within(if long_outputs { 12..24 } else { 5..15 }) as u32,
        chunk_tokens: factors.chunk_tokens,
        prefix_wait: factors.prefix_wait,
        has_radix_cache: factors.eviction.is_some(),
        conservativeness: [0.0, 0.1, 0.3][random.below(3)],
        rules,
        policy: factors.policy,
        priority: PriorityOrder::Ignored,
        eviction: factors.eviction.unwrap_or("lru"),
        full_check_every: FULL_CHECK_EVERY,
        ..Setup::default()
    }
}
