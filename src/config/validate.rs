//! Checks configuration values beyond the bounds that are declared with their keys, such as conflicts between keys.

#[cfg(test)]
mod tests;

use super::choices::{Gpus, KvCacheDtype};
use super::keys::out_of_range;
use super::{Device, EngineConfig};
use souffleur_base::error::ConfigError;
use souffleur_state::output::{OutputFormats, ReasoningFormat, ToolFormat};
use souffleur_state::pool::pages::PageSize;
use souffleur_state::scheduler::IntakeLimits;
use souffleur_state::scheduler::policy::schedule_policy;
use souffleur_state::tiers::{BLOCK_TOKENS, block_tokens};

/// The largest page size: larger pages hold whole prompts, so little is shared.
const MAX_PAGE_TOKENS: u32 = 256;
/// One prompt token, one generated token, and one token that admission reserves.
const MIN_CONTEXT_TOKENS: usize = 3;
/// More threads than any machine has cores.
pub(super) const MAX_THREADS: usize = 1024;
/// More replicas than any machine has devices or sockets.
pub(super) const MAX_REPLICAS: usize = 64;
/// More ranks than models have key heads, most of which would be replicated.
pub(super) const MAX_RANKS: usize = 64;
/// Limited because all rows of the page table and of the samplers are allocated at the start.
pub(super) const MAX_RUNNING_REQUESTS: usize = 1 << 16;
/// Limited because each query of a prefill sorts this many tokens.
pub(super) const MAX_CHOSEN_TOKENS: usize = 1 << 16;
/// Longest distance between saved states, in tokens.
pub(super) const MAX_STATE_INTERVAL_TOKENS: usize = 1 << 30;
/// Largest time limit of a prefill step, in milliseconds: an hour.
pub(super) const MAX_STEP_MS: u32 = 3_600_000;
/// A larger channel is of no use: events that do not fit are merged without loss.
pub(super) const MAX_CLIENT_CHANNEL_EVENTS: usize = 1 << 16;
/// A picture of this size takes 768 MiB.
pub(super) const MAX_IMAGE_PIXELS: usize = 1 << 28;
/// Enough for the message log's header, some records and its end.
pub(super) const MIN_RECORD_BYTES: u64 = 64 << 10;
/// With the default waits, this number of attempts takes more than 16 hours.
pub(super) const MAX_REBUILD_ATTEMPTS: usize = 1000;
/// Largest limit of restarts in a period.
pub(super) const MAX_RESTARTS: u32 = 1000;
/// Longest period of that limit, in seconds: a day.
pub(super) const MAX_RESTART_PERIOD_S: u32 = 86_400;
/// Longest time without progress before a thread counts as hung, in seconds: a day.
pub(super) const MAX_WATCHDOG_TIMEOUT_S: f64 = 86_400.0;
/// Longest interval of the log of long-running requests, in seconds: a day.
pub(super) const MAX_LONG_REQUEST_S: f64 = 86_400.0;
/// Longest wait between two attempts to rebuild the actors, in seconds.
pub(super) const MAX_REBUILD_BACKOFF_S: f64 = 60.0;
/// Enough for a few blocks of a tiny model. The KV store checks that a block of the loaded model fits.
pub(super) const MIN_KV_DISK_BYTES: u64 = 1 << 20;
/// Enough for a block of a tiny model. The KV store checks that blocks of the loaded model fit.
pub(super) const MIN_KV_HOST_BYTES: u64 = 1 << 16;
/// The smallest share of the compute threads' time for writes: with less, a block would take minutes.
pub(super) const MIN_KV_WRITE_SHARE: f64 = 0.001;
/// Longest wait for a prefix from the KV store, in seconds.
pub(super) const MAX_KV_PREFETCH_S: f64 = 600.0;
/// Limited because larger graphs take much memory and save little time.
const MAX_CUDA_GRAPH_MAX_BS: usize = 4096;

impl EngineConfig {
    /// # Errors
    /// Names the first key that is out of range, its value and the limit.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_ranges()?;
        self.validate_pool()?;
        self.validate_policies()?;
        self.validate_parsers()?;
        self.validate_chunks()?;
        self.validate_timeouts()?;
        self.validate_sparsity()?;
        self.validate_store()?;
        self.validate_replicas()?;
        self.speculation()?;
        check(self.mmproj.is_none() || !self.no_mmproj, "mmproj", || {
            "is given, but no_mmproj is on: unset one of the two".to_owned()
        })?;
        let graphs = self.cuda_graph_max_bs;
        check(
            (1..=MAX_CUDA_GRAPH_MAX_BS).contains(&graphs),
            "cuda_graph_max_bs",
            || {
                format!(
                    "is {graphs}, must lie between 1 and {MAX_CUDA_GRAPH_MAX_BS}; disable_cuda_graph turns graphs off"
                )
            },
        )
    }

    fn validate_parsers(&self) -> Result<(), ConfigError> {
        let unknown = |name: &str, names: Vec<&str>| {
            format!(
                "is {name:?}, must be one of auto, none, {}",
                names.join(", ")
            )
        };
        let tool = self.tool_call_parser.as_str();
        let named = OutputFormats {
            tool: ToolFormat::parse(tool),
            reasoning: ReasoningFormat::parse(&self.reasoning_parser),
        };
        let is_known = is_auto_or_none(tool) || named.tool.is_some();
        check(is_known, "tool_call_parser", || {
            unknown(tool, ToolFormat::names().collect())
        })?;
        let reasoning = self.reasoning_parser.as_str();
        let is_known = is_auto_or_none(reasoning) || named.reasoning.is_some();
        check(is_known, "reasoning_parser", || {
            unknown(reasoning, ReasoningFormat::names().collect())
        })?;
        self.check_formats(named)
    }

    /// Checks that one output can follow both formats, which the parsers' keys or, for `auto`, the model determine.
    /// Errors name a key, one that is not `auto` if there is one, and both values.
    pub fn check_formats(&self, formats: OutputFormats) -> Result<(), ConfigError> {
        let tool = (
            "tool_call_parser",
            parser_value(&self.tool_call_parser, formats.tool.map(ToolFormat::name)),
        );
        let reasoning = (
            "reasoning_parser",
            parser_value(
                &self.reasoning_parser,
                formats.reasoning.map(ReasoningFormat::name),
            ),
        );
        let ((key, value), (other_key, other)) = match self.reasoning_parser.as_str() {
            "auto" => (tool, reasoning),
            _ => (reasoning, tool),
        };
        check(formats.go_together(), key, || {
            format!(
                "is {value}, but {other_key} is {other}: gpt-oss cannot be combined with another format: set both \
                 parsers to gpt-oss or neither; auto chooses the model's own format, none turns a parser off"
            )
        })
    }

    fn validate_pool(&self) -> Result<(), ConfigError> {
        let page = self.page_size;
        let page_size = PageSize::new(page).filter(|_| page <= MAX_PAGE_TOKENS);
        let page_size = page_size.ok_or_else(|| {
            let reason = format!("is {page}, must lie between 1 and {MAX_PAGE_TOKENS}");
            out_of_range("page_size", reason)
        })?;
        if let Some(fraction) = self.mem_fraction_static {
            check(
                fraction > 0.0 && fraction < 1.0,
                "mem_fraction_static",
                || format!("is {fraction}, must be more than 0 and less than 1"),
            )?;
        }
        let ratio = self.swa_full_tokens_ratio;
        check(ratio > 0.0 && ratio <= 1.0, "swa_full_tokens_ratio", || {
            format!(
                "is {ratio}, must be more than 0 and at most 1 (1: sliding windows keep every token of the pool)"
            )
        })?;
        let least = IntakeLimits::min_capacity_tokens(page_size);
        let tokens = self.max_total_tokens.unwrap_or(least);
        check(tokens >= least, "max_total_tokens", || {
            format!(
                "is {tokens}, must be at least {least} to serve any request with a page_size of {page}"
            )
        })?;
        let context = self.context_length.unwrap_or(MIN_CONTEXT_TOKENS);
        check(context >= MIN_CONTEXT_TOKENS, "context_length", || {
            format!("is {context}, must be at least {MIN_CONTEXT_TOKENS} to serve any request")
        })
    }

    fn validate_policies(&self) -> Result<(), ConfigError> {
        if let Err(reason) = schedule_policy(&self.schedule_policy) {
            return Err(out_of_range("schedule_policy", reason));
        }
        self.eviction_policy()?;
        self.kv_events()?;
        let conservativeness = self.schedule_conservativeness;
        let is_sane = conservativeness > 0.0 && conservativeness <= 100.0;
        check(is_sane, "schedule_conservativeness", || {
            format!("is {conservativeness}, must lie in (0, 100]")
        })
    }

    fn validate_chunks(&self) -> Result<(), ConfigError> {
        let (chunk, page) = (self.chunked_prefill_size, self.page_size);
        let is_valid = chunk <= 0 || chunk >= i64::from(page);
        check(is_valid, "chunked_prefill_size", || {
            format!(
                "is {chunk}, must be at least page_size ({page}); 0 or -1 turns chunked prefill off"
            )
        })
    }

    fn validate_sparsity(&self) -> Result<(), ConfigError> {
        if !self.enable_double_sparsity {
            return Ok(());
        }
        let on_cpu = !matches!(self.device, Device::Cuda(_));
        check(on_cpu, "enable_double_sparsity", || {
            let device = String::from(self.device.clone());
            format!(
                "is on, but device is {device}: double sparsity runs on the CPU only: set device to cpu or turn it off"
            )
        })?;
        check(
            self.kv_cache_dtype != KvCacheDtype::Int8,
            "enable_double_sparsity",
            || {
                "is on, but kv_cache_dtype is int8: it needs unquantised keys: choose another kv_cache_dtype"
                    .to_owned()
            },
        )?;
        check(
            self.ds_channel_config_path.is_some(),
            "ds_channel_config_path",
            || {
                "is not given, but enable_double_sparsity is on: set it to a channel file (make one with `souffleur \
                 calibrate`)"
                    .to_owned()
            },
        )
    }

    fn validate_store(&self) -> Result<(), ConfigError> {
        if self.kv_disk_path.is_none() {
            return Ok(());
        }
        check(!self.disable_radix_cache, "kv_disk_path", || {
            "is given, but disable_radix_cache is on: the KV store saves the prefix cache's blocks, unset one of the two"
                .to_owned()
        })?;
        let page = self.page_size as usize;
        check(block_tokens(page).is_some(), "kv_disk_path", || {
            format!(
                "is given, but page_size is {page}: K/V is stored in blocks of {BLOCK_TOKENS} tokens, so page_size \
                 must divide that or be a multiple of it"
            )
        })
    }

    fn validate_replicas(&self) -> Result<(), ConfigError> {
        let n = self.dp_size;
        if let Device::Cuda(Gpus::Listed(ordinals)) = &self.device {
            let (n_gpus, n_ranks) = (ordinals.len(), self.tp_size);
            let n_needed = n * n_ranks;
            let is_exact = n_ranks == 1 || n_gpus == 1 || n_gpus == n_needed;
            check(is_exact, "device", || {
                format!(
                    "names {n_gpus} GPUs, but tp_size {n_ranks} with dp_size {n} needs {n_needed}: name the first one, \
                     or all"
                )
            })?;
            check(n_gpus <= n_needed, "device", || {
                format!(
                    "names {n_gpus} GPUs, but dp_size is {n}, and a replica uses one GPU: raise dp_size or name fewer"
                )
            })?;
        }
        if n == 1 {
            return Ok(());
        }
        let of_one_replica = [
            ("kv_disk_path", self.kv_disk_path.is_some()),
            ("record", self.record.is_some()),
        ];
        let given = of_one_replica.iter().find(|(_, is_given)| *is_given);
        check(given.is_none(), "dp_size", || {
            let key = given.map_or("", |(key, _)| *key);
            format!(
                "is {n}, but {key} is given, which is for a single replica: set dp_size to 1 or unset {key}"
            )
        })
    }

    fn validate_timeouts(&self) -> Result<(), ConfigError> {
        let timeouts = [
            ("req_waiting_timeout_s", self.req_waiting_timeout_s),
            ("req_running_timeout_s", self.req_running_timeout_s),
        ];
        for (key, value) in timeouts {
            let seconds = value.unwrap_or(1.0);
            check(seconds > 0.0 && seconds.is_finite(), key, || {
                format!("is {seconds}, must be finite and more than 0; unset it for no limit")
            })?;
        }
        Ok(())
    }
}

fn is_auto_or_none(name: &str) -> bool {
    ["auto", "none"].contains(&name)
}

/// Formats a parser's value for an error, with the name of the model's format.
fn parser_value(value: &str, format: Option<&str>) -> String {
    match (value, format) {
        ("auto", Some(name)) => format!("{value:?} (this model's: {name:?})"),
        _ => format!("{value:?}"),
    }
}

fn check(holds: bool, key: &str, reason: impl FnOnce() -> String) -> Result<(), ConfigError> {
    if holds {
        Ok(())
    } else {
        Err(out_of_range(key, reason()))
    }
}
