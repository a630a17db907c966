//! The engine's configuration. Names and defaults follow SGLang.
//!
//! [`EngineConfig`] declares each key with its doc, default and bounds; the binary derives a flag and an environment
//! variable from each declaration. `config/default.toml` gives the reasons for the defaults.

mod choices;
mod derived;
pub mod keys;
mod speculation;
mod validate;

use std::path::PathBuf;

pub use choices::{
    AttentionBackend, Device, DtypeChoice, Gpus, KvCacheDtype, KvWritePolicy, MaxRestarts,
};
use keys::Flag;
use souffleur_chaos::Spec;
use souffleur_kernels::cpu::Numa;
use souffleur_kernels::dtype::Quantization;
use souffleur_kernels::gemm::GemmWish;
use souffleur_model::loader::LoadFormat;
use souffleur_model::sparsity::ChannelType;
use souffleur_state::cache::eviction::EvictionPolicy;
use souffleur_state::router::LoadBalance;
use souffleur_state::scheduler::{PREFILL_DECODE_INTERVAL, PREFILL_DECODE_INTERVAL_MIN_BS};
use souffleur_state::speculation::MAX_ROOM;
use speculation::{MAX_CAPACITY, MAX_MATCH, MIN_CAPACITY, MIN_MATCH, MIN_ROOM};
pub use speculation::{SpeculationWish, SpeculativeAlgorithm};
use validate::{
    MAX_CHOSEN_TOKENS, MAX_CLIENT_CHANNEL_EVENTS, MAX_IMAGE_PIXELS, MAX_KV_PREFETCH_S,
    MAX_LONG_REQUEST_S, MAX_RANKS, MAX_REBUILD_ATTEMPTS, MAX_REBUILD_BACKOFF_S, MAX_REPLICAS,
    MAX_RUNNING_REQUESTS, MAX_STATE_INTERVAL_TOKENS, MAX_THREADS, MAX_WATCHDOG_TIMEOUT_S,
    MIN_KV_DISK_BYTES, MIN_KV_HOST_BYTES, MIN_KV_WRITE_SHARE, MIN_RECORD_BYTES,
};

const MODEL: Flag = Flag::under("Model");
const MEMORY: Flag = Flag::under("Memory");
const SCHEDULING: Flag = Flag::under("Scheduling");
const CLIENTS: Flag = Flag::under("Clients").rare();
const LOG: Flag = Flag::under("Log");
const FAILURE: Flag = Flag::under("Failure").rare();

crate::keys! {
    /// All settings of an engine. `config/default.toml` explains the defaults.
    pub struct EngineConfig {
        /// Model: a GGUF file (the first one of a split model), a folder in Hugging Face layout, or an id on the Hugging Face
        /// hub, which is downloaded. If not given, the bundled model is served.
        ///
        /// Ids are owner/name, owner/name:QUANTISATION and owner/name/FILE.gguf. A path that exists is never an id.
        #[flag(MODEL.takes("PATH|ID").aliases(&["model"]))]
        model_path: PathBuf = PathBuf::new(),
        /// Branch, tag or commit of a model on the Hugging Face hub; main if not given.
        #[flag(MODEL.takes("REVISION"))]
        revision: Option<String> = None,
        /// Name that /v1/models lists; the name of the folder or file, or the id, if not given.
        #[flag(MODEL.takes("NAME"))]
        served_model_name: Option<String> = None,
        /// GGUF file with the vision tower of the model and its projector (mmproj), which lets the model read images.
        ///
        /// Without it, the file mmproj*.gguf in the folder of a GGUF model is taken, if only one there fits the model.
        #[flag(MODEL.takes("FILE"))]
        mmproj: Option<PathBuf> = None,
        /// Loads no vision tower, neither one in the model's files nor one next to a GGUF model: the model takes text only.
        #[flag(MODEL.rare())]
        no_mmproj: bool = false,
        /// Data type in which weights and KV are stored; auto keeps the type of the weights.
        #[flag(MODEL)]
        dtype: DtypeChoice = DtypeChoice::Auto,
        /// Data type in which keys and values are cached; auto is that of the weights.
        ///
        /// int8 takes half the memory of bfloat16 and is less precise: signed bytes, with one scale for each 32 elements of a
        /// head's key or value. On a GPU, KV has the type of the weights: another one is refused.
        #[flag(MODEL)]
        kv_cache_dtype: KvCacheDtype = KvCacheDtype::Auto,
        /// Quantises matrices when they are loaded: int8 takes half the memory of bfloat16, int4 three tenths, but they are
        /// less precise.
        #[flag(MODEL)]
        quantization: Option<Quantization> = None,
        /// Weights from the model's files (auto), or random ones with the shapes in its config.json or GGUF file, for
        /// benchmarking (dummy).
        #[flag(MODEL)]
        load_format: LoadFormat = LoadFormat::Auto,
        /// Format in which the model writes tool calls: qwen25, qwen, hermes, qwen3_coder, llama3, pythonic, mistral, lfm2,
        /// glm, glm45, glm47, deepseekv3, deepseekv31, gpt-oss, gemma4, granite, phi4_mini_json; auto chooses by the model's
        /// chat template and vocabulary, none leaves calls in the text.
        #[flag(MODEL.takes("NAME"))]
        tool_call_parser: String = "auto".to_owned(),
        /// Format in which the model writes its reasoning: qwen3, qwen3-thinking, deepseek-r1, deepseek-v3, glm45, gpt-oss,
        /// interns1, mistral, gemma4; auto chooses by the model's chat template and vocabulary, none leaves reasoning in the text.
        #[flag(MODEL.takes("NAME"))]
        reasoning_parser: String = "auto".to_owned(),
        /// Where to compute: auto, cpu, cuda, cuda:N, or several GPUs as cuda:0,cuda:1. auto means the CPU: a GPU must
        /// be requested explicitly.
        ///
        /// With `--dp-size`, cuda means a GPU for each replica, from number 0 on. If there are fewer GPUs than
        /// replicas, the replicas have them in turn, and those on one GPU share its memory. With `--tp-size`, each rank
        /// has a GPU, and cuda:N is the first of them.
        #[flag(MODEL.takes("DEVICE"))]
        device: Device = Device::Auto,
        /// Kernels of attention: auto or native, the only backend of each device.
        #[flag(MODEL.takes("NAME").rare())]
        attention_backend: AttentionBackend = AttentionBackend::Auto,
        /// Library that multiplies matrices on a GPU; auto uses cuBLASLt if it can be loaded, but the built-in kernels
        /// (own) for at most 8 rows of bfloat16 on Hopper and later, and without cuBLASLt for all.
        #[flag(MODEL.rare())]
        gemm: GemmWish = GemmWish::Auto,
        /// On a GPU, launches the kernels of a decode step one by one instead of replaying a CUDA graph.
        #[flag(MODEL.rare())]
        disable_cuda_graph: bool = false,
        /// Largest batch whose decode is recorded in a CUDA graph; larger ones are launched kernel by kernel.
        // As SGLang sets it for a GPU of 80 GB.
        #[flag(MODEL.takes("REQUESTS").rare())]
        cuda_graph_max_bs: usize = 256,
        /// Compute threads; 0 means one per physical core.
        #[flag(MODEL.takes("N"))]
        #[range(..=MAX_THREADS)]
        threads: usize = 0,
        /// Binds each compute thread to a core, if there are as many threads as cores that the process, or the replica,
        /// may use.
        #[flag(MODEL)]
        pin_threads: bool = true,
        /// Divides threads, weights and KV memory among the machine's NUMA nodes: auto does if the process may use the CPUs of
        /// two or more, off never does.
        ///
        /// Outputs are the same.
        #[flag(MODEL)]
        numa: Numa = Numa::Auto,
        /// Number of replicas of the model in this process, among which requests are divided.
        ///
        /// Each replica has its copy of the weights, its KV pool and its prefix cache. The free memory of a device is
        /// divided among the replicas on it. The cores are divided among replicas on a CPU, with `--numa auto` by NUMA
        /// node where the numbers allow it; `--device` chooses the GPUs. `--threads` and `--max-total-tokens` are those
        /// of each replica. `souffleur plan` shows the cores or the GPU of each. The flag is also called --dp and
        /// --data-parallel-size.
        #[flag(MODEL.takes("N").aliases(&["dp", "data-parallel-size"]))]
        #[range(1..=MAX_REPLICAS)]
        dp_size: usize = 1,
        /// With `--dp-size`: which replica gets a request: the one with the fewest tokens to compute before its first
        /// token, less those in the replica's cache (prefix), each in turn (round_robin), or the one whose requests
        /// have the fewest tokens (total_tokens).
        #[flag(SCHEDULING.takes("METHOD"))]
        load_balance_method: LoadBalance = LoadBalance::Prefix,
        /// Ranks that share the model (tensor parallelism), each with a part of the weights and of the KV memory, and on
        /// a CPU of the threads, on GPUs with a GPU.
        ///
        /// Outputs may differ from those of one rank, as sums are rounded differently. The flag is also called --tp and
        /// --tensor-parallel-size.
        #[flag(MODEL.takes("N").aliases(&["tp", "tensor-parallel-size"]))]
        #[range(1..=MAX_RANKS)]
        tp_size: usize = 1,
        /// Tokens per KV page, from 1 to 256; 1, 16, 32 and 64 are usual.
        #[flag(MEMORY.takes("TOKENS"))]
        page_size: u32 = 1,
        /// Fraction of the free memory to use for weights and KV pool together; `souffleur plan` prints the largest
        /// safe value.
        #[flag(MEMORY.takes("0..1"))]
        mem_fraction_static: Option<f64> = None,
        /// Size of the KV pool in tokens, instead of one derived from the free memory; more than fits is refused, or clipped
        /// with `--mem-fraction-static`.
        #[flag(MEMORY.takes("TOKENS"))]
        max_total_tokens: Option<usize> = None,
        /// Tokens that layers with a sliding window hold for each token of the KV pool, on a CPU and with chunked prefill;
        /// always at least as many as one sequence needs.
        #[flag(MEMORY.takes("0..1").rare())]
        swa_full_tokens_ratio: f64 = 0.25,
        /// Number of states, of running requests and of cached prefixes together, in models whose layers keep states;
        /// derived from the KV pool if not given.
        ///
        /// At least one more than `--max-running-requests`, which is lowered to fit if it is not given. With
        /// `--disable-radix-cache` there is one for each running request.
        #[flag(MEMORY.takes("STATES"))]
        #[range(2..=MAX_RUNNING_REQUESTS)]
        max_mamba_cache_size: Option<usize> = None,
        /// Distance in tokens at which long prefills save states; 0 saves none at regular distances; by default so large
        /// that cached states take no more memory than the KV cache of their tokens.
        #[flag(MEMORY.takes("TOKENS"))]
        #[range(..=MAX_STATE_INTERVAL_TOKENS)]
        mamba_track_interval: Option<usize> = None,
        /// Lets queries with a long context attend to some tokens only, which they choose by a few channels of the keys;
        /// CPU only, needs `--ds-channel-config-path`.
        ///
        /// Outputs change. Layers with a window or a state stay as they are; models with latent attention are refused.
        #[flag(MEMORY)]
        enable_double_sparsity: bool = false,
        /// With `--enable-double-sparsity`: JSON file of the keys' channels by importance, made by `souffleur calibrate`.
        #[flag(MEMORY.takes("FILE"))]
        ds_channel_config_path: Option<PathBuf> = None,
        /// With `--enable-double-sparsity`: number of channels of each key by which tokens are chosen; if not given, a quarter
        /// of them and at least 32.
        #[flag(MEMORY.takes("N").rare())]
        #[range(1..)]
        ds_heavy_channel_num: Option<usize> = None,
        /// With `--enable-double-sparsity`: number of tokens that each query head attends to, the query's own among them.
        #[flag(MEMORY.takes("TOKENS"))]
        #[range(1..=MAX_CHOSEN_TOKENS)]
        ds_heavy_token_num: usize = 256,
        /// With `--enable-double-sparsity`: the statistic by which the file ranks channels: queries and keys (qk), queries
        /// (q) or keys (k).
        #[flag(MEMORY.rare())]
        ds_heavy_channel_type: ChannelType = ChannelType::Qk,
        /// With `--enable-double-sparsity`: number of tokens, its own among them, that a query must see to be sparse; in
        /// prefill too.
        #[flag(MEMORY.takes("TOKENS"))]
        #[range(1..)]
        ds_sparse_decode_threshold: usize = 4096,
        /// Longest sequence in tokens; the model's own limit if not given.
        #[flag(MODEL.takes("TOKENS"))]
        context_length: Option<usize> = None,
        /// Maximum number of requests that prefill or decode at once; derived from the KV pool if not given.
        #[flag(SCHEDULING.takes("N"))]
        #[range(1..=MAX_RUNNING_REQUESTS)]
        max_running_requests: Option<usize> = None,
        /// Maximum number of requests in the engine, waiting and running; further ones get 503.
        #[flag(SCHEDULING.takes("N"))]
        #[range(1..)]
        max_queued_requests: usize = 4096,
        /// Maximum total of the tokens of all requests' prompts and predictions in the engine; further requests get 503.
        #[flag(SCHEDULING.takes("TOKENS"))]
        #[range(1..)]
        max_queued_tokens: usize = 16 << 20,
        /// Maximum number of input tokens in one prefill step.
        #[flag(SCHEDULING.takes("TOKENS"))]
        #[range(1..)]
        max_prefill_tokens: usize = 16384,
        /// Prompts longer than this many tokens are prefilled in chunks of that size; 0 or less turns that off.
        #[flag(SCHEDULING.takes("TOKENS"))]
        #[range(..=i64::from(i32::MAX))]
        chunked_prefill_size: i64 = 4096,
        /// Longest time in milliseconds that a step with a prefill takes while other requests decode: chunks are shortened to
        /// fit that time at the measured rate; 0 sets no limit. Needs chunked prefill.
        #[flag(SCHEDULING.takes("MS"))]
        #[range(..=validate::MAX_STEP_MS)]
        max_prefill_step_ms: u32 = souffleur_state::scheduler::MAX_PREFILL_STEP_MS,
        /// Lets decoding requests share a step with requests that prefill (mixed batches); needs chunked prefill.
        #[flag(SCHEDULING)]
        enable_mixed_chunk: bool = false,
        /// Number of decode steps to run after each prefill step that made decoding requests wait; 0 inserts none.
        #[flag(SCHEDULING.takes("STEPS"))]
        prefill_decode_interval: usize = PREFILL_DECODE_INTERVAL,
        /// Minimum number of decoding requests needed for `--prefill-decode-interval` to insert its decode steps.
        #[flag(SCHEDULING.takes("N").rare())]
        prefill_decode_interval_min_bs: usize = PREFILL_DECODE_INTERVAL_MIN_BS,
        /// Speculative decoding, CPU only: NGRAM guesses the next tokens of a request (drafts) from its prompt, output and
        /// prediction, and verifies them in one step; it is off if not given.
        ///
        /// Outputs are the same. A step has drafts only where measured times show that they pay.
        #[flag(SCHEDULING.takes("NAME"))]
        speculative_algorithm: Option<SpeculativeAlgorithm> = None,
        /// With `--speculative-algorithm`: the most tokens of a request that a step verifies, its last token and the drafts;
        /// 8 if not given. A request may lower it.
        #[flag(SCHEDULING.takes("TOKENS"))]
        #[range(MIN_ROOM..=MAX_ROOM)]
        speculative_num_draft_tokens: Option<u32> = None,
        /// With `--speculative-algorithm`: the longest run of equal tokens that the search for drafts compares; 12 if not
        /// given.
        #[flag(SCHEDULING.takes("TOKENS").rare())]
        #[range(MIN_MATCH..=MAX_MATCH)]
        speculative_ngram_max_match_window_size: Option<usize> = None,
        /// With `--speculative-algorithm`: the most tokens of text that are searched for one request; 262144 if not given.
        ///
        /// Up to 16 bytes of memory a token: of the request's own text (prompt and longest output), and as many of its other
        /// texts.
        #[flag(SCHEDULING.takes("TOKENS").rare())]
        #[range(MIN_CAPACITY..=MAX_CAPACITY)]
        speculative_ngram_capacity: Option<usize> = None,
        /// The settings of `--speculative-algorithm` in vLLM's form, in place of them: {"method": "ngram",
        /// "num_speculative_tokens": 7, "prompt_lookup_max": 12}; the method suffix is the same.
        #[flag(SCHEDULING.takes("JSON").rare())]
        speculative_config: Option<String> = None,
        /// Order of the waiting queue: fcfs, lpm, dfs-weight, lof, random, hrrn or shortest-prefill-first.
        ///
        /// fcfs: first come, first served; lpm: longest prefix match; dfs-weight: by branch of the prefix tree; lof:
        /// longest output first; hrrn: highest response ratio next.
        #[flag(SCHEDULING.takes("POLICY"))]
        schedule_policy: String = "fcfs".to_owned(),
        /// Serves requests with a larger priority first; the scheduling policy orders those of equal priority.
        ///
        /// Running requests are preempted by ones that outrank them by enough
        /// (`--priority-scheduling-preemption-threshold`).
        #[flag(SCHEDULING)]
        enable_priority_scheduling: bool = false,
        /// With `--enable-priority-scheduling`: the smaller value first.
        #[flag(SCHEDULING)]
        schedule_low_priority_values_first: bool = false,
        /// With `--enable-priority-scheduling`: never preempts a running request, even for one that outranks it.
        #[flag(SCHEDULING)]
        disable_priority_preemption: bool = false,
        /// With `--enable-priority-scheduling`: a running request is preempted only by one that outranks it by more
        /// than this.
        #[flag(SCHEDULING.takes("N"))]
        #[range(0..)]
        priority_scheduling_preemption_threshold: i64 = 10,
        /// Factor, at most 100, by which the expected output length of running requests is multiplied: above 1, batches
        /// are smaller, and fewer running requests go back to the queue (are retracted) because the KV pool is full.
        #[flag(SCHEDULING.takes("FACTOR"))]
        schedule_conservativeness: f64 = 1.0,
        /// Order in which cached prefixes are evicted; `config/default.toml` describes the policies.
        #[flag(MEMORY.takes(EvictionPolicy::CHOICES))]
        radix_eviction_policy: String = "lru".to_owned(),
        /// Parameters of slru ({"protected_threshold": 2}) and tlru ({"threshold": 4096, "next_prompt_estimate": 200}).
        #[flag(MEMORY.takes("JSON").rare())]
        radix_eviction_policy_config: Option<String> = None,
        /// Turns the prefix cache off: every prompt is computed in full.
        #[flag(MEMORY)]
        disable_radix_cache: bool = false,
        /// Folder in which the KV store keeps cached prefixes on disk, so that they outlive memory and restarts; without it
        /// nothing is stored.
        ///
        /// A reader of the folder who has the model can reconstruct prompts: it is readable by its owner only, and not
        /// encrypted.
        #[flag(MEMORY.takes("DIR"))]
        kv_disk_path: Option<PathBuf> = None,
        /// With `--kv-disk-path`: maximum size of the KV store in bytes, for all models together; the oldest goes first.
        #[flag(MEMORY.takes("BYTES"))]
        #[range(MIN_KV_DISK_BYTES..)]
        kv_disk_bytes: u64 = 64 << 30,
        /// With `--kv-disk-path`: memory for K/V on its way to the disk and back, in bytes; an eighth of the KV pool, but at
        /// least 512 MiB, if not given.
        #[flag(MEMORY.takes("BYTES").rare())]
        #[range(MIN_KV_HOST_BYTES..)]
        kv_host_bytes: Option<u64> = None,
        /// With `--kv-disk-path`: which prefixes are stored, all (write_through) or those that were used twice
        /// (write_through_selective).
        #[flag(MEMORY.takes("POLICY"))]
        kv_write_policy: KvWritePolicy = KvWritePolicy::WriteThrough,
        /// With `--kv-disk-path`: largest share of the compute threads' time that disk writes take while the threads compute.
        /// The rest is written once they are idle. With 1 everything is written at once.
        #[flag(MEMORY.takes("SHARE").rare())]
        #[range(MIN_KV_WRITE_SHARE..=1.0)]
        kv_write_share: f64 = 0.01,
        /// With `--kv-disk-path`: seconds that a request waits for a prefix from the disk, of any length.
        #[flag(MEMORY.takes("SECONDS").rare())]
        #[range(0.0..=MAX_KV_PREFETCH_S)]
        kv_prefetch_timeout_base_s: f64 = 1.0,
        /// With `--kv-disk-path`: additional seconds that a request waits for each 1,024 tokens of its prefix.
        #[flag(MEMORY.takes("SECONDS").rare())]
        #[range(0.0..=MAX_KV_PREFETCH_S)]
        kv_prefetch_timeout_per_ki_token_s: f64 = 0.25,
        /// Memory for vectors of images in bytes, in each replica: an image that comes again is not encoded again as long as its
        /// vectors are in memory, or its K/V is cached.
        #[flag(MEMORY.takes("BYTES").rare())]
        image_cache_bytes: u64 = 256 << 20,
        /// Delays a request by a step or two while another request is prefilling the same prefix.
        #[flag(SCHEDULING)]
        prefix_wait: bool = true,
        /// Seconds that a request may wait for its first step; then it gets 503. No limit if not given.
        #[flag(SCHEDULING.takes("SECONDS"))]
        req_waiting_timeout_s: Option<f64> = None,
        /// Seconds that a request may run, counted from its first step; after that it fails with 503. No limit if not
        /// given.
        #[flag(SCHEDULING.takes("SECONDS"))]
        req_running_timeout_s: Option<f64> = None,
        /// Remembers where each prompt stopped matching the cache and what was evicted, for /debug/prefix.
        #[flag(MEMORY)]
        prefix_diagnostics: bool = true,
        /// Number of recent requests that `--prefix-diagnostics` remembers.
        #[flag(MEMORY.takes("N").rare())]
        #[range(1..)]
        prefix_diagnostics_requests: usize = 1024,
        /// Number of evicted pages that `--prefix-diagnostics` remembers, at up to 50 bytes of memory each.
        ///
        /// In addition, up to 32768 pages of the last cache flush are remembered.
        #[flag(MEMORY.takes("PAGES").rare())]
        prefix_diagnostics_pages: usize = 1 << 18,
        /// Publishes over ZeroMQ which blocks of tokens the prefix cache holds, as SGLang does, for routers and indexers: JSON
        /// such as {"publisher": "zmq", "endpoint": "tcp://*:5557"}.
        ///
        /// Every client that connects to that port reads the tokens of all prompts. With `--dp-size`, each replica
        /// publishes on the next port. docs/kv-events.md describes the events, and every key of the object: endpoint,
        /// replay_endpoint, topic, buffer_steps, hwm, max_queue_size, format, encoding, block_size.
        #[flag(MEMORY.takes("JSON").rare())]
        kv_events_config: Option<String> = None,
        /// Maximum number of prefixes that are pinned at once by applications that embed the engine.
        #[flag(MEMORY.takes("N"))]
        max_pins: usize = 256,
        /// Number of output events queued for a slow client; further ones are merged.
        #[flag(CLIENTS.takes("N"))]
        #[range(1..=MAX_CLIENT_CHANNEL_EVENTS)]
        client_channel_events: usize = 64,
        /// Bytes of output that may be queued for one call whose client reads slowly.
        ///
        /// If a call consists of several requests (prompts × samples), each gets an equal share of this limit, but at
        /// least 64 KiB, or the whole limit if it is smaller than that. A request that exceeds its share fails with
        /// `slow_client`; the others go on.
        #[flag(CLIENTS.takes("BYTES"))]
        client_backlog_bytes: usize = 1 << 20,
        /// Maximum number of log probabilities for all prompts of one call; also the maximum for an answer that the
        /// server buffers until it is complete.
        ///
        /// The number is positions × (1 + alternatives + requested token ids).
        #[flag(CLIENTS.takes("N"))]
        #[range(1..)]
        max_logprob_entries: usize = 1 << 20,
        /// Maximum number of stop strings per request.
        #[flag(CLIENTS.takes("N"))]
        max_stop_strings: usize = 32,
        /// Longest stop string, in bytes.
        #[flag(CLIENTS.takes("BYTES"))]
        max_stop_bytes: usize = 1024,
        /// Maximum number of stop token ids per request.
        #[flag(CLIENTS.takes("N"))]
        max_stop_token_ids: usize = 1024,
        /// Maximum number of tokens to which one request may give a bias.
        #[flag(CLIENTS.takes("N"))]
        max_logit_bias: usize = 1024,
        /// Maximum number of alternatives per position, both for top log probabilities and for requested token ids.
        #[flag(CLIENTS.takes("N"))]
        max_logprobs: usize = 1024,
        /// Longest extra_key, and longest cache_salt, in bytes.
        #[flag(CLIENTS.takes("BYTES"))]
        max_extra_key_bytes: usize = 256,
        /// Maximum number of pixels of an image, width times height; larger ones are refused by their headers.
        #[flag(CLIENTS.takes("PIXELS"))]
        #[range(1..=MAX_IMAGE_PIXELS)]
        max_image_pixels: usize = 16 << 20,
        /// Maximum number of tokens that an image becomes; larger ones are scaled down to fit. 256 if not given; 280 with
        /// Gemma 4.
        ///
        /// More tokens show more detail, and take longer to encode. Gemma 3 has as many for every image: less is refused.
        #[flag(CLIENTS.takes("TOKENS"))]
        #[range(1..)]
        image_max_tokens: Option<u32> = None,
        /// Accepts and returns token ids only; no tokenizer is loaded.
        #[flag(MODEL)]
        skip_tokenizer_init: bool = false,
        /// File for the message log: everything that enters the scheduler and everything it decides, for `souffleur
        /// replay-log`.
        ///
        /// The log holds prompts and outputs as token ids and is readable by its owner only. An existing log is renamed
        /// to FILE.old.
        #[flag(LOG.takes("FILE"))]
        record: Option<PathBuf> = None,
        /// Maximum size of the message log in bytes; recording stops there.
        #[flag(LOG.takes("BYTES").rare())]
        #[range(MIN_RECORD_BYTES..)]
        record_max_bytes: u64 = 1 << 30,
        /// Seconds after which a request in flight is logged, and logged again each time as many
        /// seconds have passed; 0 for none.
        #[flag(LOG.takes("SECONDS"))]
        #[range(0.0..=MAX_LONG_REQUEST_S)]
        log_long_requests_s: f64 = 30.0,
        /// Most restarts in any period after parts of the engine have died; with one more death the server exits with
        /// code 70.
        ///
        /// 5/60s allows 5 restarts in any 60 seconds. With 0/60s the first death ends the server.
        #[flag(FAILURE.takes("RESTARTS/SECONDSs"))]
        max_restarts: MaxRestarts = MaxRestarts::DEFAULT,
        /// Seconds after which a thread that has work and makes no progress counts as hung, and the server exits with
        /// code 70; 0 for never.
        ///
        /// Progress of a step is each layer of the model, so a long prefill is no hang. The flag is also called
        /// --watchdog-timeout.
        #[flag(FAILURE.takes("SECONDS").aliases(&["watchdog-timeout"]))]
        #[range(0.0..=MAX_WATCHDOG_TIMEOUT_S)]
        watchdog_timeout_s: f64 = 300.0,
        /// Number of attempts to load the model again after the executor has died; if all fail, the server exits with
        /// code 70.
        #[flag(FAILURE.takes("N"))]
        #[range(1..=MAX_REBUILD_ATTEMPTS)]
        rebuild_attempts: usize = 5,
        /// Seconds between the first two attempts of `--rebuild-attempts`, at most 60.
        ///
        /// The wait doubles after each further failure, up to 60.
        #[flag(FAILURE.takes("SECONDS"))]
        #[range(0.0..=MAX_REBUILD_BACKOFF_S)]
        rebuild_backoff_s: f64 = 1.0,
        /// Faults to inject for tests of the recovery, such as actor=radix_cache,kind=panic,probability=0.001,seed=7;
        /// several are separated by semicolons, or given by repeating the flag.
        ///
        /// docs/chaos.md lists actors, kinds and keys. A server that listens on another address than loopback needs
        /// `--chaos-force`.
        #[flag(FAILURE.takes("SPEC"))]
        chaos: Vec<Spec> = Vec::new(),
    }
}
