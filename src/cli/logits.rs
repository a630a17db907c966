//! The hidden command `souffleur logits`: writes the logits at every position of prompts, to compare implementations.

use std::path::PathBuf;

use clap::Args;
use souffleur::config::EngineConfig;
use souffleur::executor::logits::{LogitsRequest, write_logits};
use souffleur::kernels::cpu::default_threads;
use souffleur::kernels::dtype::{Dtype, Quantization};
use souffleur::state::pool::kv_layout::KvDtype;

use super::failure::Failure;
use super::local;

/// Flags of the command.
#[derive(Args, Debug)]
pub struct LogitsArgs {
    /// GGUF file of a model, folder of one in Hugging Face layout, or id of one on the Hugging Face hub
    #[arg(long, alias = "model", value_name = "PATH|ID")]
    model_path: Option<PathBuf>,
    /// Branch, tag or commit of a model on the Hugging Face hub
    #[arg(long)]
    revision: Option<String>,
    /// Data type in which weights are stored
    #[arg(long, default_value = "auto", value_parser = ["auto", "float32", "float16", "bfloat16"])]
    dtype: String,
    /// Data type in which keys and values are cached
    #[arg(long, default_value = "auto", value_parser = ["auto", "float32", "float16", "bfloat16", "int8"])]
    kv_cache_dtype: String,
    /// Quantises matrices when they are loaded
    #[arg(long, value_parser = ["int8", "int4"])]
    quantization: Option<String>,
    /// Compute threads; 0 means one per physical core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// JSON file {"prompts": [[token, ..], ..]}
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// safetensors file to write: prompt i becomes the f32 tensor logits.<i>, [tokens, vocabulary]
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

pub fn run(args: &LogitsArgs) -> Result<(), Failure> {
    let threads = match args.threads {
        0 => default_threads(),
        threads => threads,
    };
    let config = local::with_model(EngineConfig {
        model_path: args.model_path.clone().unwrap_or_default(),
        revision: args.revision.clone(),
        ..EngineConfig::default()
    })?;
    let request = LogitsRequest {
        model: config.model_path,
        dtype: Dtype::from_name(&args.dtype),
        kv_dtype: KvDtype::from_name(&args.kv_cache_dtype),
        quantization: args
            .quantization
            .as_deref()
            .and_then(Quantization::from_name),
        threads,
        input: args.input.clone(),
        output: args.output.clone(),
    };
    write_logits(&request).map_err(Failure::failed)
}
