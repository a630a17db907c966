//! The parameters of a simulated KV store: block sizes, capacity, and the speed of the disk and of copies.

use souffleur_config::EngineConfig;
use souffleur_engine::ModelInfo;
use souffleur_engine::store::{StoreShape, store_shape};
use souffleur_model::config::ModelConfig;
use souffleur_state::step::{BlockCopies, BlockSource};
use souffleur_state::tiers::BlockKind;

use super::SimulateError;
use super::hardware::Hardware;
use super::pool::storage;

#[derive(Clone, Debug)]
pub struct StoreModel {
    pub(super) shape: StoreShape,
    pub(super) disk_bytes: u64,
    pub(super) read_bytes_per_s: f64,
    pub(super) write_bytes_per_s: f64,
    /// The time from a read request to its first byte, in seconds.
    pub(super) latency_s: f64,
    /// The rate of copies between KV memory and the store's buffers.
    copy_bytes_per_s: f64,
}

impl StoreModel {
    /// The store of an engine on `devices` devices; `None` if the configuration has no `kv_disk_path`. The simulation
    /// never writes to this path. `info` describes the model under the same configuration. Fails if the hardware has
    /// no disk rates, if the store does not support the model, or if a size limit is too small for a block.
    pub fn new(
        config: &EngineConfig,
        model: &ModelConfig,
        info: &ModelInfo,
        (hardware, devices): (&Hardware, u32),
    ) -> Result<Option<Self>, SimulateError> {
        if config.kv_disk_path.is_none() {
            return Ok(None);
        }
        config.validate()?;
        let required = |key: &str, value: Option<f64>| {
            value.ok_or_else(|| {
                let reason = format!(
                    "is {}, which has no {key}: to simulate a KV store, give a TOML file with this key, like those in config/hardware",
                    hardware.name
                );
                SimulateError::value("hardware", reason)
            })
        };
        let layout = storage(config, model).layout(model)?;
        let kv_bytes = info.memory.as_ref().map_or(0, |memory| memory.kv_bytes);
        let shape = store_shape(config, &layout, kv_bytes)?;
        let disk_bytes = config.kv_disk_bytes;
        for kind in shape.geometry.kinds() {
            let record_bytes = shape.geometry.record_bytes(kind);
            if record_bytes > disk_bytes {
                let reason = format!(
                    "is {disk_bytes}, must be at least {record_bytes} to hold one {} record: raise --disk-bytes, \
                     or kv_disk_bytes",
                    kind.name()
                );
                return Err(SimulateError::value("disk_bytes", reason));
            }
        }
        let read_gb_s = required("disk_read_gb_s", hardware.disk_read_gb_s)?;
        let write_gb_s = required("disk_write_gb_s", hardware.disk_write_gb_s)?;
        let latency_us = required("disk_latency_us", hardware.disk_latency_us)?;
        // A copy within host memory uses the memory bandwidth twice: for the read and for the write.
        let in_memory_gb_s = hardware.bandwidth_gb_s * hardware.bandwidth_efficiency / 2.0;
        let copy_gb_s = hardware.host_link_gb_s.unwrap_or(in_memory_gb_s);
        Ok(Some(Self {
            shape,
            disk_bytes,
            read_bytes_per_s: read_gb_s * 1e9,
            write_bytes_per_s: write_gb_s * 1e9,
            latency_s: latency_us * 1e-6,
            copy_bytes_per_s: copy_gb_s * f64::from(devices) * 1e9,
        }))
    }

    /// Bytes of a block's keys and values, or of a state.
    pub fn payload_bytes(&self, kind: BlockKind) -> u64 {
        self.shape.geometry.payload_bytes(kind) as u64
    }

    /// `payload_bytes` plus the record's overhead on disk.
    pub fn record_bytes(&self, kind: BlockKind) -> u64 {
        self.shape.geometry.record_bytes(kind)
    }

    pub(super) fn copies_s(&self, copies: &BlockCopies) -> f64 {
        let [block, state] = [BlockKind::Kv, BlockKind::State].map(|kind| self.payload_bytes(kind));
        let saved = copies.saves.iter().map(|save| match save.from {
            BlockSource::Pages(_) => block,
            BlockSource::State(_) => state,
        });
        let block_tokens = self.shape.geometry.block_tokens as u64;
        let loaded = copies.loads.iter().map(|load| {
            let tokens = load.positions.len() as u64;
            tokens * block / block_tokens + state * load.states.len() as u64
        });
        let bytes = saved.sum::<u64>() + loaded.sum::<u64>();
        bytes as f64 / self.copy_bytes_per_s
    }
}
