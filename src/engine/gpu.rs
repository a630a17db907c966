//! What an engine on a GPU is planned by, and how its executor is made.

use std::sync::Arc;

use crate::actors::executor::ExecutorFactory;
use crate::config::EngineConfig;
use crate::engine::Progress;
use crate::error::{ConfigError, LoadError, StartError};
use crate::executor::cpu::CpuDescription;
use crate::executor::memory_plan::{MemoryBudget, Place, reserve_bytes};
use crate::kernels::cuda::driver::{self, Device};
use crate::kernels::cuda::gemm::Products;

/// Rows of logits that are held at once, if graphs need no more.
const LOGIT_ROWS: usize = 64;
/// SGLang's most requests at once; the plan takes fewer where the pool is small.
const MOST_REQUESTS: u64 = 4096;

/// A GPU that was opened for an engine.
pub(super) struct Gpu {
    device: Device,
    free_bytes: u64,
}

impl Gpu {
    /// Opens GPU `ordinal`.
    ///
    /// # Errors
    /// It cannot be used, or not with this configuration.
    pub(super) fn open(ordinal: usize, config: &EngineConfig) -> Result<Self, StartError> {
        if config.quantization.is_some() {
            let error = ConfigError {
                key: "quantization".to_owned(),
                reason: "is int8, which has no CUDA kernels: leave it out, or use --device cpu"
                    .to_owned(),
            };
            return Err(error.into());
        }
        let device = Device::open(ordinal).map_err(refused)?;
        let memory = device.memory().map_err(refused)?;
        tracing::info!(
            device = %device.info(),
            free_gib = gib(memory.free_bytes),
            "computing on a GPU"
        );
        Ok(Self {
            device,
            free_bytes: memory.free_bytes,
        })
    }

    /// What there is to divide.
    pub(super) fn budget(&self, config: &EngineConfig, model: &CpuDescription) -> MemoryBudget {
        let info = self.device.info();
        let place = Place::Gpu(info.ordinal);
        let step_tokens = config.chunk_tokens().unwrap_or(config.max_prefill_tokens) as u64;
        let rows = config
            .max_running_requests
            .map_or(MOST_REQUESTS, |rows| rows as u64);
        let logit_rows = match config.disable_cuda_graph {
            true => LOGIT_ROWS,
            false => LOGIT_ROWS.max(config.cuda_graph_max_bs),
        };
        let context = config
            .context_length
            .unwrap_or_else(|| model.config.context_tokens()) as u64;
        let pages_a_row = context.div_ceil(u64::from(config.page_size));
        let page_table_bytes = rows
            .saturating_add(1)
            .saturating_mul(pages_a_row)
            .saturating_mul(4);
        let step_tokens = step_tokens.saturating_add(rows);
        MemoryBudget {
            place,
            free_before_bytes: self.free_bytes,
            weights_bytes: model.weights_bytes,
            reserve_bytes: reserve_bytes(place, &model.config, step_tokens, logit_rows as u64)
                .saturating_add(page_table_bytes)
                .saturating_add(Products::workspace_bytes(info.multiprocessors)),
        }
    }
}

impl Gpu {
    /// What makes the executor, on its own thread.
    pub(super) fn executor(
        self,
        _config: &EngineConfig,
        _progress: Progress,
    ) -> Arc<ExecutorFactory> {
        Arc::new(|| {
            Err(LoadError::Device(
                "there is no CUDA executor yet".to_owned(),
            ))
        })
    }
}

/// Says that there is a driver, where `auto` leaves it alone.
pub(super) fn notice_unused() {
    if let Some(version) = driver::installed() {
        tracing::info!(
            cuda = %version,
            "there is a CUDA driver, and the CPU is used: no GPU has run the CUDA code yet; --device cuda uses it"
        );
    }
}

fn refused(error: impl std::error::Error) -> LoadError {
    LoadError::Device(error.to_string())
}

fn gib(bytes: u64) -> f64 {
    (bytes as f64 / (1 << 30) as f64 * 100.0).round() / 100.0
}
