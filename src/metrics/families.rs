//! Every metric: its name, type, help and buckets.

use metrics::{describe_counter, describe_gauge, describe_histogram};

use super::{kv_events, record, recovery};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    /// A counter with fractions. It is recorded as a gauge, and [`with_counter_types`] corrects the type.
    Seconds,
    Gauge,
    Histogram,
}

#[derive(Clone, Copy, Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    pub buckets: &'static [f64],
}

/// Describes each metric to the recorder that is installed now.
pub fn describe_all() {
    for family in families() {
        match family.kind {
            Kind::Counter => describe_counter!(family.name, family.help),
            Kind::Gauge | Kind::Seconds => describe_gauge!(family.name, family.help),
            Kind::Histogram => describe_histogram!(family.name, family.help),
        }
    }
}

/// The buckets of each histogram. Without buckets, a Prometheus recorder renders a histogram as a summary.
pub fn buckets() -> impl Iterator<Item = (&'static str, &'static [f64])> {
    let histograms = families().filter(|family| family.kind == Kind::Histogram);
    histograms.map(|family| (family.name, family.buckets))
}

/// Corrects the types of the counters of seconds on a Prometheus page.
///
/// Counters of the crate `metrics` are integers, and the metrics' names promise seconds. So seconds are recorded as
/// gauges, and this function replaces the type.
pub fn with_counter_types(page: &str) -> String {
    let is_counter = |name: &str| SECONDS.iter().any(|(known, _)| *known == name);
    let mut corrected = String::with_capacity(page.len());
    for line in page.split_inclusive('\n') {
        let typed = line.strip_prefix("# TYPE ");
        match typed.and_then(|line| line.trim_end().strip_suffix(" gauge")) {
            Some(name) if is_counter(name) => {
                corrected.extend(["# TYPE ", name, " counter\n"]);
            }
            _ => corrected.push_str(line),
        }
    }
    corrected
}

/// Every metric that the library records, including those of the server.
pub fn families() -> impl Iterator<Item = Family> {
    let plain = |kind, rows: &'static [(&'static str, &'static str)]| {
        rows.iter().map(move |(name, help)| Family {
            name,
            kind,
            help,
            buckets: &[],
        })
    };
    let histograms = HISTOGRAMS.iter().chain(&recovery::HISTOGRAMS);
    let histograms = histograms.map(|(name, help, buckets)| Family {
        name,
        kind: Kind::Histogram,
        help,
        buckets,
    });
    plain(Kind::Gauge, &GAUGES)
        .chain(plain(Kind::Gauge, &kv_events::GAUGES))
        .chain(plain(Kind::Counter, &COUNTERS))
        .chain(plain(Kind::Counter, &kv_events::COUNTERS))
        .chain(plain(Kind::Counter, &record::COUNTERS))
        .chain(plain(Kind::Counter, &recovery::COUNTERS))
        .chain(plain(Kind::Seconds, &SECONDS))
        .chain(histograms)
}

const GAUGES: [(&str, &str); 42] = [
    (
        "souffleur_build_info",
        "Always 1; the labels are the version, the commit and the features.",
    ),
    ("souffleur_kv_store_bytes", "Size of the KV store on disk."),
    (
        "sglang:num_running_reqs",
        "Running requests, in prefill or decode.",
    ),
    (
        "sglang:num_queue_reqs",
        "Waiting requests, including retracted ones.",
    ),
    (
        "sglang:num_retracted_reqs",
        "Requests that wait because they were retracted.",
    ),
    (
        "sglang:num_paused_reqs",
        "Always 0: requests are retracted, never paused.",
    ),
    (
        "sglang:num_grammar_queue_reqs",
        "Requests whose grammar is being compiled or queued for compilation.",
    ),
    (
        "sglang:decode_sum_seq_lens",
        "Prompt and output tokens of the decoding requests.",
    ),
    (
        "sglang:gen_throughput",
        "Output tokens per second, over the last second of work.",
    ),
    (
        "sglang:cache_hit_rate",
        "Cached share of the prompt tokens that the last plan admitted; for a rate over time divide \
         cached_tokens_total by prompt_tokens_total.",
    ),
    (
        "sglang:new_token_ratio",
        "Share of the generation budget that running requests reserve.",
    ),
    (
        "sglang:utilization",
        "The larger of running requests over max_running_requests and token usage over 0.9.",
    ),
    (
        "sglang:spec_accept_length",
        "Tokens of a decoding row in a step that may have drafts, over the last rows; 0 without speculation.",
    ),
    (
        "sglang:spec_accept_rate",
        "Accepted part of the drafts, over the last rows; 0 without speculation.",
    ),
    (
        "sglang:spec_num_draft_tokens",
        "The most tokens of a row that a step verifies, its last token included; 0 without speculation.",
    ),
    (
        "sglang:token_usage",
        "Share of the KV pool that requests hold.",
    ),
    (
        "sglang:full_token_usage",
        "Share of the KV pool that requests hold.",
    ),
    (
        "sglang:num_used_tokens",
        "Tokens of the KV pool that requests hold.",
    ),
    (
        "sglang:kv_used_tokens",
        "Tokens of the KV pool that requests hold.",
    ),
    ("sglang:kv_available_tokens", "Tokens of free pages."),
    (
        "sglang:kv_evictable_tokens",
        "Cached tokens that can be evicted.",
    ),
    (
        "sglang:max_total_num_tokens",
        "Tokens that the KV pool holds.",
    ),
    ("sglang:page_size", "Tokens per KV page."),
    ("sglang:num_pages", "Pages of the KV pool."),
    (
        "souffleur_states_used",
        "Recurrent states that requests hold.",
    ),
    ("souffleur_states_cached", "States in the prefix cache."),
    (
        "souffleur_states_max",
        "Recurrent states that fit into memory; 0 if no layer has a state.",
    ),
    (
        "souffleur_window_pages_used",
        "Sliding-window pages that requests hold.",
    ),
    (
        "souffleur_window_pages_cached",
        "Sliding-window pages in the prefix cache that no request needs.",
    ),
    (
        "souffleur_window_pages_max",
        "All sliding-window pages; 0 if these layers keep all tokens, or if no layer has a window.",
    ),
    ("sglang:context_len", "Longest sequence in tokens."),
    (
        "sglang:weight_memory_usage_gb",
        "Memory of the weights in GiB.",
    ),
    (
        "sglang:kv_cache_memory_usage_gb",
        "Memory of the KV pool in GiB.",
    ),
    ("sglang:startup_time_seconds", "Time to start, by phase."),
    (
        "souffleur_actor_mailbox_depth",
        "Messages queued in an actor's mailbox.",
    ),
    (
        "souffleur_beat_age_seconds",
        "Time for which a thread has had work and made no progress.",
    ),
    ("souffleur_prefix_pins", "Prefixes pinned by hosts."),
    (
        "souffleur_soft_prefix_pins",
        "Prefixes that stay cached until their memory is needed: conversations of stored responses.",
    ),
    (
        "sglang:http_requests_active",
        "HTTP requests in flight, streams until their end.",
    ),
    ("souffleur_websocket_connections_active", "Open WebSockets."),
    (
        "souffleur_image_vectors_bytes",
        "Size of the vectors of images that are kept or that requests wait with.",
    ),
    (
        "souffleur_websocket_outbound_queue_depth",
        "Messages being written to WebSockets.",
    ),
];

const COUNTERS: [(&str, &str); 43] = [
    (
        "sglang:prefetched_tokens_total",
        "Tokens whose K/V was read from the KV store.",
    ),
    (
        "sglang:backuped_tokens_total",
        "Tokens whose K/V was written to the KV store.",
    ),
    (
        "souffleur_kv_store_short_fetches_total",
        "Fetches from the KV store that returned fewer blocks than requested, by reason.",
    ),
    (
        "souffleur_kv_store_unwritten_tokens_total",
        "Cached tokens that were copied for the KV store and not written, by reason.",
    ),
    (
        "souffleur_images_received_total",
        "Images of prompts that were accepted.",
    ),
    (
        "souffleur_images_encoded_total",
        "Images that the vision tower has encoded.",
    ),
    (
        "souffleur_images_reused_total",
        "Images that a request needed, and that were encoded for another request.",
    ),
    ("sglang:num_retracted_requests_total", "Retractions."),
    (
        "souffleur_preemptions_total",
        "Running requests preempted by one of higher priority.",
    ),
    (
        "sglang:num_retracted_input_tokens_total",
        "Prompt tokens of retracted requests, at each retraction.",
    ),
    (
        "sglang:num_retracted_output_tokens_total",
        "Tokens that retracted requests had generated, at each retraction.",
    ),
    (
        "sglang:realtime_tokens_total",
        "Tokens processed so far: prefill_compute, prefill_cache, decode (output tokens that requests got).",
    ),
    (
        "sglang:evicted_tokens_total",
        "Cached tokens that were evicted.",
    ),
    (
        "sglang:prompt_tokens_total",
        "Prompt tokens of ended requests.",
    ),
    (
        "sglang:generation_tokens_total",
        "Tokens generated by ended requests.",
    ),
    (
        "sglang:cached_tokens_total",
        "Prompt tokens of ended requests that came from the cache.",
    ),
    (
        "sglang:num_requests_total",
        "Requests that ended, cancelled ones included.",
    ),
    (
        "sglang:num_aborted_requests_total",
        "Requests that were cancelled.",
    ),
    (
        "sglang:num_so_requests_total",
        "Requests whose output follows a grammar.",
    ),
    (
        "sglang:num_grammar_total",
        "Requested grammars; a prompt with many samples counts once.",
    ),
    (
        "sglang:num_grammar_cache_hit_total",
        "Grammars found in the cache.",
    ),
    (
        "sglang:num_grammar_aborted_total",
        "Grammars that were refused, or whose clients disconnected.",
    ),
    (
        "sglang:num_grammar_timeout_total",
        "Grammars that took too long to compile.",
    ),
    ("souffleur_requests_received_total", "Admitted requests."),
    (
        "souffleur_requests_failed_total",
        "Requests refused or failed, by code.",
    ),
    (
        "souffleur_client_stalls_total",
        "Deltas queued because a client read too slowly.",
    ),
    (
        "souffleur_encoded_prompt_bytes_total",
        "Text of prompts that was rendered and encoded, in bytes; a prompt with many samples counts once.",
    ),
    ("souffleur_actor_deaths_total", "Actors that died."),
    (
        "souffleur_chaos_firings_total",
        "Faults that --chaos injected, by actor and kind.",
    ),
    ("souffleur_steps_planned_total", "Steps planned."),
    (
        "sglang:spec_verify_calls_total",
        "Rows of decodes that may have drafts, one for each request and step.",
    ),
    (
        "souffleur_spec_draft_tokens_total",
        "Drafts that steps have verified, by source.",
    ),
    (
        "souffleur_spec_accepted_tokens_total",
        "Drafts that equalled the output, by source.",
    ),
    (
        "souffleur_pages_lost_total",
        "KV pages dropped instead of returned to the pool: a bug.",
    ),
    (
        "souffleur_stale_messages_total",
        "Messages dropped because they came too late.",
    ),
    (
        "souffleur_integrity_failures_total",
        "Plans at which free, evictable, protected and private tokens did not add up to the pool: a bug.",
    ),
    (
        "souffleur_prefix_misses_total",
        "Admitted requests, by the cause that ended their cached prefix; match_limit and page_floor are no misses.",
    ),
    (
        "souffleur_prefix_missed_tokens_total",
        "Prompt tokens that could have come from the cache and did not, by cause.",
    ),
    (
        "souffleur_changing_headers_dropped_total",
        "Headers that change with every request, left out of the system prompts of /v1/messages.",
    ),
    (
        "sglang:http_requests_total",
        "HTTP requests, by route and method.",
    ),
    (
        "sglang:http_responses_total",
        "HTTP responses, by route, method and status.",
    ),
    (
        "souffleur_websocket_connections_total",
        "WebSockets opened.",
    ),
    (
        "souffleur_websocket_aborts_total",
        "Requests cancelled because their WebSocket closed, by reason.",
    ),
];

const SECONDS: [(&str, &str); 4] = [
    (
        "sglang:forward_execution_seconds_total",
        "Time in forward passes: extend, decode, mixed.",
    ),
    (
        "sglang:scheduler_idle_seconds_total",
        "Time without any request between two steps.",
    ),
    (
        "souffleur_gpu_seconds_total",
        "Time of a GPU in decodes, in steps that prefill, and waiting before decodes.",
    ),
    (
        "souffleur_image_encoding_seconds_total",
        "Time of steps that encoded images, with the decodes in them.",
    ),
];

const HISTOGRAMS: [(&str, &str, &[f64]); 14] = [
    (
        "sglang:queue_time_seconds",
        "Time from intake to first admission.",
        &QUEUE_SECONDS,
    ),
    (
        "sglang:time_to_first_token_seconds",
        "Time from intake to the first token.",
        &TTFT_SECONDS,
    ),
    (
        "sglang:inter_token_latency_seconds",
        "Time from one token to the next.",
        &TOKEN_SECONDS,
    ),
    (
        "sglang:request_time_per_output_token_seconds",
        "Mean time of a request's tokens after the first.",
        &TOKEN_SECONDS,
    ),
    (
        "sglang:e2e_request_latency_seconds",
        "Time from intake to the end.",
        &E2E_SECONDS,
    ),
    (
        "sglang:prompt_tokens_histogram",
        "Prompt tokens of a request.",
        &TOKENS,
    ),
    (
        "sglang:uncached_prompt_tokens_histogram",
        "Prompt tokens of a request that did not come from the cache.",
        &TOKENS,
    ),
    (
        "sglang:generation_tokens_histogram",
        "Tokens generated by a request.",
        &TOKENS,
    ),
    (
        "sglang:eviction_duration_seconds",
        "Time of an eviction.",
        &EVICTION_SECONDS,
    ),
    (
        "sglang:grammar_compilation_time_seconds",
        "Time from the request of an uncached grammar to its compilation or cancellation.",
        &GRAMMAR_SECONDS,
    ),
    (
        "souffleur_actor_handler_seconds",
        "Time in a handler of an actor.",
        &HANDLER_SECONDS,
    ),
    (
        "souffleur_step_seconds",
        "Time of the executor in a step.",
        &STEP_SECONDS,
    ),
    (
        "souffleur_step_overhead_seconds",
        "Time that the executor waited for a step while there was work.",
        &HANDLER_SECONDS,
    ),
    (
        "souffleur_websocket_connection_duration_seconds",
        "Time that a WebSocket was open.",
        &CONNECTION_SECONDS,
    ),
];

/// As SGLang's `queue_time_seconds`.
const QUEUE_SECONDS: [f64; 40] = [
    0.0, 0.001, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 15.0, 20.0, 30.0,
    40.0, 50.0, 60.0, 70.0, 80.0, 90.0, 100.0, 200.0, 300.0, 400.0, 500.0, 600.0, 700.0, 800.0,
    900.0, 1000.0, 1200.0, 1400.0, 1600.0, 1800.0, 2000.0, 2500.0, 3000.0,
];

/// As SGLang's `time_to_first_token_seconds`.
const TTFT_SECONDS: [f64; 18] = [
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0,
];

/// As SGLang's `e2e_request_latency_seconds`.
const E2E_SECONDS: [f64; 22] = [
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0, 600.0, 1200.0, 1800.0, 2400.0,
];

/// As SGLang's `inter_token_latency_seconds`.
const TOKEN_SECONDS: [f64; 23] = [
    0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08, 0.1, 0.2,
    0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
];

/// As SGLang's `prompt_tokens_histogram`.
const TOKENS: [f64; 35] = [
    100.0, 300.0, 500.0, 700.0, 1e3, 1.5e3, 2e3, 3e3, 4e3, 5e3, 6e3, 7e3, 8e3, 9e3, 1e4, 1.25e4,
    1.5e4, 1.75e4, 2e4, 2.25e4, 2.5e4, 2.75e4, 3e4, 3.5e4, 4e4, 6e4, 8e4, 1e5, 2e5, 3e5, 4e5, 6e5,
    8e5, 1e6, 1.1e6,
];

/// As SGLang's `eviction_duration_seconds`.
const EVICTION_SECONDS: [f64; 18] = [
    0.001, 0.002, 0.003, 0.004, 0.005, 0.006, 0.007, 0.008, 0.009, 0.01, 0.02, 0.03, 0.04, 0.05,
    0.1, 0.2, 0.5, 1.0,
];

/// As SGLang's `grammar_compilation_time_seconds`.
const GRAMMAR_SECONDS: [f64; 17] = [
    0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 90.0, 120.0, 240.0,
];

/// From one message between actors (under a microsecond) to a handler that delays a decode step.
const HANDLER_SECONDS: [f64; 14] = [
    1e-6, 2e-6, 5e-6, 1e-5, 2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1,
];

/// From a decode step of the bundled model to a long prefill of a large one, on a CPU.
const STEP_SECONDS: [f64; 15] = [
    5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1, 2e-1, 5e-1, 1.0, 2.0, 5.0, 10.0, 30.0,
];

/// From a single question to a day's conversation.
const CONNECTION_SECONDS: [f64; 10] = [
    0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 86400.0,
];
