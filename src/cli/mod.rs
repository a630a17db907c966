//! The command line: parses the arguments, loads the settings and runs a command.
//!
//! Exit codes: 0 for success, 1 for a failure, 2 for an invalid command line or configuration, 70 for a server whose
//! engine has failed permanently. A failure prints one line to stderr.

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::cli::settings::Settings;
use failure::Failure;
use flags::AllFlags;

mod bench;
mod calibrate;
mod chat;
mod completions;
mod doctor;
mod failure;
mod first_call;
pub mod flags;
mod generate;
#[cfg(feature = "cuda")]
mod gpu;
mod grpc;
mod local;
mod logits;
mod malloc;
mod models;
mod output;
mod plan;
mod progress;
mod readahead;
mod remote;
mod replay_log;
mod run;
mod serve;
mod service;
mod settings;
mod signals;
mod simulate;
mod statistics;
mod telemetry;
mod traces;
mod version;

const HELP_FOOTER: &str = "\
Every flag except --config can also be set by an environment variable (--page-size: SOUFFLEUR_PAGE_SIZE) or by a key in
the --config file (page_size in [engine]); config/default.toml lists all keys. Flags win over the environment, the
environment wins over the file.

Examples:
  souffleur                                         serve the bundled model on http://127.0.0.1:30000
  souffleur --model-path ~/models/Qwen3-0.6B        serve a model in Hugging Face layout
  souffleur --model-path ~/models/Qwen3-8B.gguf     serve a GGUF file
  souffleur --model-path Qwen/Qwen3-0.6B            download a model and serve it
  souffleur chat --model-path Qwen/Qwen3-0.6B       talk to it in the terminal
  souffleur plan --model-path ~/models/Qwen3-0.6B   what would fit into memory, and why
  souffleur plan --table                            models by the memory that they need
  souffleur generate 'Who are you?'                 answer one prompt
";

/// The answer to `souffleur -h`.
const SHORT_HELP: &str = "\
Usage: souffleur [COMMAND] [MODEL] [FLAGS]

MODEL is a GGUF file, a folder in Hugging Face layout or an id on the hub (Qwen/Qwen3-0.6B); the bundled model if none.

  serve        serve a model over HTTP and WebSocket (also without a command)
  run          serve a model and talk to it in this terminal
  chat         talk to a model, or to a server (--url)
  generate     answer one prompt
  pull, list, rm                       download, list and delete models of the hub
  plan         show what would fit into memory, and why
  doctor       check this machine, and say what mends each fault
  bench, calibrate                     measure speed, prepare --enable-double-sparsity
  simulate, replay-log                 run the scheduler on a load, or on a recorded log
  completions  print the completions of a shell

  --host ADDRESS, --port PORT          where to listen [default: 127.0.0.1, 30000]
  --api-key KEY                        the key that clients must send
  --config FILE                        settings; each flag is a key and a variable too
  --help       all flags; `souffleur COMMAND --help`: those of a command
";

/// Actor-based LLM inference engine: radix-tree KV reuse, paged memory, continuous batching.
///
/// Without a command it runs a server with an OpenAI-compatible API, SGLang's /generate, a WebSocket and Prometheus
/// metrics.
#[derive(Parser, Debug)]
#[command(name = "souffleur", version = version::version(), args_conflicts_with_subcommands = true, after_help = HELP_FOOTER)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    serve: AllFlags,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve a model over HTTP and WebSocket (the default command)
    Serve(Box<AllFlags>),
    /// Serve a model and talk to it in this terminal
    Run(Box<run::RunArgs>),
    /// Answer one prompt and stream the text to stdout
    Generate(Box<generate::GenerateArgs>),
    /// Talk to a model, or to a server, in the terminal
    Chat(Box<chat::ChatArgs>),
    /// Show how memory would be divided, without loading the weights
    Plan(Box<plan::PlanArgs>),
    /// Download a model
    Pull(Box<models::PullArgs>),
    /// List the downloaded models, with their sizes
    List,
    /// Delete a downloaded model
    Rm(models::RmArgs),
    /// Check this machine, and say what mends each fault; exits with code 1 if a check fails
    Doctor(Box<doctor::DoctorArgs>),
    /// Measure this engine on this machine, or a server under load
    Bench(Box<bench::BenchArgs>),
    /// Simulate this engine's scheduler and cache under a load, on hardware that you do not have to own
    Simulate(Box<simulate::SimulateArgs>),
    /// Replay a log written by --record through the scheduler and compare every decision with the one in the log;
    /// exits with code 1 at the first difference
    ReplayLog(Box<replay_log::ReplayLogArgs>),
    /// Find the channels of a model's keys that matter, for --enable-double-sparsity
    Calibrate(Box<calibrate::CalibrateArgs>),
    /// Print the completions of a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual pages of all commands to a folder
    #[command(hide = true)]
    Man(completions::ManArgs),
    /// Write the logits of prompts to a file, for comparison with other implementations
    #[command(hide = true)]
    Logits(Box<logits::LogitsArgs>),
    /// Probe and time a GPU, for scripts/gpu-check
    #[cfg(feature = "cuda")]
    #[command(hide = true)]
    Gpu(Box<gpu::GpuArgs>),
}

pub fn main() -> ExitCode {
    malloc::set_parameters();
    readahead::start();
    souffleur::actors::panics::note_places();
    if let Err(error) = signals::survive_full_files() {
        let reason = format!(
            "souffleur: failed to handle SIGXFSZ, so reaching the file size limit ends this process: {error}"
        );
        let _ = writeln!(std::io::stderr(), "{reason}");
    }
    if std::env::args_os().skip(1).eq(["-h"]) {
        let _ = std::io::stdout().write_all(SHORT_HELP.as_bytes());
        return ExitCode::SUCCESS;
    }
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => error.exit(),
    };
    let Err(failure) = run(cli) else {
        return ExitCode::SUCCESS;
    };
    let _ = writeln!(std::io::stderr(), "souffleur: {failure}");
    ExitCode::from(failure.exit_code())
}

fn run(cli: Cli) -> Result<(), Failure> {
    match cli.command {
        None => serve::run(settings(&cli.serve)?),
        Some(Command::Serve(flags)) => serve::run(settings(&flags)?),
        Some(Command::Generate(args)) => {
            generate::run(&args, settings(&args.flags.clone().into())?)
        }
        Some(Command::Run(args)) => run::run(&args, settings(&args.flags)?),
        Some(Command::Chat(args)) => chat::run(&args, settings(&args.settings_flags())?),
        Some(Command::Plan(args)) => plan::run(&args, settings(&args.settings_flags())?),
        Some(Command::Bench(args)) => bench::run(&args, settings(&args.flags.clone().into())?),
        Some(Command::Simulate(args)) => simulate::run(&args, settings(&args.settings_flags())?),
        Some(Command::ReplayLog(args)) => replay_log::run(&args),
        Some(Command::Calibrate(args)) => calibrate::run(&args),
        Some(Command::Doctor(args)) => doctor::run(&args, settings(&args.flags)?),
        Some(Command::Pull(args)) => logged().and_then(|()| models::pull(&args)),
        Some(Command::List) => models::list(),
        Some(Command::Rm(args)) => models::remove(&args),
        Some(Command::Completions(args)) => completions::print(&args),
        Some(Command::Man(args)) => completions::write_manual(&args),
        Some(Command::Logits(args)) => logits::run(&args),
        #[cfg(feature = "cuda")]
        Some(Command::Gpu(args)) => gpu::run(&args),
    }
}

/// Loads the settings, then starts the log, whose filter is a setting.
fn settings(flags: &AllFlags) -> Result<Settings, Failure> {
    let mut flags = flags.clone();
    flags.model.apply(&mut flags.engine);
    let environment = std::env::vars_os().filter_map(|(name, value)| {
        Some((
            name.into_string().ok()?,
            value.to_string_lossy().into_owned(),
        ))
    });
    let loaded = Settings::load(&flags, environment);
    let (settings, warnings) = loaded.map_err(|error| Failure::Usage(error.to_string()))?;
    telemetry::start_log(&settings.log)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    Ok(settings)
}

/// Starts the log for a command without flags of the configuration.
fn logged() -> Result<(), Failure> {
    settings(&AllFlags::default()).map(drop)
}

fn parse<I, T>(args: I) -> Result<Cli, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let matches: ArgMatches = Cli::command().try_get_matches_from(args)?;
    Cli::from_arg_matches(&matches)
}

#[cfg(test)]
mod tests;
