//! The command-line flags of `souffleur bench` without a server.

use std::path::PathBuf;

use clap::Args;

use super::taught::args::TaughtArgs;

/// Flags without a server.
#[derive(Args, Debug)]
pub struct OfflineArgs {
    /// Prompt lengths of the prefill measurements, comma separated; decoding with one stream uses the first
    #[arg(long, value_name = "TOKENS", default_value = "512", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "base_url",
        help_heading = "Bench without a server")]
    pub prompt_tokens: Vec<u32>,
    /// Tokens that each stream generates
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = clap::value_parser!(u32).range(2..),
        conflicts_with = "base_url", help_heading = "Bench without a server")]
    pub output_tokens: u32,
    /// Numbers of streams that decode together, comma separated
    #[arg(long, value_name = "STREAMS", default_value = "1,8,16", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=4096), conflicts_with = "base_url",
        help_heading = "Bench without a server")]
    pub batch: Vec<u32>,
    /// Prompt lengths of streams that decode together, comma separated
    #[arg(long, value_name = "TOKENS", default_value = "64", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..), conflicts_with = "base_url",
        help_heading = "Bench without a server")]
    pub batch_prompt_tokens: Vec<u32>,
    /// Rounds: each measures everything once, and the tables show medians and quartiles over all rounds
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000),
        conflicts_with = "base_url", help_heading = "Bench without a server")]
    pub repeat: u32,
    /// Do not measure start-up time and peak memory; measuring them starts the engine --repeat + 1 times
    #[arg(
        long,
        conflicts_with = "base_url",
        help_heading = "Bench without a server"
    )]
    pub skip_starts: bool,
    /// Measure only decoding, after a context of this many tokens of random K/V, which needs no prefill; with
    /// --enable-double-sparsity, dense and sparse in turn
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with_all = ["base_url", "scaling"], help_heading = "Bench without a server")]
    pub noise_context: Option<u32>,
    /// Partition threads, weights and K/V as on this many NUMA nodes, whatever the machine has: measures the cost of
    /// the partition without its gain
    #[arg(long, value_name = "NODES", value_parser = clap::value_parser!(u16).range(1..),
        conflicts_with = "base_url", help_heading = "Bench without a server")]
    pub pretended_nodes: Option<u16>,
    #[command(flatten)]
    pub scaling: ScalingArgs,
    #[command(flatten)]
    pub taught: TaughtArgs,
    /// Start, answer two prompts and exit: the bench starts itself with this flag to measure start-up
    #[arg(long, hide = true)]
    pub start_once: bool,
}

/// Flags of --scaling.
#[derive(Args, Debug)]
pub struct ScalingArgs {
    /// Also measure decoding with growing contexts, a long prefill, and batches of 1, 2, 4, .. 64
    #[arg(
        long,
        conflicts_with = "base_url",
        help_heading = "Bench without a server"
    )]
    pub scaling: bool,
    /// Longest context of --scaling; the model or the KV pool may limit it further
    #[arg(long, value_name = "TOKENS", default_value_t = 32_768, value_parser = clap::value_parser!(u32).range(1..),
        requires = "scaling", help_heading = "Bench without a server")]
    pub max_context: u32,
    /// Write an SVG plot of throughput against batch size, as measured by --scaling
    #[arg(
        long,
        value_name = "FILE",
        requires = "scaling",
        help_heading = "Bench without a server"
    )]
    pub plot: Option<PathBuf>,
}
