//! The bench against a server: a load as users make it, latencies as they see them.

mod client;
mod load;
mod report;

use std::time::{Duration, Instant};

use actix_web::http::header::HeaderValue;
use actix_web::rt::System;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::super::{Failure, progress};
use super::BenchArgs;
use super::prompts::Prompts;
use client::{Secret, Server};
use load::Arrival;
use report::{OnlineRecord, Outcome};

/// Vocabulary of a server that does not say; --vocab-size overrules it.
const USUAL_VOCAB_SIZE: u32 = 32_000;
const RANDOM_INPUT_TOKENS: u32 = 512;
const OWN_INPUT_TOKENS: u32 = 64;
/// Where OpenAI's clients and the benches of other engines look for a key.
const KEY_VARIABLE: &str = "OPENAI_API_KEY";
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
    /// What the server asks for as `Authorization: Bearer KEY`; OPENAI_API_KEY keeps it out of the list of processes
    #[arg(
        long,
        value_name = "KEY",
        requires = "base_url",
        help_heading = "Bench of a server"
    )]
    pub api_key: Option<Secret>,
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
    let model = args.flags.engine.get("model_path");
    let bearer = bearer(
        args.online.api_key.as_ref(),
        std::env::var(KEY_VARIABLE).ok(),
    )?;
    let record = System::new().block_on(async {
        let server = Server::find(base_url, model, bearer).await?;
        measure(&args.online, server, seed).await
    })?;
    record.publish(args.json.as_deref())
}

/// The header that shows the key: that of the flag, else that of the environment, where an empty one is none.
fn bearer(flag: Option<&Secret>, variable: Option<String>) -> Result<Option<HeaderValue>, Failure> {
    let variable = variable.filter(|key| !key.is_empty()).map(Secret::from);
    let (name, key) = match (flag, &variable) {
        (Some(key), _) => ("--api-key", key),
        (None, Some(key)) => (KEY_VARIABLE, key),
        (None, None) => return Ok(None),
    };
    let bearer = key.bearer();
    bearer
        .map(Some)
        .map_err(|reason| Failure::Usage(format!("{name} {reason}")))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_comes_from_the_flag_or_the_environment_and_is_never_shown() {
        let shown = |flag: Option<&str>, variable: Option<&str>| {
            let flag = flag.map(|key| Secret::from(key.to_owned()));
            bearer(flag.as_ref(), variable.map(str::to_owned))
        };
        for (flag, variable, expected) in [
            (None, None, None),
            (None, Some(""), None),
            (None, Some("sk-2"), Some("Bearer sk-2")),
            (Some("sk-1"), Some("sk-2"), Some("Bearer sk-1")),
        ] {
            let header = shown(flag, variable).expect("a header can carry it");
            let text = header.as_ref().map(|header| header.as_bytes());
            assert_eq!(text, expected.map(str::as_bytes));
            assert!(!format!("{header:?}").contains("sk-"), "{header:?}");
        }
        for (flag, variable, name) in [
            (Some("sk 1"), None, "--api-key must be printable"),
            (Some(""), Some("sk-2"), "--api-key must be printable"),
            (None, Some("sk\n2"), "OPENAI_API_KEY must be printable"),
        ] {
            match shown(flag, variable) {
                Err(Failure::Usage(reason)) => {
                    assert!(reason.contains(name) && !reason.contains("sk"), "{reason}");
                }
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(
            format!("{:?}", Secret::from("sk-1".to_owned())),
            "Secret(hidden)"
        );
    }
}
