//! Computes an engine's memory plan and its longest sequence.

use crate::gpu::Gpu;
use crate::replicas::GpuShare;
use crate::store::buffer_bytes;
use souffleur_base::error::{ConfigError, LoadError, StartError};
use souffleur_base::kv_layout::KvLayout;
use souffleur_config::EngineConfig;
use souffleur_executor::cpu::{self, CpuDescription, OnRanks};
use souffleur_executor::memory_plan::{
    Bytes, MemoryBudget, MemoryPlan, MemoryWish, Place, VisionBytes, WindowRequest,
    available_bytes, reserve_bytes,
};
use souffleur_model::config::ModelConfig;

pub(super) fn context_length(
    config: &EngineConfig,
    model: &CpuDescription,
) -> Result<usize, ConfigError> {
    let limit = model.config.context_tokens();
    match config.context_length {
        Some(asked) if asked > limit => Err(ConfigError {
            key: "context_length".to_owned(),
            reason: format!("is {asked}, the model supports at most {limit} tokens"),
        }),
        Some(asked) => Ok(asked),
        None => Ok(limit),
    }
}

/// Divides the memory of the GPUs, or of this machine if there are none. Returns the plan of each replica, and the
/// shares of the GPUs. Fails if a GPU cannot run the model.
pub(super) fn memory_plan(
    config: &EngineConfig,
    model: &CpuDescription,
    gpus: &[Gpu],
) -> Result<(MemoryPlan, Vec<GpuShare>), StartError> {
    let on_ranks = model.on_ranks(config.tp_size)?;
    let shares = gpus
        .iter()
        .map(|gpu| gpu_share(config, model, (gpu, &on_ranks)));
    let shares = shares.collect::<Result<Vec<_>, StartError>>()?;
    if !gpus.is_empty() {
        check_host(config, model, available_bytes)?;
    }
    let plans = shares.iter().map(|share| &share.memory);
    let smallest = plans.min_by_key(|plan| (plan.max_total_tokens, plan.max_running_requests));
    let plan = match smallest {
        Some(plan) => plan.clone(),
        None => host_plan(config, model, available_bytes()?)?,
    };
    if let Some(asked) = plan.clamped_request() {
        tracing::warn!(
            asked,
            max_total_tokens = plan.max_total_tokens,
            "max_total_tokens exceeds the limit set by mem_fraction_static: using the limit"
        );
    }
    Ok((plan, shares))
}

/// Refuses a model on GPUs whose vision towers the host has no memory for. `available` is asked only if there is one.
fn check_host(
    config: &EngineConfig,
    model: &CpuDescription,
    available: impl FnOnce() -> Result<u64, LoadError>,
) -> Result<(), LoadError> {
    let VisionBytes { tower, images } = model.vision;
    if tower == 0 {
        return Ok(());
    }
    let needed = tower.saturating_add(images);
    let needed = needed.saturating_mul(config.dp_size.max(1) as u64);
    let available = available()?;
    if needed <= available {
        return Ok(());
    }
    Err(LoadError::Memory(format!(
        "the vision towers of the replicas need {} of the host's memory, with the images that they encode and the \
         vectors, but {} are available: lower image_max_tokens, image_cache_bytes or dp_size",
        Bytes(needed),
        Bytes(available)
    )))
}

/// Checks that the GPU can run the model, and divides its memory.
fn gpu_share(
    config: &EngineConfig,
    model: &CpuDescription,
    (gpu, on_ranks): (&Gpu, &OnRanks),
) -> Result<GpuShare, StartError> {
    gpu.check(config, model)?;
    let context_tokens = context_length(config, model)?;
    // The CUDA kernels have one page table, so layers with windows keep all tokens.
    let wish = memory_wish(config, &on_ranks.kv_layout, context_tokens);
    let budget = |rows| gpu.budget(config, (model, on_ranks), context_tokens, rows);
    Ok(GpuShare {
        name: gpu.name(),
        replicas: gpu.replicas(),
        memory: MemoryPlan::by_rows(wish, budget)?,
    })
}

/// Divides `available_bytes` of a host's memory: the plan of one replica, which has an equal part of it.
pub fn host_plan(
    config: &EngineConfig,
    model: &CpuDescription,
    available_bytes: u64,
) -> Result<MemoryPlan, StartError> {
    let available_bytes = available_bytes / config.dp_size.max(1) as u64;
    let context_tokens = context_length(config, model)?;
    let on_ranks = model.on_ranks(config.tp_size)?;
    let windowed = windowed(config, &model.config, &on_ranks.kv_layout, context_tokens);
    let layout = windowed.as_ref().unwrap_or(&on_ranks.kv_layout);
    let wish = memory_wish(config, layout, context_tokens);
    let wish = with_draft_logs(wish, config, &on_ranks)?;
    let wish = of_all_ranks(wish, config.tp_size as u64);
    let budget = host_budget(config, model, (&on_ranks, available_bytes));
    Ok(MemoryPlan::new(budget, wish)?)
}

/// Adds to each state of a rank the inputs of drafts that its row may have.
fn with_draft_logs(
    wish: MemoryWish,
    config: &EngineConfig,
    on_ranks: &OnRanks,
) -> Result<MemoryWish, StartError> {
    let draft_bytes = match config.speculation()? {
        Some(_) => cpu::draft_log_bytes(&on_ranks.config, 1),
        None => 0,
    };
    Ok(MemoryWish {
        state_bytes: wish.state_bytes + draft_bytes,
        ..wish
    })
}

/// The wish for the memory of `count` ranks, from that for one of them.
fn of_all_ranks(rank: MemoryWish, count: u64) -> MemoryWish {
    MemoryWish {
        kv_bytes_per_token: rank.kv_bytes_per_token * count,
        windows: rank.windows.map(|windows| WindowRequest {
            kv_bytes_per_token: windows.kv_bytes_per_token * count,
            ..windows
        }),
        state_bytes: rank.state_bytes * count,
        ..rank
    }
}

fn memory_wish(config: &EngineConfig, layout: &KvLayout, context_tokens: usize) -> MemoryWish {
    MemoryWish {
        kv_bytes_per_token: layout.bytes_per_token(),
        windows: window_wish(config, layout),
        state_bytes: layout.state_bytes(),
        page_size: config.page_size,
        context_tokens: context_tokens as u64,
        mem_fraction_static: config.mem_fraction_static,
        max_total_tokens: config.max_total_tokens.map(|tokens| tokens as u64),
        max_running_requests: config
            .max_running_requests
            .map(|requests| u32::try_from(requests).unwrap_or(u32::MAX)),
        max_states: config.max_mamba_cache_size.map(|states| states as u64),
        caches_prefixes: !config.disable_radix_cache,
        state_interval_tokens: config.mamba_track_interval,
    }
}

/// The memory layout with separate pages for sliding-window layers. `None` if the context is no longer than the window,
/// if prefill is not chunked (all tokens of a chunk are in window pages at once), or if there is a KV store (its blocks
/// hold all layers).
pub fn windowed(
    config: &EngineConfig,
    model: &ModelConfig,
    layout: &KvLayout,
    context_tokens: usize,
) -> Option<KvLayout> {
    let windowed = layout.windowed(&model.windows)?;
    let is_shorter = windowed.window()? < context_tokens;
    let keeps_all = config.chunk_tokens().is_none() || config.kv_disk_path.is_some();
    (is_shorter && !keeps_all).then_some(windowed)
}

/// The memory plan's input for window pages; `None` if the layout has none.
pub fn window_wish(config: &EngineConfig, layout: &KvLayout) -> Option<WindowRequest> {
    Some(WindowRequest {
        kv_bytes_per_token: layout.window_bytes_per_token(),
        tokens: layout.window()? as u64,
        chunk_tokens: config.chunk_tokens()? as u64,
        per_token: config.swa_full_tokens_ratio,
    })
}

fn host_budget(
    config: &EngineConfig,
    model: &CpuDescription,
    (on_ranks, free_before_bytes): (&OnRanks, u64),
) -> MemoryBudget {
    let step_tokens = config.chunk_tokens().unwrap_or(config.max_prefill_tokens) as u64;
    let logit_rows = cpu::LOGIT_ROWS as u64;
    let store_bytes = buffer_bytes(config, free_before_bytes);
    let activations = reserve_bytes(&model.config, step_tokens, logit_rows);
    let activations = activations.saturating_mul(config.tp_size as u64);
    MemoryBudget {
        place: Place::Host,
        free_before_bytes,
        weights_bytes: on_ranks.weights_bytes.iter().sum::<u64>() + model.vision.tower,
        reserve_bytes: activations
            .saturating_add(store_bytes)
            .saturating_add(model.vision.images),
        page_table_bytes: 0,
        store_bytes,
        vision: model.vision,
        max_rows: u32::MAX,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_host_of_gpus_must_have_memory_for_the_towers_of_all_replicas() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures");
        let dir = Path::new(fixtures).join("models/llama");
        let model = cpu::describe(&dir, None, None, Default::default());
        let mut model = model.expect("a valid model");
        let config = EngineConfig {
            dp_size: 2,
            ..EngineConfig::default()
        };
        let without = check_host(&config, &model, || panic!("there is no tower"));
        assert!(without.is_ok());
        model.vision = VisionBytes {
            tower: 3 << 20,
            images: 1 << 20,
        };
        assert!(check_host(&config, &model, || Ok(8 << 20)).is_ok());
        let refused = check_host(&config, &model, || Ok(8 << 19));
        let text = refused.expect_err("too little memory").to_string();
        assert!(
            text.contains("8.0 MiB") && text.contains("4.0 MiB") && text.contains("dp_size"),
            "{text}"
        );
    }
}
