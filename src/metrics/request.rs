//! Metrics of requests: their tokens and times, recorded by the Tokenizer.

use metrics::{Counter, Histogram, Label, counter, histogram};

use super::{GrammarMetrics, ResumeMetrics, request_labels, with_label};
use souffleur_request::Usage;

/// Every [`code`](souffleur_base::error::RequestError::code), so that each counter exists from the start.
pub(super) const FAILURE_CODES: [&str; 11] = [
    "invalid_request",
    "context_length_exceeded",
    "overloaded",
    "duplicate_request",
    "out_of_memory",
    "timeout",
    "nan_logits",
    "slow_client",
    "step_failed",
    "engine_down",
    "shutting_down",
];

/// Counts and latencies of requests.
///
/// Tokens are counted at a request's end, from the same [`Usage`] that the client gets: once all requests have
/// ended, the counters equal the sums over all `meta_info`.
pub struct RequestMetrics {
    streaming: ByStreaming,
    non_streaming: ByStreaming,
    cached_tokens: Counter,
    /// Labels for tokens from the KV store. Their counter is registered at first use: most engines have no store.
    stored_labels: Vec<Label>,
    inter_token_seconds: Histogram,
    prompt_tokens_histogram: Histogram,
    uncached_prompt_tokens_histogram: Histogram,
    generation_tokens_histogram: Histogram,
    aborted: Counter,
    failed: Vec<(&'static str, Counter)>,
    client_stalls: Counter,
    encoded_bytes: Counter,
    grammars: GrammarMetrics,
    resumes: ResumeMetrics,
}

struct ByStreaming {
    received: Counter,
    requests: Counter,
    prompt_tokens: Counter,
    generation_tokens: Counter,
    first_token_seconds: Histogram,
    output_token_seconds: Histogram,
    e2e_seconds: Histogram,
}

impl ByStreaming {
    fn register(labels: &[Label], is_streaming: &'static str) -> Self {
        let labels = with_label(labels, "is_streaming", is_streaming);
        Self {
            received: counter!(
                "souffleur_requests_received_total", "is_streaming" => is_streaming
            ),
            requests: counter!("sglang:num_requests_total", labels.clone()),
            prompt_tokens: counter!("sglang:prompt_tokens_total", labels.clone()),
            generation_tokens: counter!("sglang:generation_tokens_total", labels.clone()),
            first_token_seconds: histogram!("sglang:time_to_first_token_seconds", labels.clone()),
            output_token_seconds: histogram!(
                "sglang:request_time_per_output_token_seconds",
                labels.clone()
            ),
            e2e_seconds: histogram!("sglang:e2e_request_latency_seconds", labels),
        }
    }
}

impl RequestMetrics {
    pub fn register(model_name: &str) -> Self {
        let labels = request_labels(model_name);
        let device = with_label(&labels, "cache_source", "device");
        Self {
            streaming: ByStreaming::register(&labels, "true"),
            non_streaming: ByStreaming::register(&labels, "false"),
            cached_tokens: counter!("sglang:cached_tokens_total", device),
            stored_labels: with_label(&labels, "cache_source", "storage_file"),
            inter_token_seconds: histogram!("sglang:inter_token_latency_seconds", labels.clone()),
            prompt_tokens_histogram: histogram!("sglang:prompt_tokens_histogram", labels.clone()),
            uncached_prompt_tokens_histogram: histogram!(
                "sglang:uncached_prompt_tokens_histogram",
                labels.clone()
            ),
            generation_tokens_histogram: histogram!(
                "sglang:generation_tokens_histogram",
                labels.clone()
            ),
            aborted: counter!("sglang:num_aborted_requests_total", labels),
            failed: FAILURE_CODES
                .map(|code| (code, failure_counter(code)))
                .into(),
            client_stalls: counter!("souffleur_client_stalls_total"),
            encoded_bytes: counter!("souffleur_encoded_prompt_bytes_total"),
            grammars: GrammarMetrics::register(model_name),
            resumes: ResumeMetrics::register(),
        }
    }

    fn of(&self, is_streaming: bool) -> &ByStreaming {
        if is_streaming {
            &self.streaming
        } else {
            &self.non_streaming
        }
    }

    pub fn received(&self, is_streaming: bool) {
        self.of(is_streaming).received.increment(1);
    }

    /// Records the time from intake to the first token.
    pub fn first_token(&self, is_streaming: bool, seconds: f64) {
        self.of(is_streaming).first_token_seconds.record(seconds);
    }

    /// Records that `n_tokens` tokens came `seconds` after the previous ones.
    pub fn inter_token(&self, seconds: f64, n_tokens: usize) {
        if n_tokens > 0 {
            self.inter_token_seconds
                .record_many(seconds / n_tokens as f64, n_tokens);
        }
    }

    /// Records a request that ended by itself or was cancelled, with the usage that the client gets.
    pub fn finished(&self, is_streaming: bool, usage: &Usage, e2e_seconds: f64) {
        let Usage {
            prompt_tokens,
            completion_tokens,
            cached_tokens,
            loaded_tokens,
            ..
        } = *usage;
        let kind = self.of(is_streaming);
        kind.requests.increment(1);
        kind.prompt_tokens.increment(u64::from(prompt_tokens));
        kind.generation_tokens
            .increment(u64::from(completion_tokens));
        kind.e2e_seconds.record(e2e_seconds);
        let from_device = cached_tokens.saturating_sub(loaded_tokens);
        self.cached_tokens.increment(u64::from(from_device));
        if loaded_tokens > 0 {
            let labels = self.stored_labels.clone();
            counter!("sglang:cached_tokens_total", labels).increment(u64::from(loaded_tokens));
        }
        self.prompt_tokens_histogram.record(prompt_tokens);
        self.uncached_prompt_tokens_histogram
            .record(prompt_tokens.saturating_sub(cached_tokens));
        self.generation_tokens_histogram.record(completion_tokens);
    }

    /// Records the mean time of an output token after the first, for a request that ended by itself.
    pub fn decoded(&self, is_streaming: bool, first_to_last_seconds: f64, completion_tokens: u32) {
        if completion_tokens > 1 {
            let seconds = first_to_last_seconds / f64::from(completion_tokens - 1);
            self.of(is_streaming).output_token_seconds.record(seconds);
        }
    }

    pub fn aborted(&self) {
        self.aborted.increment(1);
    }

    /// Counts a request that was cancelled before it reached the scheduler.
    pub fn cancelled_in_intake(&self, is_streaming: bool) {
        self.of(is_streaming).requests.increment(1);
        self.aborted();
    }

    pub fn failed(&self, code: &'static str) {
        match self.failed.iter().find(|(known, _)| *known == code) {
            Some((_, failed)) => failed.increment(1),
            None => failure_counter(code).increment(1),
        }
    }

    /// Counts the bytes of a prompt's text, which is being encoded.
    pub fn encoded_prompt_bytes(&self, bytes: usize) {
        self.encoded_bytes.increment(bytes as u64);
    }

    /// The counter of [`RequestMetrics::encoded_prompt_bytes`], for another thread.
    pub fn encoded_bytes(&self) -> Counter {
        self.encoded_bytes.clone()
    }

    pub fn grammars(&self) -> &GrammarMetrics {
        &self.grammars
    }

    pub fn resumes(&self) -> &ResumeMetrics {
        &self.resumes
    }

    pub fn client_stalled(&self) {
        self.client_stalls.increment(1);
    }
}

fn failure_counter(code: &'static str) -> Counter {
    counter!("souffleur_requests_failed_total", "code" => code)
}
