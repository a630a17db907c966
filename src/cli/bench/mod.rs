//! `souffleur bench`: how fast this engine is on this machine, or any OpenAI-compatible server under load.

mod floors;
mod machine;
mod offline;
mod online;
mod plot;
mod prompts;
mod record;
mod rows;
mod scaling;
mod starts;
pub(super) mod statistics;
mod streams;
pub(super) mod table;
mod waits;

use std::path::PathBuf;

use clap::Args;

use super::Failure;
use super::flags::LocalFlags;
use crate::settings::Settings;
use offline::OfflineArgs;
use online::OnlineArgs;

/// Flags of the command.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Write a record with every sample to a file; - writes it to stdout, instead of the tables
    #[arg(long, value_name = "FILE", help_heading = "Bench")]
    json: Option<PathBuf>,
    /// Seed of the random prompts; another one each time if not given, so that no cache knows them
    #[arg(long, help_heading = "Bench")]
    seed: Option<u64>,
    #[command(flatten)]
    offline: OfflineArgs,
    #[command(flatten)]
    online: OnlineArgs,
    #[command(flatten)]
    pub flags: LocalFlags,
}

/// Runs the command.
pub fn run(args: &BenchArgs, settings: Settings) -> Result<(), Failure> {
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    match &args.online.base_url {
        Some(base_url) => online::run(args, base_url, seed),
        None => offline::run(args, settings.engine, seed),
    }
}
