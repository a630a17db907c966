//! The command `souffleur plan`: shows how memory would be divided, without loading the weights.
//!
//! | part | role |
//! |---|---|
//! | [`known`] | the models of `--table`: ids on the hub, shapes, sizes of files |
//! | [`mix`] | the types of a GGUF file's tensors |
//! | [`table`] | plans the memory of the known models |

mod known;
mod mix;
mod table;

use clap::Args;
use souffleur::config::EngineConfig;
use souffleur::engine::{EngineParts, GpuShare, ModelInfo, Progress, ReplicaThreads};
use souffleur::error::StartError;
use souffleur::executor::cpu::{describe_checkpoint, widening_bytes};
use souffleur::executor::memory_plan::{Bytes, MemoryPlan};
use souffleur::model::loader::Checkpoint;
use souffleur::model::sparsity::LayersToLabel;
use souffleur::model::weights::TypeCount;

use super::failure::Failure;
use super::flags::{AllFlags, LocalFlags, ModelArg};
use super::local;
use super::output::say;
use crate::cli::settings::Settings;

#[derive(Args, Debug)]
pub struct PlanArgs {
    #[command(flatten)]
    model: ModelArg,
    /// List well-known models by the memory that they need with these flags, without a download
    #[arg(long, conflicts_with_all = ["model", "model_path"], help_heading = "Plan")]
    table: bool,
    #[command(flatten)]
    flags: LocalFlags,
}

impl PlanArgs {
    pub fn settings_flags(&self) -> AllFlags {
        self.flags.with_model(&self.model)
    }
}

pub fn run(args: &PlanArgs, settings: Settings) -> Result<(), Failure> {
    if args.table {
        return table::show(&settings.engine);
    }
    let config = local::with_model(settings.engine)?;
    let tokenizer = match EngineParts::text_model_of(&config) {
        Err(error @ StartError::Config(_)) => return Err(error.into()),
        tokenizer => tokenizer.map(drop),
    };
    // Memory can be planned even without a tokenizer.
    let no_tokenizer = EngineConfig {
        skip_tokenizer_init: true,
        ..config.clone()
    };
    let parts = EngineParts::from_model(&no_tokenizer, Progress::silent())?;
    show(&parts, &Replicas::of(&config));
    show_ranks(&config, &parts)?;
    show_files(&config, &parts.info)?;
    show_tokenizer(tokenizer);
    Ok(())
}

/// Prints an error of the tokenizer, which would prevent the server from starting even with enough memory.
fn show_tokenizer(tokenizer: Result<(), StartError>) {
    if let Err(error) = tokenizer {
        say(format_args!(
            "tokenizer             unusable, a server would not start: {error}"
        ));
    }
}

/// Prints the part of the memory and of the threads that each of several ranks has, or its GPUs.
fn show_ranks(config: &EngineConfig, parts: &EngineParts) -> Result<(), Failure> {
    let count = config.tp_size;
    let Some(plan) = parts.info.memory.as_ref().filter(|_| count > 1) else {
        return Ok(());
    };
    let opened = Checkpoint::open(&config.model_path, config.dtype.named(), config.load_format);
    let checkpoint = opened.map_err(Failure::failed)?;
    let described = describe_checkpoint(checkpoint, config.quantization);
    let on_ranks = described.on_ranks(count).map_err(StartError::from)?;
    say(format_args!(
        "ranks                 {count}: each has a part of the weights and of the KV pool"
    ));
    if !parts.gpus.is_empty() {
        show_gpus_of_ranks(&parts.gpus, &on_ranks.decoded_weights_bytes, plan);
        return Ok(());
    }
    let kv = Bytes(plan.kv_bytes / count as u64);
    let threads = ReplicaThreads::of(config).per_rank();
    for (rank, weights) in on_ranks.weights_bytes.iter().enumerate() {
        let label = format!("  rank {rank}");
        say(format_args!(
            "{label:<21} {} of weights, {kv} of KV, compute threads: {threads}",
            Bytes(*weights)
        ));
    }
    Ok(())
}

/// Prints the memory of each rank, and the GPUs of the rank in all replicas.
fn show_gpus_of_ranks(gpus: &[GpuShare], weights_bytes: &[u64], plan: &MemoryPlan) {
    let kv = Bytes(plan.kv_bytes);
    for (rank, weights) in weights_bytes.iter().enumerate() {
        let label = format!("  rank {rank}");
        say(format_args!(
            "{label:<21} {} of weights, {kv} of KV",
            Bytes(*weights)
        ));
        for gpu in gpus.iter().skip(rank).step_by(weights_bytes.len()) {
            let GpuShare { name, memory, .. } = gpu;
            say(format_args!(
                "    on {name}: {} free, enough for a pool of {} tokens",
                Bytes(memory.budget.free_before_bytes),
                memory.max_total_tokens
            ));
        }
    }
}

/// Prints the number of layers by kind of cache, and of tensors by element type.
fn show_files(config: &EngineConfig, model: &ModelInfo) -> Result<(), Failure> {
    let opened = Checkpoint::open(&config.model_path, config.dtype.named(), config.load_format);
    let checkpoint = opened.map_err(Failure::failed)?;
    let layout = checkpoint.kv_layout_in(config.kv_cache_dtype.named());
    let has_windows = model
        .memory
        .as_ref()
        .is_some_and(|plan| plan.window_pages > 0);
    let windowed = layout.windowed(&checkpoint.config.windows);
    let mut layout = windowed.filter(|_| has_windows).unwrap_or(layout);
    if let Some(wish) = config.double_sparsity() {
        let layers = LayersToLabel {
            layout: &layout,
            windows: &checkpoint.config.windows,
            n_heads: checkpoint.config.num_attention_heads,
        };
        let labels = layers.labels(wish.channels).map_err(Failure::failed)?;
        layout = layout.with_labels(|layer| labels[layer]);
    }
    for (index, (count, kind)) in layout.kinds().iter().enumerate() {
        let label = if index == 0 { "KV layers" } else { "" };
        say(format_args!("{label:<21} {count} with {kind}"));
    }
    for (index, count) in checkpoint.types().iter().enumerate() {
        let label = if index == 0 { "tensors" } else { "" };
        let TypeCount {
            name,
            tensors,
            bytes,
        } = count;
        say(format_args!(
            "{label:<21} {tensors} of {name} ({})",
            Bytes(*bytes)
        ));
    }
    if let Some(scheme) = checkpoint.scheme() {
        say(format_args!("quantised             {scheme}"));
    }
    let widening = widening_bytes(&checkpoint, config.quantization);
    if widening > 0 {
        say(format_args!(
            "expanded              the quantised weights take {} more memory: float32 computes with unpacked weights",
            Bytes(widening)
        ));
    }
    Ok(())
}

/// The number of replicas, and the threads and cores of each.
pub struct Replicas {
    n: usize,
    threads: ReplicaThreads,
}

impl Replicas {
    pub fn of(config: &EngineConfig) -> Self {
        Self {
            n: config.dp_size,
            threads: ReplicaThreads::of(config),
        }
    }

    fn show(&self, gpus: &[GpuShare]) {
        let n = self.n;
        if n == 1 {
            return;
        }
        say(format_args!(
            "replicas              {n}: each has the memory, the KV pool and the requests below"
        ));
        if gpus.is_empty() {
            self.threads.explain().into_iter().for_each(say);
        }
        for gpu in gpus {
            let GpuShare {
                name,
                replicas,
                memory,
            } = gpu;
            say(format_args!("on {name}"));
            say(format_args!(
                "  replicas            {replicas}: {} free for each, enough for a pool of {} tokens",
                Bytes(memory.budget.free_before_bytes),
                memory.max_total_tokens
            ));
        }
    }
}

pub fn show(parts: &EngineParts, replicas: &Replicas) {
    let model = &parts.info;
    say(format_args!(
        "model                 {} ({})",
        model.served_model_name,
        model.model_path.display()
    ));
    if let Some(path) = &model.kernel_path {
        say(format_args!("instruction set       {path}"));
    }
    replicas.show(&parts.gpus);
    let lines = model.memory.iter().flat_map(|plan| plan.explain());
    lines.for_each(say);
}
