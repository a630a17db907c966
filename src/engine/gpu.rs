//! Prepares an engine on a GPU: checks the model, computes the memory budget and makes the executor.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::progress::Progress;
use souffleur_actors::executor::ExecutorFactory;
use souffleur_actors::kv_store::StoreSetup;
use souffleur_base::error::{ConfigError, LoadError, StartError};
use souffleur_base::kv_layout::KvDtype;
use souffleur_config::{Device as Wanted, DtypeChoice, EngineConfig, Gpus, KvCacheDtype};
use souffleur_executor::Executor;
use souffleur_executor::cpu::CpuDescription;
use souffleur_executor::cuda::{
    CudaExecutor, CudaOptions, DtypeOrigin, check_model, element_of, staging_bytes,
};
use souffleur_executor::memory_plan::{MemoryBudget, MemoryPlan, Place};
use souffleur_kernels::cuda::backend::{CudaSizes, activation_bytes, check_layout};
use souffleur_kernels::cuda::driver::{self, Claim, Device};
use souffleur_kernels::cuda::gemm::Products;
use souffleur_kernels::cuda::pack::kernels_name;
use souffleur_kernels::cuda::params::ElementType;
use souffleur_kernels::dtype::Dtype as StoredDtype;
use souffleur_kernels::shard::Rank;
use souffleur_store::block_tokens;

/// Memory reserved for CUDA graphs, kernel code, sampler lists and allocation rounding. SGLang reserves as much.
const HEADROOM_BYTES: u64 = 512 << 20;

pub(super) struct Gpu {
    claim: Claim,
    device: Device,
    replicas: usize,
    free_bytes: u64,
}

impl Gpu {
    /// Opens the GPUs of a configuration, each of which runs at least one replica; none if it computes on a CPU. Fails
    /// if a GPU or the configuration cannot be used.
    pub(super) fn open_all(config: &EngineConfig) -> Result<Vec<Self>, StartError> {
        let Wanted::Cuda(gpus) = &config.device else {
            return Ok(Vec::new());
        };
        check_types(config)?;
        let ordinals: Vec<usize> = match gpus {
            Gpus::Visible => {
                let n_gpus = driver::count().map_err(|error| error.to_load_error())?;
                (0..n_gpus.min(config.dp_size)).collect()
            }
            Gpus::Listed(ordinals) => ordinals.clone(),
        };
        let replicas = |index: usize| (config.dp_size - index).div_ceil(ordinals.len());
        let gpus = ordinals.iter().enumerate();
        gpus.map(|(index, ordinal)| Self::open(*ordinal, replicas(index)))
            .collect()
    }

    fn open(ordinal: usize, replicas: usize) -> Result<Self, StartError> {
        let claim = Claim::new(ordinal);
        let device = claim.open().map_err(|error| error.to_load_error())?;
        let memory = device.memory().map_err(device_error)?;
        tracing::info!(
            device = %device.info(),
            free_gib = gib(memory.free_bytes),
            replicas,
            "computing on a GPU"
        );
        Ok(Self {
            claim,
            device,
            replicas,
            free_bytes: memory.free_bytes,
        })
    }

    pub(super) fn name(&self) -> String {
        self.device.info().to_string()
    }

    pub(super) fn replicas(&self) -> usize {
        self.replicas
    }

    /// Refuses a model whose family, layers, data type or KV type the kernels do not support.
    pub(super) fn check(
        &self,
        config: &EngineConfig,
        model: &CpuDescription,
    ) -> Result<(), StartError> {
        check_model(&model.config)?;
        check_layout(&model.kv_layout).map_err(device_error)?;
        let element = element_of(model.dtype, origin(config))?;
        check_kv_type(config, element)?;
        if model.dtype == StoredDtype::F16 {
            tracing::warn!(
                "no CUDA kernels for float16: the checkpoint runs in bfloat16 (--dtype float32 is more precise)"
            );
        }
        Ok(())
    }

    /// The memory budget of each replica, for `rows` running requests. The replicas of a GPU have equal parts of it.
    pub(super) fn budget(
        &self,
        config: &EngineConfig,
        model: &CpuDescription,
        context_tokens: usize,
        rows: u32,
    ) -> Result<MemoryBudget, LoadError> {
        let info = self.device.info();
        let options = options(config, model, context_tokens, (0, rows as usize))?;
        let sizes = CudaSizes {
            element: options.element,
            n_pages: options.n_pages,
            page_size: options.page_size,
            n_rows: options.max_rows + 1,
            context_tokens,
            step_tokens: options.step_tokens,
            logit_rows: options.logit_rows(),
            gemm: options.gemm,
            weights: (0, 0),
            rank: Rank::ONLY,
        };
        let pages_per_row = context_tokens.div_ceil(options.page_size) as u64;
        let page_table_bytes = (sizes.n_rows as u64)
            .saturating_mul(pages_per_row)
            .saturating_mul(4);
        let activations =
            activation_bytes(&model.config.shape(), &sizes, info.multiprocessors) as u64;
        let block_tokens = config
            .kv_disk_path
            .as_ref()
            .and(block_tokens(options.page_size));
        let staging = block_tokens.map_or(0, |tokens| staging_bytes(&model.kv_layout, tokens));
        Ok(MemoryBudget {
            place: Place::Gpu(info.ordinal),
            free_before_bytes: self.free_bytes / self.replicas as u64,
            weights_bytes: model.decoded_weights_bytes,
            reserve_bytes: activations
                .saturating_add(page_table_bytes)
                .saturating_add(Products::workspace_bytes(info.multiprocessors))
                .saturating_add(staging)
                .saturating_add(HEADROOM_BYTES),
            page_table_bytes,
            store_bytes: 0,
            max_rows: rows,
        })
    }

    /// Identifies the kernels that compute keys and values: the KV store does not reuse blocks of other kernels. The
    /// number of multiprocessors decides how sums are split. The version of cuBLASLt is unknown until it is loaded.
    pub(super) fn kernels(
        &self,
        config: &EngineConfig,
        model: &CpuDescription,
    ) -> Result<String, LoadError> {
        let info = self.device.info();
        let element = element_of(model.dtype, origin(config))?;
        let gemm = Products::multipliers(&self.device, element, config.gemm);
        Ok(format!(
            "cuda {} {} multiprocessors {} gemm {gemm} driver {}",
            kernels_name(info.capability),
            info.multiprocessors,
            element.suffix(),
            info.driver,
        ))
    }

    /// Makes the executors of the GPU's replicas.
    pub(super) fn executor(
        self,
        config: &EngineConfig,
        model: &CpuDescription,
        context_tokens: usize,
        (memory, store): (&MemoryPlan, Option<Arc<StoreSetup>>),
        eos_token_ids: &[u32],
        progress: Progress,
    ) -> Result<Arc<ExecutorFactory>, LoadError> {
        let Self { claim, device, .. } = self;
        let pool = (
            memory.n_pages as usize,
            memory.max_running_requests as usize,
        );
        let mut options = options(config, model, context_tokens, pool)?;
        options.plan = Some(memory.clone());
        options.eos_token_ids = eos_token_ids.into();
        let dir = config.model_path.clone();
        // The first executor uses the device opened for the memory plan. Later executors open the device again.
        let opened = Mutex::new(Some(device));
        Ok(Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
            let taken = opened.lock().unwrap_or_else(PoisonError::into_inner).take();
            let device = match taken {
                Some(device) => device,
                None => claim.open().map_err(|error| error.to_load_error())?,
            };
            let opened = device.clone();
            let loaded = load(device, &dir, &options, (store.as_deref(), &progress));
            loaded.inspect_err(|_| note_loss(&opened))
        }))
    }
}

fn check_types(config: &EngineConfig) -> Result<(), ConfigError> {
    let refused = |key: &str, name: &str, why: &str| {
        Err(ConfigError {
            key: key.to_owned(),
            reason: format!("is {name}, {why}: unset it, or use --device cpu"),
        })
    };
    if let Some(quantization) = config.quantization {
        let why = "which has no CUDA kernels";
        return refused("quantization", quantization.name(), why);
    }
    if config.kv_cache_dtype == KvCacheDtype::Int8 {
        let why = "which has no CUDA kernels";
        return refused("kv_cache_dtype", "int8", why);
    }
    Ok(())
}

/// Refuses a KV type that differs from the weights' type, because the kernels support no other.
fn check_kv_type(config: &EngineConfig, element: ElementType) -> Result<(), ConfigError> {
    let of_weights = match element {
        ElementType::F32 => KvDtype::F32,
        ElementType::Bf16 => KvDtype::BF16,
    };
    match config.kv_cache_dtype.named() {
        Some(named) if named != of_weights => Err(ConfigError {
            key: "kv_cache_dtype".to_owned(),
            reason: format!(
                "is {}, and the CUDA kernels support KV only in the type of the weights, {}: unset it, or use --device cpu",
                named.name(),
                of_weights.name()
            ),
        }),
        _ => Ok(()),
    }
}

fn options(
    config: &EngineConfig,
    model: &CpuDescription,
    context_tokens: usize,
    (n_pages, max_rows): (usize, usize),
) -> Result<CudaOptions, LoadError> {
    // Positions and slots are `u32`; larger values must not overflow sizes.
    let in_u32 = |n: usize| n.min(u32::MAX as usize);
    let prefill_tokens = in_u32(config.chunk_tokens().unwrap_or(config.max_prefill_tokens));
    let max_rows = in_u32(max_rows);
    Ok(CudaOptions {
        element: element_of(model.dtype, origin(config))?,
        n_pages,
        page_size: config.page_size as usize,
        max_rows,
        context_tokens,
        step_tokens: prefill_tokens + max_rows,
        gemm: config.gemm,
        graph_rows: if config.disable_cuda_graph {
            0
        } else {
            config.cuda_graph_max_bs
        },
        load_format: config.load_format,
        plan: None,
        eos_token_ids: [].into(),
    })
}

fn origin(config: &EngineConfig) -> DtypeOrigin {
    match config.dtype {
        DtypeChoice::Float16 => DtypeOrigin::Requested,
        _ => DtypeOrigin::Stored,
    }
}

fn load(
    device: Device,
    dir: &Path,
    options: &CudaOptions,
    (store, progress): (Option<&StoreSetup>, &Progress),
) -> Result<Box<dyn Executor>, LoadError> {
    let free_before = device.memory().map_err(device_error)?.free_bytes;
    let mut report = |done, total| progress.report(done, total);
    let mut executor = CudaExecutor::load(device, dir, options, &mut report)?;
    if let Some(store) = store {
        executor = executor.with_store(store.geometry.block_tokens, store.desk.port())?;
    }
    let free_after = executor.device().memory().map_err(device_error)?.free_bytes;
    tracing::info!(
        mem_usage_gib = gib(free_before.saturating_sub(free_after)),
        avail_mem_gib = gib(free_after),
        max_total_num_tokens = options.n_pages * options.page_size,
        max_running_requests = options.max_rows,
        context_len = options.context_tokens,
        cuda_graph_max_bs = options.graph_rows.min(options.max_rows),
        "model loaded on the GPU"
    );
    Ok(Box::new(executor))
}

/// Tells the other replicas on the GPU if a load that failed has ended their context: an idle one would not notice.
fn note_loss(device: &Device) {
    if let Err(error) = device.synchronize()
        && !error.is_refusal()
    {
        device.lose(&error);
    }
}

/// Logs that a CUDA driver is installed, which the device `auto` does not use.
pub(super) fn notice_unused() {
    if let Some(version) = driver::installed() {
        tracing::info!(
            cuda = %version,
            "using the CPU although there is a CUDA driver: --device cuda selects the GPU"
        );
    }
}

fn device_error(error: impl std::error::Error) -> LoadError {
    LoadError::Device(error.to_string())
}

fn gib(bytes: u64) -> f64 {
    (bytes as f64 / (1 << 30) as f64 * 100.0).round() / 100.0
}
