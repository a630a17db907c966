//! The bench against a server: a load as users make it, latencies as they see them.

mod client;
mod load;
mod report;

use std::time::{Duration, Instant};

use actix_web::rt::System;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::super::{Failure, progress};
use super::BenchArgs;
use super::prompts::Prompts;
use client::Server;
use load::Arrival;
use report::{OnlineRecord, Outcome};

/// Vocabulary of a server that does not say; --vocab-size overrules it.
const USUAL_VOCAB_SIZE: u32 = 32_000;
const RANDOM_INPUT_TOKENS: u32 = 512;
const OWN_INPUT_TOKENS: u32 = 64;
/// Requests per second; fewer are no load.
const LEAST_RATE: f64 = 0.001;
/// Longest part of a prompt, in tokens.
const MOST_TOKENS: i64 = 1 << 20;

/// Flags with a server.
#[derive(Args, Debug)]
pub struct OnlineArgs {
    /// Measure an OpenAI-compatible server instead, by its /v1/completions: http://127.0.0.1:30000. Its first model is
    /// asked, or that of --model
    #[arg(long, value_name = "URL", help_heading = "Bench of a server")]
    pub base_url: Option<String>,
    /// What the prompts are: random ones, or random ones behind a prefix that all share
    #[arg(long, value_enum, default_value_t = Dataset::Random, requires = "base_url", help_heading = "Bench of a server")]
    pub dataset_name: Dataset,
    /// Tokens of each prompt [default: 512], with shared-prefix those behind the prefix [default: 64]
    #[arg(long, value_name = "TOKENS", requires = "base_url", value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS),
        help_heading = "Bench of a server")]
    pub random_input_len: Option<u32>,
    /// Most tokens of each output
    #[arg(long, value_name = "TOKENS", default_value_t = 128, requires = "base_url",
        value_parser = clap::value_parser!(u32).range(1..), help_heading = "Bench of a server")]
    pub random_output_len: u32,
    /// Tokens that all prompts of shared-prefix begin with
    #[arg(long, value_name = "TOKENS", default_value_t = 512, requires = "base_url",
        value_parser = clap::value_parser!(u32).range(1..=MOST_TOKENS), help_heading = "Bench of a server")]
    pub shared_prefix_len: u32,
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = 100, requires = "base_url",
        value_parser = clap::value_parser!(u32).range(1..=100_000), help_heading = "Bench of a server")]
    pub num_prompts: u32,
    /// Most requests under way; as many as have arrived if not given
    #[arg(long, value_name = "N", requires = "base_url", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Bench of a server")]
    pub max_concurrency: Option<u32>,
    /// Requests per second, at random moments (a Poisson process); inf sends all at once
    #[arg(long, value_name = "PER_SECOND", default_value = "inf", value_parser = rate, requires = "base_url",
        help_heading = "Bench of a server")]
    pub request_rate: f64,
    /// Requests before the clock starts, one after the other, with prompts of their own
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        requires = "base_url",
        help_heading = "Bench of a server"
    )]
    pub warmup_requests: u32,
    /// Generate all tokens of each output, whatever they are
    #[arg(long, requires = "base_url", help_heading = "Bench of a server")]
    pub ignore_eos: bool,
    /// Send text instead of token ids, for servers that take nothing else: about a token a word
    #[arg(long, requires = "base_url", help_heading = "Bench of a server")]
    pub text_prompts: bool,
    /// Token ids are drawn below this; what the server says if not given, else 32000
    #[arg(long, value_name = "N", requires = "base_url", value_parser = clap::value_parser!(u32).range(1..),
        conflicts_with = "text_prompts", help_heading = "Bench of a server")]
    pub vocab_size: Option<u32>,
}

/// What the prompts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Dataset {
    /// Nothing in common.
    Random,
    /// One prefix in common.
    SharedPrefix,
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate >= LEAST_RATE => Ok(rate),
        _ => Err(format!("must be a number from {LEAST_RATE}, or inf")),
    }
}

/// Runs the bench. `--model` is a flag of the engine's too: here it names the server's model.
pub fn run(args: &BenchArgs, base_url: &str, seed: u64) -> Result<(), Failure> {
    let model = args.flags.engine.model_path.as_ref();
    let model = model.map(|name| name.display().to_string());
    let record = System::new().block_on(async {
        let server = Server::find(base_url, model).await?;
        measure(&args.online, server, seed).await
    })?;
    record.publish(args.json.as_deref())
}

async fn measure(args: &OnlineArgs, server: Server, seed: u64) -> Result<OnlineRecord, Failure> {
    let vocab_size = args.vocab_size.or(server.vocab_size);
    let vocab_size = vocab_size.unwrap_or(USUAL_VOCAB_SIZE);
    let mut prompts = Prompts::new(seed, vocab_size);
    for _ in 0..args.warmup_requests {
        let request = load::random(args, &mut prompts);
        let answered = server.complete(&request).await;
        answered.map_err(|reason| Failure::failed(format_args!("{}: {reason}", server.url)))?;
    }
    let arrivals = load::arrivals(args, &mut prompts);
    let bar = progress::spinner();
    bar.set_length(arrivals.len() as u64);
    let (outcomes, took) = drive(&server, arrivals, args.max_concurrency, &bar).await?;
    bar.finish_and_clear();
    Ok(OnlineRecord::new(
        args,
        &server,
        (seed, vocab_size),
        outcomes,
        took,
    ))
}

/// Sends each request when it is due, and waits for all answers.
async fn drive(
    server: &Server,
    arrivals: Vec<Arrival>,
    max_concurrency: Option<u32>,
    bar: &indicatif::ProgressBar,
) -> Result<(Vec<(u32, Outcome)>, Duration), Failure> {
    let limit = max_concurrency.map_or(arrivals.len(), |limit| limit as usize);
    let permits = std::rc::Rc::new(tokio::sync::Semaphore::new(limit));
    let began = Instant::now();
    let mut under_way = Vec::with_capacity(arrivals.len());
    for Arrival { at, request } in arrivals {
        tokio::time::sleep_until((began + at).into()).await;
        let (server, permits, bar) = (server.clone(), permits.clone(), bar.clone());
        under_way.push(actix_web::rt::spawn(async move {
            let permit = permits.acquire().await;
            let answer = server.complete(&request).await;
            drop(permit);
            bar.inc(1);
            bar.set_message(format!("{} answers", bar.position()));
            (request.prompt.tokens(), Outcome { at, answer })
        }));
    }
    let mut outcomes = Vec::with_capacity(under_way.len());
    for outcome in under_way {
        outcomes.push(outcome.await.map_err(Failure::failed)?);
    }
    Ok((outcomes, began.elapsed()))
}
