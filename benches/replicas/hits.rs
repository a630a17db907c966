//! Serves traces with replicas, and with one engine that has the pages of all. Compares the prompt tokens from caches.

use std::fmt::Write;
use std::time::Duration;

use anyhow::{Context, ensure};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle, Generation};
use souffleur::state::router::LoadBalance;
use tokio::runtime::Runtime;

use crate::engines::{self, Answer};
use crate::trace::{N_CONVERSATIONS, Trace};

const REPLICAS: [usize; 3] = [2, 3, 4];
/// The vocabulary of the bundled model.
const VOCAB_SIZE: u32 = 2048;
const MAX_RUNNING_REQUESTS: usize = 32;
const MIN_OF_ONE_ENGINE: f64 = 0.95;
const MAX_IMBALANCE: f64 = 1.25;

const HEAD: &str = "\
| replicas | prompt tokens | cached: one engine | prefix | round robin | prefix of one engine | of round robin | \
greatest load, of the mean |
|---:|---:|---:|---:|---:|---:|---:|---:|
";

/// The traces of all seeds with a number of replicas.
#[derive(Debug, Default)]
pub struct Row {
    n_replicas: usize,
    prompt_tokens: u64,
    cached: Cached,
    /// The greatest load of a replica with prefix routing as a multiple of the mean, in the worst trace.
    imbalance: f64,
}

/// Prompt tokens from caches.
#[derive(Debug, Default)]
struct Cached {
    one_engine: u64,
    prefix: u64,
    round_robin: u64,
}

/// The result of one trace on one engine.
struct Served {
    prompt_tokens: u64,
    cached_tokens: u64,
    /// Prompt tokens that each replica computed.
    computed_tokens: Vec<u64>,
    /// The tokens of each conversation.
    texts: Vec<Vec<u32>>,
}

/// The engines of a trace.
struct Setup<'a> {
    runtime: &'a Runtime,
    trace: &'a Trace,
    in_flight: usize,
}

pub fn measure(runtime: &Runtime, seeds: u64, in_flight: usize) -> anyhow::Result<Vec<Row>> {
    let rows = REPLICAS.iter().map(|n_replicas| {
        let mut row = Row {
            n_replicas: *n_replicas,
            ..Row::default()
        };
        for seed in 0..seeds {
            let trace = Trace::new(seed, VOCAB_SIZE);
            let setup = Setup {
                runtime,
                trace: &trace,
                in_flight,
            };
            setup.add_to(&mut row)?;
            eprintln!("seed {seed}: {row:?}");
        }
        Ok(row)
    });
    rows.collect()
}

pub fn table(rows: &[Row]) -> String {
    let mut text = HEAD.to_owned();
    for row in rows {
        let Cached {
            one_engine,
            prefix,
            round_robin,
        } = row.cached;
        let _ = writeln!(
            text,
            "| {} | {} | {one_engine} | {prefix} | {round_robin} | {:.1} % | {:.2} | {:.3} |",
            row.n_replicas,
            row.prompt_tokens,
            100.0 * row.of_one_engine(),
            row.of_round_robin(),
            row.imbalance
        );
    }
    text
}

impl Row {
    /// The goals that are missed.
    pub fn missed(&self) -> Vec<String> {
        let n_replicas = self.n_replicas;
        let least_of_round_robin = match n_replicas {
            2 => 1.1,
            4 => 1.3,
            _ => 0.0,
        };
        let mut missed = Vec::new();
        if self.of_one_engine() < MIN_OF_ONE_ENGINE {
            missed.push(format!(
                "{n_replicas} replicas have {:.3} of one engine's cached tokens, the goal is {MIN_OF_ONE_ENGINE}",
                self.of_one_engine()
            ));
        }
        if self.of_round_robin() < least_of_round_robin {
            missed.push(format!(
                "{n_replicas} replicas have {:.3} times the cached tokens of round robin, the goal is \
                 {least_of_round_robin}",
                self.of_round_robin()
            ));
        }
        if self.imbalance > MAX_IMBALANCE {
            missed.push(format!(
                "one of {n_replicas} replicas has {:.3} times the mean load, the goal is {MAX_IMBALANCE}",
                self.imbalance
            ));
        }
        missed
    }

    fn of_one_engine(&self) -> f64 {
        self.cached.prefix as f64 / self.cached.one_engine as f64
    }

    fn of_round_robin(&self) -> f64 {
        self.cached.prefix as f64 / self.cached.round_robin as f64
    }
}

impl Setup<'_> {
    /// Serves the trace with each kind of engine.
    fn add_to(&self, row: &mut Row) -> anyhow::Result<()> {
        let n_replicas = row.n_replicas;
        let pool_tokens = self.trace.distinct_tokens() / 2 / n_replicas;
        let one_engine = self.serve(LoadBalance::Prefix, 1, n_replicas * pool_tokens)?;
        let prefix = self.serve(LoadBalance::Prefix, n_replicas, pool_tokens)?;
        let round_robin = self.serve(LoadBalance::RoundRobin, n_replicas, pool_tokens)?;
        let is_equal = |served: &Served| served.texts == one_engine.texts;
        ensure!(
            is_equal(&prefix) && is_equal(&round_robin),
            "{n_replicas} replicas give other tokens than one engine"
        );
        row.prompt_tokens += prefix.prompt_tokens;
        row.cached.one_engine += one_engine.cached_tokens;
        row.cached.prefix += prefix.cached_tokens;
        row.cached.round_robin += round_robin.cached_tokens;
        row.imbalance = row.imbalance.max(prefix.imbalance());
        Ok(())
    }

    /// Starts an engine whose replicas have this number of tokens each, and serves the trace.
    fn serve(
        &self,
        method: LoadBalance,
        n_replicas: usize,
        pool_tokens: usize,
    ) -> anyhow::Result<Served> {
        let engine = Engine::start(EngineConfig {
            dp_size: n_replicas,
            load_balance_method: method,
            max_total_tokens: Some(pool_tokens),
            max_running_requests: Some(MAX_RUNNING_REQUESTS),
            ..EngineConfig::default()
        })?;
        let vocab_size = engine.model().vocab_size;
        ensure!(
            vocab_size == VOCAB_SIZE as usize,
            "the vocabulary has {vocab_size} tokens"
        );
        let served = self.runtime.block_on(self.run(&engine));
        self.runtime.block_on(engine.shutdown(Duration::ZERO));
        served
    }

    async fn run(&self, engine: &EngineHandle) -> anyhow::Result<Served> {
        let mut texts = self.trace.beginnings();
        let mut is_busy = [false; N_CONVERSATIONS];
        let (mut prompt_tokens, mut cached_tokens) = (0, 0);
        let mut running = FuturesUnordered::new();
        let mut turns = self.trace.turns.iter().peekable();
        loop {
            let has_room = running.len() < self.in_flight;
            let next = turns.next_if(|turn| has_room && !is_busy[turn.conversation]);
            if let Some(turn) = next {
                let text = &mut texts[turn.conversation];
                text.extend_from_slice(&turn.user);
                let request = engines::request(text, turn.output_tokens);
                is_busy[turn.conversation] = true;
                running.push(answer(turn.conversation, engine.generate(request)?));
                continue;
            }
            let Some(ended) = running.next().await else {
                break;
            };
            let (conversation, answer) = ended?;
            is_busy[conversation] = false;
            texts[conversation].extend_from_slice(&answer.tokens);
            prompt_tokens += u64::from(answer.usage.prompt_tokens);
            cached_tokens += u64::from(answer.usage.cached_tokens);
        }
        Ok(Served {
            prompt_tokens,
            cached_tokens,
            computed_tokens: computed_tokens(engine).await?,
            texts,
        })
    }
}

impl Served {
    /// The greatest load of a replica, as a multiple of the mean.
    fn imbalance(&self) -> f64 {
        let greatest = self.computed_tokens.iter().max().copied().unwrap_or(0);
        let sum: u64 = self.computed_tokens.iter().sum();
        greatest as f64 * self.computed_tokens.len() as f64 / sum as f64
    }
}

async fn answer(conversation: usize, generation: Generation) -> anyhow::Result<(usize, Answer)> {
    let answer = engines::read(generation).await?;
    Ok((conversation, answer))
}

/// The prompt tokens that each replica has computed.
async fn computed_tokens(engine: &EngineHandle) -> anyhow::Result<Vec<u64>> {
    let loads = engine.loads().await?;
    let computed = loads.iter().map(|load| {
        let load = load.as_ref().context("a replica has died")?;
        Ok(load.stats.prompt_tokens - load.stats.cached_tokens)
    });
    computed.collect()
}
