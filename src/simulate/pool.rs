//! Computes the size of the simulated KV pool, with the engine's memory plan and the memory of the hardware.

use std::path::PathBuf;

use souffleur_base::kv_layout::KvLayout;
use souffleur_config::{Device, EngineConfig};
use souffleur_engine::ModelInfo;
use souffleur_engine::memory::{window_wish, windowed};
use souffleur_executor::cpu::LOGIT_ROWS;
use souffleur_executor::memory_plan::{
    MemoryBudget, MemoryPlan, MemoryWish, Place, VisionBytes, reserve_bytes,
};
use souffleur_kernels::dtype::Dtype;
use souffleur_model::config::ModelConfig;
use souffleur_model::generation::GenerationConfig;
use souffleur_request::ImageSupport;
use souffleur_state::pool::pages::PageSize;

use super::SimulateError;
use super::hardware::Hardware;
use super::roofline::{Sparsity, Storage, weights_bytes};

/// The data types of weights, keys and values under this configuration.
pub fn storage(config: &EngineConfig, model: &ModelConfig) -> Storage {
    let dtype = config.dtype.named().or(model.dtype);
    let dtype = dtype.unwrap_or(Dtype::BF16);
    Storage {
        dtype,
        kv_dtype: config.kv_cache_dtype.named().unwrap_or(dtype.into()),
        quantization: config.quantization,
        sparsity: config.enable_double_sparsity.then_some(Sparsity {
            channels: config.ds_heavy_channel_num,
            tokens: config.ds_heavy_token_num,
            threshold: config.ds_sparse_decode_threshold,
        }),
    }
}

/// The engine's description of the model. The pool has `kv_tokens` tokens, else the configured number, else as many as
/// fit on `devices` devices. Fails if the weights and a page do not fit, or if the pool is too small for any request.
pub fn model_info(
    config: &EngineConfig,
    model: &ModelConfig,
    hardware: &Hardware,
    devices: u32,
    kv_tokens: Option<usize>,
) -> Result<ModelInfo, SimulateError> {
    let storage = storage(config, model);
    let layout = storage.layout(model)?;
    let context_length = config
        .context_length
        .unwrap_or_else(|| model.context_tokens());
    let windowed = match config.device {
        // As in the engine, which has no window pages on a GPU.
        Device::Cuda(_) => None,
        Device::Auto | Device::Cpu => windowed(config, model, &layout, context_length),
    };
    let layout = windowed.unwrap_or(layout);
    let step_tokens = config.chunk_tokens().unwrap_or(config.max_prefill_tokens) as u64;
    let fixed_tokens = kv_tokens
        .or(config.max_total_tokens)
        .map(|tokens| tokens as u64);
    let mut wish = memory_wish(config, hardware, &layout, context_length);
    wish.max_total_tokens = fixed_tokens;
    let mut budget = MemoryBudget {
        place: Place::Host,
        free_before_bytes: hardware.memory_bytes() * u64::from(devices),
        weights_bytes: weights_bytes(model, storage),
        reserve_bytes: reserve_bytes(model, step_tokens, LOGIT_ROWS as u64) * u64::from(devices),
        page_table_bytes: 0,
        // The plan leaves out the KV store's buffers, which may be in host memory.
        store_bytes: 0,
        vision: VisionBytes::default(),
        max_rows: u32::MAX,
    };
    if fixed_tokens.is_some() {
        // A configured capacity is simulated even if the device has less memory.
        wish.mem_fraction_static = None;
        budget.free_before_bytes = u64::MAX / 2;
    }
    let memory = MemoryPlan::new(budget, wish)?;
    check_pool(&memory, config.page_size)?;
    Ok(ModelInfo {
        served_model_name: config.model_name(),
        model_path: PathBuf::new(),
        context_length,
        max_total_tokens: memory.max_total_tokens as usize,
        page_size: config.page_size as usize,
        max_running_requests: memory.max_running_requests as usize,
        vocab_size: model.vocab_size,
        hidden_size: None,
        images: ImageSupport::Sequence,
        long_above: None,
        eos_token_ids: Vec::new(),
        generation: GenerationConfig::default(),
        memory: Some(memory),
        kv_cache_dtype: Some(storage.kv_dtype.name()),
        attention_backend: None,
        kernel_path: None,
        double_sparsity: None,
        speculation: None,
        formats: Default::default(),
        card: None,
    })
}

/// The configuration's requirements on the pool, without a fixed capacity.
fn memory_wish(
    config: &EngineConfig,
    hardware: &Hardware,
    layout: &KvLayout,
    context_tokens: usize,
) -> MemoryWish {
    MemoryWish {
        kv_bytes_per_token: layout.bytes_per_token(),
        windows: window_wish(config, layout),
        state_bytes: layout.state_bytes(),
        page_size: config.page_size,
        context_tokens: context_tokens as u64,
        mem_fraction_static: config.mem_fraction_static.or(hardware.mem_fraction_static),
        max_total_tokens: None,
        max_running_requests: config
            .max_running_requests
            .map(|requests| u32::try_from(requests).unwrap_or(u32::MAX)),
        max_states: config.max_mamba_cache_size.map(|states| states as u64),
        caches_prefixes: !config.disable_radix_cache,
        state_interval_tokens: config.mamba_track_interval,
    }
}

fn check_pool(memory: &MemoryPlan, page_size: u32) -> Result<(), SimulateError> {
    let min = PageSize::new(page_size).map_or(
        0,
        souffleur_state::scheduler::IntakeLimits::min_capacity_tokens,
    );
    let tokens = memory.max_total_tokens;
    if tokens < min as u64 {
        let min = format!("at least {min} to serve any request with a page_size of {page_size}");
        let (what, reason) = match memory.wish.max_total_tokens {
            Some(_) => (
                "kv_tokens",
                format!("is {tokens}, must be {min}: raise --kv-tokens, or max_total_tokens"),
            ),
            None => (
                "the hardware's memory",
                format!("holds only {tokens} KV tokens, must hold {min}"),
            ),
        };
        return Err(SimulateError::value(what, reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape;

    #[test]
    fn the_pool_takes_the_memory_fraction_minus_the_weights() {
        let hardware = Hardware::load("h100-sxm").expect("it is compiled in");
        let model = shape::load("llama-3.1-8b").expect("it is compiled in");
        let config = EngineConfig::default();
        let info = |kv_tokens| model_info(&config, &model, &hardware, 1, kv_tokens);
        let bytes = 0.88 * 80.0 * f64::from(1 << 30) - 2.0 * 8_030_261_248.0;
        let tokens = info(None).expect("it fits").max_total_tokens as f64;
        assert!((tokens - bytes / 131_072.0).abs() < 3.0, "{tokens}");
        assert_eq!(
            info(Some(10_000_000))
                .expect("no limit of memory is set")
                .max_total_tokens,
            10_000_000
        );
        assert!(info(Some(2)).is_err());
        let large = shape::load("llama-3.1-70b").expect("it is compiled in");
        let devices = |n| model_info(&config, &large, &hardware, n, None);
        assert!(devices(1).is_err());
        assert!(devices(4).is_ok());
    }
}
