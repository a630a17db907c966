//! Measures replicas of a model in one process.
//!
//! - `trace`: an agentic trace on engines of the bundled model. Compares the prompt tokens from the cache of N replicas
//!   with those of one engine that has the pages of all.
//! - `cost`: the time that the Router adds to a request, with an executor that computes nothing.
//! - `rate`: the tokens per second through the Tokenizer, with that executor.
//!
//! ```text
//! cargo bench --bench replicas
//! cargo bench --bench replicas -- --only trace --seeds 8 --in-flight 4
//! ```
//!
//! The program prints all tables, and fails if a goal is missed.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

mod cost;
mod engines;
mod hits;
mod rate;
mod trace;

use anyhow::ensure;
use clap::Parser;
use tokio::runtime::Runtime;

/// Measures replicas of a model in one process.
#[derive(Parser)]
struct Arguments {
    /// Runs only these parts.
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Part::Trace, Part::Cost, Part::Rate])]
    only: Vec<Part>,
    /// Number of traces.
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    /// Turns of a trace that run at once, each of another conversation.
    #[arg(long, default_value_t = 1)]
    in_flight: usize,
    /// Pairs of requests of which one passes the Router.
    #[arg(long, default_value_t = 1000)]
    pairs: usize,
    /// Measurements of the rate with each number of replicas.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Cargo adds this flag.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

#[derive(Clone, Copy, PartialEq, clap::ValueEnum)]
enum Part {
    Trace,
    Cost,
    Rate,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let numbers = [arguments.in_flight, arguments.pairs, arguments.runs];
    ensure!(
        arguments.seeds > 0 && !numbers.contains(&0),
        "--seeds, --in-flight, --pairs and --runs must be at least 1"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let missed = measure(&arguments, &runtime)?;
    ensure!(missed.is_empty(), "missed: {}", missed.join("; "));
    Ok(())
}

/// Prints a table of each part. Returns the goals that are missed.
fn measure(arguments: &Arguments, runtime: &Runtime) -> anyhow::Result<Vec<String>> {
    let has = |part| arguments.only.contains(&part);
    let mut missed = Vec::new();
    if has(Part::Trace) {
        let rows = hits::measure(runtime, arguments.seeds, arguments.in_flight)?;
        println!("{}", hits::table(&rows));
        missed.extend(rows.iter().flat_map(hits::Row::missed));
    }
    if has(Part::Cost) {
        let cost = runtime.block_on(cost::measure(arguments.pairs))?;
        println!("{}", cost.text());
        missed.extend(cost.missed());
    }
    if has(Part::Rate) {
        let rates = rate::measure(runtime, arguments.runs)?;
        println!("{}", rate::table(&rates));
        missed.extend(rates.iter().filter_map(rate::Rate::missed));
    }
    Ok(missed)
}

/// The smallest value that is at least as large as this share of the values; 0 without values.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}
