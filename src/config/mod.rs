//! The engine's configuration: names and defaults as SGLang has them, units in the docs.
//!
//! A key stands here, in [`EngineConfig`], with its doc, its default and its bounds; the binary makes its flag and its
//! environment variable of that. `config/default.toml` says why a default is what it is.

mod choices;
mod derived;
pub mod keys;
mod validate;

use std::path::PathBuf;

use crate::kernels::cuda::gemm::GemmWish;
use crate::kernels::dtype::Quantization;
use crate::model::loader::LoadFormat;
use crate::state::scheduler::{PREFILL_DECODE_INTERVAL, PREFILL_DECODE_INTERVAL_MIN_BS};
pub use choices::{Device, DtypeChoice};
use keys::Flag;
use validate::{
    MAX_CLIENT_CHANNEL_EVENTS, MAX_REBUILD_ATTEMPTS, MAX_REBUILD_BACKOFF_S, MAX_RUNNING_REQUESTS,
    MAX_THREADS, MIN_RECORD_BYTES,
};

const MODEL: Flag = Flag::under("Model");
const MEMORY: Flag = Flag::under("Memory");
const SCHEDULING: Flag = Flag::under("Scheduling");
const CLIENTS: Flag = Flag::under("Clients").rare();
const LOG: Flag = Flag::under("Log");
const FAILURE: Flag = Flag::under("Failure").rare();

keys::keys! {
    /// Everything that decides how an engine runs. `config/default.toml` says the same with reasons.
    pub struct EngineConfig {
        /// Folder of a model in Hugging Face layout; without it the bundled model is served.
        #[flag(MODEL.takes("DIR").alias("model"))]
        model_path: PathBuf = PathBuf::new(),
        /// Name that /v1/models lists; the folder's name if not given.
        #[flag(MODEL.takes("NAME"))]
        served_model_name: Option<String> = None,
        /// Storage of weights and KV; auto takes what the weights are stored in.
        #[flag(MODEL)]
        dtype: DtypeChoice = DtypeChoice::Auto,
        /// Quantises matrices when they are loaded: a quarter of f32's memory, half of bfloat16's, and less precise.
        #[flag(MODEL)]
        quantization: Option<Quantization> = None,
        /// Weights from the model's folder, or random ones in the shapes of its config.json, to measure with.
        #[flag(MODEL)]
        load_format: LoadFormat = LoadFormat::Auto,
        /// Where to compute: auto, cpu, cuda or cuda:N. auto is the CPU: no GPU has run the CUDA code yet, so it has to
        /// be asked for.
        #[flag(MODEL.takes("DEVICE"))]
        device: Device = Device::Auto,
        /// Library that multiplies matrices on a GPU; auto takes cuBLASLt if it can be loaded, else own kernels.
        #[flag(MODEL.rare())]
        gemm: GemmWish = GemmWish::Auto,
        /// Launches every kernel of a decode on its own, on a GPU.
        #[flag(MODEL.rare())]
        disable_cuda_graph: bool = false,
        /// Largest batch whose decode is recorded in a CUDA graph; larger ones are launched kernel by kernel.
        // As SGLang sets it for a GPU of 80 GB.
        #[flag(MODEL.takes("REQUESTS").rare())]
        cuda_graph_max_bs: usize = 256,
        /// Compute threads; 0 takes one per physical core.
        #[flag(MODEL.takes("N"))]
        #[range(..=MAX_THREADS)]
        threads: usize = 0,
        /// Binds each compute thread to a core, if there are as many threads as cores that the process may use.
        #[flag(MODEL)]
        pin_threads: bool = true,
        /// Tokens per KV page, from 1 to 256; 1, 16, 32 and 64 are usual.
        #[flag(MEMORY.takes("TOKENS"))]
        page_size: u32 = 1,
        /// Share of the free memory for weights and KV pool together; `souffleur plan` prints the largest safe one.
        #[flag(MEMORY.takes("0..1"))]
        mem_fraction_static: Option<f64> = None,
        /// Tokens of the KV pool, instead of deriving them from memory.
        #[flag(MEMORY.takes("TOKENS"))]
        max_total_tokens: Option<usize> = None,
        /// Longest sequence in tokens; the model's own limit if not given.
        #[flag(MODEL.takes("TOKENS"))]
        context_length: Option<usize> = None,
        /// Most requests that prefill or decode at once; derived from the KV pool if not given.
        #[flag(SCHEDULING.takes("N"))]
        #[range(1..=MAX_RUNNING_REQUESTS)]
        max_running_requests: Option<usize> = None,
        /// Most requests in the engine, waiting and running; the next one gets 503.
        #[flag(SCHEDULING.takes("N"))]
        #[range(1..)]
        max_queued_requests: usize = 4096,
        /// Most prompt tokens of all requests in the engine; the next request gets 503.
        #[flag(SCHEDULING.takes("TOKENS"))]
        #[range(1..)]
        max_queued_tokens: usize = 16 << 20,
        /// Most input tokens of one prefill step.
        #[flag(SCHEDULING.takes("TOKENS"))]
        #[range(1..)]
        max_prefill_tokens: usize = 16384,
        /// Longer prompts are prefilled in chunks of this many tokens; 0 or less turns that off.
        #[flag(SCHEDULING.takes("TOKENS"))]
        #[range(..=i64::from(i32::MAX))]
        chunked_prefill_size: i64 = 4096,
        /// Lets requests that decode ride in the steps that prefill others; needs chunked prefill.
        #[flag(SCHEDULING)]
        enable_mixed_chunk: bool = false,
        /// Decode steps that follow a prefill step in which a request could have decoded but did not; 0 turns that off.
        #[flag(SCHEDULING.takes("STEPS"))]
        prefill_decode_interval: usize = PREFILL_DECODE_INTERVAL,
        /// Least number of decoding requests for which the steps of `--prefill-decode-interval` are inserted.
        #[flag(SCHEDULING.takes("N").rare())]
        prefill_decode_interval_min_bs: usize = PREFILL_DECODE_INTERVAL_MIN_BS,
        /// Order of the waiting queue: fcfs, lpm, dfs-weight, lof, random, hrrn or shortest-prefill-first.
        #[flag(SCHEDULING.takes("POLICY"))]
        schedule_policy: String = "fcfs".to_owned(),
        /// Serves the larger priority first, by the policy among equals; running requests give way to much better ones.
        #[flag(SCHEDULING)]
        enable_priority_scheduling: bool = false,
        /// With `--enable-priority-scheduling`: the smaller value first.
        #[flag(SCHEDULING)]
        schedule_low_priority_values_first: bool = false,
        /// With `--enable-priority-scheduling`: no running request gives way to a better one.
        #[flag(SCHEDULING)]
        disable_priority_preemption: bool = false,
        /// With `--enable-priority-scheduling`: a running request gives way only to one that is better by more than
        /// this.
        #[flag(SCHEDULING.takes("N"))]
        #[range(0..)]
        priority_scheduling_preemption_threshold: i64 = 10,
        /// Factor, at most 100, on the expected output of running requests: above 1 means fewer retractions and smaller
        /// batches.
        #[flag(SCHEDULING.takes("FACTOR"))]
        schedule_conservativeness: f64 = 1.0,
        /// Order in which cached prefixes are evicted: lru, lfu, fifo, mru, filo, priority, slru or tlru.
        #[flag(MEMORY.takes("POLICY"))]
        radix_eviction_policy: String = "lru".to_owned(),
        /// Parameters of slru ({"protected_threshold": 2}) and tlru ({"threshold": 4096, "next_prompt_estimate": 200}).
        #[flag(MEMORY.takes("JSON").rare())]
        radix_eviction_policy_config: Option<String> = None,
        /// Turns the prefix cache off: every prompt is computed in full.
        #[flag(MEMORY)]
        disable_radix_cache: bool = false,
        /// Holds a request for a step or two when its prefix is being prefilled by another one.
        #[flag(SCHEDULING)]
        prefix_wait: bool = true,
        /// Seconds that a request may wait for its first step; then it gets 503. No limit if not given.
        #[flag(SCHEDULING.takes("SECONDS"))]
        req_waiting_timeout_s: Option<f64> = None,
        /// Seconds that a request may run from its first step on; then it ends with 503. No limit if not given.
        #[flag(SCHEDULING.takes("SECONDS"))]
        req_running_timeout_s: Option<f64> = None,
        /// Remembers where prompts left the cache and what was evicted, for /debug/prefix.
        #[flag(MEMORY)]
        prefix_diagnostics: bool = true,
        /// Requests of which `--prefix-diagnostics` remembers the prefix.
        #[flag(MEMORY.takes("N").rare())]
        #[range(1..)]
        prefix_diagnostics_requests: usize = 1024,
        /// Evicted pages that `--prefix-diagnostics` remembers, up to 50 bytes each.
        ///
        /// Of the last flush up to 32768 more are remembered.
        #[flag(MEMORY.takes("PAGES").rare())]
        prefix_diagnostics_pages: usize = 1 << 18,
        /// Most prefixes that hosts may pin at once.
        #[flag(MEMORY.takes("N"))]
        max_pins: usize = 256,
        /// Events that wait for a slow reader before they are merged.
        #[flag(CLIENTS.takes("N"))]
        #[range(1..=MAX_CLIENT_CHANNEL_EVENTS)]
        client_channel_events: usize = 64,
        /// Bytes that may wait for a slow reader of one call before it is cancelled.
        ///
        /// The call's requests share them, but each has 64 KiB.
        #[flag(CLIENTS.takes("BYTES"))]
        client_backlog_bytes: usize = 1 << 20,
        /// Most log probabilities of the prompts of one call, and of one answer that is kept whole.
        ///
        /// They are counted as positions × (1 + alternatives + tokens asked for by id).
        #[flag(CLIENTS.takes("N"))]
        #[range(1..)]
        max_logprob_entries: usize = 1 << 20,
        /// Most stop strings of one request.
        #[flag(CLIENTS.takes("N"))]
        max_stop_strings: usize = 32,
        /// Longest stop string, in bytes.
        #[flag(CLIENTS.takes("BYTES"))]
        max_stop_bytes: usize = 1024,
        /// Most stop token ids of one request.
        #[flag(CLIENTS.takes("N"))]
        max_stop_token_ids: usize = 1024,
        /// Most tokens that one request gives a bias.
        #[flag(CLIENTS.takes("N"))]
        max_logit_bias: usize = 1024,
        /// Most alternatives per position, for top log probabilities and for chosen tokens alike.
        #[flag(CLIENTS.takes("N"))]
        max_logprobs: usize = 1024,
        /// Longest extra_key, and longest cache_salt, in bytes.
        #[flag(CLIENTS.takes("BYTES"))]
        max_extra_key_bytes: usize = 256,
        /// Takes and returns token ids only; no tokenizer is loaded.
        #[flag(MODEL)]
        skip_tokenizer_init: bool = false,
        /// File for the message log: what enters the scheduler, prompts included, for `souffleur replay-log`.
        #[flag(LOG.takes("FILE"))]
        record: Option<PathBuf> = None,
        /// Size at which the message log ends, in bytes.
        #[flag(LOG.takes("BYTES").rare())]
        #[range(MIN_RECORD_BYTES..)]
        record_max_bytes: u64 = 1 << 30,
        /// Attempts to start the engine anew after a part of it died; then the server ends with exit code 1.
        #[flag(FAILURE.takes("N"))]
        #[range(1..=MAX_REBUILD_ATTEMPTS)]
        rebuild_attempts: usize = 5,
        /// Seconds between the first two of these attempts, up to 60; each wait is twice the one before.
        #[flag(FAILURE.takes("SECONDS"))]
        #[range(0.0..=MAX_REBUILD_BACKOFF_S)]
        rebuild_backoff_s: f64 = 1.0,
    }
}
