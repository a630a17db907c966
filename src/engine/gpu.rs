//! Prepares an engine on GPUs: checks the model, computes the memory budgets and makes the executors.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use crate::progress::Progress;
use crate::replicas::rank_limit;
use crate::threads::compute_threads;
use crate::tower_file::TowerFile;
use souffleur_actors::executor::ExecutorFactory;
use souffleur_actors::kv_store::StoreSetup;
use souffleur_base::error::{ConfigError, LoadError, StartError};
use souffleur_base::kv_layout::KvDtype;
use souffleur_config::{Device as Wanted, DtypeChoice, EngineConfig, Gpus, KvCacheDtype};
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuDescription, HostSizes, HostTower, OnRanks, TowerFiles};
use souffleur_executor::cuda::{
    CudaExecutor, CudaOptions, DtypeOrigin, LoadModules, check_model, element_of, load_modules,
    load_ranks, staging_bytes,
};
use souffleur_executor::memory_plan::{MemoryBudget, MemoryPlan, Place, VisionBytes};
use souffleur_kernels::cpu::ranks::GroupRules;
use souffleur_kernels::cuda::backend::{CudaSizes, activation_bytes, check_layout};
use souffleur_kernels::cuda::driver::{self, Claim, Device};
use souffleur_kernels::cuda::gemm::Products;
use souffleur_kernels::cuda::nccl;
use souffleur_kernels::cuda::pack::kernels_name;
use souffleur_kernels::cuda::params::ElementType;
use souffleur_kernels::dtype::Dtype as StoredDtype;
use souffleur_kernels::shard::Rank;
use souffleur_store::block_tokens;

/// Memory reserved for CUDA graphs, kernel code, sampler lists and allocation rounding. SGLang reserves as much.
const HEADROOM_BYTES: u64 = 512 << 20;
/// Memory reserved for the buffers of NCCL, if a model has several ranks.
const COLLECTIVES_BYTES: u64 = 512 << 20;

/// A GPU that runs replicas, or a rank of replicas.
pub(super) struct Gpu {
    claim: Claim,
    device: Device,
    replicas: usize,
    rank: Rank,
    free_bytes: u64,
}

impl Gpu {
    /// Opens the GPUs of a configuration, each of which runs at least one replica, or a rank of one; none if it computes
    /// on a CPU. Those of a replica's ranks follow each other. Fails if a GPU or the configuration cannot be used.
    pub(super) fn open_all(config: &EngineConfig) -> Result<Vec<Self>, StartError> {
        let Wanted::Cuda(gpus) = &config.device else {
            return Ok(Vec::new());
        };
        check_types(config)?;
        let ordinals = ordinals(config, gpus)?;
        let n_groups = ordinals.len() / config.tp_size;
        let replicas = |group: usize| (config.dp_size - group).div_ceil(n_groups);
        let ranks = (0..n_groups)
            .flat_map(|group| Rank::all(config.tp_size).map(move |rank| (group, rank)));
        let gpus = ordinals.iter().zip(ranks);
        gpus.map(|(ordinal, (group, rank))| Self::open(*ordinal, replicas(group), rank))
            .collect()
    }

    fn open(ordinal: usize, replicas: usize, rank: Rank) -> Result<Self, StartError> {
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
            rank,
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

    /// The memory budget of each replica, or of its rank, for `rows` running requests. The replicas of a GPU have equal
    /// parts of it.
    pub(super) fn budget(
        &self,
        config: &EngineConfig,
        (model, on_ranks): (&CpuDescription, &OnRanks),
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
            rank: self.rank,
        };
        let pages_per_row = context_tokens.div_ceil(options.page_size) as u64;
        let page_table_bytes = (sizes.n_rows as u64)
            .saturating_mul(pages_per_row)
            .saturating_mul(4);
        let activations =
            activation_bytes(&on_ranks.config.shape(), &sizes, info.multiprocessors) as u64;
        let collectives = match self.rank.count() {
            1 => 0,
            _ => COLLECTIVES_BYTES,
        };
        let block_tokens = config
            .kv_disk_path
            .as_ref()
            .and(block_tokens(options.page_size));
        let staging = block_tokens.map_or(0, |tokens| staging_bytes(&on_ranks.kv_layout, tokens));
        Ok(MemoryBudget {
            place: Place::Gpu(info.ordinal),
            free_before_bytes: self.free_bytes / self.replicas as u64,
            weights_bytes: on_ranks.decoded_weights_bytes[self.rank.index()],
            reserve_bytes: activations
                .saturating_add(page_table_bytes)
                .saturating_add(Products::workspace_bytes(info.multiprocessors))
                .saturating_add(staging)
                .saturating_add(collectives)
                .saturating_add(HEADROOM_BYTES),
            page_table_bytes,
            store_bytes: 0,
            // Rank 0 has the tower.
            vision: match self.rank.index() {
                0 => model.vision,
                _ => VisionBytes::default(),
            },
            max_rows: rows,
        })
    }

    /// Identifies the kernels that compute keys and values: the KV store does not reuse blocks of other kernels. The
    /// number of multiprocessors decides how sums are split, the version of NCCL how those over ranks are. The version of
    /// cuBLASLt is unknown until it is loaded.
    pub(super) fn kernels(
        &self,
        config: &EngineConfig,
        model: &CpuDescription,
    ) -> Result<String, LoadError> {
        let info = self.device.info();
        let element = element_of(model.dtype, origin(config))?;
        let gemm = Products::multipliers(&self.device, element, config.gemm);
        let nccl = match self.rank.count() {
            1 => String::new(),
            _ => format!(" nccl {}", nccl_version()?),
        };
        Ok(format!(
            "cuda {} {} multiprocessors {} gemm {gemm} driver {}{nccl}",
            kernels_name(info.capability),
            info.multiprocessors,
            element.suffix(),
            info.driver,
        ))
    }

    /// Makes the executors of the replicas: a factory for each GPU, or for each group of GPUs if a replica has ranks.
    pub(super) fn executors(
        gpus: Vec<Self>,
        config: &EngineConfig,
        (model, context_tokens): (&CpuDescription, usize),
        (memory, store): (&MemoryPlan, Option<Arc<StoreSetup>>),
        (eos_token_ids, tower): (&[u32], Option<TowerFile>),
        progress: Progress,
    ) -> Result<Vec<Arc<ExecutorFactory>>, LoadError> {
        let pool = (
            memory.n_pages as usize,
            memory.max_running_requests as usize,
        );
        let mut options = options(config, model, context_tokens, pool)?;
        options.plan = Some(memory.clone());
        options.eos_token_ids = eos_token_ids.into();
        let load = Arc::new(Load {
            dir: config.model_path.clone(),
            options,
            ranks: GroupRules::new(config.tp_size, rank_limit(config)),
            store,
            tower: tower.map(|file| TowerWish::of(config, model, file)),
            progress,
        });
        let n_groups = gpus.len() / config.tp_size;
        let mut gpus = gpus.into_iter();
        let group = |_| -> Vec<Self> { gpus.by_ref().take(config.tp_size).collect() };
        let groups = (0..n_groups).map(group);
        Ok(groups.map(|group| factory(group, load.clone())).collect())
    }
}

/// The numbers of the GPUs, those of a replica's ranks after each other.
fn ordinals(config: &EngineConfig, gpus: &Gpus) -> Result<Vec<usize>, StartError> {
    let (n_ranks, n_replicas) = (config.tp_size, config.dp_size);
    if n_ranks > 1 {
        nccl_version()?;
    }
    let listed = match gpus {
        Gpus::Listed(listed) => listed,
        Gpus::Visible => {
            let n_gpus = driver::count().map_err(|error| error.to_load_error())?;
            let n_needed = n_ranks * n_replicas;
            // Collectives of several replicas could wait for each other on a common GPU.
            if n_ranks == 1 || n_gpus >= n_needed {
                return Ok((0..n_gpus.min(n_needed)).collect());
            }
            return Err(StartError::Config(ConfigError {
                key: "tp_size".to_owned(),
                reason: format!(
                    "is {n_ranks} with dp_size {n_replicas}, so {n_needed} GPUs are needed, but the driver shows \
                     {n_gpus}: lower one of them"
                ),
            }));
        }
    };
    Ok(match listed.as_slice() {
        // The first of as many as are needed.
        [first] if n_ranks > 1 => {
            let all = 0..n_ranks * n_replicas;
            all.map(|index| first.saturating_add(index)).collect()
        }
        _ => listed.clone(),
    })
}

fn nccl_version() -> Result<nccl::NcclVersion, LoadError> {
    nccl::installed().map_err(device_error)
}

/// What every executor of the engine loads.
struct Load {
    dir: PathBuf,
    options: CudaOptions,
    ranks: GroupRules,
    store: Option<Arc<StoreSetup>>,
    /// `None` without a vision tower.
    tower: Option<TowerWish>,
    progress: Progress,
}

/// The vision tower of each replica, on the host.
struct TowerWish {
    file: TowerFile,
    /// The hidden size of the text model, and the values of a position of an image.
    widths: (usize, usize),
    sizes: HostSizes,
}

impl TowerWish {
    fn of(config: &EngineConfig, model: &CpuDescription, file: TowerFile) -> Self {
        let hidden_size = model.config.hidden_size;
        Self {
            file,
            widths: (hidden_size, model.config.images().vector_width(hidden_size)),
            sizes: HostSizes {
                dtype: model.dtype,
                threads: compute_threads(config),
            },
        }
    }

    fn files(&self) -> Result<(TowerFiles, HostSizes), LoadError> {
        Ok((self.file.files()?, self.sizes))
    }
}

/// Makes the executors of the replicas on a group of GPUs, in the order of the ranks.
fn factory(group: Vec<Gpu>, load: Arc<Load>) -> Arc<ExecutorFactory> {
    let gpus = group.into_iter().map(|gpu| (gpu.claim, gpu.device));
    let (claims, devices): (Vec<Claim>, Vec<Device>) = gpus.unzip();
    // The first executor uses the devices opened for the memory plan. Later executors open the devices again.
    let opened = Mutex::new(Some(devices));
    Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        let taken = opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        let devices = match taken {
            Some(devices) => devices,
            None => claims.iter().map(open_again).collect::<Result<_, _>>()?,
        };
        load.run(devices)
    })
}

fn open_again(claim: &Claim) -> Result<Device, LoadError> {
    claim.open().map_err(|error| error.to_load_error())
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

impl Load {
    fn run(&self, mut devices: Vec<Device>) -> Result<Box<dyn Executor>, LoadError> {
        let first = devices[0].clone();
        let free_before = first.memory().map_err(device_error)?.free_bytes;
        let executor = if self.ranks.count > 1 {
            self.on_ranks(devices)?
        } else {
            let loaded = self.single(devices.swap_remove(0));
            loaded.inspect_err(|_| note_loss(&first))?
        };
        let options = &self.options;
        let free_after = first.memory().map_err(device_error)?.free_bytes;
        tracing::info!(
            gpus = self.ranks.count,
            mem_usage_gib = gib(free_before.saturating_sub(free_after)),
            avail_mem_gib = gib(free_after),
            max_total_num_tokens = options.n_pages * options.page_size,
            max_running_requests = options.max_rows,
            context_len = options.context_tokens,
            cuda_graph_max_bs = options.graph_rows.min(options.max_rows),
            "model loaded on the GPU"
        );
        Ok(executor)
    }

    fn single(&self, device: Device) -> Result<Box<dyn Executor>, LoadError> {
        let mut report = |done, total| self.progress.report(done, total);
        let mut executor = CudaExecutor::load(device, &self.dir, &self.options, &mut report)?;
        if let Some(wish) = &self.tower {
            let (files, sizes) = wish.files()?;
            executor = executor.with_tower(HostTower::load(&files, wish.widths, sizes)?);
        }
        if let Some(store) = &self.store {
            executor = executor.with_store(store.geometry.block_tokens, store.desk.port())?;
        }
        Ok(Box::new(executor))
    }

    /// A context that a rank has lost is noticed at the next step of another replica there: to wait for the GPUs here
    /// could take for ever, if a rank hangs.
    fn on_ranks(&self, devices: Vec<Device>) -> Result<Box<dyn Executor>, LoadError> {
        let mut report = |done, total| self.progress.report(done, total);
        let store = self.store.as_ref();
        let store = store.map(|store| (store.geometry.block_tokens, store.desk.port()));
        let on_gpus = (devices, load_modules as LoadModules);
        let tower = self.tower.as_ref().map(TowerWish::files);
        let (tower, options) = (tower.transpose()?, &self.options);
        let ranks = load_ranks(
            on_gpus,
            &self.dir,
            options,
            &self.ranks,
            store,
            tower,
            &mut report,
        )?;
        Ok(Box::new(ranks))
    }
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
