//! The bench without a server: the machine first, then starts, then loads on an engine in this process.

use std::path::Path;
use std::time::Duration;

use actix_web::rt::System;
use clap::Args;
use indicatif::ProgressBar;
use souffleur::config::EngineConfig;
use souffleur::engine::{EngineHandle, ModelInfo};
use souffleur::executor::cpu::{CpuDescription, describe};
use souffleur::model::weights::Quantization;
use souffleur::state::kv_layout::KvLayout;

use super::super::{Failure, local, progress, telemetry};
use super::floors::{Extent, ModelCost};
use super::machine::{Machine, MachineRates, Place};
use super::prompts::Prompts;
use super::record::{ModelRecord, Record};
use super::rows::{Load, Row, Sample, Unit};
use super::scaling::{self, ScalingArgs};
use super::starts::{self, FIRST_PROMPT_TOKENS, Start};
use super::waits::StepWaits;
use super::{BenchArgs, streams};

const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// Tokens of context and pool that intake keeps free behind a request.
const KEPT_TOKENS: usize = 2;
const WARM_UP: Load = Load {
    streams: 2,
    prompt_tokens: 16,
    output_tokens: 4,
};

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

/// An engine with what its results are held against.
pub struct Bench<'a> {
    pub engine: &'a EngineHandle,
    pub machine: Machine,
    pub cost: ModelCost,
    pub subject: &'a Subject,
    pub prompts: Prompts,
    pub bar: ProgressBar,
    /// On a GPU.
    pub waits: Option<StepWaits>,
    /// Loads that this engine cannot run, and why.
    pub skipped: Vec<String>,
}

/// What is measured.
pub struct Subject {
    pub description: CpuDescription,
    pub quantization: Option<Quantization>,
    pub place: Place,
}

/// Runs the bench.
pub fn run(args: &BenchArgs, config: EngineConfig, seed: u64) -> Result<(), Failure> {
    let config = local::with_model(config)?;
    if args.offline.start_once {
        return starts::start_once(config, first(&args.offline.prompt_tokens), seed);
    }
    let bar = progress::spinner();
    bar.set_message("the machine");
    let subject = Subject::read(&config)?;
    let waits = match subject.place.gpu() {
        Some(_) => Some(StepWaits(telemetry::install_recorder()?)),
        None => None,
    };
    let machine = Machine::new(&subject.place)?.measure();
    let n_starts = match args.offline.skip_starts {
        true => 0,
        false => args.offline.repeat + 1,
    };
    let starts = (1..=n_starts).map(|start| {
        bar.set_message(format!("start {start} of {n_starts}"));
        starts::measure()
    });
    let starts = starts.collect::<Result<Vec<_>, _>>()?;
    bar.set_message("loading the model");
    let engine = local::start(config, |_| Ok(()))?;
    let mut record = System::new().block_on(async {
        let measured = measure(args, &engine, &subject, waits, seed, bar.clone()).await;
        engine.shutdown(STOP_DEADLINE).await;
        measured
    })?;
    bar.finish_and_clear();
    record.rows.extend(start_rows(&starts, &subject, &machine));
    if let (Some(file), Some(scaling)) = (&args.offline.scaling.plot, &record.scaling) {
        super::plot::write(file, &record, scaling)?;
    }
    record.publish(args.json.as_deref())
}

async fn measure(
    args: &BenchArgs,
    engine: &EngineHandle,
    subject: &Subject,
    waits: Option<StepWaits>,
    seed: u64,
    bar: ProgressBar,
) -> Result<Record, Failure> {
    let model = engine.model();
    let vocab_size = u32::try_from(model.vocab_size).unwrap_or(u32::MAX);
    let mut bench = Bench {
        engine,
        machine: Machine::new(&subject.place)?,
        cost: subject.cost(),
        subject,
        prompts: Prompts::new(seed, vocab_size),
        bar,
        waits,
        skipped: Vec::new(),
    };
    let loads = bench.possible(loads(&args.offline, model));
    let mut record = Record {
        schema: "souffleur-bench-offline/1",
        version: env!("CARGO_PKG_VERSION"),
        date: super::record::date(),
        cpu: super::record::cpu(),
        gpu: subject.place.gpu().map(|gpu| gpu.name.clone()),
        model: ModelRecord::new(model, &subject.description),
        dtype: subject.description.dtype.name(),
        quantization: subject.quantization.map_or("none", Quantization::name),
        threads: subject.place.threads(),
        kernel_path: subject.place.kernel_path()?,
        page_size: model.page_size,
        kv_pool_tokens: model.max_total_tokens,
        seed,
        repeat: args.offline.repeat,
        machine: Vec::new(),
        rows: Vec::new(),
        scaling: None,
        skipped: bench.skipped.clone(),
    };
    rounds(&mut bench, &loads, &mut record, args.json.as_deref()).await?;
    if args.offline.scaling.scaling {
        record.scaling = Some(scaling::run(&mut bench, &args.offline).await?);
    }
    record.skipped = bench.skipped;
    Ok(record)
}

/// Runs all loads again and again; the machine is measured at the start of each round. The record has the samples taken
/// so far after each of them, in `json` too.
async fn rounds(
    bench: &mut Bench<'_>,
    loads: &[Load],
    record: &mut Record,
    json: Option<&Path>,
) -> Result<(), Failure> {
    bench.streams(WARM_UP).await?;
    let repeat = record.repeat;
    let mut taken = vec![(Vec::new(), Vec::new()); loads.len()];
    for round in 1..=repeat {
        let rates = bench.machine.measure();
        record.machine.push(rates);
        for (index, load) in loads.iter().enumerate() {
            bench.say(format!("round {round} of {repeat}: {}", load.name()));
            let (samples, waits) = &mut taken[index];
            let before = bench.waits.as_ref().and_then(StepWaits::read);
            samples.extend(bench.sample(*load, &rates).await?);
            let after = bench.waits.as_ref().and_then(StepWaits::read);
            let share = before
                .zip(after)
                .and_then(|(before, after)| after.share_since(before));
            waits.extend(share.map(|share| Sample::of_cost(share, None)));
            record.rows = rows(loads, &taken);
            record.keep(json)?;
        }
    }
    Ok(())
}

/// Rates and waiting of each load; a load without samples has no row.
fn rows(loads: &[Load], taken: &[(Vec<Sample>, Vec<Sample>)]) -> Vec<Row> {
    let rows = loads.iter().zip(taken);
    let rows = rows.flat_map(|(load, (samples, waits))| {
        let name = load.name();
        let waiting = format!("GPU waiting before decodes, {name}");
        [
            Row::new(name, Unit::TokensPerSecond, Some(*load), samples.clone()),
            Row::new(waiting, Unit::Share, Some(*load), waits.clone()),
        ]
    });
    rows.flatten().collect()
}

/// The loads of a round, with prompts as long as the model takes them.
fn loads(args: &OfflineArgs, model: &ModelInfo) -> Vec<Load> {
    let load = |streams, prompt_tokens: u32, output_tokens| Load {
        streams,
        prompt_tokens: prompt_tokens.min(longest_prompt(model, output_tokens)),
        output_tokens,
    };
    let prefills = args.prompt_tokens.iter().map(|&prompt| load(1, prompt, 1));
    let alone = load(1, first(&args.prompt_tokens), args.output_tokens);
    let together = args.batch_prompt_tokens.iter().flat_map(|&prompt| {
        let batches = args.batch.iter();
        batches.map(move |&streams| load(streams, prompt, args.output_tokens))
    });
    let mut loads = Vec::new();
    for load in prefills.chain([alone]).chain(together) {
        if !loads.contains(&load) {
            loads.push(load);
        }
    }
    loads
}

/// Of a flag that has at least one value.
pub fn first(tokens: &[u32]) -> u32 {
    tokens.first().copied().unwrap_or(1)
}

/// The longest prompt that can have so many tokens behind it; at least one token.
pub fn longest_prompt(model: &ModelInfo, output_tokens: u32) -> u32 {
    let pool = model.max_total_tokens.saturating_sub(2 * model.page_size);
    let tokens = model.context_length.min(pool);
    let tokens = tokens
        .saturating_sub(output_tokens as usize + KEPT_TOKENS)
        .max(1);
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

impl Bench<'_> {
    /// Keeps the loads that the engine can run at once; the others are noted.
    pub fn possible(&mut self, loads: Vec<Load>) -> Vec<Load> {
        let model = self.engine.model();
        let (running, pool) = (model.max_running_requests, model.max_total_tokens);
        let reason = |load: &Load| {
            let tokens = load.prompt_tokens as usize + load.output_tokens as usize + KEPT_TOKENS;
            let needed = load.streams as usize * tokens.next_multiple_of(model.page_size);
            if load.streams as usize > running {
                Some(format!("--max-running-requests is {running}"))
            } else if tokens > model.context_length {
                Some(format!("--context-length is {}", model.context_length))
            } else if needed > pool {
                Some(format!(
                    "needs {needed} tokens, --max-total-tokens is {pool}"
                ))
            } else {
                None
            }
        };
        let (mut possible, mut skipped) = (Vec::new(), Vec::new());
        for load in loads {
            match reason(&load) {
                None => possible.push(load),
                Some(reason) => skipped.push(format!("{}: {reason}", load.name())),
            }
        }
        self.skipped.extend(skipped);
        possible
    }

    /// Runs a load with prompts that nobody has seen, and holds it against what the machine reads now.
    pub async fn sample(
        &mut self,
        load: Load,
        rates: &MachineRates,
    ) -> Result<Option<Sample>, Failure> {
        let peak = self.subject.peak(rates, self.machine.read_bytes_per_s());
        let streams = self.streams(load).await?;
        Ok(load.sample(&streams, &self.cost, &peak))
    }

    async fn streams(&mut self, load: Load) -> Result<Vec<streams::Stream>, Failure> {
        let output = load.output_tokens;
        let limit = longest_prompt(self.engine.model(), output);
        let tokens = load.prompt_tokens.min(limit) as usize;
        let prompts = (0..load.streams)
            .map(|_| self.prompts.ids(tokens))
            .collect();
        streams::run_all(self.engine, prompts, output).await
    }

    /// Says on a terminal what is being measured.
    pub fn say(&self, what: String) {
        self.bar.set_message(what);
        self.bar.tick();
    }
}

impl Subject {
    fn read(config: &EngineConfig) -> Result<Self, Failure> {
        let (dir, dtype) = (&config.model_path, config.dtype.named());
        let described = describe(dir, dtype, config.quantization, config.load_format);
        let description = described.map_err(Failure::failed)?;
        Ok(Self {
            place: Place::read(config, description.dtype)?,
            description,
            quantization: config.quantization,
        })
    }

    fn is_int8(&self) -> bool {
        self.quantization == Some(Quantization::Int8)
    }

    fn cost(&self) -> ModelCost {
        let CpuDescription { config, dtype, .. } = &self.description;
        ModelCost::new(config, *dtype, self.quantization)
    }

    /// The peak for this model's types.
    pub fn peak(&self, rates: &MachineRates, read_bytes_per_s: f64) -> super::floors::Peak {
        let dtype = self.description.dtype;
        rates.peak(dtype, self.is_int8(), read_bytes_per_s)
    }
}

/// The first start may have to make what later ones find; it has rows of its own.
fn start_rows(starts: &[Start], subject: &Subject, machine: &MachineRates) -> Vec<Row> {
    let peak = subject.peak(machine, machine.read_bytes_per_s());
    let prompt = Extent {
        cached_tokens: 0,
        new_tokens: u64::from(FIRST_PROMPT_TOKENS),
    };
    let first_token_floor = subject.cost().step_seconds(&[prompt], &peak);
    let CpuDescription {
        weights_bytes,
        kv_layout,
        ..
    } = &subject.description;
    let memory = |start: &Start| {
        let kv_bytes = start.computed_tokens * kv_layout.bytes_per_token();
        let floor = (weights_bytes + kv_bytes) as f64;
        Some(Sample::of_cost(
            start.peak_resident_bytes? as f64,
            Some(floor),
        ))
    };
    let rows_of = |starts: &[Start], suffix: &str| {
        let ready = starts
            .iter()
            .map(|start| Sample::of_cost(start.ready_s, None));
        let first = starts
            .iter()
            .map(|start| Sample::of_cost(start.first_token_s, Some(first_token_floor)));
        let name = |what: &str| format!("{what}{suffix}");
        let first_token = format!("start to first token of {FIRST_PROMPT_TOKENS}");
        [
            (name("start to ready"), Unit::Seconds, ready.collect()),
            (name(&first_token), Unit::Seconds, first.collect()),
            (
                name("peak resident memory"),
                Unit::Bytes,
                starts.iter().filter_map(memory).collect(),
            ),
        ]
    };
    let (first, later) = starts.split_at(starts.len().min(1));
    let rows = rows_of(first, ", first start").into_iter();
    rows.chain(rows_of(later, ", later starts"))
        .filter_map(|(name, unit, samples)| Row::new(name, unit, None, samples))
        .collect()
}
