//! Measures the output tokens per second through the Tokenizer. The executors compute nothing, and the clients only
//! count.

use std::fmt::Write;
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures_util::future::try_join_all;
use souffleur::config::EngineConfig;
use souffleur::engine::EngineHandle;
use tokio::runtime::Runtime;

use crate::engines;
use crate::quantile;
use crate::trace::tokens;

const REPLICAS: [usize; 3] = [1, 2, 4];
const STREAMS: usize = 128;
const PROMPT_TOKENS: usize = 16;
const OUTPUT_TOKENS: u32 = 512;
const LEAST_PER_S: f64 = 150_000.0;

const HEAD: &str = "\
| replicas | tokens/s through the Tokenizer: median | least | most |
|---:|---:|---:|---:|
";

/// Tokens per second with a number of replicas.
pub struct Rate {
    n_replicas: usize,
    runs: Vec<f64>,
}

pub fn measure(runtime: &Runtime, runs: usize) -> anyhow::Result<Vec<Rate>> {
    let rates = REPLICAS.iter().map(|n_replicas| {
        let engine = start(*n_replicas)?;
        let measured = runtime.block_on(repeat(&engine, runs));
        runtime.block_on(engine.shutdown(Duration::ZERO));
        Ok(Rate {
            n_replicas: *n_replicas,
            runs: measured?,
        })
    });
    rates.collect()
}

pub fn table(rates: &[Rate]) -> String {
    let mut text = HEAD.to_owned();
    for rate in rates {
        let [least, median, most] = [0.0, 0.5, 1.0].map(|share| rate.per_s(share));
        let _ = writeln!(
            text,
            "| {} | {median:.0} | {least:.0} | {most:.0} |",
            rate.n_replicas
        );
    }
    text
}

impl Rate {
    /// The goal, if it is missed.
    pub fn missed(&self) -> Option<String> {
        let (n_replicas, median) = (self.n_replicas, self.per_s(0.5));
        (median < LEAST_PER_S).then(|| {
            format!(
                "with {n_replicas} replicas, {median:.0} tokens/s pass the Tokenizer, the goal is {LEAST_PER_S}"
            )
        })
    }

    fn per_s(&self, share: f64) -> f64 {
        quantile(self.runs.clone(), share)
    }
}

fn start(dp_size: usize) -> anyhow::Result<EngineHandle> {
    engines::without_model(EngineConfig {
        dp_size,
        max_total_tokens: Some(2 * STREAMS * (PROMPT_TOKENS + OUTPUT_TOKENS as usize)),
        max_running_requests: Some(STREAMS),
        ..EngineConfig::default()
    })
}

async fn repeat(engine: &EngineHandle, runs: usize) -> anyhow::Result<Vec<f64>> {
    let vocab_size = u32::try_from(engine.model().vocab_size)?;
    let mut random = fastrand::Rng::with_seed(1);
    // The first one warms up.
    run(engine, &mut random, vocab_size).await?;
    let mut measured = Vec::with_capacity(runs);
    for _ in 0..runs {
        measured.push(run(engine, &mut random, vocab_size).await?);
    }
    Ok(measured)
}

/// Streams all requests at once, and returns the tokens per second.
async fn run(
    engine: &EngineHandle,
    random: &mut fastrand::Rng,
    vocab_size: u32,
) -> anyhow::Result<f64> {
    let requests = (0..STREAMS).map(|_| {
        let prompt = tokens(random, PROMPT_TOKENS, vocab_size);
        engines::request(&prompt, OUTPUT_TOKENS)
    });
    let requests: Vec<_> = requests.collect();
    let sent = Instant::now();
    let generations = requests
        .into_iter()
        .map(|request| engine.generate(request))
        .collect::<Result<Vec<_>, _>>()?;
    let answers = try_join_all(generations.into_iter().map(engines::read)).await?;
    let seconds = sent.elapsed().as_secs_f64();
    let n_tokens: usize = answers.iter().map(|answer| answer.tokens.len()).sum();
    ensure!(
        n_tokens == STREAMS * OUTPUT_TOKENS as usize,
        "the answers have {n_tokens} tokens"
    );
    Ok(n_tokens as f64 / seconds)
}
