//! Derives the settings of the engine's parts (limits, policies, timeouts) from the configuration.

use std::time::Duration;

use super::EngineConfig;
use super::validate::MAX_REBUILD_BACKOFF_S;
use souffleur_actors::rebuild::RebuildRules;
use souffleur_base::error::ConfigError;
use souffleur_kv_events::KvEventsConfig;
use souffleur_model::gguf;
use souffleur_model::sparsity::SparsityWish;
use souffleur_request::RequestTimeouts;
use souffleur_state::cache::eviction::{EvictionParameters, EvictionPolicy};
use souffleur_state::plan::preemption::PriorityRules;
use souffleur_state::pool::pages::PageSize;
use souffleur_state::request_limits::RequestLimits;
use souffleur_state::scheduler::BatchRules;
use souffleur_state::scheduler::policy::PriorityOrder;
use souffleur_state::supervision::Rules;

/// With priority scheduling, this many requests are admitted beyond `max_queued_requests`, so that the scheduler can
/// reject the one with the lowest priority. Further requests are rejected at any priority.
const EXTRA_PRIORITY_REQUESTS: usize = 64;

impl EngineConfig {
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

    /// The eviction policy; `None` without a prefix cache. Errors name the supported policies or parameters.
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
                reason: format!("is not a JSON object of parameters: {error}"),
            })?;
        let policy = policy.with_parameters(parameters);
        Ok((!self.disable_radix_cache).then_some(policy))
    }

    /// The settings of KV events; `None` if they are off. Fails if the JSON is invalid, the prefix cache is off, or
    /// replicas cannot have their endpoints.
    pub fn kv_events(&self) -> Result<Option<KvEventsConfig>, ConfigError> {
        let refused = |reason| ConfigError {
            key: "kv_events_config".to_owned(),
            reason,
        };
        let (Some(json), Some(page_size)) = (&self.kv_events_config, PageSize::new(self.page_size))
        else {
            return Ok(None);
        };
        let Some(events) = KvEventsConfig::parse(json, page_size).map_err(refused)? else {
            return Ok(None);
        };
        if self.disable_radix_cache {
            return Err(refused(
                "is given, but disable_radix_cache is on: there are no cached blocks to publish, unset one of the two"
                    .to_owned(),
            ));
        }
        events.check_replicas(self.units()).map_err(refused)?;
        Ok(Some(events))
    }

    /// `None` if double sparsity is off.
    pub fn double_sparsity(&self) -> Option<SparsityWish> {
        self.enable_double_sparsity.then(|| SparsityWish {
            file: self.ds_channel_config_path.clone().unwrap_or_default(),
            ranked_by: self.ds_heavy_channel_type,
            channels: self.ds_heavy_channel_num,
            tokens: self.ds_heavy_token_num,
            threshold: self.ds_sparse_decode_threshold,
        })
    }

    /// The order of priorities. Without priority scheduling, priorities are ignored.
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

    /// Chunk size in tokens, rounded down to whole pages; `None` if chunked prefill is off.
    pub fn chunk_tokens(&self) -> Option<usize> {
        let size = usize::try_from(self.chunked_prefill_size)
            .ok()
            .filter(|size| *size > 0)?;
        Some(size - size % self.page_size as usize)
    }

    /// How prefills and decodes share the steps, and the rules of priorities.
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
            max_prefill_step_ms: Some(self.max_prefill_step_ms).filter(|ms| *ms > 0),
        }
    }

    pub fn max_admitted_requests(&self) -> usize {
        if self.enable_priority_scheduling {
            self.max_queued_requests
                .saturating_add(EXTRA_PRIORITY_REQUESTS)
        } else {
            self.max_queued_requests
        }
    }

    pub fn request_timeouts(&self) -> RequestTimeouts {
        RequestTimeouts {
            waiting_s: self.req_waiting_timeout_s,
            running_s: self.req_running_timeout_s,
        }
    }

    /// The number of units, which is that of replicas.
    pub fn units(&self) -> u32 {
        u32::try_from(self.dp_size).unwrap_or(u32::MAX)
    }

    /// The interval at which requests in flight are logged; `None` for never.
    pub fn log_long_requests(&self) -> Option<Duration> {
        let every = Duration::from_secs_f64(self.log_long_requests_s);
        (!every.is_zero()).then_some(every)
    }

    pub fn supervision_rules(&self) -> Rules {
        Rules {
            restarts: self.max_restarts.intensity(),
        }
    }

    /// The time without progress after which a thread hangs; `None` for never.
    pub fn watchdog_timeout(&self) -> Option<Duration> {
        let timeout = Duration::from_secs_f64(self.watchdog_timeout_s);
        (!timeout.is_zero()).then_some(timeout)
    }

    pub fn rebuild_rules(&self) -> RebuildRules {
        RebuildRules {
            attempts: self.rebuild_attempts,
            first_wait: Duration::from_secs_f64(self.rebuild_backoff_s),
            longest_wait: Duration::from_secs_f64(MAX_REBUILD_BACKOFF_S),
        }
    }

    pub fn model_name(&self) -> String {
        let own = || {
            let name = self.model_path.file_name()?.to_string_lossy();
            Some(gguf::model_name(&name).to_owned())
        };
        self.served_model_name
            .clone()
            .or_else(own)
            .unwrap_or_else(|| "souffleur".to_owned())
    }
}
