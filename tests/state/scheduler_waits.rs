//! How long requests wait, in steps, and how long they may.
//!
//! A tenure is the time between an admission and the end or the eviction from the batch. When it begins, the most rows
//! that it can take up are known: a row for each chunk of what is to be computed, one more because the first chunk may
//! be what others left of a step, and a row for each token that it may still generate. Every step has a row of some
//! tenure. So a request waits no longer than the tenures that it waits beside can take together, whatever the policy;
//! steps whose chunk was cut short for want of memory are counted apart. By this alone a stream of better requests may
//! hold one up for ever, as lpm, lof and priorities do by intent: once arrivals stop, it is a bound on all waits. First
//! come, first served has a bound of its own: who came later overtakes in no step but those in which the prefix wait
//! held the earlier one.

use std::collections::{BTreeSet, HashSet};

use souffleur::executor::{RowWork, StepPlan};

/// From an admission to the last step in which the request has a row.
#[derive(Clone, Copy, Debug)]
struct Tenure {
    first_step: usize,
    last_step: usize,
    /// Tokens of which the prefill computes the K/V, or finds it.
    fill_tokens: usize,
    /// Rows that it can take up.
    most_rows: usize,
}

/// A stretch in which a request could have been admitted, in steps.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub number: usize,
    /// Steps sent before it began.
    pub from: usize,
    /// Steps sent before it was over.
    pub until: usize,
}

#[derive(Clone, Copy, Debug)]
struct Waiter {
    max_new_tokens: usize,
    /// Steps sent when its wait began.
    waits_from: Option<usize>,
    has_run: bool,
    /// Steps in which a later arrival started while it had not run yet.
    overtaken: usize,
    evacuations: usize,
    tenure: Option<usize>,
}

/// What one chunk computes at least when memory does not bound it.
#[derive(Clone, Copy, Debug)]
pub struct ChunkRule {
    /// `None`: prompts are prefilled whole.
    pub least_tokens: Option<usize>,
}

impl ChunkRule {
    /// With mixed batches the rows that decode come out of the chunk, which keeps a page at least.
    pub fn new(chunk: Option<usize>, mixed_rows: usize, page_size: usize) -> Self {
        let least = |chunk: usize| {
            let left = chunk.saturating_sub(mixed_rows);
            (left - left % page_size).max(page_size)
        };
        Self {
            least_tokens: chunk.map(least),
        }
    }

    fn most_rows(self, fill_tokens: usize) -> usize {
        match self.least_tokens {
            Some(least) => fill_tokens.div_ceil(least) + 1,
            None => 1,
        }
    }
}

/// Keeps the books.
#[derive(Debug)]
pub struct WaitLog {
    rule: ChunkRule,
    waiters: Vec<Waiter>,
    /// Those that have not run yet.
    fresh: BTreeSet<usize>,
    tenures: Vec<Tenure>,
    pub waits: Vec<Wait>,
    /// Steps in which memory cut a chunk short.
    stinted: Vec<usize>,
    /// Rows that computed a part of a prefill.
    pub chunks: usize,
    steps: usize,
}

impl WaitLog {
    pub fn new(rule: ChunkRule) -> Self {
        Self {
            rule,
            waiters: Vec::new(),
            fresh: BTreeSet::new(),
            tenures: Vec::new(),
            waits: Vec::new(),
            stinted: Vec::new(),
            chunks: 0,
            steps: 0,
        }
    }

    pub fn arrived(&mut self, max_new_tokens: usize) {
        self.fresh.insert(self.waiters.len());
        self.waiters.push(Waiter {
            max_new_tokens,
            waits_from: Some(self.steps),
            has_run: false,
            overtaken: 0,
            evacuations: 0,
            tenure: None,
        });
    }

    /// It was taken out of the batch and starts over.
    pub fn evacuated(&mut self, number: usize) {
        let waiter = &mut self.waiters[number];
        waiter.evacuations += 1;
        waiter.tenure = None;
        // A plan that was never sent had admitted it: it has waited all along.
        waiter.waits_from.get_or_insert(self.steps);
    }

    pub fn ended(&mut self, number: usize) {
        self.close(number);
        self.fresh.remove(&number);
    }

    fn close(&mut self, number: usize) {
        if let Some(from) = self.waiters[number].waits_from.take() {
            self.waits.push(Wait {
                number,
                from,
                until: self.steps,
            });
        }
    }

    /// `numbers` are those of the step's starts and rows, in their order.
    pub fn take_step(&mut self, plan: &StepPlan, starts: &[usize], rows: &[usize]) {
        for (start, &number) in plan.starts.iter().zip(starts) {
            self.close(number);
            let fill_tokens = start.tokens.len();
            let known = fill_tokens - start.prompt_tokens as usize;
            let waiter = &mut self.waiters[number];
            waiter.tenure = Some(self.tenures.len());
            self.tenures.push(Tenure {
                first_step: self.steps,
                last_step: self.steps,
                fill_tokens,
                most_rows: self.rule.most_rows(fill_tokens) + waiter.max_new_tokens - known,
            });
        }
        self.note_overtaking(starts);
        for (row, &number) in plan.rows.iter().zip(rows) {
            let tenure = self.waiters[number].tenure.expect("a row has started");
            let tenure = &mut self.tenures[tenure];
            tenure.last_step = self.steps;
            if let RowWork::Prefill { positions } = &row.work
                && (positions.end as usize) < tenure.fill_tokens
            {
                self.chunks += 1;
                let is_short = Some(positions.len()) < self.rule.least_tokens;
                if is_short && tenure.first_step < self.steps {
                    self.stinted.push(self.steps);
                }
            }
        }
        self.steps += 1;
    }

    fn note_overtaking(&mut self, starts: &[usize]) {
        let first_starts = starts.iter().filter(|&number| {
            let had_run = std::mem::replace(&mut self.waiters[*number].has_run, true);
            !had_run
        });
        let newest = first_starts.copied().max();
        for number in starts {
            self.fresh.remove(number);
        }
        for &number in newest.iter().flat_map(|newest| self.fresh.range(..newest)) {
            self.waiters[number].overtaken += 1;
        }
    }

    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Steps in which one that came later started first, at worst.
    pub fn worst_overtaken(&self) -> usize {
        let overtaken = self.waiters.iter().map(|waiter| waiter.overtaken);
        overtaken.max().unwrap_or(0)
    }

    pub fn evacuations(&self, number: usize) -> usize {
        self.waiters[number].evacuations
    }

    /// The most rows that a request can take up in as many tenures.
    pub fn most_rows(&self, prompt_tokens: usize, max_new_tokens: usize, tenures: usize) -> usize {
        tenures * self.rule.most_rows(prompt_tokens + max_new_tokens) + max_new_tokens
    }

    /// Steps from the given one on in which memory cut a chunk short.
    pub fn stinted_since(&self, step: usize) -> usize {
        let since = self.stinted.partition_point(|stinted| *stinted < step);
        let steps: HashSet<usize> = self.stinted[since..].iter().copied().collect();
        steps.len()
    }

    /// No wait is longer than what it waited beside can take; returns the longest, and the longest in parts of what
    /// it might have taken.
    pub fn check(&self) -> (usize, f64) {
        let mut by_first: Vec<(usize, usize)> = Vec::new();
        let mut by_last: Vec<(usize, usize)> = Vec::new();
        for tenure in &self.tenures {
            by_first.push((tenure.first_step, tenure.most_rows));
            by_last.push((tenure.last_step, tenure.most_rows));
        }
        let (first, last) = (Sums::new(by_first), Sums::new(by_last));
        let stinted = Sums::new(self.stinted.iter().map(|step| (*step, 1)).collect());
        let (mut longest, mut tightest) = (0, 0.0_f64);
        for wait in &self.waits {
            // Those that began before its end, less those that were over before its beginning.
            let beside = first.before(wait.until) - last.before(wait.from);
            let bound = beside + stinted.before(wait.until) - stinted.before(wait.from);
            let steps = wait.until - wait.from;
            assert!(
                steps <= bound,
                "request {} waited {steps} steps from step {} on, not {bound}",
                wait.number,
                wait.from
            );
            longest = longest.max(steps);
            tightest = tightest.max(steps as f64 / bound.max(1) as f64);
        }
        (longest, tightest)
    }
}

/// Sums of what comes before a step.
struct Sums {
    steps: Vec<usize>,
    sums: Vec<usize>,
}

impl Sums {
    fn new(mut entries: Vec<(usize, usize)>) -> Self {
        entries.sort_unstable();
        let mut sums = vec![0];
        for (_, amount) in &entries {
            sums.push(sums[sums.len() - 1] + amount);
        }
        let steps = entries.into_iter().map(|(step, _)| step).collect();
        Self { steps, sums }
    }

    fn before(&self, step: usize) -> usize {
        self.sums[self.steps.partition_point(|entry| *entry < step)]
    }
}
