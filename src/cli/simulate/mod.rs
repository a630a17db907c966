//! The command `souffleur simulate`: runs the scheduler, tree and pools on a load, on hardware described by a file.

mod load;
mod plot;
mod prompts;
mod replicas;
mod report;
mod size;

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use clap::Args;
use serde_json::json;

use souffleur::config::EngineConfig;
use souffleur::simulate::SimulateError;
use souffleur::simulate::disk::StoreModel;
use souffleur::simulate::drafts::DraftHistogram;
use souffleur::simulate::engine::{Simulation, simulate};
use souffleur::simulate::hardware::Hardware;
use souffleur::simulate::pool::{model_info, storage};
use souffleur::simulate::roofline::Roofline;
use souffleur::simulate::rows::{Guess, SimulatedDrafts};
use souffleur::simulate::shape;
use souffleur::simulate::trace::Trace;
use souffleur::state::speculation::MAX_ROOM;

use super::failure::Failure;
use super::flags::{AllFlags, LocalFlags};
use super::local;
use super::output::say;
use crate::cli::settings::Settings;
use load::LoadArgs;
use report::Run;

const DEFAULT_SHAPE: &str = "llama-3.1-8b";

/// Flags of the command.
#[derive(Args, Debug)]
pub struct SimulateArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Device: h100-sxm, h200, a100-80g, l40s, rtx-4090, zen4-2-cores, or a TOML file like those in config/hardware
    #[arg(
        long,
        value_name = "NAME|FILE",
        default_value = "h100-sxm",
        help_heading = "Simulation"
    )]
    hardware: String,
    /// Model: llama-3.1-8b, qwen3-8b, gpt-oss-20b or another name that the error of an unknown one lists, a
    /// config.json, a GGUF file or an id of the Hugging Face hub; weights are not needed
    #[arg(long, value_name = "NAME|FILE|ID", help_heading = "Simulation")]
    shape: Option<String>,
    /// Size of the KV pool in tokens (with --dp-size, of each replica's pool), instead of what fits on the device; a
    /// comma-separated list makes one run per size
    #[arg(
        long,
        value_name = "TOKENS",
        value_delimiter = ',',
        help_heading = "Simulation"
    )]
    kv_tokens: Vec<usize>,
    /// Size of the KV store on disk in bytes, or with K, M, G or T in powers of 1024; 0 for none; a comma-separated
    /// list makes one run per size (and per size of the pool). By default, --kv-disk-path and --kv-disk-bytes set the
    /// size. The simulation writes no blocks to a disk
    #[arg(
        long,
        value_name = "BYTES",
        value_delimiter = ',',
        value_parser = size::parse,
        conflicts_with = "prompts_only",
        help_heading = "Simulation"
    )]
    disk_bytes: Vec<u64>,
    /// Replay only the prompts, one after another, and show the cache's hit rate for each pool size; hardware and time
    /// are ignored. A page has 512 tokens unless --page-size is given; here, --page-size may be larger than 256
    #[arg(long, help_heading = "Simulation")]
    prompts_only: bool,
    /// Requests ignore the end-of-text token, as those of load generators usually do, so memory is reserved for their
    /// whole output. With off, memory is reserved for only part of the output
    #[arg(long, value_name = "on|off", default_value = "on", action = clap::ArgAction::Set,
          value_parser = clap::builder::BoolishValueParser::new(), hide_possible_values = true,
          help_heading = "Simulation")]
    ignore_eos: bool,
    /// Speculation: the share of output tokens that drafts guess, from 0 to 1, the same for all requests. Each decode
    /// has as many drafts as --draft-room allows, without the controller that leaves out those that do not pay
    #[arg(long, value_name = "RATE", value_parser = rate, conflicts_with = "prompts_only", help_heading = "Simulation")]
    draft_accept_rate: Option<f64>,
    /// The most tokens that a decode of a request computes in a step: the last token and its drafts
    #[arg(long, value_name = "TOKENS", default_value_t = 8, requires = "draft_accept_rate",
          value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_ROOM)), help_heading = "Simulation")]
    draft_room: u32,
    /// Speculation as measured: each decode has the drafts of a decode of this file, the JSON of
    /// souffleur bench --taught, and as many of them are accepted
    #[arg(long, value_name = "FILE", conflicts_with_all = ["draft_accept_rate", "prompts_only"],
          help_heading = "Simulation")]
    drafts: Option<PathBuf>,
    /// The kind of texts in --drafts whose decodes are taken; all if not given
    #[arg(
        long,
        value_name = "KIND",
        requires = "drafts",
        help_heading = "Simulation"
    )]
    drafts_kind: Option<String>,
    /// Write everything to a file as JSON; - writes it to stdout instead of the table
    #[arg(long, value_name = "FILE", help_heading = "Simulation")]
    json: Option<PathBuf>,
    /// Plot memory, queue and latencies of the first run as SVG; with two or more sizes in --disk-bytes, plot hit rate
    /// and latencies against the size of the store; with --prompts-only, plot the hit rate against the pool size
    #[arg(long, value_name = "FILE", help_heading = "Simulation")]
    plot: Option<PathBuf>,
    #[command(flatten)]
    flags: LocalFlags,
}

impl SimulateArgs {
    /// The engine's flags; with `--prompts-only` without the page size, which may then exceed the engine's limit.
    pub fn settings_flags(&self) -> AllFlags {
        let mut flags = self.flags.clone();
        if self.prompts_only {
            flags.engine.remove("page_size");
        }
        flags.into()
    }

    /// # Errors
    /// The file of --drafts is invalid, or has no decodes of the kind.
    fn simulated_drafts(&self) -> Result<Option<SimulatedDrafts>, SimulateError> {
        let (room, guess) = match (&self.drafts, self.draft_accept_rate) {
            (Some(file), _) => {
                let histogram = DraftHistogram::read(file, self.drafts_kind.as_deref())?;
                let room = 1 + histogram.most_drafts();
                (room, Guess::Measured(Arc::new(histogram)))
            }
            (None, Some(rate)) => (self.draft_room, Guess::Rate(rate)),
            (None, None) => return Ok(None),
        };
        Ok(Some(SimulatedDrafts {
            room,
            guess,
            seed: 0,
        }))
    }
}

/// A share from 0 to 1.
fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().map_err(|error| error.to_string())?;
    if (0.0..=1.0).contains(&rate) {
        Ok(rate)
    } else {
        Err(format!("is {rate}, must be from 0 to 1"))
    }
}

impl From<SimulateError> for Failure {
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Value { .. } | SimulateError::Config(_) => {
                Self::Usage(error.to_string())
            }
            error => Self::Failed(error.to_string()),
        }
    }
}

pub fn run(args: &SimulateArgs, settings: Settings) -> Result<(), Failure> {
    let trace = args.load.trace()?;
    let is_quiet = args
        .json
        .as_deref()
        .is_some_and(|file| file.as_os_str() == "-");
    if !is_quiet {
        say(report::describe(&args.load.name(), &trace));
    }
    if args.prompts_only {
        prompts::run(args, &settings.engine, &trace, is_quiet)
    } else {
        run_engine(args, &settings.engine, &trace, is_quiet)
    }
}

fn run_engine(
    args: &SimulateArgs,
    config: &EngineConfig,
    trace: &Trace,
    is_quiet: bool,
) -> Result<(), Failure> {
    let hardware = Hardware::load(&args.hardware)?;
    let tp_size = config.tp_size as u32;
    check_link(tp_size, &hardware)?;
    check_disks(args, config)?;
    let drafts = args.simulated_drafts()?;
    let folder = config.model_path.to_string_lossy();
    let default = if folder.is_empty() {
        DEFAULT_SHAPE
    } else {
        &folder
    };
    let name = args.shape.as_deref().unwrap_or(default);
    let local_path = local::config_path(Path::new(name), config.revision.as_deref())?;
    let model = shape::load(&local_path.to_string_lossy())?;
    let roofline = Roofline::new(&hardware, &model, storage(config, &model), tp_size);
    let capacities = each_or_none(&args.kv_tokens);
    let disks = each_or_none(&args.disk_bytes);
    let sizes = capacities.iter().flat_map(|kv_tokens| {
        let disks = disks.iter();
        disks.map(move |disk_bytes| (*kv_tokens, *disk_bytes))
    });
    let run = |(kv_tokens, disk_bytes)| {
        let config = with_disk(config, disk_bytes);
        let info = model_info(&config, &model, &hardware, tp_size, kv_tokens)?;
        let devices = (&hardware, tp_size);
        let store = StoreModel::new(&config, &model, &info, devices)?;
        let simulation = Simulation {
            config: &config,
            model: &info,
            roofline: &roofline,
            store: store.as_ref(),
            ignore_eos: args.ignore_eos,
            drafts: drafts.clone(),
        };
        let began = Instant::now();
        let outcome = simulate(&simulation, trace)?;
        let wall_s = began.elapsed().as_secs_f64();
        Ok(Run { outcome, wall_s })
    };
    let runs = sizes.map(run).collect::<Result<Vec<_>, SimulateError>>()?;
    let title = replicas::title(config, format!("{tp_size}x {}, {name}", hardware.name));
    if !is_quiet {
        report::print_runs(&title, config, &runs);
    }
    if let Some(file) = &args.json {
        let body = json!({
            "hardware": hardware,
            "shape": name,
            "tp_size": tp_size,
            "ignore_eos": args.ignore_eos,
            "draft_accept_rate": args.draft_accept_rate,
            "drafts": args.drafts.as_ref().map(|file| file.to_string_lossy()),
            "drafts_kind": args.drafts_kind,
            "draft_room": drafts.as_ref().map(|drafts| drafts.room),
            "engine": config,
            "runs": runs.iter().map(Run::json).collect::<Vec<_>>(),
        });
        write_json(file, &report::json_of(&args.load.name(), trace, body))?;
    }
    plot_runs(args, &title, &runs)
}

fn plot_runs(args: &SimulateArgs, title: &str, runs: &[Run]) -> Result<(), Failure> {
    let (Some(file), Some(run)) = (&args.plot, runs.first()) else {
        return Ok(());
    };
    let title = format!("{} on {title}", args.load.name());
    let svg = if args.disk_bytes.len() > 1 {
        plot::disks(&title, runs)
    } else {
        plot::run(&title, &run.outcome)
    };
    plot::write(file, svg)
}

/// The given sizes, or a single `None`.
fn each_or_none<T: Copy>(given: &[T]) -> Vec<Option<T>> {
    if given.is_empty() {
        vec![None]
    } else {
        given.iter().copied().map(Some).collect()
    }
}

/// The configuration with a KV store of this size; unchanged if `disk_bytes` is `None`.
fn with_disk(config: &EngineConfig, disk_bytes: Option<u64>) -> Cow<'_, EngineConfig> {
    let Some(disk_bytes) = disk_bytes else {
        return Cow::Borrowed(config);
    };
    let mut config = config.clone();
    config.kv_disk_path = (disk_bytes > 0).then(|| PathBuf::from("simulated"));
    if disk_bytes > 0 {
        config.kv_disk_bytes = disk_bytes;
    }
    Cow::Owned(config)
}

fn check_link(tp_size: u32, hardware: &Hardware) -> Result<(), Failure> {
    if tp_size > 1 && hardware.link_gb_s.is_none() {
        let reason = format!(
            "tp_size is {tp_size}, but {} has no link_gb_s: remove tp_size, or add link_gb_s to the hardware file",
            hardware.name
        );
        return Err(Failure::Usage(reason));
    }
    Ok(())
}

/// Refuses KV stores of replicas.
fn check_disks(args: &SimulateArgs, config: &EngineConfig) -> Result<(), Failure> {
    let n = config.dp_size;
    if n > 1 && args.disk_bytes.iter().any(|bytes| *bytes > 0) {
        let reason = format!(
            "dp_size is {n}, but disk_bytes is given, which is for a single replica: set dp_size to 1 or remove \
             disk_bytes"
        );
        return Err(Failure::Usage(reason));
    }
    Ok(())
}

fn write_json(file: &Path, value: &serde_json::Value) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(Failure::failed)?;
    if file.as_os_str() == "-" {
        say(text);
        return Ok(());
    }
    let written = std::fs::write(file, text + "\n");
    written.map_err(Failure::to(format_args!("write {}", file.display())))
}
