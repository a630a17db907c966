//! The command `souffleur bench`: measures this engine on this machine, or an OpenAI-compatible server under load.
//!
//! [`offline`] needs no server: it starts the engine in this process and compares its speed with the machine's limits.
//! [`online`] is a client that measures latency and throughput as users see them. Both send the same [`prompts`].

mod offline;
mod online;
mod prompts;

use std::path::PathBuf;

use clap::Args;

use super::failure::Failure;
use super::flags::LocalFlags;
use crate::cli::settings::Settings;
use offline::args::OfflineArgs;
use online::args::OnlineArgs;

/// Flags of the command.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Write a record with every sample to a file as JSON; - writes it to stdout instead of the tables
    #[arg(long, value_name = "FILE", help_heading = "Bench")]
    json: Option<PathBuf>,
    /// Seed of the random prompts; a new one for each run if not given, so that no cache holds the prompts
    #[arg(long, help_heading = "Bench")]
    seed: Option<u64>,
    #[command(flatten)]
    offline: OfflineArgs,
    #[command(flatten)]
    online: OnlineArgs,
    #[command(flatten)]
    pub flags: LocalFlags,
}

/// Runs the command. With a server, the engine's flag `--model-path` names the server's model.
pub fn run(args: &BenchArgs, settings: Settings) -> Result<(), Failure> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let json = args.json.as_deref();
    match &args.online.base_url {
        Some(base_url) => {
            let model = args.flags.engine.get("model_path");
            let record = online::measure(&args.online, base_url, model, seed)?;
            record.publish(json)
        }
        None => offline::run(&args.offline, settings.engine, seed, json),
    }
}
