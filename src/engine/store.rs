//! Configures an engine's KV store: its checks, its buffer sizes, and the fingerprint of its blocks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::gpu::Gpu;
use crate::threads::compute_threads;
use souffleur_actors::kv_store::{BlockDesk, StoreSetup};
use souffleur_base::error::{ConfigError, LoadError, StartError};
use souffleur_base::kv_layout::KvLayout;
use souffleur_config::EngineConfig;
use souffleur_executor::cpu::CpuDescription;
use souffleur_executor::memory_plan::{MemoryPlan, available_bytes};
use souffleur_kernels::cpu::Isa;
use souffleur_model::loader::LoadFormat;
use souffleur_model::location::ModelLocation;
use souffleur_model::sparsity::ModelSparsity;
use souffleur_state::cache::radix_tree::SaveRules;
use souffleur_state::scheduler::tier::TierLimits;
use souffleur_store::weights::{WeightFiles, digest};
use souffleur_store::{
    BLOCK_TOKENS, BlockKind, BlockPools, FingerprintParts, Geometry, Identify, Needs, Plane,
    PrefetchTimeout, Secret, Stop, StoreConfig, block_tokens, random_secret, secret_of,
};

/// Incremented manually whenever the CPU kernels give other bits for the same weights and tokens: earlier blocks are
/// then not reused. CUDA kernels are identified by their sources instead.
const KERNEL_EPOCH: u32 = 2;
/// By default, buffers take 1/`HOST_SHARE` of the KV pool's size, but at least [`MIN_DEFAULT_HOST_BYTES`].
const HOST_SHARE: u64 = 8;
/// By default, the KV pool takes at most 1/`POOL_SHARE` of the available memory.
const POOL_SHARE: u64 = 4;
const MIN_DEFAULT_HOST_BYTES: u64 = 512 << 20;
/// Bytes that each step may save, even a decode step, which reads hundreds of times as many bytes of weights. If a
/// block is larger than this, only some steps save one.
const SAVED_BYTES_PER_STEP: u64 = 4 << 20;
/// Bytes that a step without rows may save. The copy takes some milliseconds, and arriving requests wait for it.
const SAVED_BYTES_WHEN_IDLE: u64 = 16 << 20;
/// Bytes that one step loads for a request, but at least one block. Decoding requests wait for the copy.
const LOADED_BYTES_PER_STEP: u64 = 128 << 20;
const HASH_FILE: &str = "weights";

/// The weight files, recorded before the model is read; `None` with random weights, and without a store.
pub(super) type RecordedWeights = Result<Option<Recorded>, LoadError>;

/// The files on which K/V depends.
#[derive(Clone)]
pub(super) struct Recorded {
    /// Those of the model, and then the tower's.
    files: Arc<WeightFiles>,
    model_path: PathBuf,
    /// The vision tower, if it is a separate file.
    tower: Option<PathBuf>,
}

impl Recorded {
    /// The paths that the files have now.
    fn paths(&self) -> Result<Vec<PathBuf>, LoadError> {
        let mut paths = weight_files(&self.model_path)?;
        paths.extend(self.tower.clone());
        Ok(paths)
    }
}

/// Records the weight files, whose hash identifies the store's blocks. An engine that then loads other files gets no
/// store.
pub(super) fn record_weight_files(config: &EngineConfig) -> RecordedWeights {
    if config.kv_disk_path.is_none() || config.load_format == LoadFormat::Dummy {
        return Ok(None);
    }
    let files = weight_files(&config.model_path)?;
    Ok(Some(Recorded {
        files: Arc::new(WeightFiles::record(files)),
        model_path: config.model_path.clone(),
        tower: None,
    }))
}

/// Also records the file of a vision tower, on which the K/V of images depends.
pub(super) fn with_tower(weights: RecordedWeights, file: Option<&Path>) -> RecordedWeights {
    let Some(file) = file else {
        return weights;
    };
    Ok(weights?.map(|weights| Recorded {
        files: Arc::new(weights.files.with(file.to_owned())),
        tower: Some(file.to_owned()),
        ..weights
    }))
}

/// The configured store; `None` without one. `recorded` is the result of [`record_weight_files`]. Fails if the store
/// does not support a layer of the model, or if the buffers hold too few blocks.
pub(super) fn store_setup(
    config: &EngineConfig,
    model: &CpuDescription,
    (memory, sparsity): (&MemoryPlan, Option<&ModelSparsity>),
    (gpu, recorded): (Option<&Gpu>, RecordedWeights),
) -> Result<Option<StoreSetup>, StartError> {
    let Some(path) = &config.kv_disk_path else {
        return Ok(None);
    };
    let invalid = |key: &str, reason: String| ConfigError {
        key: key.to_owned(),
        reason,
    };
    let of_rank = model.on_ranks(config.tp_size)?.kv_layout;
    let geometry = geometry(&of_rank, config.page_size as usize)
        .map_err(|reason| invalid("kv_disk_path", reason))?;
    let geometry = of_all_ranks(geometry, config.tp_size);
    // A GPU's memory plan has the memory of a rank.
    let kv_bytes = match gpu {
        Some(_) => memory.kv_bytes.saturating_mul(config.tp_size as u64),
        None => memory.kv_bytes,
    };
    let store = StoreConfig {
        path: path.clone(),
        disk_bytes: config.kv_disk_bytes,
        host_bytes: match memory.budget.store_bytes {
            // A GPU's memory plan leaves out host memory.
            0 => {
                let available = available_bytes().map_err(StartError::from)?;
                checked_host_bytes(config, kv_bytes, available)
                    .map_err(|reason| invalid("kv_host_bytes", reason))?
            }
            planned => host_bytes(config, kv_bytes).min(planned),
        },
        prefetch_timeout: prefetch_timeout(config),
        drop_behind: false,
        write_share: write_share(config),
    };
    // Refuses too few buffers now, not when the first block is saved.
    n_buffers(store.host_bytes, &geometry).map_err(|reason| invalid("kv_host_bytes", reason))?;
    let kernels = match gpu {
        Some(gpu) => gpu.kernels(config, model)?,
        None => cpu_kernels(),
    };
    let parts = fingerprint(config, model, sparsity, (kernels, geometry.block_tokens));
    let unread = |error: LoadError| invalid("model_path", format!("cannot be read: {error}"));
    let recorded = recorded.map_err(unread)?;
    let hash_file = path.join(HASH_FILE);
    // A new `Identify` for each start of the store, which may be restarted.
    let new_identify = move || -> Identify {
        let (parts, recorded) = (parts.clone(), recorded.clone());
        let hash_file = hash_file.clone();
        Box::new(move |stop: &Stop| match recorded {
            Some(recorded) => with_weights_digest(parts, &recorded, &hash_file, stop),
            None => Ok(parts.part("weights", "dummy")),
        })
    };
    Ok(Some(StoreSetup {
        config: store,
        geometry,
        identify: Box::new(new_identify),
        desk: BlockDesk::default(),
    }))
}

/// The secret for the keys of images: the store's, or a random one. `None` if there are no random bytes.
pub(super) fn image_secret(store: Option<&StoreSetup>) -> Option<Secret> {
    let of_store = store.map(|store| {
        let path = &store.config.path;
        secret_of(path).inspect_err(|error| {
            let path = path.display();
            tracing::warn!(
                %error,
                "failed to read the hash secret of the KV store in {path}: images cached there will not be found after \
                 the next restart; make the file readable"
            );
        })
    });
    of_store
        .and_then(Result::ok)
        .or_else(|| random_secret().ok())
}

pub(super) fn tier_limits(config: &EngineConfig, setup: &StoreSetup) -> Option<TierLimits> {
    limits(config, setup.config.host_bytes, &setup.geometry).ok()
}

/// The block sizes, limits and timeouts of a store, for a simulation.
#[derive(Clone, Debug)]
pub struct StoreShape {
    pub geometry: Geometry,
    pub limits: TierLimits,
    pub prefetch_timeout: PrefetchTimeout,
}

pub fn store_shape(
    config: &EngineConfig,
    layout: &KvLayout,
    kv_bytes: u64,
) -> Result<StoreShape, ConfigError> {
    let invalid = |key: &str, reason: String| ConfigError {
        key: key.to_owned(),
        reason,
    };
    let geometry = geometry(layout, config.page_size as usize)
        .map_err(|reason| invalid("kv_disk_path", reason))?;
    let limits = limits(config, host_bytes(config, kv_bytes), &geometry)
        .map_err(|reason| invalid("kv_host_bytes", reason))?;
    Ok(StoreShape {
        geometry,
        limits,
        prefetch_timeout: prefetch_timeout(config),
    })
}

fn limits(
    config: &EngineConfig,
    host_bytes: u64,
    geometry: &Geometry,
) -> Result<TierLimits, String> {
    let (buffers, state_buffers) = n_buffers(host_bytes, geometry)?;
    let block_bytes = geometry.payload_bytes(BlockKind::Kv).max(1) as u64;
    Ok(TierLimits {
        saves: SaveRules {
            block_tokens: geometry.block_tokens,
            min_hits: config.kv_write_policy.min_hits(),
        },
        buffers,
        state_buffers,
        saves_per_step: (SAVED_BYTES_PER_STEP / block_bytes).max(1) as usize,
        steps_per_save: block_bytes.div_ceil(SAVED_BYTES_PER_STEP) as usize,
        saves_when_idle: (SAVED_BYTES_WHEN_IDLE / block_bytes).max(1) as usize,
        blocks_per_load: (LOADED_BYTES_PER_STEP / block_bytes).max(1) as usize,
    })
}

fn write_share(config: &EngineConfig) -> f64 {
    config.kv_write_share * compute_threads(config) as f64
}

/// Bytes that the memory plan keeps free for buffers, of `available_bytes`; 0 without a store.
pub(super) fn buffer_bytes(config: &EngineConfig, available_bytes: u64) -> u64 {
    match config.kv_disk_path {
        Some(_) => host_bytes(config, available_bytes / POOL_SHARE),
        None => 0,
    }
}

fn host_bytes(config: &EngineConfig, kv_bytes: u64) -> u64 {
    let default = (kv_bytes / HOST_SHARE).max(MIN_DEFAULT_HOST_BYTES);
    config.kv_host_bytes.unwrap_or(default)
}

/// As [`host_bytes`], but a default is cut to 1/`POOL_SHARE` of `available_bytes`, and a configured size above
/// `available_bytes` is an error.
fn checked_host_bytes(
    config: &EngineConfig,
    kv_bytes: u64,
    available_bytes: u64,
) -> Result<u64, String> {
    let wanted = host_bytes(config, kv_bytes);
    match config.kv_host_bytes {
        None => Ok(wanted.min(available_bytes / POOL_SHARE)),
        Some(asked) if asked > available_bytes => Err(format!(
            "is {asked}, but only {available_bytes} bytes of memory are available: lower it, or unset it to use at \
             most 1/{POOL_SHARE} of the available memory"
        )),
        Some(_) => Ok(wanted),
    }
}

fn prefetch_timeout(config: &EngineConfig) -> PrefetchTimeout {
    PrefetchTimeout {
        base: Duration::from_secs_f64(config.kv_prefetch_timeout_base_s),
        per_ki_token: Duration::from_secs_f64(config.kv_prefetch_timeout_per_ki_token_s),
    }
}

fn n_buffers(host_bytes: u64, geometry: &Geometry) -> Result<(usize, usize), String> {
    let (freed, _) = crossbeam_channel::bounded(1);
    let pools = BlockPools::new(geometry, host_bytes, &freed);
    let pools = pools.map_err(|error| format!("is too small: {error}"))?;
    let of = |kind| pools.of(kind).map_or(0, |pool| pool.counts().total);
    Ok((of(BlockKind::Kv), of(BlockKind::State)))
}

fn geometry(layout: &KvLayout, page_tokens: usize) -> Result<Geometry, String> {
    let block_tokens = block_tokens(page_tokens).ok_or_else(|| {
        format!(
            "cannot be used with page_size {page_tokens}: page_size must divide {BLOCK_TOKENS}, the tokens of a block, \
             or be a multiple of it"
        )
    })?;
    let planes = layout.block_planes(block_tokens);
    planes.map_err(|reason| format!("cannot be used: {reason}"))?;
    let layers = layout.layers().iter().enumerate();
    let planes = layers.flat_map(|(layer, kv)| {
        let buffers = kv.pages().into_iter().flat_map(|pages| pages.buffers());
        buffers.enumerate().map(move |(buffer, kv)| Plane {
            layer: layer as u32,
            buffer: buffer as u32,
            bytes: kv.bytes_per_token() as usize * block_tokens,
        })
    });
    let states = layout.state_planes().into_iter().enumerate();
    let states = states.filter(|(_, bytes)| *bytes > 0);
    let states: Arc<[Plane]> = states
        .map(|(layer, bytes)| Plane {
            layer: layer as u32,
            buffer: 0,
            bytes,
        })
        .collect();
    Ok(Geometry {
        block_tokens,
        needs: Needs {
            state: !states.is_empty(),
            window_tokens: 0,
        },
        // In the order of `BlockKind`.
        planes: [planes.collect(), Arc::default(), states],
    })
}

/// Extends the geometry of one rank to `count` ranks: a block holds the parts of all ranks, in rank order.
fn of_all_ranks(rank: Geometry, count: usize) -> Geometry {
    let repeated = |planes: Arc<[Plane]>| -> Arc<[Plane]> {
        let all = planes.len() * count;
        planes.iter().copied().cycle().take(all).collect()
    };
    Geometry {
        planes: rank.planes.map(repeated),
        ..rank
    }
}

/// The kernels of the CPU, which determine the layout of blocks. A GPU's blocks have the same planes, but token-major
/// instead of head-major, so CPU and GPU do not share blocks.
fn cpu_kernels() -> String {
    let isa = Isa::chosen().map_or_else(|error| error, |isa| isa.name().to_owned());
    format!("cpu {isa} {KERNEL_EPOCH}")
}

/// Combines all inputs that determine the bits of K/V, except the weights.
fn fingerprint(
    config: &EngineConfig,
    model: &CpuDescription,
    sparsity: Option<&ModelSparsity>,
    (kernels, block_tokens): (String, usize),
) -> FingerprintParts {
    let parts = match config.tp_size {
        1 => FingerprintParts::new(),
        ranks => FingerprintParts::new().part("ranks", ranks),
    };
    parts
        .part("kernels", kernels)
        .part("model", format!("{:?}", model.config))
        .part("dtype", format!("{:?}", model.dtype))
        .part("quantization", format!("{:?}", config.quantization))
        .part("kv_layout", format!("{:?}", model.kv_layout))
        .part("block_tokens", block_tokens)
        .part(
            "sparsity",
            sparsity.map_or_else(String::new, |sparsity| format!("{:?}", sparsity.rules)),
        )
}

fn weight_files(model_path: &Path) -> Result<Vec<PathBuf>, LoadError> {
    ModelLocation::find(model_path)?.weight_files()
}

/// Adds the hash of the weights, which takes a second per gigabyte for a new file. Called after the engine has loaded
/// its weights: if the files have not changed since `recorded`, the engine loaded these files.
fn with_weights_digest(
    parts: FingerprintParts,
    recorded: &Recorded,
    hash_file: &Path,
    stop: &Stop,
) -> Result<FingerprintParts, String> {
    let digest = digest(&recorded.files, hash_file, stop).map_err(|error| error.to_string())?;
    let paths = recorded.paths().map_err(|error| error.to_string())?;
    if !recorded.files.are_at(&paths) {
        let shown = recorded.model_path.display();
        return Err(format!(
            "the weight files of {shown} are not the files that the engine loaded: restart the engine"
        ));
    }
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(parts.part("weights", digest))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::parts::EngineParts;
    use crate::progress::Progress;

    /// A copy of a model. The test may replace its files.
    fn model(folder: &Path) -> PathBuf {
        let fixture =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models/qwen3");
        let copied = folder.join("model");
        fs::create_dir(&copied).expect("a writable folder");
        for entry in fs::read_dir(fixture).expect("a fixture") {
            let entry = entry.expect("a fixture");
            fs::copy(entry.path(), copied.join(entry.file_name())).expect("a writable folder");
        }
        copied
    }

    fn identified(parts: &EngineParts) -> Result<FingerprintParts, String> {
        let store = parts.store.as_ref().expect("there is a store");
        (store.identify)()(&Stop::default())
    }

    #[test]
    fn buffers_of_a_gpu_engine_fit_into_the_hosts_memory() {
        const GIB: u64 = 1 << 30;
        let of = |asked: Option<u64>, kv_bytes, available_bytes| {
            let config = EngineConfig {
                kv_host_bytes: asked,
                ..EngineConfig::default()
            };
            checked_host_bytes(&config, kv_bytes, available_bytes)
        };
        assert_eq!(of(None, 64 * GIB, 256 * GIB), Ok(8 * GIB));
        assert_eq!(of(None, 64 * GIB, 16 * GIB), Ok(4 * GIB));
        assert_eq!(of(None, GIB, 256 * GIB), Ok(MIN_DEFAULT_HOST_BYTES));
        assert_eq!(of(Some(16 * GIB), GIB, 16 * GIB), Ok(16 * GIB));
        let invalid = of(Some(32 * GIB), GIB, 16 * GIB).expect_err("32 GiB are not available");
        assert!(invalid.starts_with("is 34359738368,"), "{invalid}");
        assert!(invalid.contains("only 17179869184 bytes"), "{invalid}");
    }

    #[cfg(unix)]
    #[test]
    fn an_engine_whose_weights_were_replaced_while_loading_has_no_store() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let config = EngineConfig {
            model_path: model(folder.path()),
            max_total_tokens: Some(1024),
            kv_disk_path: Some(folder.path().join("kv")),
            ..EngineConfig::default()
        };
        let start = || EngineParts::from_model(&config, Progress::silent()).expect("it can run");
        let parts = start();
        let first = identified(&parts)
            .expect("nothing has changed")
            .fingerprint();
        // Another file with the same bytes: the engine may have loaded either file.
        let weights = weight_files(&config.model_path).expect("there are weights");
        let (weights, copy) = (&weights[0], folder.path().join("copy"));
        fs::copy(weights, &copy).expect("a writable folder");
        fs::rename(&copy, weights).expect("the same file system");
        let error = identified(&parts).expect_err("a file was replaced");
        assert!(error.contains("changed while the model"), "{error}");
        let again = identified(&start()).expect("nothing has changed since");
        assert_eq!(again.fingerprint(), first);
    }
}
