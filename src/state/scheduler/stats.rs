//! A snapshot of the engine, for hosts and tests.

use serde::Serialize;

use super::tier::TierStats;

/// SGLang takes a pool for fully used from this token usage on.
const FULL_TOKEN_USAGE: f64 = 0.9;

/// Queues, pools and counters as of the last plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct EngineStats {
    /// The policy that orders the queue now.
    pub schedule_policy: &'static str,
    /// The policy that orders evictions now; `none` without a prefix cache.
    pub radix_eviction_policy: &'static str,
    /// Requests that decode or prefill.
    pub running_requests: usize,
    /// Tokens of the requests that decode, prompt and output.
    pub decode_tokens: usize,
    /// Requests that wait, retracted ones included.
    pub waiting_requests: usize,
    /// Of those, retracted ones.
    pub retracted_requests: usize,
    /// Tokens of the KV pool.
    pub total_tokens: usize,
    /// Tokens a page.
    pub page_size: usize,
    /// Tokens of free pages.
    pub free_tokens: usize,
    /// Cached tokens that could be evicted.
    pub evictable_tokens: usize,
    /// Cached tokens that a lock protects.
    pub protected_tokens: usize,
    /// Tokens of pages that belong to single sequences.
    pub private_tokens: usize,
    /// Rows of the page table.
    pub total_rows: usize,
    /// Free rows.
    pub free_rows: usize,
    /// States of sequences that the pool holds; 0 where no layer keeps any.
    pub total_states: usize,
    /// States that can be granted.
    pub free_states: usize,
    /// States in the cache.
    pub cached_states: usize,
    /// Pages of layers with windows; 0 where no layer has one.
    pub total_windows: usize,
    /// Of those, pages that can be granted.
    pub free_windows: usize,
    /// Cached ones that could be evicted.
    pub evictable_windows: usize,
    /// Cached ones that a lock keeps.
    pub protected_windows: usize,
    /// Those that belong to single sequences.
    pub private_windows: usize,
    /// Pins held for hosts.
    pub pins: usize,
    /// Pins that give way to requests.
    pub soft_pins: usize,
    /// No work is planned, by a host's wish.
    pub is_paused: bool,
    /// Part of the generation budget that running requests reserve.
    pub new_token_ratio: f64,
    /// Steps planned.
    pub steps: u64,
    /// Of those, steps in which decodes rode beside a prefill.
    pub mixed_steps: u64,
    /// Plans at which `free + evictable + protected + private` was not `total`.
    pub integrity_failures: u64,
    /// Pages dropped instead of handed back.
    pub lost_pages: u64,
    /// Messages that came too late to matter.
    pub stale_messages: u64,
    /// Requests retracted, counted each time.
    pub retractions: u64,
    /// Running requests that gave way to one of higher priority, counted each time.
    pub preemptions: u64,
    /// Prompt tokens of retracted requests, counted each time.
    pub retracted_input_tokens: u64,
    /// Tokens that retracted requests had generated, counted each time.
    pub retracted_output_tokens: u64,
    /// Prompt tokens of admitted requests.
    pub prompt_tokens: u64,
    /// Of those, tokens whose K/V came from the cache.
    pub cached_tokens: u64,
    /// Tokens evicted from the tree.
    pub evicted_tokens: u64,
    /// Window pages evicted while the pages that they belong to stayed.
    pub evicted_windows: u64,
    /// The KV store; `None` without one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub store: Option<TierStats>,
}

impl EngineStats {
    /// True when no request is inside and the pool is whole: nothing private, nothing locked but pins.
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

    /// Tokens of pages that requests or pins hold: neither free nor evictable.
    pub fn used_tokens(&self) -> usize {
        self.total_tokens
            .saturating_sub(self.free_tokens + self.evictable_tokens)
    }

    /// Part of the KV pool that requests or pins hold, from 0 to 1.
    pub fn token_usage(&self) -> f64 {
        ratio(self.used_tokens(), self.total_tokens)
    }

    /// The larger of running requests over rows and token usage over the usage of a full pool, as SGLang has it; above 1
    /// the engine has more than it should.
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
    fn usage_counts_what_is_held_and_not_what_is_cached() {
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
