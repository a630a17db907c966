//! The command-line flags of `souffleur bench` with a server.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use crate::cli::remote::secret::Secret;

/// The lowest accepted request rate, per second.
const MIN_RATE: f64 = 0.001;
/// The largest accepted length of a part of a prompt, in tokens.
const MAX_TOKENS: i64 = 1 << 20;

/// Flags with a server.
#[derive(Args, Debug)]
pub struct OnlineArgs {
    /// Measure an OpenAI-compatible server in place of an engine in this process: the server at this address, such as
    /// http://127.0.0.1:30000, through its /v1/completions. Requests go to the model named by --model-path, otherwise
    /// to the first model that the server lists
    #[arg(long, value_name = "URL", help_heading = "Bench of a server")]
    pub base_url: Option<String>,
    /// API key, sent as `Authorization: Bearer KEY`; set it through the environment variable OPENAI_API_KEY to keep it
    /// out of the process list
    #[arg(
        long,
        value_name = "KEY",
        requires = "base_url",
        help_heading = "Bench of a server"
    )]
    pub api_key: Option<Secret>,
    /// Kind of prompts: entirely random, or random after a prefix shared by all
    #[arg(long, value_enum, default_value_t = Dataset::Random, requires = "base_url", help_heading = "Bench of a server")]
    pub dataset_name: Dataset,
    /// Tokens of each prompt [default: 512]; with --dataset-name shared-prefix, tokens of each prompt after the prefix
    /// [default: 64]
    #[arg(long, value_name = "TOKENS", requires = "base_url", value_parser = clap::value_parser!(u32).range(1..=MAX_TOKENS),
        help_heading = "Bench of a server")]
    pub random_input_len: Option<u32>,
    /// Maximum number of tokens per output
    #[arg(long, value_name = "TOKENS", default_value_t = 128, requires = "base_url",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = "Bench of a server")]
    pub random_output_len: u32,
    /// Number of tokens with which all prompts begin under --dataset-name shared-prefix
    #[arg(long, value_name = "TOKENS", default_value_t = 512, requires = "base_url",
        value_parser = clap::value_parser!(u32).range(1..=MAX_TOKENS), help_heading = "Bench of a server")]
    pub shared_prefix_len: u32,
    /// Number of requests
    #[arg(long, value_name = "N", default_value_t = 100, requires = "base_url",
        value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Bench of a server")]
    pub num_prompts: u32,
    /// Maximum number of simultaneous requests; no limit if not given
    #[arg(long, value_name = "N", requires = "base_url", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Bench of a server")]
    pub max_concurrency: Option<u32>,
    /// Requests per second, at random moments (a Poisson process); inf sends all at once
    #[arg(long, value_name = "PER_SECOND", default_value = "inf", value_parser = rate, requires = "base_url",
        help_heading = "Bench of a server")]
    pub request_rate: f64,
    /// Warm-up requests, sent one by one before the clock starts, with prompts that are not used again
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "base_url",
        help_heading = "Bench of a server"
    )]
    pub warmup_requests: u32,
    /// Generate outputs of full length: the end-of-text token does not end them
    #[arg(long, requires = "base_url", help_heading = "Bench of a server")]
    pub ignore_eos: bool,
    /// Ask for outputs that the JSON schema in this file accepts: the difference to a bench without it is what
    /// structured output costs
    #[arg(
        long,
        value_name = "FILE",
        requires = "base_url",
        help_heading = "Bench of a server"
    )]
    pub json_schema: Option<PathBuf>,
    /// Send text instead of token ids, for servers that accept only text; a word counts as one token
    #[arg(long, requires = "base_url", help_heading = "Bench of a server")]
    pub text_prompts: bool,
    /// Vocabulary size: random token ids are smaller than this. If not given, it is the size that the server reports,
    /// or 32000 if the server reports none
    #[arg(long, value_name = "N", requires = "base_url", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "text_prompts", help_heading = "Bench of a server")]
    pub vocab_size: Option<u32>,
}

/// The kinds of prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Dataset {
    /// Prompts have nothing in common.
    Random,
    /// All prompts begin with the same prefix.
    SharedPrefix,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate >= MIN_RATE => Ok(rate),
        _ => Err(format!("must be a number of at least {MIN_RATE}, or inf")),
    }
}
