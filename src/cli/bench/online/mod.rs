//! Benchmarks a server: sends requests as users would, and measures throughput and latencies as clients see them.
//!
//! | part | role |
//! |---|---|
//! | [`args`] | the flags |
//! | [`load`] | the requests and their times |
//! | [`client`] | sends a request, reads its stream and times it |
//! | [`report`] | throughput, latencies and failures, as a record and as tables |

pub mod args;
mod client;
mod load;
mod report;

use std::path::Path;
use std::time::{Duration, Instant};

use actix_web::rt::System;
use serde_json::{Value, json};

use super::prompts::Prompts;
use crate::cli::failure::Failure;
use crate::cli::progress;
use crate::cli::remote::secret;
use args::OnlineArgs;
use client::Server;
use load::Arrival;
use report::{OnlineRecord, Outcome};

/// The vocabulary size assumed if the server reports none and --vocab-size is not given.
const DEFAULT_VOCAB_SIZE: u32 = 32_000;

/// Measures the server under the load that the flags describe. Without `model`, the server's first model is used.
pub fn measure(
    args: &OnlineArgs,
    base_url: &str,
    model: Option<String>,
    seed: u64,
) -> Result<OnlineRecord, Failure> {
    let bearer = secret::header(args.api_key.as_ref())?;
    let response_format = args.json_schema.as_deref().map(format_of).transpose()?;
    System::new().block_on(async {
        let mut server = Server::find(base_url, model, bearer).await?;
        server.response_format = response_format;
        run(args, server, seed).await
    })
}

fn format_of(file: &Path) -> Result<Value, Failure> {
    let shown = file.display();
    let text = std::fs::read(file).map_err(|error| {
        Failure::failed(format_args!(
            "--json-schema {shown} cannot be read: {error}"
        ))
    })?;
    let schema: Value = serde_json::from_slice(&text).map_err(|error| {
        Failure::failed(format_args!(
            "--json-schema {shown} is not valid JSON: {error}"
        ))
    })?;
    Ok(json!({
        "type": "json_schema",
        "json_schema": {"name": "bench", "schema": schema},
    }))
}

async fn run(args: &OnlineArgs, server: Server, seed: u64) -> Result<OnlineRecord, Failure> {
    let vocab_size = args.vocab_size.or(server.vocab_size);
    let vocab_size = vocab_size.unwrap_or(DEFAULT_VOCAB_SIZE);
    let mut prompts = Prompts::new(seed, vocab_size);
    for _ in 0..args.warmup_requests {
        let request = load::random(args, &mut prompts);
        let answered = server.complete(&request).await;
        answered.map_err(|reason| Failure::failed(format_args!("{}: {reason}", server.url())))?;
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

/// Sends each request at its arrival time, and waits for all answers.
async fn drive(
    server: &Server,
    arrivals: Vec<Arrival>,
    max_concurrency: Option<u32>,
    bar: &indicatif::ProgressBar,
) -> Result<(Vec<(u32, Outcome)>, Duration), Failure> {
    let limit = max_concurrency.map_or(arrivals.len(), |limit| limit as usize);
    let permits = std::rc::Rc::new(tokio::sync::Semaphore::new(limit));
    let began = Instant::now();
    let mut in_flight = Vec::with_capacity(arrivals.len());
    for Arrival { at, request } in arrivals {
        tokio::time::sleep_until((began + at).into()).await;
        let (server, permits, bar) = (server.clone(), permits.clone(), bar.clone());
        in_flight.push(actix_web::rt::spawn(async move {
            let permit = permits.acquire().await;
            let answer = server.complete(&request).await;
            drop(permit);
            bar.inc(1);
            bar.set_message(format!("{} answers", bar.position()));
            (request.prompt.tokens(), Outcome { at, answer })
        }));
    }
    let mut outcomes = Vec::with_capacity(in_flight.len());
    for outcome in in_flight {
        outcomes.push(outcome.await.map_err(Failure::failed)?);
    }
    Ok((outcomes, began.elapsed()))
}
