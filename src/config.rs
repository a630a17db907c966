//! The engine's configuration: names and defaults as SGLang has them, units in the docs.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::actors::watchdog::RebuildRules;
use crate::error::ConfigError;
use crate::kernels::cuda::gemm::GemmWish;
use crate::model::loader::LoadFormat;
use crate::model::weights::{Dtype, Quantization};
use crate::request::RequestTimeouts;
use crate::state::eviction::{EvictionParameters, EvictionPolicy};
use crate::state::pages::PageSize;
use crate::state::policy::{PriorityOrder, schedule_policy};
use crate::state::preemption::PriorityRules;
use crate::state::request_limits::RequestLimits;
use crate::state::scheduler::{
    BatchRules, IntakeLimits, PREFILL_DECODE_INTERVAL, PREFILL_DECODE_INTERVAL_MIN_BS,
};

/// Most tokens per page: larger pages hold whole prompts, so little is shared.
const MAX_PAGE_TOKENS: u32 = 256;
/// Room for the message log's header and end, and something between them.
const MIN_RECORD_BYTES: u64 = 64 << 10;
/// A token of prompt, one generated, and the one that an admission keeps free.
const MIN_CONTEXT_TOKENS: usize = 3;
/// As SGLang sets it for a GPU of 80 GB.
const CUDA_GRAPH_MAX_BS: usize = 256;
/// More than any machine has cores: each takes a stack, and waits for all the others.
const MAX_THREADS: usize = 1024;
/// Limit because rows of the page table and of the samplers are allocated at the start, used or not.
const MAX_RUNNING_REQUESTS: usize = 1 << 16;
/// Limit because waiting events are merged: keeping more of them apart has no use.
const MAX_CLIENT_CHANNEL_EVENTS: usize = 1 << 16;
/// Attempts that double their wait each time reach its limit long before.
const MAX_REBUILD_ATTEMPTS: usize = 1000;
/// Longest wait between two attempts to build the actors anew, in seconds.
const MAX_REBUILD_BACKOFF_S: f64 = 60.0;
/// Beyond it graphs take more memory than launches take time.
const MAX_CUDA_GRAPH_MAX_BS: usize = 4096;
/// Requests let in beyond `max_queued_requests` where priorities decide, so that a full queue can be compared with
/// who comes. More than these at once are turned away whatever their priority.
const PRIORITY_DOOR_REQUESTS: usize = 64;

/// Everything that decides how an engine runs. `config/default.toml` says the same with reasons.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// Folder of a model in Hugging Face layout.
    pub model_path: PathBuf,
    /// Name that `/v1/models` lists; the folder's name when absent.
    pub served_model_name: Option<String>,
    /// Storage of weights and KV.
    pub dtype: DtypeChoice,
    /// What matrices are quantised to when they are loaded; as stored when absent.
    pub quantization: Option<Quantization>,
    /// Where weights come from.
    pub load_format: LoadFormat,
    /// Where to compute.
    pub device: Device,
    /// Whose matrix products to use on a GPU.
    pub gemm: GemmWish,
    /// Launches every kernel of a decode on its own, on a GPU.
    pub disable_cuda_graph: bool,
    /// Largest batch whose decode is recorded in a CUDA graph; larger ones are launched kernel by kernel.
    pub cuda_graph_max_bs: usize,
    /// Compute threads; 0 takes one per physical core.
    pub threads: usize,
    /// Binds compute threads to cores, if they are as many as the process may use.
    pub pin_threads: bool,
    /// Tokens per KV page, from 1 to 256; 1, 16, 32 and 64 are usual.
    pub page_size: u32,
    /// Share of the free memory for weights and KV pool together, in (0, 1).
    pub mem_fraction_static: Option<f64>,
    /// Tokens of the KV pool, instead of deriving them from memory.
    pub max_total_tokens: Option<usize>,
    /// Longest sequence in tokens; the model's own limit when absent.
    pub context_length: Option<usize>,
    /// Most requests that prefill or decode at once.
    pub max_running_requests: Option<usize>,
    /// Most requests in the engine, waiting and running.
    pub max_queued_requests: usize,
    /// Most prompt tokens of all requests in the engine.
    pub max_queued_tokens: usize,
    /// Most input tokens of one prefill step.
    pub max_prefill_tokens: usize,
    /// Most input tokens of one chunk; 0 or less turns chunked prefill off.
    pub chunked_prefill_size: i64,
    /// Lets requests that decode ride in the steps that prefill others; needs chunked prefill.
    pub enable_mixed_chunk: bool,
    /// Decode steps that follow a prefill step in which a request could have decoded but did not; 0 turns that off.
    pub prefill_decode_interval: usize,
    /// Least number of decoding requests for which these decode steps are inserted.
    pub prefill_decode_interval_min_bs: usize,
    /// Order of the waiting queue.
    pub schedule_policy: String,
    /// Serves requests by their `priority` first, by the policy among equals; running ones give way to better ones.
    pub enable_priority_scheduling: bool,
    /// With priorities: the smaller value first.
    pub schedule_low_priority_values_first: bool,
    /// With priorities: lets running requests end before better ones are admitted.
    pub disable_priority_preemption: bool,
    /// A running request gives way to one whose priority is better by more than this.
    pub priority_scheduling_preemption_threshold: i64,
    /// More than 0, at most 100; above 1 reserves more for running requests: fewer retractions, smaller batches.
    pub schedule_conservativeness: f64,
    /// Which cached prefix is evicted first.
    pub radix_eviction_policy: String,
    /// Parameters of the eviction policy, a JSON object with the fields of [`EvictionParameters`].
    pub radix_eviction_policy_config: Option<String>,
    /// Turns the prefix cache off: every prompt is computed in full.
    pub disable_radix_cache: bool,
    /// Holds a request for a step or two when its prefix is being prefilled by another one.
    pub prefix_wait: bool,
    /// Seconds that a request may wait for its first step.
    pub req_waiting_timeout_s: Option<f64>,
    /// Seconds that a request may run from its first step on.
    pub req_running_timeout_s: Option<f64>,
    /// Remembers where prompts left the tree, and what was evicted.
    pub prefix_diagnostics: bool,
    /// Requests whose prefix is remembered.
    pub prefix_diagnostics_requests: usize,
    /// Evicted pages that are remembered, up to 50 bytes each; of the last flush up to 32,768 more.
    pub prefix_diagnostics_pages: usize,
    /// Most prefixes that hosts may pin at once.
    pub max_pins: usize,
    /// Events that wait for a slow reader before they are merged.
    pub client_channel_events: usize,
    /// Bytes that may wait for a slow reader of one call before it is cancelled. Its requests share them, but each has
    /// 64 KiB.
    pub client_backlog_bytes: usize,
    /// Most log probabilities of the prompts of one call, and of one answer that is kept whole: positions × (1 +
    /// alternatives + tokens asked for by id).
    pub max_logprob_entries: usize,
    /// Most stop strings of one request.
    pub max_stop_strings: usize,
    /// Longest stop string, in bytes.
    pub max_stop_bytes: usize,
    /// Most stop token ids of one request.
    pub max_stop_token_ids: usize,
    /// Most tokens that one request gives a bias.
    pub max_logit_bias: usize,
    /// Most alternatives per position, for top log probabilities and for chosen tokens alike.
    pub max_logprobs: usize,
    /// Longest `extra_key`, and longest `cache_salt`, in bytes.
    pub max_extra_key_bytes: usize,
    /// Takes and returns token ids only; no tokenizer is loaded.
    pub skip_tokenizer_init: bool,
    /// File for the message log; none is kept when absent. It holds prompts, as token ids.
    pub record: Option<PathBuf>,
    /// Size at which the message log ends.
    pub record_max_bytes: u64,
    /// Attempts to build the actors anew after one of them died; after the last that failed the engine gives up.
    pub rebuild_attempts: usize,
    /// Seconds between the first two of these attempts, up to 60; each wait is twice the one before.
    pub rebuild_backoff_s: f64,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            model_path: PathBuf::new(),
            served_model_name: None,
            dtype: DtypeChoice::Auto,
            quantization: None,
            load_format: LoadFormat::Auto,
            device: Device::Auto,
            gemm: GemmWish::Auto,
            disable_cuda_graph: false,
            cuda_graph_max_bs: CUDA_GRAPH_MAX_BS,
            threads: 0,
            pin_threads: true,
            page_size: 1,
            mem_fraction_static: None,
            max_total_tokens: None,
            context_length: None,
            max_running_requests: None,
            max_queued_requests: 4096,
            max_queued_tokens: 16 << 20,
            max_prefill_tokens: 16384,
            chunked_prefill_size: 4096,
            enable_mixed_chunk: false,
            prefill_decode_interval: PREFILL_DECODE_INTERVAL,
            prefill_decode_interval_min_bs: PREFILL_DECODE_INTERVAL_MIN_BS,
            schedule_policy: "fcfs".to_owned(),
            enable_priority_scheduling: false,
            schedule_low_priority_values_first: false,
            disable_priority_preemption: false,
            priority_scheduling_preemption_threshold: 10,
            schedule_conservativeness: 1.0,
            radix_eviction_policy: "lru".to_owned(),
            radix_eviction_policy_config: None,
            disable_radix_cache: false,
            prefix_wait: true,
            req_waiting_timeout_s: None,
            req_running_timeout_s: None,
            prefix_diagnostics: true,
            prefix_diagnostics_requests: 1024,
            prefix_diagnostics_pages: 1 << 18,
            max_pins: 256,
            client_channel_events: 64,
            client_backlog_bytes: 1 << 20,
            max_logprob_entries: 1 << 20,
            max_stop_strings: 32,
            max_stop_bytes: 1024,
            max_stop_token_ids: 1024,
            max_logit_bias: 1024,
            max_logprobs: 1024,
            max_extra_key_bytes: 256,
            skip_tokenizer_init: false,
            record: None,
            record_max_bytes: 1 << 30,
            rebuild_attempts: 5,
            rebuild_backoff_s: 1.0,
        }
    }
}

/// Storage of weights and KV.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DtypeChoice {
    /// What the weights are stored in.
    #[default]
    Auto,
    /// 32-bit floats.
    Float32,
    /// IEEE half precision.
    Float16,
    /// bfloat16.
    Bfloat16,
}

impl DtypeChoice {
    /// The type that was asked for; `None` for that of the weights.
    pub fn named(self) -> Option<Dtype> {
        match self {
            Self::Auto => None,
            Self::Float32 => Some(Dtype::F32),
            Self::Float16 => Some(Dtype::F16),
            Self::Bfloat16 => Some(Dtype::BF16),
        }
    }
}

/// Where to compute: `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Device {
    /// The CPU, until the CUDA code has run on a GPU; then the best device there is.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(usize),
}

impl FromStr for Device {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let unknown = || format!("is {name:?}, must be auto, cpu, cuda or cuda:N (N from 0)");
        match name {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            "cuda" => Ok(Self::Cuda(0)),
            _ => {
                let number = name.strip_prefix("cuda:").ok_or_else(unknown)?;
                let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
                let ordinal = number.parse().ok().filter(|_| is_number);
                ordinal.map(Self::Cuda).ok_or_else(unknown)
            }
        }
    }
}

impl TryFrom<String> for Device {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        name.parse()
    }
}

impl From<Device> for String {
    fn from(device: Device) -> Self {
        match device {
            Device::Auto => "auto".to_owned(),
            Device::Cpu => "cpu".to_owned(),
            Device::Cuda(ordinal) => format!("cuda:{ordinal}"),
        }
    }
}

impl EngineConfig {
    /// Checks every value against its limits.
    ///
    /// # Errors
    /// Names the first key that is out of range, its value and the limit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_pool()?;
        self.validate_policies()?;
        if let Some(fraction) = self.mem_fraction_static {
            check(
                fraction > 0.0 && fraction < 1.0,
                "mem_fraction_static",
                || format!("is {fraction}, must lie between 0 and 1"),
            )?;
        }
        let conservativeness = self.schedule_conservativeness;
        let is_sane = conservativeness > 0.0 && conservativeness <= 100.0;
        check(is_sane, "schedule_conservativeness", || {
            format!("is {conservativeness}, must lie in (0, 100]")
        })?;
        let at_least_one = [
            ("max_running_requests", self.max_running_requests),
            ("max_queued_requests", Some(self.max_queued_requests)),
            ("max_queued_tokens", Some(self.max_queued_tokens)),
            ("max_prefill_tokens", Some(self.max_prefill_tokens)),
            ("client_channel_events", Some(self.client_channel_events)),
            ("max_logprob_entries", Some(self.max_logprob_entries)),
            (
                "prefix_diagnostics_requests",
                Some(self.prefix_diagnostics_requests),
            ),
        ];
        for (key, value) in at_least_one {
            check(value != Some(0), key, || {
                "is 0, must be at least 1".to_owned()
            })?;
        }
        self.validate_sizes()?;
        self.validate_rebuilds()?;
        let threshold = self.priority_scheduling_preemption_threshold;
        check(
            threshold >= 0,
            "priority_scheduling_preemption_threshold",
            || format!("is {threshold}, must be at least 0"),
        )?;
        let graphs = self.cuda_graph_max_bs;
        check(
            (1..=MAX_CUDA_GRAPH_MAX_BS).contains(&graphs),
            "cuda_graph_max_bs",
            || {
                format!(
                    "is {graphs}, must lie between 1 and {MAX_CUDA_GRAPH_MAX_BS}; disable_cuda_graph turns graphs off"
                )
            },
        )?;
        let timeouts = [
            ("req_waiting_timeout_s", self.req_waiting_timeout_s),
            ("req_running_timeout_s", self.req_running_timeout_s),
        ];
        for (key, value) in timeouts {
            let seconds = value.unwrap_or(1.0);
            check(seconds > 0.0 && seconds.is_finite(), key, || {
                format!("is {seconds}, must be more than 0; leave it out for no limit")
            })?;
        }
        let record_bytes = self.record_max_bytes;
        check(record_bytes >= MIN_RECORD_BYTES, "record_max_bytes", || {
            format!("is {record_bytes}, must be at least {MIN_RECORD_BYTES}")
        })?;
        let (chunk, page) = (self.chunked_prefill_size, self.page_size);
        check(
            chunk <= 0 || chunk >= i64::from(page),
            "chunked_prefill_size",
            || format!("is {chunk}, must be at least page_size ({page}), or 0 or less for none"),
        )?;
        check(chunk <= i64::from(i32::MAX), "chunked_prefill_size", || {
            format!("is {chunk}, must be at most {}", i32::MAX)
        })
    }

    /// Limits of sizes that are allocated at the start, or for every request, as they are asked for.
    fn validate_sizes(&self) -> Result<(), ConfigError> {
        let at_most = [
            ("threads", self.threads, MAX_THREADS),
            (
                "max_running_requests",
                self.max_running_requests.unwrap_or(1),
                MAX_RUNNING_REQUESTS,
            ),
            (
                "client_channel_events",
                self.client_channel_events,
                MAX_CLIENT_CHANNEL_EVENTS,
            ),
        ];
        for (key, value, limit) in at_most {
            check(value <= limit, key, || {
                format!("is {value}, must be at most {limit}")
            })?;
        }
        Ok(())
    }

    fn validate_rebuilds(&self) -> Result<(), ConfigError> {
        let attempts = self.rebuild_attempts;
        check(
            (1..=MAX_REBUILD_ATTEMPTS).contains(&attempts),
            "rebuild_attempts",
            || format!("is {attempts}, must lie between 1 and {MAX_REBUILD_ATTEMPTS}"),
        )?;
        let backoff = self.rebuild_backoff_s;
        check(
            (0.0..=MAX_REBUILD_BACKOFF_S).contains(&backoff),
            "rebuild_backoff_s",
            || format!("is {backoff}, must lie between 0 and {MAX_REBUILD_BACKOFF_S}"),
        )
    }

    fn validate_pool(&self) -> Result<(), ConfigError> {
        let page = self.page_size;
        let page_size = PageSize::new(page).filter(|_| page <= MAX_PAGE_TOKENS);
        let page_size = page_size.ok_or_else(|| ConfigError {
            key: "page_size".to_owned(),
            reason: format!("is {page}, must lie between 1 and {MAX_PAGE_TOKENS}"),
        })?;
        let least = IntakeLimits::min_capacity_tokens(page_size);
        let tokens = self.max_total_tokens.unwrap_or(least);
        check(tokens >= least, "max_total_tokens", || {
            format!("is {tokens}, must be at least {least} to serve any request in pages of {page}")
        })?;
        let context = self.context_length.unwrap_or(MIN_CONTEXT_TOKENS);
        check(context >= MIN_CONTEXT_TOKENS, "context_length", || {
            format!("is {context}, must be at least {MIN_CONTEXT_TOKENS} to serve any request")
        })
    }

    fn validate_policies(&self) -> Result<(), ConfigError> {
        if let Err(reason) = schedule_policy(&self.schedule_policy) {
            return check(false, "schedule_policy", || reason);
        }
        self.eviction_policy().map(drop)
    }

    /// How long the lists and names of one request may be.
    pub fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            max_stop_strings: self.max_stop_strings,
            max_stop_bytes: self.max_stop_bytes,
            max_stop_token_ids: self.max_stop_token_ids,
            max_logit_bias: self.max_logit_bias,
            max_logprobs: self.max_logprobs,
            max_extra_key_bytes: self.max_extra_key_bytes,
        }
    }

    /// The eviction policy with its parameters; `None` without a prefix cache.
    ///
    /// # Errors
    /// Names the policies, or the parameters, that there are.
    pub fn eviction_policy(&self) -> Result<Option<EvictionPolicy>, ConfigError> {
        let name = &self.radix_eviction_policy;
        let policy = EvictionPolicy::from_name(name).map_err(|unknown| ConfigError {
            key: "radix_eviction_policy".to_owned(),
            reason: unknown.reason(),
        })?;
        let json = self.radix_eviction_policy_config.as_deref();
        let parameters: EvictionParameters =
            serde_json::from_str(json.unwrap_or("{}")).map_err(|error| ConfigError {
                key: "radix_eviction_policy_config".to_owned(),
                reason: format!("is no JSON object of parameters: {error}"),
            })?;
        let policy = policy.with_parameters(parameters);
        Ok((!self.disable_radix_cache).then_some(policy))
    }

    /// Whether priorities count, and which way round.
    pub fn priority_order(&self) -> PriorityOrder {
        match (
            self.enable_priority_scheduling,
            self.schedule_low_priority_values_first,
        ) {
            (false, _) => PriorityOrder::Ignored,
            (true, false) => PriorityOrder::LargerFirst,
            (true, true) => PriorityOrder::SmallerFirst,
        }
    }

    /// Chunk size in whole pages, `None` with chunked prefill off.
    pub fn chunk_tokens(&self) -> Option<usize> {
        let size = usize::try_from(self.chunked_prefill_size)
            .ok()
            .filter(|size| *size > 0)?;
        Some(size - size % self.page_size as usize)
    }

    /// How prefills and decodes share the steps, and what priorities do.
    pub fn batch_rules(&self) -> BatchRules {
        let threshold = self.priority_scheduling_preemption_threshold;
        let rules = PriorityRules {
            low_values_first: self.schedule_low_priority_values_first,
            preemption_threshold: (!self.disable_priority_preemption).then_some(threshold),
            max_requests: self.max_queued_requests,
        };
        BatchRules {
            mixed_chunk: self.enable_mixed_chunk,
            prefill_decode_interval: self.prefill_decode_interval,
            prefill_decode_interval_min_bs: self.prefill_decode_interval_min_bs,
            priority: self.enable_priority_scheduling.then_some(rules),
        }
    }

    /// Requests that the door lets in at once.
    pub fn door_requests(&self) -> usize {
        match self.enable_priority_scheduling {
            true => self
                .max_queued_requests
                .saturating_add(PRIORITY_DOOR_REQUESTS),
            false => self.max_queued_requests,
        }
    }

    /// The limits that hold for every request.
    pub fn request_timeouts(&self) -> RequestTimeouts {
        RequestTimeouts {
            waiting_s: self.req_waiting_timeout_s,
            running_s: self.req_running_timeout_s,
        }
    }

    /// How often a unit of actors is built anew, and after which waits.
    pub fn rebuild_rules(&self) -> RebuildRules {
        RebuildRules {
            attempts: self.rebuild_attempts,
            first_wait: Duration::from_secs_f64(self.rebuild_backoff_s),
            longest_wait: Duration::from_secs_f64(MAX_REBUILD_BACKOFF_S),
        }
    }

    /// The name that `/v1/models` lists.
    pub fn model_name(&self) -> String {
        let folder = || {
            self.model_path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
        };
        self.served_model_name
            .clone()
            .or_else(folder)
            .unwrap_or_else(|| "souffleur".to_owned())
    }
}

fn check(holds: bool, key: &str, reason: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds {
        Ok(())
    } else {
        Err(ConfigError {
            key: key.to_owned(),
            reason: reason(),
        })
    }
}
