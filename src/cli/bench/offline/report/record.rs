//! The JSON record of a bench without a server.

use std::path::PathBuf;

use serde::Serialize;
use souffleur::engine::ModelInfo;
use souffleur::executor::cpu::CpuDescription;
use souffleur::kernels::dtype::Quantization;

use super::rows::Row;
use super::scaling::Scaling;
use crate::cli::bench::offline::machine::MachineRates;
use crate::cli::bench::offline::subject::Subject;
use crate::cli::failure::Failure;
use crate::cli::output::record::date;

#[derive(Serialize)]
pub struct Record {
    /// The name and version of this record format.
    pub schema: &'static str,
    pub version: &'static str,
    pub date: String,
    pub cpu: String,
    pub gpu: Option<String>,
    pub model: ModelRecord,
    pub dtype: &'static str,
    pub kv_cache_dtype: &'static str,
    pub quantization: &'static str,
    pub threads: usize,
    pub kernel_path: &'static str,
    pub page_size: usize,
    pub kv_pool_tokens: usize,
    pub seed: u64,
    pub repeat: u32,
    /// The machine's peak rates, at the start of each round.
    pub machine: Vec<MachineRates>,
    pub rows: Vec<Row>,
    /// `None` without `--scaling`.
    pub scaling: Option<Scaling>,
    pub skipped: Vec<String>,
}

#[derive(Serialize)]
pub struct ModelRecord {
    name: String,
    path: PathBuf,
    architecture: &'static str,
    parameters: u64,
    weights_bytes: u64,
    context_tokens: usize,
}

impl ModelRecord {
    fn new(model: &ModelInfo, description: &CpuDescription) -> Self {
        Self {
            name: model.served_model_name.clone(),
            path: model.model_path.clone(),
            architecture: description.config.architecture.name(),
            parameters: description.config.parameters(),
            weights_bytes: description.weights_bytes,
            context_tokens: model.context_length,
        }
    }
}

impl Record {
    pub fn new(
        model: &ModelInfo,
        subject: &Subject,
        seed: u64,
        repeat: u32,
    ) -> Result<Self, Failure> {
        Ok(Self {
            schema: "souffleur-bench-offline/1",
            version: env!("CARGO_PKG_VERSION"),
            date: date(),
            cpu: cpu(),
            gpu: subject.device.gpu().map(|gpu| gpu.name.clone()),
            model: ModelRecord::new(model, &subject.description),
            dtype: subject.description.dtype.name(),
            kv_cache_dtype: subject.description.kv_dtype.name(),
            quantization: subject.quantization.map_or("none", Quantization::name),
            threads: subject.device.threads(),
            kernel_path: subject.device.kernel_path()?,
            page_size: model.page_size,
            kv_pool_tokens: model.max_total_tokens,
            seed,
            repeat,
            machine: Vec::new(),
            rows: Vec::new(),
            scaling: None,
            skipped: Vec::new(),
        })
    }

    /// One line with model, data types, machine and date.
    pub fn title(&self) -> String {
        let place = match &self.gpu {
            Some(gpu) => format!("{gpu} in {}", self.cpu),
            None => format!("{} threads, {}", self.threads, self.cpu),
        };
        let kv = if self.kv_cache_dtype == self.dtype {
            String::new()
        } else {
            format!(", KV in {}", self.kv_cache_dtype)
        };
        format!(
            "{}, {}, quantization {}{kv}, {} kernels, {place}, {}",
            self.model.name, self.dtype, self.quantization, self.kernel_path, self.date,
        )
    }
}

/// The first processor's name, as the system gives it.
fn cpu() -> String {
    let Ok(mut system) = sysinfo::System::new() else {
        return "unknown CPU".to_owned();
    };
    system.refresh_cpu_list(sysinfo::CpuRefreshKind::nothing());
    let brand = system.cpus().first().map(|cpu| cpu.brand().trim());
    brand
        .filter(|brand| !brand.is_empty())
        .unwrap_or("unknown CPU")
        .to_owned()
}
