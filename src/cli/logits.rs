//! `souffleur logits`: logits at every position of prompts, for comparison with other implementations.

use std::path::PathBuf;
use std::thread::available_parallelism;

use clap::Args;
use safetensors::tensor::TensorView;
use serde::Deserialize;
use souffleur::model::logits::logits;
use souffleur::model::weights::Dtype;

use super::{Failure, bundled};

/// Flags of the command.
#[derive(Args, Debug)]
pub struct LogitsArgs {
    /// Folder of a model in Hugging Face layout
    #[arg(long, value_name = "DIR")]
    model_path: Option<PathBuf>,
    /// Storage of weights and KV
    #[arg(long, default_value = "auto", value_parser = ["auto", "float32", "float16", "bfloat16"])]
    dtype: String,
    /// Compute threads; 0 takes one a core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// JSON file {"prompts": [[token, ..], ..]}
    #[arg(long, value_name = "FILE")]
    input: PathBuf,
    /// safetensors file to write: for prompt i the f32 tensor logits.<i>, [tokens, vocabulary]
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Input {
    prompts: Vec<Vec<u32>>,
}

/// Runs the command.
pub fn run(args: &LogitsArgs) -> Result<(), Failure> {
    let input = args.input.display();
    let text = std::fs::read(&args.input)
        .map_err(|error| Failure::failed(format_args!("{input}: {error}")))?;
    let Input { prompts } = serde_json::from_slice(&text)
        .map_err(|error| Failure::failed(format_args!("{input}: {error}")))?;
    let dir = args.model_path.clone().map_or_else(bundled::unpacked, Ok)?;
    let threads = match args.threads {
        0 => available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let mut rows: Vec<Vec<u8>> = vec![Vec::new(); prompts.len()];
    let mut vocab_size = 0;
    logits(
        &dir,
        Dtype::from_name(&args.dtype),
        threads,
        &prompts,
        &mut |prompt, _, logits| {
            vocab_size = logits.len();
            rows[prompt].extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
        },
    )
    .map_err(Failure::failed)?;
    let tensors = prompts
        .iter()
        .zip(&rows)
        .enumerate()
        .map(|(i, (prompt, bytes))| {
            let shape = vec![prompt.len(), vocab_size];
            let view =
                TensorView::new(safetensors::Dtype::F32, shape, bytes).map_err(Failure::failed)?;
            Ok((format!("logits.{i}"), view))
        });
    let tensors = tensors.collect::<Result<Vec<_>, Failure>>()?;
    let written = safetensors::serialize_to_file(tensors, None, &args.output);
    written.map_err(|error| Failure::failed(format_args!("{}: {error}", args.output.display())))
}
