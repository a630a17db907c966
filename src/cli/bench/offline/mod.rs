//! The bench without a server: measures the machine, starts of this program, and loads on an engine in this process.
//!
//! | part | role |
//! |---|---|
//! | [`args`] | the flags |
//! | [`load`] | the loads |
//! | [`subject`] | the measured model and where it computes |
//! | [`machine`] | the machine's peak rates, and the least time of a step at these rates |
//! | [`measure`] | runs starts and loads, and times them |
//! | [`report`] | record, tables and plot |
//! | [`taught`] | plain decoding and speculation on given texts |

pub mod args;
mod load;
mod machine;
mod measure;
mod report;
mod subject;
mod taught;

use std::path::Path;
use std::time::Duration;

use actix_web::rt::System;
use indicatif::ProgressBar;
use souffleur::config::EngineConfig;
use souffleur::kernels::cpu::Numa;

use crate::cli::failure::Failure;
use crate::cli::output::record::publish;
use crate::cli::{local, progress, telemetry};
use args::OfflineArgs;
use load::{first, loads};
use machine::Machine;
use measure::bench::Bench;
use measure::starts::Start;
use measure::waits::StepWaits;
use measure::{noise, rounds, scaling, starts};
use report::record::Record;
use report::{plot, tables};
use subject::Subject;

const STOP_DEADLINE: Duration = Duration::from_secs(5);

pub fn run(
    args: &OfflineArgs,
    config: EngineConfig,
    seed: u64,
    json: Option<&Path>,
) -> Result<(), Failure> {
    let mut config = local::with_model(config)?;
    if let Some(nodes) = args.pretended_nodes {
        config.numa = Numa::Simulated(nodes.into());
    }
    if args.start_once {
        return starts::start_once(config, first(&args.prompt_tokens), seed);
    }
    if let Some(file) = &args.taught.taught {
        return taught::run(args, config, file, seed, json);
    }
    if let Some(context_tokens) = args.noise_context {
        let record = noise::measure(args, &config, context_tokens)?;
        return publish(&record, json, || record.print());
    }
    let bar = progress::spinner();
    bar.set_message("measuring the machine");
    let subject = Subject::read(&config)?;
    let waits = match subject.device.gpu() {
        Some(_) => Some(StepWaits(telemetry::install_recorder()?)),
        None => None,
    };
    let machine = Machine::new(&subject.device)?.measure();
    let starts = measure_starts(args, &bar)?;
    bar.set_message("loading the model");
    let engine = local::start(config, |_| Ok(()))?;
    let mut record = System::new().block_on(async {
        let measured = async {
            let bench = Bench::new(&engine, &subject, waits, seed, bar.clone())?;
            measure_loads(args, bench, seed, json).await
        };
        let measured = measured.await;
        engine.shutdown(STOP_DEADLINE).await;
        measured
    })?;
    bar.finish_and_clear();
    record
        .rows
        .extend(starts::rows(&starts, &subject, &machine));
    if let (Some(file), Some(scaling)) = (&args.scaling.plot, &record.scaling) {
        plot::write(file, &record, scaling)?;
    }
    publish(&record, json, || tables::print(&record))
}

fn measure_starts(args: &OfflineArgs, bar: &ProgressBar) -> Result<Vec<Start>, Failure> {
    let n_starts = if args.skip_starts { 0 } else { args.repeat + 1 };
    let starts = (1..=n_starts).map(|start| {
        bar.set_message(format!("timing start-up {start} of {n_starts}"));
        starts::measure()
    });
    starts.collect()
}

async fn measure_loads(
    args: &OfflineArgs,
    mut bench: Bench<'_>,
    seed: u64,
    json: Option<&Path>,
) -> Result<Record, Failure> {
    let model = bench.engine.model();
    let loads = bench.possible(loads(args, model));
    let mut record = Record::new(model, bench.subject, seed, args.repeat)?;
    record.skipped.clone_from(&bench.skipped);
    rounds::run(&mut bench, &loads, &mut record, json).await?;
    if args.scaling.scaling {
        record.scaling = Some(scaling::run(&mut bench, args).await?);
    }
    record.skipped = bench.skipped;
    Ok(record)
}
