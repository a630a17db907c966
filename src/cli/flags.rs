//! The flags, one for each configuration key: `page_size` is `--page-size` and `SOUFFLEUR_PAGE_SIZE`.
//!
//! Defaults are not written here: [`super::command`] adds them to the help from the configuration types.

mod server;

use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{ArgAction, Args};
use serde::Serialize;
use souffleur::config::Device;

pub use server::ServerFlags;

const QUANTIZATIONS: [&str; 1] = ["int8"];
const LOAD_FORMATS: [&str; 2] = ["auto", "dummy"];
const DTYPES: [&str; 4] = ["auto", "float32", "float16", "bfloat16"];
const GEMMS: [&str; 3] = ["auto", "cublaslt", "own"];

fn device(name: &str) -> Result<String, String> {
    name.parse::<Device>().map(String::from)
}

/// The file to read, and the flags of all sections.
#[derive(Args, Clone, Debug, Default)]
pub struct AllFlags {
    /// TOML file with sections [engine], [server] and [log]; config/default.toml shows every key
    #[arg(
        long,
        value_name = "FILE",
        env = "SOUFFLEUR_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub server: ServerFlags,
    #[command(flatten)]
    pub log: LogFlags,
}

/// The file to read, and the flags of an engine without a server.
#[derive(Args, Clone, Debug, Default)]
pub struct LocalFlags {
    /// TOML file with sections [engine], [server] and [log]; config/default.toml shows every key
    #[arg(
        long,
        value_name = "FILE",
        env = "SOUFFLEUR_CONFIG",
        hide_env_values = true
    )]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub engine: EngineFlags,
    #[command(flatten)]
    pub log: LogFlags,
}

impl From<LocalFlags> for AllFlags {
    fn from(flags: LocalFlags) -> Self {
        let LocalFlags {
            config,
            engine,
            log,
        } = flags;
        Self {
            config,
            engine,
            log,
            server: ServerFlags::default(),
        }
    }
}

/// Section `[engine]`.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct EngineFlags {
    /// Folder of a model in Hugging Face layout; without it the bundled model is served
    #[arg(long, alias = "model", value_name = "DIR", help_heading = "Model")]
    pub model_path: Option<PathBuf>,
    /// Name that /v1/models lists; the folder's name if not given
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    pub served_model_name: Option<String>,
    /// Storage of weights and KV; auto takes what the weights are stored in
    #[arg(long, value_parser = DTYPES, help_heading = "Model")]
    pub dtype: Option<String>,
    /// Quantise matrices when they are loaded: a quarter of f32's memory, half of bfloat16's, and less precise
    #[arg(long, value_parser = QUANTIZATIONS, help_heading = "Model")]
    pub quantization: Option<String>,
    /// Weights from the model's folder, or random ones of its config.json's shapes, to measure with
    #[arg(long, value_parser = LOAD_FORMATS, help_heading = "Model")]
    pub load_format: Option<String>,
    /// Where to compute: auto, cpu, cuda or cuda:N. auto is the CPU: no GPU has run the CUDA code yet, so it has to be
    /// asked for
    #[arg(long, value_name = "DEVICE", value_parser = device, help_heading = "Model")]
    pub device: Option<String>,
    /// Whose matrix products to use on a GPU; auto takes cuBLASLt if it can be loaded
    #[arg(long, value_parser = GEMMS, help_heading = "Model", hide_short_help = true)]
    pub gemm: Option<String>,
    /// Launch every kernel of a decode on its own, on a GPU
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Model",
        hide_short_help = true
    )]
    pub disable_cuda_graph: Option<bool>,
    /// Largest batch whose decode is recorded in a CUDA graph
    #[arg(
        long,
        value_name = "REQUESTS",
        help_heading = "Model",
        hide_short_help = true
    )]
    pub cuda_graph_max_bs: Option<usize>,
    /// Compute threads; 0 takes one per physical core
    #[arg(long, value_name = "N", help_heading = "Model")]
    pub threads: Option<usize>,
    /// Bind each compute thread to a core, if there are as many threads as cores that the process may use
    #[arg(
        long,
        value_name = "on|off",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Model"
    )]
    pub pin_threads: Option<bool>,
    /// Longest sequence in tokens; the model's own limit if not given
    #[arg(long, value_name = "TOKENS", help_heading = "Model")]
    pub context_length: Option<usize>,
    /// Take and return token ids only; no tokenizer is loaded
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Model"
    )]
    pub skip_tokenizer_init: Option<bool>,

    /// Tokens per KV page, from 1 to 256
    #[arg(long, value_name = "TOKENS", help_heading = "Memory")]
    pub page_size: Option<u32>,
    /// Share of the free memory for weights and KV pool together; `souffleur plan` prints the largest safe one
    #[arg(long, value_name = "0..1", help_heading = "Memory")]
    pub mem_fraction_static: Option<f64>,
    /// Tokens of the KV pool, instead of deriving them from memory
    #[arg(long, value_name = "TOKENS", help_heading = "Memory")]
    pub max_total_tokens: Option<usize>,
    /// Which cached prefix is evicted first: lru, lfu, fifo, mru, filo, priority, slru or tlru
    #[arg(long, value_name = "POLICY", help_heading = "Memory")]
    pub radix_eviction_policy: Option<String>,
    /// Parameters of slru ({"protected_threshold": 2}) and tlru ({"threshold": 4096, "next_prompt_estimate": 200})
    #[arg(
        long,
        value_name = "JSON",
        help_heading = "Memory",
        hide_short_help = true
    )]
    pub radix_eviction_policy_config: Option<String>,
    /// Turn the prefix cache off: every prompt is computed in full
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Memory"
    )]
    pub disable_radix_cache: Option<bool>,
    /// Most prefixes that hosts may pin at once
    #[arg(long, value_name = "N", help_heading = "Memory")]
    pub max_pins: Option<usize>,

    /// Most requests that prefill or decode at once; derived from the KV pool if not given
    #[arg(long, value_name = "N", help_heading = "Scheduling")]
    pub max_running_requests: Option<usize>,
    /// Most requests in the engine, waiting and running; the next one gets 503
    #[arg(long, value_name = "N", help_heading = "Scheduling")]
    pub max_queued_requests: Option<usize>,
    /// Most prompt tokens of all requests in the engine; the next request gets 503
    #[arg(long, value_name = "TOKENS", help_heading = "Scheduling")]
    pub max_queued_tokens: Option<usize>,
    /// Most input tokens of one prefill step
    #[arg(long, value_name = "TOKENS", help_heading = "Scheduling")]
    pub max_prefill_tokens: Option<usize>,
    /// Longer prompts are prefilled in chunks of this many tokens; 0 or less turns that off
    #[arg(
        long,
        value_name = "TOKENS",
        allow_negative_numbers = true,
        help_heading = "Scheduling"
    )]
    pub chunked_prefill_size: Option<i64>,
    /// Let requests that decode ride in the steps that prefill others
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Scheduling"
    )]
    pub enable_mixed_chunk: Option<bool>,
    /// Decode steps that follow a prefill step in which a request could have decoded but did not; 0 turns that off
    #[arg(long, value_name = "STEPS", help_heading = "Scheduling")]
    pub prefill_decode_interval: Option<usize>,
    /// Least number of decoding requests for which the steps of --prefill-decode-interval are inserted
    #[arg(
        long,
        value_name = "N",
        help_heading = "Scheduling",
        hide_short_help = true
    )]
    pub prefill_decode_interval_min_bs: Option<usize>,
    /// Order of the waiting queue: fcfs, lpm, dfs-weight, lof, random, hrrn or shortest-prefill-first
    #[arg(long, value_name = "POLICY", help_heading = "Scheduling")]
    pub schedule_policy: Option<String>,
    /// Serve the larger priority first, by the policy among equals; running requests give way to much better ones
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Scheduling"
    )]
    pub enable_priority_scheduling: Option<bool>,
    /// With --enable-priority-scheduling: the smaller value first
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Scheduling"
    )]
    pub schedule_low_priority_values_first: Option<bool>,
    /// With --enable-priority-scheduling: no running request gives way to a better one
    #[arg(
        long,
        value_name = "on|off",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Scheduling"
    )]
    pub disable_priority_preemption: Option<bool>,
    /// With --enable-priority-scheduling: a running request gives way only to one that is better by more than this
    #[arg(long, value_name = "N", help_heading = "Scheduling")]
    pub priority_scheduling_preemption_threshold: Option<i64>,
    /// Factor on the expected output of running requests: above 1 means fewer retractions and smaller batches
    #[arg(long, value_name = "FACTOR", help_heading = "Scheduling")]
    pub schedule_conservativeness: Option<f64>,
    /// Hold a request for a step or two when its prefix is being prefilled by another one
    #[arg(
        long,
        value_name = "on|off",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Scheduling"
    )]
    pub prefix_wait: Option<bool>,
    /// Seconds that a request may wait for its first step; then it gets 503. No limit if not given
    #[arg(long, value_name = "SECONDS", help_heading = "Scheduling")]
    pub req_waiting_timeout_s: Option<f64>,
    /// Seconds that a request may run from its first step on; then it ends with 503. No limit if not given
    #[arg(long, value_name = "SECONDS", help_heading = "Scheduling")]
    pub req_running_timeout_s: Option<f64>,
    /// Remember where prompts left the cache and what was evicted, for /debug/prefix
    #[arg(
        long,
        value_name = "on|off",
        action = ArgAction::Set,
        value_parser = BoolishValueParser::new(),
        hide_possible_values = true,
        help_heading = "Memory"
    )]
    pub prefix_diagnostics: Option<bool>,
    /// Requests whose prefix is remembered
    #[arg(
        long,
        value_name = "N",
        help_heading = "Memory",
        hide_short_help = true
    )]
    pub prefix_diagnostics_requests: Option<usize>,
    /// Evicted pages that are remembered, up to 50 bytes each
    #[arg(
        long,
        value_name = "PAGES",
        help_heading = "Memory",
        hide_short_help = true
    )]
    pub prefix_diagnostics_pages: Option<usize>,

    /// Events that wait for a slow reader before they are merged
    #[arg(
        long,
        value_name = "N",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub client_channel_events: Option<usize>,
    /// Bytes of text that may wait for a slow reader before it is cancelled
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub client_backlog_bytes: Option<usize>,
    /// Most log probabilities of a prompt, and of an answer that is kept whole
    #[arg(
        long,
        value_name = "N",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub max_logprob_entries: Option<usize>,
    /// Most stop strings of one request
    #[arg(
        long,
        value_name = "N",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub max_stop_strings: Option<usize>,
    /// Longest stop string, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub max_stop_bytes: Option<usize>,
    /// Most stop token ids of one request
    #[arg(
        long,
        value_name = "N",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub max_stop_token_ids: Option<usize>,
    /// Most tokens that one request gives a bias
    #[arg(
        long,
        value_name = "N",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub max_logit_bias: Option<usize>,
    /// Most alternatives per position, for top log probabilities and for chosen tokens alike
    #[arg(
        long,
        value_name = "N",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub max_logprobs: Option<usize>,
    /// Longest extra_key, and longest cache_salt, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Clients",
        hide_short_help = true
    )]
    pub max_extra_key_bytes: Option<usize>,

    /// Write what enters the scheduler, prompts included, to a file for `souffleur replay-log`
    #[arg(long, value_name = "FILE", help_heading = "Log")]
    pub record: Option<PathBuf>,
    /// Size at which the message log ends
    #[arg(
        long,
        value_name = "BYTES",
        help_heading = "Log",
        hide_short_help = true
    )]
    pub record_max_bytes: Option<u64>,

    /// Attempts to start the engine anew after a part of it died; then the server ends with exit code 1
    #[arg(
        long,
        value_name = "N",
        help_heading = "Failure",
        hide_short_help = true
    )]
    pub rebuild_attempts: Option<usize>,
    /// Seconds between the first two of these attempts; each wait is twice the one before
    #[arg(
        long,
        value_name = "SECONDS",
        help_heading = "Failure",
        hide_short_help = true
    )]
    pub rebuild_backoff_s: Option<f64>,
}

/// Section `[log]`.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub struct LogFlags {
    /// Least level that is logged, to stderr: error, warn, info, debug, trace, or `target=level` pairs
    #[arg(long, value_name = "LEVEL", help_heading = "Log")]
    pub log_level: Option<String>,
}
