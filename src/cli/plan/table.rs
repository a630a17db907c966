//! Lists well-known models by the memory that the engine's memory plan needs for them.

use souffleur::config::{Device, EngineConfig};
use souffleur::engine::memory::host_plan;
use souffleur::error::{LoadError, StartError};
use souffleur::executor::cpu::{CpuDescription, describe_checkpoint};
use souffleur::executor::memory_plan::{Bytes, MemoryPlan, available_bytes};
use souffleur::kernels::dtype::Dtype;
use souffleur::kernels::tensor_view::Stored;
use souffleur::model::config::ModelConfig;
use souffleur::model::loader::Checkpoint;
use souffleur::model::weights::TensorSpec;

use super::known::{KNOWN, Known};
use crate::cli::failure::Failure;
use crate::cli::output::{say, table};

/// Tokens of the KV pool for which the table gives the memory, without `--max-total-tokens`.
const TOKENS: usize = 8192;
const GIB: u64 = 1 << 30;
/// Available memory in GiB, for which the table gives tokens.
const MEMORIES: [u64; 5] = [4, 8, 16, 32, 64];
/// More than any machine has, so that a pool is as large as the configuration asks.
const UNLIMITED: u64 = 1 << 60;

pub(super) fn show(config: &EngineConfig) -> Result<(), Failure> {
    config.validate().map_err(StartError::from)?;
    if let Device::Cuda(_) = config.device {
        let reason = "--table plans the memory of a CPU: add --device cpu";
        return Err(Failure::Usage(reason.to_owned()));
    }
    let mut rows = Vec::new();
    for model in &KNOWN {
        let described = describe(config, model)?;
        if described.on_ranks(config.tp_size).is_ok() {
            rows.push(Row::new(config, model, described)?);
        }
    }
    rows.sort_by_key(|row| row.needed_bytes);
    let tokens = config.max_total_tokens.unwrap_or(TOKENS);
    let memories = MEMORIES.map(|gib| format!("{gib}G"));
    let [first, .., last] = &memories;
    let each = match config.dp_size {
        1 => String::new(),
        n => format!(", in each of {n} replicas"),
    };
    let ranks = match config.tp_size {
        1 => String::new(),
        n => format!(" Listed are the models that {n} ranks can share."),
    };
    say(format_args!(
        "Columns file and memory are in GiB; memory is for weights, activations and {tokens} tokens of \
         KV{each}.{ranks}\n\
         Columns {first} to {last}: default size of the KV pool in tokens with this available memory (1K is 1024).\n"
    ));
    let header = ["model", "file", "memory"].into_iter();
    let header: Vec<&str> = header.chain(memories.iter().map(String::as_str)).collect();
    let mut cells = Vec::new();
    for row in &rows {
        cells.push(row.cells()?);
    }
    table::print(&header, &cells);
    show_machine(&rows)
}

/// Lists the models that fit into the available memory of this machine.
fn show_machine(rows: &[Row]) -> Result<(), Failure> {
    let available = match available_bytes() {
        Ok(available) => available,
        // The table above is right without /proc too.
        Err(error) => {
            say(format_args!(
                "\nthe models that fit here are unknown: {error}"
            ));
            return Ok(());
        }
    };
    let mut fitting = Vec::new();
    for row in rows {
        if let Some(plan) = row.plan(available)? {
            fitting.push(vec![row.id.to_owned(), plan.max_total_tokens.to_string()]);
        }
    }
    let available = Bytes(available);
    if fitting.is_empty() {
        say(format_args!(
            "\nnone fits into the {available} available here"
        ));
        return Ok(());
    }
    say(format_args!("\n{available} are available here:\n"));
    table::print(&["model that fits", "tokens"], &fitting);
    Ok(())
}

struct Row {
    id: &'static str,
    file_bytes: u64,
    needed_bytes: u64,
    config: EngineConfig,
    model: CpuDescription,
}

impl Row {
    fn new(config: &EngineConfig, known: &Known, model: CpuDescription) -> Result<Self, Failure> {
        let limit = model.config.context_tokens();
        let config = EngineConfig {
            // A longer context than a model supports is an error for one model, not for a list.
            context_length: config.context_length.map(|tokens| tokens.min(limit)),
            ..config.clone()
        };
        Ok(Self {
            id: known.id,
            file_bytes: known.file_bytes,
            needed_bytes: needed_bytes(&config, &model)?,
            config: EngineConfig {
                max_total_tokens: None,
                ..config
            },
            model,
        })
    }

    /// The plan for a machine with this available memory; `None` if the model does not fit.
    fn plan(&self, available: u64) -> Result<Option<MemoryPlan>, Failure> {
        match host_plan(&self.config, &self.model, available) {
            Ok(plan) => Ok(Some(plan)),
            Err(StartError::Load(LoadError::Memory(_))) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn cells(&self) -> Result<Vec<String>, Failure> {
        let gib = |bytes: u64| format!("{:.1}", bytes as f64 / GIB as f64);
        let mut cells = vec![
            self.id.to_owned(),
            gib(self.file_bytes),
            gib(self.needed_bytes),
        ];
        for memory in MEMORIES {
            let plan = self.plan(memory * GIB)?;
            cells.push(plan.map_or("-".to_owned(), |plan| thousands(plan.max_total_tokens)));
        }
        Ok(cells)
    }
}

/// The memory that must be available for the weights, the reserve and the KV pool of all replicas.
fn needed_bytes(config: &EngineConfig, model: &CpuDescription) -> Result<u64, Failure> {
    let config = EngineConfig {
        max_total_tokens: Some(config.max_total_tokens.unwrap_or(TOKENS)),
        mem_fraction_static: None,
        ..config.clone()
    };
    let plan = host_plan(&config, model, UNLIMITED)?;
    let budget = &plan.budget;
    let of_each = budget.weights_bytes + budget.reserve_bytes + plan.kv_bytes;
    Ok(of_each * config.dp_size as u64)
}

fn thousands(tokens: u64) -> String {
    match tokens / 1024 {
        0 => tokens.to_string(),
        thousands => format!("{thousands}K"),
    }
}

fn describe(config: &EngineConfig, known: &Known) -> Result<CpuDescription, Failure> {
    let model = known.config().map_err(Failure::failed)?;
    let described = described(config, model, Dtype::BF16, |model, spec| {
        known.mix.stored(model, spec)
    });
    described.map_err(Failure::from)
}

/// Describes a model as the engine does, from its configuration and the stored types of its tensors. `dtype` is the
/// type in which it computes by default.
fn described(
    config: &EngineConfig,
    model: ModelConfig,
    dtype: Dtype,
    stored: impl Fn(&ModelConfig, &TensorSpec) -> Stored,
) -> Result<CpuDescription, StartError> {
    let dtype = config.dtype.named().unwrap_or(dtype);
    let checkpoint = Checkpoint::without_files(model, dtype).with_types(stored);
    let described = describe_checkpoint(checkpoint, config.quantization);
    let mut described = described.with_kv(config.kv_cache_dtype.named());
    if let Some(wish) = config.double_sparsity() {
        described.sparsify(&wish)?;
    }
    Ok(described)
}

#[cfg(test)]
mod tests {
    use souffleur::bundled;
    use souffleur::config::{DtypeChoice, KvCacheDtype};
    use souffleur::engine::{EngineParts, Progress};
    use souffleur::kernels::dtype::Quantization;

    use super::*;

    fn check_bundled(config: EngineConfig) {
        let path = bundled::unpacked().expect("a writable folder");
        let config = EngineConfig {
            model_path: path.clone(),
            max_total_tokens: Some(TOKENS),
            skip_tokenizer_init: true,
            ..config
        };
        let opened = Checkpoint::open(&path, None, config.load_format).expect("a model");
        let types = |_: &ModelConfig, spec: &TensorSpec| opened.stored(&spec.name).expect("a type");
        let model = ModelConfig::read(&path).expect("a configuration");
        let model = described(&config, model, opened.dtype, types).expect("a description");
        let parts = EngineParts::from_model(&config, Progress::silent()).expect("a model");
        let planned = parts.info.memory.expect("a plan");
        let free_bytes = planned.budget.free_before_bytes;
        let plan = host_plan(&config, &model, free_bytes).expect("the model fits");
        assert_eq!(plan, planned);
        let needed = needed_bytes(&config, &model).expect("a plan");
        let parts = planned.budget.weights_bytes + planned.budget.reserve_bytes + planned.kv_bytes;
        assert_eq!(needed, parts);
    }

    #[test]
    fn the_table_counts_the_bundled_model_as_its_plan_does() {
        let default = EngineConfig::default;
        check_bundled(default());
        for dtype in [DtypeChoice::Float32, DtypeChoice::Bfloat16] {
            check_bundled(EngineConfig { dtype, ..default() });
        }
        for quantization in [Quantization::Int8, Quantization::Int4] {
            check_bundled(EngineConfig {
                quantization: Some(quantization),
                kv_cache_dtype: KvCacheDtype::Int8,
                ..default()
            });
        }
    }

    #[test]
    fn the_memory_of_a_row_suffices_and_a_byte_less_does_not() {
        for dp_size in [1, 3] {
            check_memory(&EngineConfig {
                max_total_tokens: Some(TOKENS),
                dp_size,
                ..EngineConfig::default()
            });
        }
    }

    fn check_memory(config: &EngineConfig) {
        for known in &KNOWN {
            let model = describe(config, known).expect(known.id);
            let needed = needed_bytes(config, &model).expect(known.id);
            let plan = host_plan(config, &model, needed).expect(known.id);
            assert_eq!(plan.max_total_tokens, TOKENS as u64, "{}", known.id);
            assert!(
                host_plan(config, &model, needed - 1).is_err(),
                "{}",
                known.id
            );
            // Weights in blocks stay in blocks, with some padding.
            let ratio = model.weights_bytes as f64 / known.file_bytes as f64;
            assert!((0.95..1.10).contains(&ratio), "{}: {ratio}", known.id);
        }
    }
}
