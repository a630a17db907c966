//! Measures the cost of ranks: N ranks of one thread each, compared with one rank of N threads.
//!
//! ```text
//! cargo bench --bench ranks
//! cargo bench --bench ranks -- --model DIR --ranks 2 --rounds 40
//! ```
//!
//! Both engines are in this process. They serve the same prompts, one at a time and in turn, without a prefix cache.

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

#[allow(dead_code, reason = "shared with the bench of replicas")]
#[path = "../replicas/engines.rs"]
mod engines;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle};
use souffleur::request::Event;

/// Rounds that only warm up.
const WARM_ROUNDS: usize = 2;

/// Measures the cost of ranks.
#[derive(Parser)]
struct Arguments {
    /// The model's folder or GGUF file; the bundled model if not given.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Number of ranks, and of threads of the engine with one rank.
    #[arg(long, default_value_t = 2)]
    ranks: usize,
    /// Prompts that each engine serves.
    #[arg(long, default_value_t = 20)]
    rounds: usize,
    #[arg(long, default_value_t = 512)]
    prompt_tokens: usize,
    #[arg(long, default_value_t = 128)]
    output_tokens: u32,
    /// Cargo adds this flag.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

/// The seconds until the first token of an answer, and from there to its end.
struct Times {
    prefill_s: f64,
    decode_s: f64,
}

type Seconds = fn(&Times) -> f64;

/// The times of one prompt on both engines.
struct Pair {
    one_rank: Times,
    ranks: Times,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    ensure!(
        arguments.ranks > 1 && arguments.rounds > 0 && arguments.prompt_tokens > 0,
        "--ranks must be at least 2, --rounds and --prompt-tokens at least 1"
    );
    ensure!(
        arguments.output_tokens > 1,
        "--output-tokens must be at least 2"
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let [one_rank, ranks] = [start(&arguments, 1)?, start(&arguments, arguments.ranks)?];
    let pairs = runtime.block_on(measure(&arguments, &one_rank, &ranks))?;
    for engine in [one_rank, ranks] {
        runtime.block_on(engine.shutdown(Duration::ZERO));
    }
    print(&arguments, &pairs);
    Ok(())
}

fn start(arguments: &Arguments, tp_size: usize) -> anyhow::Result<EngineHandle> {
    let tokens = arguments.prompt_tokens + arguments.output_tokens as usize;
    let config = EngineConfig {
        model_path: arguments.model.clone().unwrap_or_default(),
        threads: arguments.ranks,
        tp_size,
        skip_tokenizer_init: true,
        disable_radix_cache: true,
        max_total_tokens: Some(2 * tokens),
        max_running_requests: Some(1),
        ..EngineConfig::default()
    };
    Ok(Engine::start(config)?)
}

async fn measure(
    arguments: &Arguments,
    one_rank: &EngineHandle,
    ranks: &EngineHandle,
) -> anyhow::Result<Vec<Pair>> {
    let vocab_size = u32::try_from(one_rank.model().vocab_size)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut pairs = Vec::with_capacity(arguments.rounds);
    for round in 0..WARM_ROUNDS + arguments.rounds {
        let prompt = (0..arguments.prompt_tokens).map(|_| random.u32(..vocab_size));
        let prompt: Vec<u32> = prompt.collect();
        let run = async |engine| time(engine, &prompt, arguments.output_tokens).await;
        // The order changes from round to round.
        let pair = if round.is_multiple_of(2) {
            let one_rank = run(one_rank).await?;
            let ranks = run(ranks).await?;
            Pair { one_rank, ranks }
        } else {
            let ranks = run(ranks).await?;
            let one_rank = run(one_rank).await?;
            Pair { one_rank, ranks }
        };
        if round >= WARM_ROUNDS {
            pairs.push(pair);
        }
    }
    Ok(pairs)
}

async fn time(engine: &EngineHandle, prompt: &[u32], output_tokens: u32) -> anyhow::Result<Times> {
    let request = engines::request(prompt, output_tokens);
    let sent = Instant::now();
    let mut generation = engine.generate(request)?;
    let mut first_s = None;
    loop {
        let event = generation.next().await.context("a request has no end")?;
        let now_s = sent.elapsed().as_secs_f64();
        let prefill_s = *first_s.get_or_insert(now_s);
        match event {
            Event::Delta(_) => {}
            Event::Finished(_) => {
                return Ok(Times {
                    prefill_s,
                    decode_s: now_s - prefill_s,
                });
            }
            end @ (Event::Cancelled(_) | Event::Failed(_)) => bail!("a request ended: {end:?}"),
        }
    }
}

fn print(arguments: &Arguments, pairs: &[Pair]) {
    let n = arguments.ranks;
    println!(
        "| tokens/s | one rank, {n} threads | {n} ranks, a thread each | quotient [quartiles] |"
    );
    println!("|---|---:|---:|---:|");
    let decoded = f64::from(arguments.output_tokens - 1);
    let rows: [(&str, f64, Seconds); 2] = [
        ("prefill", arguments.prompt_tokens as f64, |times| {
            times.prefill_s
        }),
        ("decode", decoded, |times| times.decode_s),
    ];
    for (name, tokens, seconds) in rows {
        let one_rank = median(pairs.iter().map(|pair| tokens / seconds(&pair.one_rank)));
        let ranks = median(pairs.iter().map(|pair| tokens / seconds(&pair.ranks)));
        let [lower, middle, upper] = [0.25, 0.5, 0.75].map(|share| {
            let quotients = pairs
                .iter()
                .map(|pair| seconds(&pair.one_rank) / seconds(&pair.ranks));
            quantile(quotients.collect(), share)
        });
        println!("| {name} | {one_rank:.0} | {ranks:.0} | {middle:.3} [{lower:.3}, {upper:.3}] |");
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(values.collect(), 0.5)
}

/// The smallest value that is at least as large as this share of the values; 0 without values.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}
