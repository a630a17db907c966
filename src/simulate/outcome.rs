//! What became of the requests, and what the pool looked like meanwhile.

use serde::Serialize;

use crate::state::stats::EngineStats;

/// Moments that are kept at most: with more of them every second one is dropped.
const MAX_MOMENTS: usize = 1024;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RequestOutcome {
    /// When it came, in seconds.
    pub arrival_s: f64,
    /// When its first token was there, if it has one.
    pub first_token_s: Option<f64>,
    /// When its last token was there.
    pub last_token_s: f64,
    /// Longest time between two of its tokens, in seconds.
    pub longest_gap_s: f64,
    /// Tokens of its prompt.
    pub prompt_tokens: u32,
    /// Of those, tokens that came from the cache.
    pub cached_tokens: u32,
    /// Tokens that it generated.
    pub output_tokens: u32,
    /// Times it was retracted.
    pub retractions: u32,
    /// How it ended.
    pub end: Ending,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// With all its tokens.
    Finished,
    /// Its prompt is longer than the context or the pool.
    TooLong,
    /// The engine gave it up.
    Failed,
}

/// The engine at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// When, in seconds.
    pub at_s: f64,
    /// Tokens of pages that belong to single sequences.
    pub private_tokens: usize,
    /// Cached tokens that running requests use.
    pub protected_tokens: usize,
    /// Cached tokens that could be evicted.
    pub evictable_tokens: usize,
    /// Requests that prefill or decode.
    pub running_requests: usize,
    /// Requests that wait inside.
    pub waiting_requests: usize,
    /// Requests that came and are not let in yet.
    pub outside_requests: usize,
    /// Prompt tokens of admitted requests so far.
    pub prompt_tokens: u64,
    /// Of those, tokens that came from the cache.
    pub cached_tokens: u64,
}

/// Moments, evenly spread however long it takes.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    moments: Vec<Moment>,
    interval_s: f64,
}

impl Timeline {
    /// True when the next moment is due.
    pub(super) fn is_due(&self, now_s: f64) -> bool {
        self.moments
            .last()
            .is_none_or(|last| now_s >= last.at_s + self.interval_s)
    }

    /// Takes a moment, and thins out when there are many.
    pub(super) fn push(&mut self, at_s: f64, stats: &EngineStats, outside_requests: usize) {
        self.moments.push(Moment {
            at_s,
            private_tokens: stats.private_tokens,
            protected_tokens: stats.protected_tokens,
            evictable_tokens: stats.evictable_tokens,
            running_requests: stats.running_requests,
            waiting_requests: stats.waiting_requests,
            outside_requests,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
        });
        if self.moments.len() > MAX_MOMENTS {
            let mut index = 0;
            self.moments.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.interval_s = 2.0 * at_s / MAX_MOMENTS as f64;
        }
    }

    /// The moments, in order.
    pub fn moments(&self) -> &[Moment] {
        &self.moments
    }
}

/// A whole simulation.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Tokens of the KV pool.
    pub kv_tokens: usize,
    /// The requests, in order of arrival.
    pub requests: Vec<RequestOutcome>,
    /// The engine over time.
    pub timeline: Timeline,
    /// From the first arrival to the last token, in seconds.
    pub makespan_s: f64,
    /// Of it, seconds in which a step ran.
    pub busy_s: f64,
    /// Steps that only decoded.
    pub decode_steps: u64,
    /// Steps that prefilled.
    pub prefill_steps: u64,
    /// Most requests in one step.
    pub largest_batch: usize,
    /// Nodes evicted from the tree.
    pub evicted_nodes: u64,
    /// Requests that found the doors closed: as many or as large prompts inside as may be. They wait outside.
    pub waited_outside: usize,
    /// The engine's own counters at the end.
    pub stats: EngineStats,
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
            largest_batch: 0,
            evicted_nodes: 0,
            waited_outside: 0,
            stats: EngineStats::default(),
        }
    }

    /// Part of the admitted prompt tokens that came from the cache.
    pub fn hit_rate(&self) -> f64 {
        self.stats.cached_tokens as f64 / self.stats.prompt_tokens.max(1) as f64
    }

    /// Requests that ended like this.
    pub fn ended(&self, end: Ending) -> impl Iterator<Item = &RequestOutcome> {
        self.requests
            .iter()
            .filter(move |request| request.end == end)
    }

    /// Seconds from arrival to first token, of the finished requests.
    pub fn ttft_s(&self) -> Vec<f64> {
        let finished = self.ended(Ending::Finished);
        finished
            .filter_map(|request| Some(request.first_token_s? - request.arrival_s))
            .collect()
    }

    /// Mean seconds between the tokens of a request, of the finished ones with two tokens or more.
    pub fn tpot_s(&self) -> Vec<f64> {
        let mean_gap = |request: &RequestOutcome| {
            let gaps = request
                .output_tokens
                .checked_sub(1)
                .filter(|gaps| *gaps > 0)?;
            Some((request.last_token_s - request.first_token_s?) / f64::from(gaps))
        };
        self.ended(Ending::Finished).filter_map(mean_gap).collect()
    }

    /// Seconds from arrival to last token, of the finished requests.
    pub fn e2e_s(&self) -> Vec<f64> {
        self.ended(Ending::Finished)
            .map(|request| request.last_token_s - request.arrival_s)
            .collect()
    }

    /// Longest seconds between two tokens of a request, of the finished ones with two tokens or more.
    pub fn longest_gap_s(&self) -> Vec<f64> {
        let decoding = self
            .ended(Ending::Finished)
            .filter(|request| request.output_tokens > 1);
        decoding.map(|request| request.longest_gap_s).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timelines_stay_short_and_evenly_spread() {
        let mut timeline = Timeline::default();
        for step in 0..1_000_000 {
            let now_s = f64::from(step) * 0.01;
            if timeline.is_due(now_s) {
                timeline.push(now_s, &EngineStats::default(), 0);
            }
        }
        let moments = timeline.moments();
        assert!(
            (MAX_MOMENTS / 4..=MAX_MOMENTS).contains(&moments.len()),
            "{}",
            moments.len()
        );
        let gaps: Vec<f64> = moments
            .windows(2)
            .map(|pair| pair[1].at_s - pair[0].at_s)
            .collect();
        let (least, most) = (
            gaps.iter().copied().fold(f64::MAX, f64::min),
            gaps.iter().copied().fold(0.0, f64::max),
        );
        assert!(most <= 2.5 * least, "{least} {most}");
    }
}
