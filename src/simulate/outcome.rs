//! The outcomes of simulated requests, and the usage of the pool over time.

use serde::Serialize;

use super::store::StoreOutcome;
use souffleur_state::scheduler::stats::EngineStats;

/// The largest number of intervals. Above it, pairs of adjacent intervals are merged.
const MAX_MOMENTS: usize = 1024;
/// The length of an interval before the first merge, in seconds.
const FIRST_INTERVAL_S: f64 = 1e-3;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RequestOutcome {
    pub arrival_s: f64,
    /// The time of the first output token, if there is one.
    pub first_token_s: Option<f64>,
    /// The time of the last output token or, without one, of the request's end.
    pub last_token_s: f64,
    /// The longest time between two output tokens, in seconds.
    pub longest_gap_s: f64,
    pub prompt_tokens: u32,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: u32,
    /// Cached tokens that were loaded from the KV store's disk.
    pub loaded_tokens: u32,
    pub output_tokens: u32,
    pub retractions: u32,
    pub end: RequestFate,
    /// The replica that got the request, if there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replica: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestFate {
    Finished,
    TooLong,
    /// The engine aborted the request.
    Failed,
}

/// The state of the engine in one interval of time: the largest value of each quantity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    pub at_s: f64,
    /// Tokens in the pool that running requests use, cached tokens included.
    pub used_tokens: usize,
    /// Tokens in the pool with keys and values, evictable ones included.
    pub held_tokens: usize,
    pub running_requests: usize,
    /// Requests in the engine's waiting queue.
    pub waiting_requests: usize,
    /// Requests that arrived and still wait outside the engine.
    pub outside_requests: usize,
    /// Prompt tokens of admitted requests so far.
    pub prompt_tokens: u64,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: u64,
}

impl Moment {
    pub(super) fn new(at_s: f64, stats: &EngineStats, outside_requests: usize) -> Self {
        let used_tokens = stats.private_tokens + stats.protected_tokens;
        Self {
            at_s,
            used_tokens,
            held_tokens: used_tokens + stats.evictable_tokens,
            running_requests: stats.running_requests,
            waiting_requests: stats.waiting_requests,
            outside_requests,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
        }
    }

    /// Merges two intervals: the larger of each value, at the earlier time.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            at_s: self.at_s.min(other.at_s),
            used_tokens: self.used_tokens.max(other.used_tokens),
            held_tokens: self.held_tokens.max(other.held_tokens),
            running_requests: self.running_requests.max(other.running_requests),
            waiting_requests: self.waiting_requests.max(other.waiting_requests),
            outside_requests: self.outside_requests.max(other.outside_requests),
            prompt_tokens: self.prompt_tokens.max(other.prompt_tokens),
            cached_tokens: self.cached_tokens.max(other.cached_tokens),
        }
    }
}

/// Intervals of equal length, at most 1,024 for any simulated time.
#[derive(Clone, Debug)]
pub struct Timeline {
    moments: Vec<Moment>,
    interval_s: f64,
    /// The last recorded state, which lasts until the next one.
    last: Option<Moment>,
}

impl Default for Timeline {
    fn default() -> Self {
        let (moments, interval_s, last) = (Vec::new(), FIRST_INTERVAL_S, None);
        Self {
            moments,
            interval_s,
            last,
        }
    }
}

impl Timeline {
    pub(super) fn record(&mut self, moment: Moment) {
        while moment.at_s >= self.interval_s * MAX_MOMENTS as f64 {
            self.merge_pairs();
        }
        let interval = (moment.at_s / self.interval_s) as usize;
        let lasting = self.last.unwrap_or(moment);
        for index in self.moments.len()..=interval {
            let at_s = index as f64 * self.interval_s;
            self.moments.push(Moment { at_s, ..lasting });
        }
        self.moments[interval] = self.moments[interval].with(moment);
        self.last = Some(moment);
    }

    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }

    fn merge_pairs(&mut self) {
        self.interval_s *= 2.0;
        let pairs = self.moments.chunks(2);
        let joined = pairs.map(|pair| pair[0].with(pair[pair.len() - 1]));
        self.moments = joined.collect();
    }
}

/// The part of one unit in an outcome. An engine with replicas has several units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct UnitOutcome {
    /// Requests that the unit got.
    pub requests: usize,
    pub output_tokens: u64,
    /// Seconds in which a step ran.
    pub busy_s: f64,
    /// Steps that only decoded.
    pub decode_steps: u64,
    pub prefill_steps: u64,
    /// Steps that only copied blocks for the KV store.
    pub copy_steps: u64,
    pub largest_batch: usize,
    pub evicted_nodes: u64,
    pub stats: EngineStats,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<StoreOutcome>,
}

impl UnitOutcome {
    /// Tokens that the unit computed: those of prompts that were not cached, and outputs.
    pub fn computed_tokens(&self) -> u64 {
        self.stats.prompt_tokens - self.stats.cached_tokens + self.output_tokens
    }
}

/// The outcome of a simulation. Counts are those of all units together.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The tokens of all pools.
    pub kv_tokens: usize,
    pub requests: Vec<RequestOutcome>,
    pub timeline: Timeline,
    /// The time from the first arrival to the last arrival or token, in seconds.
    pub makespan_s: f64,
    /// Seconds in which a step ran, of each unit.
    pub busy_s: f64,
    /// Steps that only decoded.
    pub decode_steps: u64,
    pub prefill_steps: u64,
    /// Steps that only copied blocks for the KV store.
    pub copy_steps: u64,
    /// The largest batch of any unit.
    pub largest_batch: usize,
    pub evicted_nodes: u64,
    /// Requests that had to wait outside the engine, because the limit of requests or of prompt tokens was reached.
    pub waited_outside: usize,
    pub stats: EngineStats,
    pub store: Option<StoreOutcome>,
    /// By the number of the replica.
    pub units: Vec<UnitOutcome>,
}

impl Outcome {
    pub(super) fn new(kv_tokens: usize) -> Self {
        Self {
            kv_tokens,
            requests: Vec::new(),
            timeline: Timeline::default(),
            makespan_s: 0.0,
            busy_s: 0.0,
            decode_steps: 0,
            prefill_steps: 0,
            copy_steps: 0,
            largest_batch: 0,
            evicted_nodes: 0,
            waited_outside: 0,
            stats: EngineStats::default(),
            store: None,
            units: Vec::new(),
        }
    }

    /// Takes the outcomes of the units, and adds them up.
    pub(super) fn take_units(&mut self, units: Vec<UnitOutcome>) {
        for unit in &units {
            self.busy_s += unit.busy_s;
            self.decode_steps += unit.decode_steps;
            self.prefill_steps += unit.prefill_steps;
            self.copy_steps += unit.copy_steps;
            self.largest_batch = self.largest_batch.max(unit.largest_batch);
            self.evicted_nodes += unit.evicted_nodes;
        }
        let stats: Vec<EngineStats> = units.iter().map(|unit| unit.stats).collect();
        self.stats = EngineStats::sum(&stats);
        // Only a single unit can have a store.
        self.store = units.iter().find_map(|unit| unit.store);
        self.units = units;
    }

    /// The computed tokens of each unit, as a multiple of the mean.
    pub fn loads(&self) -> Vec<f64> {
        let computed = self.units.iter().map(UnitOutcome::computed_tokens);
        let sum: u64 = computed.clone().sum();
        let mean = sum as f64 / self.units.len() as f64;
        computed
            .map(|tokens| tokens as f64 / mean.max(1.0))
            .collect()
    }

    pub fn hit_rate(&self) -> f64 {
        self.stats.cached_tokens as f64 / self.stats.prompt_tokens.max(1) as f64
    }

    pub fn loaded_tokens(&self) -> u64 {
        self.stats.store.map_or(0, |store| store.loaded_tokens)
    }

    /// The fraction of the admitted prompt tokens that were cached in memory.
    pub fn memory_hit_rate(&self) -> f64 {
        let in_memory = self.stats.cached_tokens - self.loaded_tokens();
        in_memory as f64 / self.stats.prompt_tokens.max(1) as f64
    }

    /// The fraction of the admitted prompt tokens that were cached on disk.
    pub fn disk_hit_rate(&self) -> f64 {
        self.loaded_tokens() as f64 / self.stats.prompt_tokens.max(1) as f64
    }

    pub fn ended(&self, end: RequestFate) -> impl Iterator<Item = &RequestOutcome> {
        self.requests
            .iter()
            .filter(move |request| request.end == end)
    }

    /// Seconds from arrival to the first token, for each finished request.
    pub fn ttft_s(&self) -> Vec<f64> {
        let finished = self.ended(RequestFate::Finished);
        finished
            .filter_map(|request| Some(request.first_token_s? - request.arrival_s))
            .collect()
    }

    /// Mean seconds between two tokens, for each finished request with at least two tokens.
    pub fn tpot_s(&self) -> Vec<f64> {
        let mean_gap = |request: &RequestOutcome| {
            let gaps = request
                .output_tokens
                .checked_sub(1)
                .filter(|gaps| *gaps > 0)?;
            Some((request.last_token_s - request.first_token_s?) / f64::from(gaps))
        };
        self.ended(RequestFate::Finished)
            .filter_map(mean_gap)
            .collect()
    }

    /// Seconds from arrival to the last token, for each finished request.
    pub fn e2e_s(&self) -> Vec<f64> {
        self.ended(RequestFate::Finished)
            .map(|request| request.last_token_s - request.arrival_s)
            .collect()
    }

    /// The longest time between two tokens in seconds, for each finished request with at least two tokens.
    pub fn longest_gap_s(&self) -> Vec<f64> {
        let decoding = self
            .ended(RequestFate::Finished)
            .filter(|request| request.output_tokens > 1);
        decoding.map(|request| request.longest_gap_s).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timelines_stay_short_and_keep_peaks_and_idle_times() {
        let moment = |at_s: f64, running_requests: usize| Moment {
            at_s,
            running_requests,
            ..Moment::default()
        };
        let mut timeline = Timeline::default();
        for step in 0..1_000_000 {
            let running = if step == 777_777 { 9 } else { 1 };
            timeline.record(moment(f64::from(step) * 0.01, running));
        }
        timeline.record(moment(10_000.0, 3));
        timeline.record(moment(12_000.0, 0)); // its interval keeps the larger value, 3
        let moments = timeline.moments();
        assert!((MAX_MOMENTS / 2..=MAX_MOMENTS).contains(&moments.len()));
        let interval_s = moments[1].at_s;
        assert!(
            moments
                .windows(2)
                .all(|pair| (pair[1].at_s - pair[0].at_s - interval_s).abs() < 1e-6)
        );
        let at = |at_s: f64| moments[(at_s / interval_s) as usize].running_requests;
        assert_eq!(
            [at(5.0), at(7777.77), at(11_000.0), at(12_000.0)],
            [1, 9, 3, 3]
        );
    }
}
