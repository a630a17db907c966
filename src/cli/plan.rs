//! `souffleur plan`: how memory would be divided, without loading the model.

use souffleur::config::{Dtype, EngineConfig};
use souffleur::error::LoadError;
use souffleur::executor::cpu;
use souffleur::executor::memory_plan::{
    MemoryBudget, MemoryPlan, MemoryWish, available_bytes, reserve_bytes,
};
use souffleur::model::weights;
use souffleur::state::kv_layout::KvLayout;

use super::{Failure, local, say};
use crate::settings::Settings;

/// Runs the command.
pub fn run(settings: Settings) -> Result<(), Failure> {
    let config = local::with_model(settings.engine)?;
    say(format_args!(
        "model                 {} ({})",
        config.model_name(),
        config.model_path.display()
    ));
    for line in memory_plan(&config).map_err(Failure::failed)?.explain() {
        say(line);
    }
    Ok(())
}

/// Reads the headers of the model's files and divides what the machine has now.
pub fn memory_plan(config: &EngineConfig) -> Result<MemoryPlan, LoadError> {
    let model = cpu::describe(&config.model_path, stored_dtype(config.dtype))?;
    let step_tokens = config.chunk_tokens().unwrap_or(config.max_prefill_tokens);
    let budget = MemoryBudget {
        free_before_bytes: available_bytes()?,
        weights_bytes: model.weights_bytes,
        reserve_bytes: reserve_bytes(&model.config, step_tokens as u64, 64),
    };
    let model_tokens = model.config.context_tokens();
    let wish = MemoryWish {
        kv_bytes_per_token: model.kv_layout.bytes_per_token(),
        page_size: config.page_size,
        context_tokens: config.context_length.unwrap_or(model_tokens) as u64,
        mem_fraction_static: config.mem_fraction_static,
        max_total_tokens: config.max_total_tokens.map(|tokens| tokens as u64),
        max_running_requests: config
            .max_running_requests
            .map(|n| u32::try_from(n).unwrap_or(u32::MAX)),
    };
    MemoryPlan::new(budget, wish)
}

/// The element type that is asked for, if one is.
pub fn stored_dtype(dtype: Dtype) -> Option<weights::Dtype> {
    match dtype {
        Dtype::Auto => None,
        Dtype::Float32 => Some(weights::Dtype::F32),
        Dtype::Float16 => Some(weights::Dtype::F16),
        Dtype::Bfloat16 => Some(weights::Dtype::BF16),
    }
}
