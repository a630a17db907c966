//! Measures the pause of streams after the death of a control actor, compared with that after a forced retraction.
//!
//! Each pair has new streams and both events. In the retraction, the program cancels the streams, flushes the cache,
//! and sends the streams again, each with the tokens that it has got as the end of its prompt. So the engine computes
//! the same tokens as after the death. The pause of a death is the longest interval between two tokens of a stream. The
//! pause of a retraction begins when the requests are sent again: it has neither the steps in flight nor the cancels,
//! which makes it shorter than one inside of the engine.
//!
//! ```text
//! cargo bench --bench recovery -- --pairs 50
//! cargo bench --bench recovery -- --pairs 50 --kv-disk-path DIR
//! ```

#![allow(clippy::print_stdout, reason = "a benchmark prints its results")]

mod model;
mod report;
mod streams;
mod victims;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use souffleur::config::{EngineConfig, MaxRestarts};
use souffleur::engine::{Engine, EngineHandle, EngineParts, Progress};
use souffleur::model::loader::LoadFormat;
use souffleur::state::cache::namespace::Namespace;
use tempfile::TempDir;

use report::{Pair, Report};
use streams::{MAX_OUTPUT, Streams};
use victims::{VICTIMS, Victim};

/// Tokens of each stream before the first event.
const WARM_TOKENS: usize = 16;
/// Tokens of each stream after an event.
const SETTLING_TOKENS: usize = 8;
/// More than any run of this program needs in this time.
const MAX_RESTARTS: MaxRestarts = MaxRestarts {
    limit: 1000,
    period_s: 60,
};
/// Longest time without a death that was caused, and without a token.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Measures the pause of streams after the death of a control actor, compared with that after a forced retraction.
#[derive(Parser)]
struct Arguments {
    /// Number of pairs.
    #[arg(long, default_value_t = 50)]
    pairs: usize,
    #[arg(long, default_value_t = 8)]
    streams: usize,
    #[arg(long, default_value_t = 256)]
    prompt_tokens: usize,
    /// Folder with the config.json of another model, whose weights are random too.
    #[arg(long, value_name = "DIR")]
    model_path: Option<PathBuf>,
    /// Runs with a KV store in this folder.
    #[arg(long, value_name = "DIR")]
    kv_disk_path: Option<PathBuf>,
    /// Compute threads; 0 for the engine's default.
    #[arg(long, default_value_t = 0)]
    threads: usize,
    /// Cargo adds this flag.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.pairs > 0, "--pairs is 0, must be at least 1");
    ensure!(arguments.streams > 0, "--streams is 0, must be at least 1");
    victims::install();
    let files = TempDir::new().context("cannot make a folder for the model")?;
    let model_path = match &arguments.model_path {
        Some(path) => path.clone(),
        None => model::write(files.path())?,
    };
    let (engine, loads) = start(config(&arguments, model_path))?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let pairs = runtime.block_on(measure(&arguments, &engine));
    let report = pairs.map(|pairs| Report {
        pairs,
        weights_bytes: engine
            .model()
            .memory
            .as_ref()
            .map(|memory| memory.budget.weights_bytes),
        loads: loads.load(Ordering::SeqCst),
        restarts: engine.unit_status().restarts,
    });
    runtime.block_on(engine.shutdown(Duration::ZERO));
    let report = report?;
    println!("{}", report.text());
    report.check()
}

fn config(arguments: &Arguments, model_path: PathBuf) -> EngineConfig {
    let tokens = arguments.streams * (arguments.prompt_tokens + MAX_OUTPUT);
    EngineConfig {
        model_path,
        load_format: LoadFormat::Dummy,
        skip_tokenizer_init: true,
        threads: arguments.threads,
        max_total_tokens: Some(2 * tokens),
        kv_disk_path: arguments.kv_disk_path.clone(),
        max_restarts: MAX_RESTARTS,
        chaos: victims::specs(),
        ..EngineConfig::default()
    }
}

/// Starts the engine. Returns the number of times that it loads its weights too.
fn start(config: EngineConfig) -> anyhow::Result<(EngineHandle, Arc<AtomicUsize>)> {
    let mut parts = EngineParts::from_model(&config, Progress::silent())?;
    let (make, loads) = (parts.executor.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = loads.clone();
    parts.executor = Arc::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
        make()
    });
    Ok((Engine::start_with(config, parts)?, loads))
}

async fn measure(arguments: &Arguments, engine: &EngineHandle) -> anyhow::Result<Vec<Pair>> {
    let vocab_size = u32::try_from(engine.model().vocab_size)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut pairs = Vec::with_capacity(arguments.pairs);
    for number in 0..arguments.pairs {
        let prompts = (0..arguments.streams).map(|_| {
            let tokens = (0..arguments.prompt_tokens).map(|_| random.u32(0..vocab_size));
            tokens.collect()
        });
        let mut streams = Streams::new(engine, prompts.collect());
        let victim = &VICTIMS[number % VICTIMS.len()];
        streams.send()?;
        streams.more(WARM_TOKENS).await?;
        // Each victim dies first in every other of its pairs.
        let (death, retraction) = if (number / VICTIMS.len()).is_multiple_of(2) {
            let death = die(engine, &mut streams, victim).await?;
            (death, retract(&mut streams).await?)
        } else {
            let retraction = retract(&mut streams).await?;
            (die(engine, &mut streams, victim).await?, retraction)
        };
        streams.stop().await?;
        let pair = Pair {
            victim: victim.actor,
            death,
            retraction,
        };
        eprintln!(
            "pair {} of {}: {}",
            number + 1,
            arguments.pairs,
            pair.line()
        );
        pairs.push(pair);
    }
    Ok(pairs)
}

/// Kills an actor. Returns the pause of each stream.
async fn die(
    engine: &EngineHandle,
    streams: &mut Streams<'_>,
    victim: &Victim,
) -> anyhow::Result<Vec<Duration>> {
    let restarts = engine.unit_status().restarts;
    let struck = victims::arm(victim);
    if victim.needs_tree_plan {
        // It fails with the actor.
        let tokens: Arc<[u32]> = Arc::from([0]);
        let _ = engine
            .pin_prefix(Namespace::default(), tokens, Duration::ZERO)
            .await;
    }
    let struck = tokio::time::timeout(TIME_LIMIT, struck);
    let struck = struck.await.context("no death in time")??;
    let pauses = streams.pauses_since(struck).await?;
    streams.more(SETTLING_TOKENS).await?;
    let deaths = engine.unit_status().restarts.all() - restarts.all();
    ensure!(deaths == 1, "{deaths} restarts instead of one");
    Ok(pauses)
}

/// Retracts all streams. Returns the pause of each.
async fn retract(streams: &mut Streams<'_>) -> anyhow::Result<Vec<Duration>> {
    streams.stop().await?;
    let sent = Instant::now();
    streams.send()?;
    let firsts = streams.first_tokens().await?;
    streams.more(SETTLING_TOKENS).await?;
    Ok(firsts.into_iter().map(|first| first - sent).collect())
}
