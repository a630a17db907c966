//! The flags of `souffleur bench --taught`.

use std::path::PathBuf;

use clap::Args;

/// Flags of --taught.
#[derive(Args, Debug)]
pub struct TaughtArgs {
    /// Measure only decoding, without and with drafts in turn, on the texts of this file: JSON lines with kind, prompt
    /// and output, as texts or lists of token ids. The engine computes and samples as always, then takes the text's
    /// next token, so that drafts of random weights are right as often as in the text. The flags of speculation apply
    #[arg(long, value_name = "FILE", conflicts_with_all = ["base_url", "scaling", "noise_context"],
        help_heading = "Bench without a server")]
    pub taught: Option<PathBuf>,
    /// Numbers of streams that decode together, comma separated
    #[arg(long, value_name = "STREAMS", default_value = "1,2,4,8,16", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(1..=4096), requires = "taught",
        help_heading = "Bench without a server")]
    pub streams: Vec<u32>,
    /// Least prompt lengths, comma separated: random tokens before a prompt fill it up; 0 for the texts' own lengths
    #[arg(long, value_name = "TOKENS", default_value = "0", value_delimiter = ',',
        value_parser = clap::value_parser!(u32).range(..=1 << 24), requires = "taught",
        help_heading = "Bench without a server")]
    pub context: Vec<u32>,
    /// Rounds: each measures every load three times: plain, with drafts, and plain again
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000),
        requires = "taught", help_heading = "Bench without a server")]
    pub rounds: u32,
    /// Kinds of texts to measure, comma separated; all if not given. The kind adversary is made by the bench: each
    /// draft of a search for earlier text is wrong
    #[arg(
        long,
        value_name = "KINDS",
        value_delimiter = ',',
        requires = "taught",
        help_heading = "Bench without a server"
    )]
    pub kinds: Vec<String>,
    /// Folder or GGUF file with the tokenizer of the texts, if it is not the model's
    #[arg(
        long,
        value_name = "PATH",
        requires = "taught",
        help_heading = "Bench without a server"
    )]
    pub tokenizer: Option<PathBuf>,
}
