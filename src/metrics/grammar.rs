//! Metrics of grammars of structured output, from the request to the compiled grammar.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use super::{request_labels, scheduler_labels};

#[derive(Clone)]
pub struct GrammarMetrics {
    requested: Counter,
    cached: Counter,
    aborted: Counter,
    timed_out: Counter,
    compile_seconds: Histogram,
    waiting: Gauge,
    requests: Counter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarEnd {
    /// The grammar was cached.
    Cached,
    Compiled,
    /// The grammar was refused, or all its requests were cancelled.
    Aborted,
    /// The grammar exceeded its time limit.
    TimedOut,
}

impl GrammarMetrics {
    pub(super) fn register(model_name: &str) -> Self {
        let labels = || scheduler_labels(model_name);
        let waiting = gauge!("sglang:num_grammar_queue_reqs", labels());
        // After a rebuild of the actors, requests of the dead ones no longer wait.
        waiting.set(0.0);
        Self {
            requested: counter!("sglang:num_grammar_total", labels()),
            cached: counter!("sglang:num_grammar_cache_hit_total", labels()),
            aborted: counter!("sglang:num_grammar_aborted_total", labels()),
            timed_out: counter!("sglang:num_grammar_timeout_total", labels()),
            compile_seconds: histogram!("sglang:grammar_compilation_time_seconds", labels()),
            waiting,
            requests: counter!("sglang:num_so_requests_total", request_labels(model_name)),
        }
    }

    /// Counts a grammar, and records the time of its compilation if it was not cached.
    pub fn ended(&self, end: GrammarEnd, took: Duration) {
        self.requested.increment(1);
        match end {
            GrammarEnd::Cached => return self.cached.increment(1),
            GrammarEnd::Compiled => {}
            GrammarEnd::Aborted => self.aborted.increment(1),
            GrammarEnd::TimedOut => self.timed_out.increment(1),
        }
        self.compile_seconds.record(took.as_secs_f64());
    }

    pub fn wait(&self, n_requests: usize) {
        self.waiting.increment(n_requests as f64);
    }

    /// Subtracts requests that [`GrammarMetrics::wait`] added.
    pub fn waited(&self, n_requests: usize) {
        self.waiting.decrement(n_requests as f64);
    }

    pub fn submitted(&self) {
        self.requests.increment(1);
    }
}
