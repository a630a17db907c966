//! SGLang's `PrefillAdder`: which waiting request still fits into this prefill, and how much of it.
//!
//! Pure arithmetic over tokens. The scheduler builds the adder, and the tree's actor runs it against live counters.
//! `available` is always the number of free and evictable tokens at the time of the call.

use std::ops::Range;
use std::sync::Arc;

use crate::plan::completion_order::CompletionOrder;
use crate::plan::prefill_pace::{MIN_TOKENS, PrefillPace};

/// Generated tokens are reserved up to this many (SGLang's `CLIP_MAX_NEW_TOKENS`).
pub const CLIP_MAX_NEW_TOKENS: usize = 4096;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    Continue,
    /// Too little KV memory for another request.
    NoToken,
    /// The step has no input tokens, time or rows left for another request.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Computes up to token `end` of the sequence; if `chunked`, the prefill continues in a later step.
    Admit {
        end: usize,
        chunked: bool,
    },
    Refuse(Budget),
}

#[derive(Clone, Copy, Debug)]
pub struct RunningReserve {
    pub remaining_new_tokens: usize,
    pub ignore_eos: bool,
    pub output_tokens: usize,
    /// Prompt and output tokens.
    pub held_tokens: usize,
}

impl RunningReserve {
    /// Tokens to reserve for the remaining output: all of them, clipped, if the request ignores EOS; otherwise the
    /// fraction `new_token_ratio`.
    pub fn tokens(&self, new_token_ratio: f64) -> f64 {
        let ratio = if self.ignore_eos {
            1.0
        } else {
            new_token_ratio
        };
        self.remaining_new_tokens.min(CLIP_MAX_NEW_TOKENS) as f64 * ratio
    }
}

/// The budgets of one prefill step, in tokens.
#[derive(Clone, Debug)]
pub struct PrefillAdder {
    page_size: usize,
    /// Tokens reserved for input and for outputs to come. Not a whole number, since the token ratio scales outputs.
    total_offset: f64,
    /// The part of `total_offset` without outputs to come.
    current_offset: usize,
    rem_input: isize,
    /// `None` with chunked prefill off.
    rem_chunk: Option<isize>,
    /// A prefill continues in later steps: no other one may be chunked.
    has_chunked: bool,
    /// A request has input in this step.
    has_input: bool,
    /// Runs of the candidate that no chunk may cut, ascending.
    whole: Option<Arc<[Range<u32>]>>,
    completions: CompletionOrder,
    /// The remaining time of the step, if it is bounded.
    time: Option<StepTime>,
}

/// The time of a step, which delays the sequences that decode.
#[derive(Clone, Debug)]
struct StepTime {
    pace: PrefillPace,
    left_s: f64,
    /// The bound applies: a sequence decodes, or will in the next step.
    is_limited: bool,
    /// A candidate has been admitted.
    has_begun: bool,
    other_rows: usize,
    /// The fewest tokens of a chunk. A step that has admitted nothing yet prefills them even if they take longer.
    min_tokens: usize,
}

impl StepTime {
    /// Tokens from position `first` on that fit into the time. Fewer than `min_tokens` are not worth a chunk: the
    /// result is then 0, or `min_tokens` if nothing has been admitted.
    fn fitting_tokens(&self, first: usize) -> usize {
        if !self.is_limited {
            return usize::MAX;
        }
        let tokens = self.pace.tokens_within(self.left_s, first, self.other_rows);
        match (tokens >= self.min_tokens, self.has_begun) {
            (true, _) => tokens,
            (false, true) => 0,
            (false, false) => self.min_tokens,
        }
    }

    fn spend(&mut self, positions: Range<usize>, then_decodes: bool) {
        self.left_s -= self.pace.seconds(positions);
        self.is_limited |= then_decodes;
        self.has_begun = true;
    }
}

#[derive(Clone, Copy, Debug)]
pub struct PrefillLimits {
    pub page_size: usize,
    pub max_prefill_tokens: usize,
    /// Most input tokens of a chunk; `None` with chunked prefill off.
    pub chunked_prefill_size: Option<usize>,
    /// Decode rows in the same step.
    pub mixed_rows: usize,
}

#[derive(Clone, Debug)]
pub struct StepPace {
    pub pace: PrefillPace,
    /// The bound applies, since a row could decode now. If false, the bound applies once the step completes the prefill
    /// of a request.
    pub is_limited: bool,
}

impl PrefillAdder {
    /// Starts with the running batch's reservations: each request's remaining tokens, clipped, times
    /// `new_token_ratio` unless it ignores EOS.
    pub fn new(
        limits: PrefillLimits,
        new_token_ratio: f64,
        running: impl Iterator<Item = RunningReserve>,
    ) -> Self {
        let mut completions = CompletionOrder::default();
        let mut reserved = 0.0;
        for request in running {
            let ratio = if request.ignore_eos {
                1.0
            } else {
                new_token_ratio
            };
            reserved += request.tokens(new_token_ratio);
            let max_new_tokens = request.remaining_new_tokens + request.output_tokens;
            let left = max_new_tokens as f64 * ratio - request.output_tokens as f64;
            completions.insert(left, request.held_tokens);
        }
        let mixed = limits.mixed_rows;
        Self {
            time: None,
            page_size: limits.page_size,
            total_offset: mixed as f64 + reserved,
            current_offset: mixed,
            rem_input: limits.max_prefill_tokens as isize - mixed as isize,
            rem_chunk: limits
                .chunked_prefill_size
                .map(|size| size as isize - mixed as isize),
            has_chunked: false,
            has_input: false,
            whole: None,
            completions,
        }
    }

    /// Sets the runs of tokens of the next candidate that a step computes together, as those of an image that attend to
    /// each other. Each is at most a chunk long.
    pub fn keep_whole(&mut self, runs: Option<&Arc<[Range<u32>]>>) {
        self.whole = runs.cloned();
    }

    /// The end of a chunk of tokens `prefix..end` that cuts no run: the beginning of the run at `end`. If the chunk would
    /// begin within or at this run, its end.
    fn whole_end(&self, prefix: usize, end: usize) -> usize {
        let runs = self.whole.as_deref().unwrap_or_default();
        let after = runs.partition_point(|run| (run.start as usize) < end);
        match runs[..after].last() {
            Some(run) if end < run.end as usize && prefix < run.start as usize => {
                run.start as usize
            }
            Some(run) if end < run.end as usize => run.end as usize,
            _ => end,
        }
    }

    /// Bounds the time of the step; without chunked prefill, the time has no bound.
    pub fn with_pace(mut self, StepPace { pace, is_limited }: StepPace) -> Self {
        self.time = self.rem_chunk.map(|_| StepTime {
            left_s: pace.step_s(),
            pace,
            is_limited,
            has_begun: false,
            other_rows: self.current_offset,
            min_tokens: MIN_TOKENS.max(self.page_size),
        });
        self
    }

    pub fn budget(&self, available: usize) -> Budget {
        if self.rem_total(available) <= 0.0
            || available as isize - self.current_offset as isize <= 0
        {
            Budget::NoToken
        } else if self.rem_input <= 0
            || self.rem_chunk.is_some_and(|chunk| chunk <= 0)
            || self.is_time_up()
        {
            Budget::Other
        } else {
            Budget::Continue
        }
    }

    fn is_time_up(&self) -> bool {
        let time = self.time.as_ref();
        time.is_some_and(|time| time.is_limited && time.has_begun && time.left_s <= 0.0)
    }

    /// Tokens from position `first` on that fit into the time; unlimited without a bound.
    fn tokens_in_time(&self, first: usize) -> usize {
        let time = self.time.as_ref();
        time.map_or(usize::MAX, |time| time.fitting_tokens(first))
    }

    /// Tokens left of the chunk; unlimited with chunked prefill off.
    pub fn rem_chunk(&self) -> usize {
        self.rem_chunk.map_or(usize::MAX, |rem| rem.max(0) as usize)
    }

    /// Decides on a candidate of `len` tokens, of which the first `prefix` are cached and locked. Reserves memory for
    /// it if it is admitted. `is_first`: nothing is admitted in this step yet.
    pub fn add(
        &mut self,
        len: usize,
        prefix: usize,
        max_new_tokens: usize,
        available: usize,
        is_first: bool,
    ) -> Decision {
        let extend = len - prefix;
        let max_new = max_new_tokens.min(CLIP_MAX_NEW_TOKENS);
        if (extend + max_new + self.page_size) as f64 >= self.rem_total(available) {
            return Decision::Refuse(Budget::NoToken);
        }
        let paged = self.ceil_page(extend) as isize;
        if self.rem_chunk.is_none() && !is_first && paged >= self.rem_input {
            return Decision::Refuse(Budget::Other);
        }
        self.admit_fitting(len, prefix, max_new_tokens)
    }

    /// As [`PrefillAdder::add`], but tokens `prefix..loaded` come from the store: they take pages, not step input.
    pub fn add_loaded(
        &mut self,
        len: usize,
        (prefix, loaded): (usize, usize),
        max_new_tokens: usize,
        available: usize,
        is_first: bool,
    ) -> Decision {
        let pages = self.ceil_page(loaded - prefix);
        let decision = match available.checked_sub(pages) {
            Some(available) => self.add(len, loaded, max_new_tokens, available, is_first),
            None => Decision::Refuse(Budget::NoToken),
        };
        if let Decision::Admit { .. } = decision {
            self.total_offset += pages as f64;
            self.current_offset += pages;
        }
        decision
    }

    /// As [`PrefillAdder::add`], but this step only loads tokens `prefix..loaded`; further steps load the rest.
    pub fn add_round(
        &mut self,
        len: usize,
        (prefix, loaded): (usize, usize),
        max_new_tokens: usize,
        available: usize,
    ) -> Decision {
        if self.has_chunked {
            return Decision::Refuse(Budget::Other);
        }
        let max_new = max_new_tokens.min(CLIP_MAX_NEW_TOKENS);
        let wanted = len - prefix + max_new + self.page_size;
        if wanted as f64 >= self.rem_total(available) {
            return Decision::Refuse(Budget::NoToken);
        }
        self.reserve_without_input(loaded - prefix);
        self.has_chunked = true;
        Decision::Admit {
            end: loaded,
            chunked: true,
        }
    }

    /// How many of `tokens` to load for the chunked request fit, in whole pages.
    pub fn load_chunked(&self, tokens: usize, available: usize) -> usize {
        let unreserved = self.rem_total(available).max(0.0) as usize;
        tokens.min(self.floor_page(unreserved))
    }

    /// Reserves pages to load this many tokens for the chunked request.
    pub fn reserve_load(&mut self, tokens: usize) {
        self.reserve_without_input(tokens);
    }

    /// Reserves memory for the missing tokens of the chunked request, which computes nothing in this step: it waits for
    /// stored blocks, or loads them. No other request may be chunked in this step.
    pub fn reserve_chunked(&mut self, missing: usize, max_new_tokens: usize) {
        self.reserve_without_input(missing);
        self.total_offset += max_new_tokens.min(CLIP_MAX_NEW_TOKENS) as f64;
        self.has_chunked = true;
    }

    /// Reserves memory for tokens that are not input of the step.
    fn reserve_without_input(&mut self, tokens: usize) {
        let pages = self.ceil_page(tokens);
        self.total_offset += pages as f64;
        self.current_offset += pages;
    }

    /// As [`PrefillAdder::add`], for a request that ignores EOS on an engine without a cache. Memory need not suffice
    /// for all output at once: it must suffice until each running request ends and frees its part.
    pub fn add_ignoring_eos(
        &mut self,
        len: usize,
        prefix: usize,
        max_new_tokens: usize,
        available: usize,
    ) -> Decision {
        let current = available as f64 - self.current_offset as f64;
        let paged = self.ceil_page(len - prefix) as f64;
        if paged > current.min(self.rem_total(available)) {
            return Decision::Refuse(Budget::NoToken);
        }
        self.completions.insert(max_new_tokens as f64, len);
        if !self.completions.fits(current - paged) {
            return Decision::Refuse(Budget::NoToken);
        }
        self.admit_fitting(len, prefix, max_new_tokens)
    }

    /// Admits a candidate for which memory suffices: the whole prefill, or a chunk of it.
    fn admit_fitting(&mut self, len: usize, prefix: usize, max_new_tokens: usize) -> Decision {
        let extend = len - prefix;
        let in_time = self.tokens_in_time(prefix);
        match self.rem_chunk {
            Some(chunk) if self.ceil_page(extend) as isize > chunk || extend > in_time => {
                self.admit_chunk((len, prefix), chunk.max(0) as usize, max_new_tokens)
            }
            _ => self.admit_rest(len, prefix, max_new_tokens),
        }
    }

    /// Admits a chunk of a candidate that does not fit into `budget` tokens or the step's time. If it must begin with a
    /// run that does not fit, it exceeds them, but only without other input in the step.
    fn admit_chunk(
        &mut self,
        (len, prefix): (usize, usize),
        budget: usize,
        max_new_tokens: usize,
    ) -> Decision {
        let chunk = budget.min(self.tokens_in_time(prefix));
        let fitting = self.floor_page(prefix + self.floor_page(chunk));
        let end = self.whole_end(prefix, fitting);
        let exceeds = end > prefix + chunk && self.has_input;
        if fitting <= prefix || exceeds || self.has_chunked {
            return Decision::Refuse(Budget::Other);
        }
        if end == len {
            return self.admit_rest(len, prefix, max_new_tokens);
        }
        self.reserve(end - prefix, 0);
        self.spend(prefix..end, false);
        self.has_chunked = true;
        Decision::Admit { end, chunked: true }
    }

    /// Admits all of a candidate that is not cached.
    fn admit_rest(&mut self, len: usize, prefix: usize, max_new_tokens: usize) -> Decision {
        self.reserve(len - prefix, max_new_tokens.min(CLIP_MAX_NEW_TOKENS));
        self.spend(prefix..len, max_new_tokens > 0);
        Decision::Admit {
            end: len,
            chunked: false,
        }
    }

    /// Continues the chunked request. It comes first and is never refused, since only its end frees its memory.
    pub fn add_chunked(
        &mut self,
        len: usize,
        prefix: usize,
        max_new_tokens: usize,
        available: usize,
    ) -> Decision {
        let remaining = len - prefix;
        let chunk = self.rem_chunk.unwrap_or(isize::MAX);
        let bounded = (chunk as f64).min(self.rem_total(available));
        let limit = if bounded > 0.0 {
            bounded as isize
        } else {
            chunk
        };
        let mut taken = remaining.min(limit.max(1) as usize);
        let in_time = self.tokens_in_time(prefix);
        if in_time < taken {
            // `in_time` is at least a page, so the chunk can end at a page boundary.
            taken = self.floor_page(prefix + in_time) - prefix;
        }
        taken = self.whole_end(prefix, prefix + taken) - prefix;
        let chunked = taken < remaining;
        self.has_chunked |= chunked;
        let new = if chunked {
            0
        } else {
            max_new_tokens.min(CLIP_MAX_NEW_TOKENS)
        };
        self.reserve(taken, new);
        self.spend(prefix..prefix + taken, !chunked && max_new_tokens > 0);
        Decision::Admit {
            end: prefix + taken,
            chunked,
        }
    }

    /// Tokens that preemptions must free for a candidate with `extend` uncached tokens; 0 or less if only a row is
    /// missing.
    pub fn deficit(&self, extend: usize, max_new_tokens: usize, available: usize) -> f64 {
        let wanted = extend + max_new_tokens.min(CLIP_MAX_NEW_TOKENS);
        wanted as f64 - self.rem_total(available)
    }

    fn rem_total(&self, available: usize) -> f64 {
        available as f64 - self.total_offset
    }

    fn reserve(&mut self, extend: usize, new: usize) {
        let paged = self.ceil_page(extend);
        let immediate = paged + self.page_size;
        self.total_offset += (immediate + new) as f64;
        self.current_offset += immediate;
        self.has_input |= extend > 0;
        self.rem_input -= paged as isize;
        if let Some(chunk) = &mut self.rem_chunk {
            *chunk -= paged as isize;
        }
    }

    fn spend(&mut self, positions: Range<usize>, then_decodes: bool) {
        if let Some(time) = &mut self.time {
            time.spend(positions, then_decodes);
        }
    }

    fn ceil_page(&self, tokens: usize) -> usize {
        tokens.next_multiple_of(self.page_size)
    }

    fn floor_page(&self, tokens: usize) -> usize {
        tokens - tokens % self.page_size
    }
}
