//! The model under test: its data types, its cost and its device.

use souffleur::config::EngineConfig;
use souffleur::executor::cpu::LoadedMatrix;
use souffleur::executor::cpu::{CpuDescription, describe};
use souffleur::kernels::dtype::Quantization;
use souffleur::model::sparsity::ModelSparsity;

use super::machine::floors::{ModelCost, Peak};
use super::machine::{BenchDevice, MachineRates};
use crate::cli::failure::Failure;

pub struct Subject {
    pub description: CpuDescription,
    pub quantization: Option<Quantization>,
    sparsity: Option<ModelSparsity>,
    pub device: BenchDevice,
}

impl Subject {
    pub fn read(config: &EngineConfig) -> Result<Self, Failure> {
        let (dir, dtype) = (&config.model_path, config.dtype.named());
        let described = describe(dir, dtype, config.quantization, config.load_format);
        let mut description = described
            .map_err(Failure::failed)?
            .with_kv(config.kv_cache_dtype.named());
        let sparsity = config.double_sparsity();
        let sparsity = sparsity.map(|wish| description.sparsify(&wish));
        Ok(Self {
            device: BenchDevice::read(config, description.dtype)?,
            description,
            quantization: config.quantization,
            sparsity: sparsity.transpose().map_err(Failure::failed)?,
        })
    }

    pub fn cost(&self) -> ModelCost {
        let CpuDescription {
            config,
            kv_layout,
            matrices,
            ..
        } = &self.description;
        let bytes = match self.device {
            BenchDevice::Cpu { .. } => |matrix: &LoadedMatrix| matrix.bytes,
            BenchDevice::Gpu(_) => |matrix: &LoadedMatrix| matrix.decoded_bytes,
        };
        let cost = ModelCost::new(config, matrices, bytes, kv_layout);
        match &self.sparsity {
            None => cost,
            Some(sparsity) => cost.sparse(kv_layout, &sparsity.rules, config.num_attention_heads),
        }
    }

    pub fn peak(&self, rates: &MachineRates, read_bytes_per_s: f64) -> Peak {
        rates.peak(self.description.dtype, read_bytes_per_s)
    }
}
