//! The command `souffleur calibrate`: computes the channels for double sparsity from a text, and writes them to a file.

use std::path::PathBuf;

use clap::Args;
use souffleur::config::EngineConfig;
use souffleur::engine::EngineParts;
use souffleur::executor::calibration::{CalibrationRequest, RecallRequest, calibrate};
use souffleur::kernels::cpu::default_threads;
use souffleur::kernels::dtype::{Dtype, Quantization};

use super::failure::Failure;
use super::local;
use super::output::say;

/// The largest text that is read: far more than a calibration needs.
const MAX_TEXT_BYTES: u64 = 64 << 20;

/// Flags of the command.
#[derive(Args, Debug)]
pub struct CalibrateArgs {
    /// GGUF file of a model, folder of one in Hugging Face layout, or id of one on the Hugging Face hub; the bundled
    /// model if not given
    #[arg(long, alias = "model", value_name = "PATH|ID")]
    model_path: Option<PathBuf>,
    /// Branch, tag or commit of a model on the Hugging Face hub
    #[arg(long)]
    revision: Option<String>,
    /// Data type in which weights and KV are stored
    #[arg(long, default_value = "auto", value_parser = ["auto", "float32", "float16", "bfloat16"])]
    dtype: String,
    /// Quantises matrices when they are loaded
    #[arg(long, value_parser = ["int8", "int4"])]
    quantization: Option<String>,
    /// Compute threads; 0 means one per physical core
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// File with a text like those that the model will read
    #[arg(long, value_name = "FILE")]
    text: PathBuf,
    /// Number of tokens of the text to use
    #[arg(long, value_name = "TOKENS", default_value_t = 16_384, value_parser = clap::value_parser!(u32).range(1..))]
    max_tokens: u32,
    /// Tokens of each piece into which the text is cut
    #[arg(long, value_name = "TOKENS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    piece_tokens: u32,
    /// Key channels in the labels when recall is measured; if not given, a quarter of a key's channels and at least 32
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    ds_heavy_channel_num: Option<u32>,
    /// Tokens that labels select; recall is the share of the tokens with the highest attention that are selected
    #[arg(long, value_name = "TOKENS", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
    ds_heavy_token_num: u32,
    /// JSON file to write, for --ds-channel-config-path
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub fn run(args: &CalibrateArgs) -> Result<(), Failure> {
    let config = local::with_model(EngineConfig {
        model_path: args.model_path.clone().unwrap_or_default(),
        revision: args.revision.clone(),
        ..EngineConfig::default()
    })?;
    let text = read(args)?;
    let tokenizer = EngineParts::text_model_of(&config)?;
    let tokenizer = tokenizer.ok_or_else(|| Failure::failed("the model has no tokenizer"))?;
    let mut tokens = tokenizer.encode(&text).map_err(Failure::failed)?;
    tokens.truncate(args.max_tokens as usize);
    if tokens.is_empty() {
        return Err(Failure::failed(format_args!(
            "{}: contains no text",
            args.text.display()
        )));
    }
    let n_tokens = tokens.len();
    let request = CalibrationRequest {
        model: config.model_path,
        dtype: Dtype::from_name(&args.dtype),
        quantization: args
            .quantization
            .as_deref()
            .and_then(Quantization::from_name),
        load_format: config.load_format,
        threads: match args.threads {
            0 => default_threads(),
            threads => threads,
        },
        tokens,
        piece_tokens: args.piece_tokens as usize,
        output: args.output.clone(),
        recall: Some(RecallRequest {
            channels: args.ds_heavy_channel_num.map(|channels| channels as usize),
            tokens: args.ds_heavy_token_num as usize,
        }),
    };
    let calibrated = calibrate(&request).map_err(Failure::failed)?;
    say(format_args!(
        "wrote {}: channels of {} layers, calibrated on {} tokens",
        args.output.display(),
        calibrated.n_layers,
        n_tokens
    ));
    let channels = match args.ds_heavy_channel_num {
        Some(1) => "1 channel".to_owned(),
        Some(channels) => format!("{channels} channels"),
        None => "the default number of channels".to_owned(),
    };
    for (ranked_by, share) in calibrated.recall {
        say(format_args!(
            "channels ranked by {:<2} find {:.1} % of the {} tokens with the highest attention ({channels})",
            ranked_by.name(),
            100.0 * share,
            args.ds_heavy_token_num,
        ));
    }
    Ok(())
}

fn read(args: &CalibrateArgs) -> Result<String, Failure> {
    let file = &args.text;
    let failed = |reason: &dyn std::fmt::Display| {
        Failure::failed(format_args!("{}: {reason}", file.display()))
    };
    let size = std::fs::metadata(file)
        .map_err(|error| failed(&error))?
        .len();
    if size > MAX_TEXT_BYTES {
        return Err(failed(&format_args!(
            "has {size} bytes, the limit is {MAX_TEXT_BYTES}: shorten it, since only its first {} tokens are used",
            args.max_tokens
        )));
    }
    std::fs::read_to_string(file).map_err(|error| failed(&error))
}
