//! The flags of a bench without a server.

use std::path::PathBuf;

use clap::Args;

/// Flags without a server.
#[derive(Args, Debug)]
pub struct OfflineArgs {
    /// Prompts of prefills, comma separated; the first one is also in front of the decode of one stream
    #[arg(long, value_name = "TOKENS", default_value = "512", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "base_url",
        help_heading = "Bench without a server")]
    pub prompt_tokens: Vec<u32>,
    /// Tokens that each stream generates
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..),
        conflicts_with = "base_url", help_heading = "Bench without a server")]
    pub output_tokens: u32,
    /// Streams that decode together, comma separated
    #[arg(long, value_name = "STREAMS", default_value = "1,8,16", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with = "base_url",
        help_heading = "Bench without a server")]
    pub batch: Vec<u32>,
    /// Prompts of streams that decode together, comma separated
    #[arg(long, value_name = "TOKENS", default_value = "64", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "base_url",
        help_heading = "Bench without a server")]
    pub batch_prompt_tokens: Vec<u32>,
    /// Rounds; medians and quartiles are of their results
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000),
        conflicts_with = "base_url", help_heading = "Bench without a server")]
    pub repeat: u32,
    /// Leave out start-up and peak memory, which take a start of the engine each
    #[arg(
        long,
        conflicts_with = "base_url",
        help_heading = "Bench without a server"
    )]
    pub skip_starts: bool,
    #[command(flatten)]
    pub scaling: ScalingArgs,
    /// Start, answer, say how long it took, and end: what the bench runs in a process of its own
    #[arg(long, hide = true)]
    pub start_once: bool,
}

/// Flags of the part that takes long.
#[derive(Args, Debug)]
pub struct ScalingArgs {
    /// Measure decoding against the context, a long prefill, and batches of 1, 2, 4, .. 64 too
    #[arg(
        long,
        conflicts_with = "base_url",
        help_heading = "Bench without a server"
    )]
    pub scaling: bool,
    /// Longest context of --scaling, as far as model and KV pool reach
    #[arg(long, value_name = "TOKENS", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(1..),
        requires = "scaling", help_heading = "Bench without a server")]
    pub max_context: u32,
    /// Draw the batch curve of --scaling as SVG
    #[arg(
        long,
        value_name = "FILE",
        requires = "scaling",
        help_heading = "Bench without a server"
    )]
    pub plot: Option<PathBuf>,
}
