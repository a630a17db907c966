//! The subject of the measurements: a model in its types, and where it computes.

use souffleur::config::EngineConfig;
use souffleur::executor::cpu::{CpuDescription, describe};
use souffleur::kernels::dtype::Quantization;

use super::machine::floors::{ModelCost, Peak};
use super::machine::{MachineRates, Place};
use crate::cli::failure::Failure;

/// The subject of the measurements.
pub struct Subject {
    pub description: CpuDescription,
    pub quantization: Option<Quantization>,
    pub place: Place,
}

impl Subject {
    /// Reads what the configuration names.
    pub fn read(config: &EngineConfig) -> Result<Self, Failure> {
        let (dir, dtype) = (&config.model_path, config.dtype.named());
        let described = describe(dir, dtype, config.quantization, config.load_format);
        let description = described
            .map_err(Failure::failed)?
            .with_kv(config.kv_cache_dtype.named());
        Ok(Self {
            place: Place::read(config, description.dtype)?,
            description,
            quantization: config.quantization,
        })
    }

    /// The least that its steps cost.
    pub fn cost(&self) -> ModelCost {
        let CpuDescription {
            config,
            dtype,
            kv_layout,
            ..
        } = &self.description;
        ModelCost::new(config, *dtype, self.quantization, kv_layout)
    }

    /// The peak for this model's types.
    pub fn peak(&self, rates: &MachineRates, read_bytes_per_s: f64) -> Peak {
        let dtype = self.description.dtype;
        // Four-bit codes are multiplied as bytes.
        rates.peak(dtype, self.quantization.is_some(), read_bytes_per_s)
    }
}
