//! The tested configurations of element type, page size and graphs.

use std::path::Path;
use std::sync::Arc;

use crossbeam_channel::Receiver;
use souffleur_config::{Device, DtypeChoice, EngineConfig};
use souffleur_engine::{Engine, EngineParts, Progress};
use souffleur_executor::cuda::{CudaExecutor, CudaOptions};
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_kernels::cuda::params::ElementType;

use crate::gpu;
use crate::world::{Gated, World};

/// Rows of the largest graph: fewer than run at once, so that some decodes run without a graph.
const GRAPH_ROWS: usize = 6;

#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub dtype: DtypeChoice,
    pub page_size: u32,
    pub graphs: bool,
}

pub const F32_PAGES_OF_1_GRAPHS: Setup = Setup {
    dtype: DtypeChoice::Float32,
    page_size: 1,
    graphs: true,
};
pub const F32_PAGES_OF_16: Setup = Setup {
    dtype: DtypeChoice::Float32,
    page_size: 16,
    graphs: false,
};
pub const BF16_PAGES_OF_16_GRAPHS: Setup = Setup {
    dtype: DtypeChoice::Bfloat16,
    page_size: 16,
    graphs: true,
};
pub const BF16_PAGES_OF_1: Setup = Setup {
    dtype: DtypeChoice::Bfloat16,
    page_size: 1,
    graphs: false,
};

impl Setup {
    /// The configuration of an engine for a model, on either device.
    pub fn config(&self, model: &Path) -> EngineConfig {
        EngineConfig {
            model_path: model.to_owned(),
            device: Device::Cpu,
            dtype: self.dtype,
            page_size: self.page_size,
            skip_tokenizer_init: true,
            max_total_tokens: Some(4096),
            max_running_requests: Some(16),
            context_length: Some(256),
            chunked_prefill_size: 128,
            threads: 1,
            ..EngineConfig::default()
        }
    }

    pub fn start_on_gpu(&self, config: EngineConfig) -> World {
        let (_, open) = crossbeam_channel::bounded(0);
        self.start_gated_on_gpu(open, config)
    }

    /// Like [`Self::start_on_gpu`], but the engine runs no step before the sender of `gate` is dropped.
    pub fn start_gated_on_gpu(&self, gate: Receiver<()>, config: EngineConfig) -> World {
        self.start_on(gpu::unused(), gate, config)
    }

    /// Like [`Self::start_gated_on_gpu`], on device `ordinal` if the GPU is emulated, with the store if configured.
    pub fn start_on(&self, ordinal: usize, gate: Receiver<()>, config: EngineConfig) -> World {
        let mut parts = EngineParts::from_model(&config, Progress::silent()).unwrap();
        // The memory plan is for a CPU: on a GPU, layers with windows keep all tokens.
        if let Some(memory) = parts.info.memory.as_mut() {
            memory.window_pages = 0;
        }
        let (options, dir) = (self.options(&config, &parts), config.model_path.clone());
        let store = parts.store.clone();
        parts.executor = Arc::new(move || {
            let mut executor = load_on(ordinal, &dir, &options);
            if let Some(store) = &store {
                executor = executor.with_store(store.geometry.block_tokens, store.desk.port())?;
            }
            Ok(Box::new(Gated {
                inner: Box::new(executor),
                gate: Some(gate.clone()),
            }))
        });
        World {
            engine: Engine::start_with(config, parts).expect("the model loads"),
        }
    }

    pub fn options(&self, config: &EngineConfig, parts: &EngineParts) -> CudaOptions {
        let (info, chunk) = (&parts.info, config.chunk_tokens().unwrap());
        CudaOptions {
            element: match self.dtype {
                DtypeChoice::Bfloat16 => ElementType::Bf16,
                _ => ElementType::F32,
            },
            load_format: config.load_format,
            n_pages: info.max_total_tokens / info.page_size,
            page_size: info.page_size,
            max_rows: info.max_running_requests,
            context_tokens: info.context_length,
            step_tokens: chunk + info.max_running_requests,
            gemm: GemmWish::Own,
            graph_rows: if self.graphs { GRAPH_ROWS } else { 0 },
            plan: None,
            eos_token_ids: info.eos_token_ids.as_slice().into(),
        }
    }
}

pub fn load(dir: &Path, options: &CudaOptions) -> CudaExecutor {
    load_on(gpu::unused(), dir, options)
}

/// An executor on one of the emulated devices, which share no state, or on the real GPU under test.
pub fn load_on(ordinal: usize, dir: &Path, options: &CudaOptions) -> CudaExecutor {
    let (device, modules) = gpu::open(ordinal);
    CudaExecutor::load_with(device, &modules, dir, options, &mut |_, _| {}).unwrap()
}

pub fn start_on_cpu(config: EngineConfig) -> World {
    World {
        engine: Engine::start(config).expect("the model loads"),
    }
}
