//! Engine statistics: a snapshot of queues, pools and counters, for hosts and tests.

use serde::Serialize;

use super::tier::TierStats;

/// The token usage at which SGLang considers a pool full.
const FULL_TOKEN_USAGE: f64 = 0.9;

/// Queues, pools and counters as of the last plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EngineStats {
    pub schedule_policy: &'static str,
    /// The current eviction policy; `none` without a prefix cache.
    pub radix_eviction_policy: &'static str,
    /// Decoding or prefilling requests.
    pub running_requests: usize,
    pub decode_tokens: usize,
    /// Waiting requests, including retracted ones.
    pub waiting_requests: usize,
    pub retracted_requests: usize,
    /// Tokens of the KV pool.
    pub total_tokens: usize,
    pub page_size: usize,
    pub free_tokens: usize,
    pub evictable_tokens: usize,
    pub protected_tokens: usize,
    pub private_tokens: usize,
    pub total_rows: usize,
    pub free_rows: usize,
    /// Slots of the pool of recurrent states; 0 without recurrent layers.
    pub total_states: usize,
    pub free_states: usize,
    pub cached_states: usize,
    /// Window pages; 0 without window layers.
    pub total_windows: usize,
    pub free_windows: usize,
    pub evictable_windows: usize,
    pub protected_windows: usize,
    pub private_windows: usize,
    pub pins: usize,
    pub soft_pins: usize,
    pub is_paused: bool,
    /// The fraction of the running requests' remaining output tokens for which memory is reserved.
    pub new_token_ratio: f64,
    pub steps: u64,
    /// Steps with both prefills and decodes.
    pub mixed_steps: u64,
    /// Plans after which `free + evictable + protected + private` was not `total`.
    pub integrity_failures: u64,
    /// Pages, locks and states dropped without being returned.
    pub lost_pages: u64,
    /// Messages that arrived too late.
    pub stale_messages: u64,
    pub retractions: u64,
    /// Running requests preempted by a higher priority, counted each time.
    pub preemptions: u64,
    /// Prompt tokens of retracted requests, counted each time.
    pub retracted_input_tokens: u64,
    /// Tokens that retracted requests had generated, counted each time.
    pub retracted_output_tokens: u64,
    pub prompt_tokens: u64,
    /// Prompt tokens whose K/V came from the cache, included in `prompt_tokens`.
    pub cached_tokens: u64,
    pub evicted_tokens: u64,
    /// Window pages evicted while their full-attention pages stayed.
    pub evicted_windows: u64,
    /// The KV store; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<TierStats>,
}

impl EngineStats {
    /// The stats of several schedulers together; the policies and sizes are those of the first.
    pub fn sum(all: &[Self]) -> Self {
        let mut all = all.iter();
        let first = all.next().copied().unwrap_or_default();
        all.fold(first, Self::plus)
    }

    fn plus(sum: Self, stats: &Self) -> Self {
        Self {
            is_paused: sum.is_paused || stats.is_paused,
            new_token_ratio: sum.new_token_ratio.max(stats.new_token_ratio),
            running_requests: sum.running_requests + stats.running_requests,
            decode_tokens: sum.decode_tokens + stats.decode_tokens,
            waiting_requests: sum.waiting_requests + stats.waiting_requests,
            retracted_requests: sum.retracted_requests + stats.retracted_requests,
            total_tokens: sum.total_tokens + stats.total_tokens,
            free_tokens: sum.free_tokens + stats.free_tokens,
            evictable_tokens: sum.evictable_tokens + stats.evictable_tokens,
            protected_tokens: sum.protected_tokens + stats.protected_tokens,
            private_tokens: sum.private_tokens + stats.private_tokens,
            total_rows: sum.total_rows + stats.total_rows,
            free_rows: sum.free_rows + stats.free_rows,
            total_states: sum.total_states + stats.total_states,
            free_states: sum.free_states + stats.free_states,
            cached_states: sum.cached_states + stats.cached_states,
            total_windows: sum.total_windows + stats.total_windows,
            free_windows: sum.free_windows + stats.free_windows,
            evictable_windows: sum.evictable_windows + stats.evictable_windows,
            protected_windows: sum.protected_windows + stats.protected_windows,
            private_windows: sum.private_windows + stats.private_windows,
            pins: sum.pins + stats.pins,
            soft_pins: sum.soft_pins + stats.soft_pins,
            steps: sum.steps + stats.steps,
            mixed_steps: sum.mixed_steps + stats.mixed_steps,
            integrity_failures: sum.integrity_failures + stats.integrity_failures,
            lost_pages: sum.lost_pages + stats.lost_pages,
            stale_messages: sum.stale_messages + stats.stale_messages,
            retractions: sum.retractions + stats.retractions,
            preemptions: sum.preemptions + stats.preemptions,
            retracted_input_tokens: sum.retracted_input_tokens + stats.retracted_input_tokens,
            retracted_output_tokens: sum.retracted_output_tokens + stats.retracted_output_tokens,
            prompt_tokens: sum.prompt_tokens + stats.prompt_tokens,
            cached_tokens: sum.cached_tokens + stats.cached_tokens,
            evicted_tokens: sum.evicted_tokens + stats.evicted_tokens,
            evicted_windows: sum.evicted_windows + stats.evicted_windows,
            ..sum
        }
    }

    /// True if there are no requests and all memory is accounted for: no page is private, and only pins hold locks.
    pub fn is_idle_and_whole(&self) -> bool {
        self.running_requests == 0
            && self.waiting_requests == 0
            && self.private_tokens == 0
            && self.free_rows == self.total_rows
            && (self.pins + self.soft_pins > 0 || self.protected_tokens == 0)
            && self.free_tokens + self.evictable_tokens + self.protected_tokens == self.total_tokens
            && self.free_states + self.cached_states == self.total_states
            && self.private_windows == 0
            && (self.pins + self.soft_pins > 0 || self.protected_windows == 0)
            && self.free_windows + self.evictable_windows + self.protected_windows
                == self.total_windows
            && self.integrity_failures == 0
            && self.lost_pages == 0
    }

    /// Tokens of pages held by requests or pins: neither free nor evictable.
    pub fn used_tokens(&self) -> usize {
        self.total_tokens
            .saturating_sub(self.free_tokens + self.evictable_tokens)
    }

    /// Fraction of the KV pool held by requests or pins, from 0 to 1.
    pub fn token_usage(&self) -> f64 {
        ratio(self.used_tokens(), self.total_tokens)
    }

    /// The larger of running requests over rows, and token usage over the usage of a full pool, as in SGLang; above 1
    /// the engine is overcommitted.
    pub fn utilization(&self) -> f64 {
        let rows = ratio(self.running_requests, self.total_rows);
        rows.max(self.token_usage() / FULL_TOKEN_USAGE)
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole > 0 {
        part as f64 / whole as f64
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_counts_all_and_keeps_the_policies_of_the_first() {
        let stats = |schedule_policy, running_requests, new_token_ratio| EngineStats {
            schedule_policy,
            running_requests,
            new_token_ratio,
            total_tokens: 100,
            page_size: 16,
            ..EngineStats::default()
        };
        let all = [stats("lpm", 2, 0.25), stats("fcfs", 3, 0.5)];
        let expected = EngineStats {
            total_tokens: 200,
            ..stats("lpm", 5, 0.5)
        };
        assert_eq!(EngineStats::sum(&all), expected);
        assert_eq!(EngineStats::sum(&all[..1]), all[0]);
        assert_eq!(EngineStats::sum(&[]), EngineStats::default());
    }

    #[test]
    fn usage_counts_held_tokens_and_not_evictable_ones() {
        let stats = EngineStats {
            running_requests: 2,
            total_rows: 8,
            total_tokens: 1000,
            free_tokens: 500,
            evictable_tokens: 50,
            ..EngineStats::default()
        };
        assert_eq!((stats.used_tokens(), stats.token_usage()), (450, 0.45));
        assert_eq!(stats.utilization(), 0.45 / 0.9);
        let crowded = EngineStats {
            running_requests: 6,
            ..stats
        };
        assert_eq!(crowded.utilization(), 0.75, "rows are scarcer than tokens");
        assert_eq!(EngineStats::default().utilization(), 0.0);
    }
}
