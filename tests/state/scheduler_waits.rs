//! Checks bounds on the waits of requests, in steps.
//!
//! Four guarantees are checked at every step, from the steps and the order of events alone:
//!
//! - **Progress.** While requests wait, the steps from one admission to the next (or from the first wait to the first
//!   admission) are at most the longest run of the admitted requests, when all of them run to their ends together: one
//!   step for each remaining chunk of the one chunked prefill, the decode steps due after each, and as many decodes as
//!   the request with most tokens left needs. A step is added for each chunk that memory cut short, and for each plan
//!   that the pools refused. This holds under every policy, because the pool can hold any request alone.
//! - **Free memory is used.** Once a request has ended, and a row and memory are free for any waiting request in
//!   addition to all that the admitted requests may still need, a request starts in the next plan, or after the due
//!   decodes. This, too, holds under every policy. Needs are upper bounds, so nearly full pools are not checked.
//! - **No request overtakes one that comes first.** Under every policy, if priorities count, requests of better
//!   priority come first; then retracted requests, the oldest first. The others come in the order of the policy: `fcfs`
//!   guarantees the order of arrival, and so do the policies that probe the cache if they did not probe it (there is no
//!   cache, or more than 128 requests wait). `lof` guarantees the longest output. `lpm`, `hrrn`, `dfs-weight` and
//!   `shortest-prefill-first` guarantee nothing if they probed the cache, and `random` guarantees no order: a stream
//!   of better requests may starve a request, by design. Exempt are steps whose plan began before the request arrived
//!   or while its last tokens were in flight, and the plans for which the prefix wait holds a request back.
//! - **A chunk continues.** A prefill that has begun has a row in every step, except due decode steps and one
//!   step for each plan that the pools refused.
//!
//! While suspects of a lost step are tried alone, all others wait: the second and the third are not checked.
//!
//! So a request whose place is guaranteed waits at most one longest run for each request that comes before it.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use souffleur_state::step::{RowWork, StepPlan};

/// The most plans for which the prefix wait may hold a request back.
const MAX_HELD: usize = 2;

/// The facts that stay the same while a world runs.
#[derive(Clone, Copy, Debug)]
pub struct WaitRules {
    /// The minimum size of a chunk when memory does not bound it; `None`: prompts are prefilled whole.
    pub min_chunk: Option<usize>,
    /// Decode steps that may be due after a prefill step.
    pub due_decodes: usize,
    pub prefix_wait: bool,
    /// Priorities come before classes.
    pub priority_first: bool,
    pub page_size: usize,
}

/// The free resources when a step is sent.
#[derive(Clone, Copy, Debug)]
pub struct Free {
    pub rows: usize,
    /// Free, or cached and not locked by a running request.
    pub tokens: usize,
}

impl WaitRules {
    /// With mixed batches the decoding rows are subtracted from the chunk, which keeps a page at least.
    pub fn min_chunk(chunk: Option<usize>, mixed_rows: usize, page_size: usize) -> Option<usize> {
        chunk.map(|chunk| {
            let left = chunk.saturating_sub(mixed_rows);
            (left - left % page_size).max(page_size)
        })
    }

    fn n_chunks(&self, tokens: usize) -> usize {
        self.min_chunk
            .map_or(tokens.min(1), |min_tokens| tokens.div_ceil(min_tokens))
    }
}

/// The order that a plan's policy guarantees to requests that never ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guarantee {
    Arrival,
    LongestOutput,
    Nothing,
}

/// The class of a waiting request; smaller comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    /// The request ran, and was retracted so that others could grow.
    Retracted,
    /// The request never ran, or was preempted by one of better priority.
    Queued,
}

/// The run of an admitted request.
#[derive(Clone, Copy, Debug)]
struct Run {
    /// Tokens to prefill, and the number prefilled so far.
    fill_tokens: usize,
    filled_tokens: usize,
    /// Tokens that the request may still generate.
    tokens_left: usize,
    /// Steps without a row since its last chunk, and their upper bound.
    idle_steps: usize,
    max_idle: usize,
}

/// A request in any phase.
#[derive(Clone, Copy, Debug)]
struct Request {
    prompt_tokens: usize,
    max_new_tokens: usize,
    /// Smaller comes first.
    rank: (bool, i128),
    class: Class,
    /// Decodes have drafts, so the request sits out of a step if the one before it may complete the output.
    has_drafts: bool,
    /// The number of plans begun before the wait.
    since_plan: usize,
    /// The number of steps sent before the wait.
    waits_from: Option<usize>,
    /// The number of steps sent before the request was retracted or preempted; the next step may exclude it.
    removed_at: Option<usize>,
    /// Plans in which a request started that should come after it.
    overtaken: usize,
    run: Option<Run>,
}

/// The situations that a run has tested.
#[derive(Clone, Copy, Debug, Default)]
pub struct WaitCoverage {
    /// Rows that computed a part of a prefill.
    pub chunks: usize,
    pub resumed: usize,
    /// Starts compared with a waiting request: by priority or class, by arrival, by output.
    pub by_class: usize,
    pub by_arrival: usize,
    pub by_output: usize,
    /// Starts in the order of arrival that a policy fell back to.
    pub by_fallback: usize,
    /// Starts that were due because a row and memory were free, after the due decodes.
    pub by_free: usize,
    /// Longest wait of a request.
    pub longest: usize,
    /// Longest time without an admission while requests waited.
    pub longest_pause: usize,
    /// The largest fraction of its bound that such a time reached.
    pub tightest: f64,
}

/// Records the events and checks the guarantees.
#[derive(Debug)]
pub struct WaitLog {
    rules: WaitRules,
    requests: Vec<Request>,
    waiting: BTreeSet<usize>,
    admitted: BTreeSet<usize>,
    /// Plans begun, and the order that the last one's policy guarantees.
    plans: usize,
    guarantee: Guarantee,
    falls_back: bool,
    /// The step of the first wait or of the last admission; and the latest step for the next admission.
    pause: Option<(usize, usize)>,
    /// The number of plans begun when a request last ended; `None` once a request starts or memory is short.
    ended_at: Option<usize>,
    /// Steps since that end in which a request could have started.
    unused_steps: usize,
    steps: usize,
    /// Suspects of a lost step are tried alone.
    pub has_trials: bool,
    pub seen: WaitCoverage,
}

impl WaitLog {
    pub fn new(rules: WaitRules) -> Self {
        Self {
            rules,
            requests: Vec::new(),
            waiting: BTreeSet::new(),
            admitted: BTreeSet::new(),
            plans: 0,
            guarantee: Guarantee::Nothing,
            falls_back: false,
            pause: None,
            ended_at: None,
            unused_steps: 0,
            steps: 0,
            has_trials: false,
            seen: WaitCoverage::default(),
        }
    }

    pub fn arrived(&mut self, prompt_tokens: usize, max_new_tokens: usize, rank: (bool, i128)) {
        let number = self.requests.len();
        self.requests.push(Request {
            prompt_tokens,
            max_new_tokens,
            rank,
            class: Class::Queued,
            has_drafts: false,
            since_plan: self.plans,
            waits_from: Some(self.steps),
            removed_at: None,
            overtaken: 0,
            run: None,
        });
        self.waiting.insert(number);
        self.begin_pause();
    }

    /// Begins a plan; requests that arrive later are not in it.
    pub fn begin_plan(&mut self, guarantee: Guarantee, falls_back: bool) {
        self.plans += 1;
        self.guarantee = guarantee;
        self.falls_back = falls_back;
    }

    /// Records a retraction or preemption.
    pub fn put_back(&mut self, number: usize, is_preempted: bool) {
        let request = &mut self.requests[number];
        request.class = if is_preempted {
            Class::Queued
        } else {
            Class::Retracted
        };
        request.run = None;
        request.since_plan = self.plans;
        request.removed_at = Some(self.steps);
        request.overtaken = 0;
        // If the plan that admitted the request was never sent, the earlier wait continues.
        request.waits_from.get_or_insert(self.steps);
        self.admitted.remove(&number);
        self.waiting.insert(number);
        self.suspend_memory_check();
        self.begin_pause();
    }

    /// Records that decodes of a request that has just arrived have drafts.
    pub fn note_drafts(&mut self, number: usize) {
        self.requests[number].has_drafts = true;
    }

    /// Records tokens that a decode generated in addition to the first one.
    pub fn took(&mut self, number: usize, further: usize) {
        if let Some(run) = &mut self.requests[number].run {
            run.tokens_left = run.tokens_left.saturating_sub(further);
        }
    }

    pub fn ended(&mut self, number: usize) {
        self.end_wait(number);
        self.admitted.remove(&number);
        self.ended_at = Some(self.plans);
        if self.waiting.is_empty() {
            self.pause = None;
        }
    }

    /// Disables the check of free memory until a request ends: only memory that an end frees is checked.
    pub fn suspend_memory_check(&mut self) {
        self.ended_at = None;
        self.unused_steps = 0;
    }

    /// Records that the pools refused a plan. The next plan frees memory, and may end in a decode.
    pub fn refused(&mut self) {
        self.suspend_memory_check();
        for number in &self.admitted {
            if let Some(run) = &mut self.requests[*number].run {
                run.max_idle += 1;
            }
        }
        self.allow_step();
    }

    /// Checks a step; `starts` and `rows` are the request numbers of its starts and rows, in order.
    pub fn take_step(&mut self, plan: &StepPlan, starts: &[usize], rows: &[usize], free: Free) {
        if self.has_trials {
            self.suspend_memory_check();
        } else {
            self.check_overtaken(starts);
            self.check_free(!starts.is_empty(), free);
        }
        for (start, &number) in plan.starts.iter().zip(starts) {
            self.end_wait(number);
            let n_output = start.tokens.len() - start.prompt_tokens as usize;
            let request = &mut self.requests[number];
            request.run = Some(Run {
                fill_tokens: start.tokens.len(),
                // The positions of the first row show how many tokens are cached.
                filled_tokens: 0,
                tokens_left: request.max_new_tokens - n_output,
                idle_steps: 0,
                max_idle: self.rules.due_decodes,
            });
            self.admitted.insert(number);
        }
        for (row, &number) in plan.rows.iter().zip(rows) {
            let is_start = starts.contains(&number);
            self.take_row(number, &row.work, row.sample, is_start);
        }
        self.check_chunks(rows);
        self.check_pause(!starts.is_empty());
        self.steps += 1;
    }

    fn take_row(&mut self, number: usize, work: &RowWork, samples: bool, is_start: bool) {
        let run = &mut self.requests[number].run;
        let run = run.as_mut().expect("a row's request has started");
        run.tokens_left -= usize::from(samples);
        let RowWork::Prefill { positions } = work else {
            return;
        };
        run.filled_tokens = positions.end as usize;
        self.seen.resumed += usize::from(!is_start);
        if run.filled_tokens < run.fill_tokens {
            self.seen.chunks += 1;
            let is_short = Some(positions.len()) < self.rules.min_chunk;
            if is_short && !is_start {
                self.allow_step();
            }
        }
    }

    fn end_wait(&mut self, number: usize) {
        self.waiting.remove(&number);
        if let Some(from) = self.requests[number].waits_from.take() {
            self.seen.longest = self.seen.longest.max(self.steps - from);
        }
    }

    /// Checks that no start overtakes a request that comes first.
    fn check_overtaken(&mut self, starts: &[usize]) {
        let waits = |number: &&usize| !starts.contains(number);
        let waiting: Vec<usize> = self.waiting.iter().filter(waits).copied().collect();
        let mut overtaken = BTreeSet::new();
        for &start in starts {
            for &number in &waiting {
                let is_in_plan = self.requests[number].since_plan < self.plans;
                let is_ready = self.requests[number]
                    .removed_at
                    .is_none_or(|at| at < self.steps);
                if is_in_plan && is_ready && self.is_first(number, start) {
                    overtaken.insert(number);
                }
            }
        }
        let max_overtaken = if self.rules.prefix_wait { MAX_HELD } else { 0 };
        for number in overtaken {
            let request = &mut self.requests[number];
            request.overtaken += 1;
            assert!(
                request.overtaken <= max_overtaken,
                "{starts:?} start in step {} before {number}, which comes first ({:?}): {request:?}",
                self.steps,
                self.guarantee,
            );
        }
    }

    /// Whether the waiting request comes before the starting one, for any contents of the cache.
    fn is_first(&mut self, waits: usize, starts: usize) -> bool {
        let (a, b) = (self.requests[waits], self.requests[starts]);
        let (arrival, ranks) = (waits.cmp(&starts), a.rank.cmp(&b.rank));
        let classes = match (self.rules.priority_first, a.class.cmp(&b.class)) {
            (true, classes) => ranks.then(classes),
            (false, Ordering::Equal) if a.class == Class::Queued => ranks,
            (false, classes) => classes,
        };
        if classes.is_ne() || a.class == Class::Retracted {
            self.seen.by_class += 1;
            return classes.then(arrival).is_lt();
        }
        match self.guarantee {
            Guarantee::Nothing => false,
            Guarantee::Arrival => {
                self.seen.by_arrival += 1;
                self.seen.by_fallback += usize::from(self.falls_back);
                arrival.is_lt()
            }
            Guarantee::LongestOutput => {
                self.seen.by_output += 1;
                let outputs = b.max_new_tokens.cmp(&a.max_new_tokens);
                outputs.then(arrival).is_lt()
            }
        }
    }

    /// Checks that a request starts if a row and memory are free for any waiting request.
    fn check_free(&mut self, has_starts: bool, free: Free) {
        if has_starts {
            self.seen.by_free += usize::from(self.unused_steps > 0);
            self.unused_steps = 0;
        }
        if self.ended_at.is_none_or(|at| at >= self.plans) {
            return;
        }
        let may_start = self.waiting.iter().any(|number| {
            let request = &self.requests[*number];
            request.since_plan < self.plans && request.removed_at.is_none_or(|at| at < self.steps)
        });
        if has_starts || !may_start || !self.fits(free) {
            return self.suspend_memory_check();
        }
        self.unused_steps += 1;
        assert!(
            self.unused_steps <= self.rules.due_decodes,
            "no request starts in step {} with {free:?}: {:?} wait, {:?} run",
            self.steps,
            self.waiting,
            self.admitted
        );
    }

    /// Whether any waiting request fits in addition to all that admitted ones may need; false during chunked prefills.
    fn fits(&self, free: Free) -> bool {
        let page_size = self.rules.page_size;
        let runs = self.admitted.iter().filter_map(|n| self.requests[*n].run);
        let mut needed_tokens = 0;
        for run in runs {
            if run.filled_tokens < run.fill_tokens {
                return false;
            }
            // All its tokens to come, its token of this step, and the rest of its last page.
            needed_tokens += run.tokens_left + 1 + page_size;
        }
        let most_tokens = self.waiting.iter().map(|number| {
            let request = &self.requests[*number];
            request.prompt_tokens + request.max_new_tokens + 2 * page_size
        });
        free.rows > 0 && needed_tokens + most_tokens.max().unwrap_or(0) < free.tokens
    }

    /// Checks that every prefill that has begun continues.
    fn check_chunks(&mut self, rows: &[usize]) {
        for number in &self.admitted {
            let Some(run) = &mut self.requests[*number].run else {
                continue;
            };
            if rows.contains(number) {
                run.idle_steps = 0;
                run.max_idle = self.rules.due_decodes;
            } else if run.filled_tokens < run.fill_tokens {
                run.idle_steps += 1;
                assert!(
                    run.idle_steps <= run.max_idle,
                    "the prefill of {number} does not continue in step {}: {run:?}",
                    self.steps
                );
            }
        }
    }

    /// Begins a pause in admissions, unless one has begun.
    fn begin_pause(&mut self) {
        if self.pause.is_none() {
            self.pause = Some((self.steps, self.steps + self.longest_run()));
        }
    }

    /// Raises the bound of the current pause by a step.
    fn allow_step(&mut self) {
        if let Some((_, latest)) = &mut self.pause {
            *latest += 1;
        }
    }

    /// The most steps until all admitted requests have ended.
    fn longest_run(&self) -> usize {
        let admitted = self.admitted.iter().map(|n| &self.requests[*n]);
        let runs = admitted.filter_map(|request| Some((request.run?, request.has_drafts)));
        let (mut chunks, mut decodes) = (0, 0);
        for (run, has_drafts) in runs {
            chunks += self.rules.n_chunks(run.fill_tokens - run.filled_tokens);
            let steps_per_token = if has_drafts { 2 } else { 1 };
            decodes = decodes.max(steps_per_token * run.tokens_left);
        }
        chunks * (1 + self.rules.due_decodes) + decodes
    }

    fn check_pause(&mut self, has_starts: bool) {
        let Some((from, latest)) = self.pause else {
            return;
        };
        let pause = self.steps - from;
        self.seen.longest_pause = self.seen.longest_pause.max(pause);
        let fraction = pause as f64 / (latest - from).max(1) as f64;
        self.seen.tightest = self.seen.tightest.max(fraction);
        if has_starts {
            let next = self.steps + 1;
            self.pause = (!self.waiting.is_empty()).then(|| (next, next + self.longest_run()));
            return;
        }
        assert!(
            self.steps < latest,
            "no request started in {} steps since step {from}, while {:?} waited; those that run take at most {}",
            pause + 1,
            self.waiting,
            latest - from
        );
    }

    pub fn steps(&self) -> usize {
        self.steps
    }
}
