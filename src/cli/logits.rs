//! `souffleur logits`: logits at every position of prompts, for comparison with other implementations.

use std::path::PathBuf;

use clap::Args;
use souffleur::executor::logits::{LogitsRequest, write_logits};
use souffleur::kernels::cpu::default_threads;
use souffleur::kernels::dtype::{Dtype, Quantization};

use super::bundled;
use super::failure::Failure;

/// Flags of the command.
#[derive(Args, Debug)]
pub struct LogitsArgs {
    /// GGUF file of a model, or folder of one in Hugging Face layout
    #[arg(long, alias = "model", value_name = "PATH")]
    model_path: Option<PathBuf>,
    /// Data type in which weights and KV are stored
    #[arg(long, default_value = "auto", value_parser = ["auto", "float32", "float16", "bfloat16"])]
    dtype: String,
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

/// Runs the command.
pub fn run(args: &LogitsArgs) -> Result<(), Failure> {
    let threads = match args.threads {
        0 => default_threads(),
        threads => threads,
    };
    let request = LogitsRequest {
        model: args.model_path.clone().map_or_else(bundled::unpacked, Ok)?,
        dtype: Dtype::from_name(&args.dtype),
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
