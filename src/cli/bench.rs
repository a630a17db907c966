//! `souffleur bench`: time to ready, and the speed of one stream.

use std::time::{Duration, Instant};

use actix_web::rt::System;
use clap::Args;
use souffleur::engine::EngineHandle;
use souffleur::request::{Event, GenerateRequest, Prompt};
use souffleur::state::sampling::SamplingParams;

use super::flags::LocalFlags;
use super::{Failure, local, say};
use crate::settings::Settings;

const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Flags of the command.
#[derive(Args, Debug)]
pub struct BenchArgs {
    /// Length of the prompt
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 64,
        help_heading = "Bench"
    )]
    prompt_tokens: u32,
    /// Tokens to generate, whatever they are
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 128,
        help_heading = "Bench"
    )]
    output_tokens: u32,
    #[command(flatten)]
    pub flags: LocalFlags,
}

/// What one stream took.
struct Stream {
    first_token: Duration,
    rest: Duration,
    rest_tokens: u32,
}

/// Runs the command.
pub fn run(args: &BenchArgs, settings: Settings) -> Result<(), Failure> {
    let began = Instant::now();
    let config = local::with_model(settings.engine)?;
    let engine = local::start(config, |_| Ok(()))?;
    let ready = began.elapsed();
    let stream = System::new().block_on(async {
        let stream = one_stream(&engine, args).await;
        engine.shutdown(STOP_DEADLINE).await;
        stream
    })?;
    let tokens_per_second = f64::from(stream.rest_tokens) / stream.rest.as_secs_f64();
    say(
        "| model | prompt tokens | output tokens | start to ready, s | first token, ms | one stream, tokens/s |",
    );
    say("|---|---|---|---|---|---|");
    say(format_args!(
        "| {} | {} | {} | {:.3} | {:.1} | {tokens_per_second:.1} |",
        engine.model().served_model_name,
        args.prompt_tokens,
        stream.rest_tokens + 1,
        ready.as_secs_f64(),
        stream.first_token.as_secs_f64() * 1e3,
    ));
    Ok(())
}

async fn one_stream(engine: &EngineHandle, args: &BenchArgs) -> Result<Stream, Failure> {
    let vocab_size = u32::try_from(engine.model().vocab_size)
        .unwrap_or(u32::MAX)
        .max(1);
    let prompt = (0..args.prompt_tokens.max(1)).map(|i| i.wrapping_mul(7919) % vocab_size);
    let sampling = SamplingParams {
        max_new_tokens: args.output_tokens.max(2),
        temperature: 0.0,
        ignore_eos: true,
        ..SamplingParams::default()
    };
    let prompt = Prompt::Tokens(prompt.collect());
    let request = GenerateRequest {
        sampling,
        ..GenerateRequest::new(prompt)
    };
    let began = Instant::now();
    let mut generation = engine.generate(request).map_err(Failure::failed)?;
    let mut first: Option<(Instant, u32)> = None;
    while let Some(event) = generation.next().await {
        let now = Instant::now();
        let delta = match &event {
            Event::Delta(delta) => delta,
            Event::Finished(end) | Event::Cancelled(end) => &end.delta,
            Event::Failed(error) => return Err(Failure::failed(error)),
        };
        let seen = delta.usage.completion_tokens;
        if seen == 0 {
            continue;
        }
        let (first_at, first_tokens) = *first.get_or_insert((now, seen));
        if event.is_terminal() {
            return Ok(Stream {
                first_token: first_at - began,
                rest: (now - first_at).max(Duration::from_nanos(1)),
                rest_tokens: seen - first_tokens,
            });
        }
    }
    Err(Failure::failed("the engine ended without an answer"))
}
