//! The command `souffleur generate`: answers one prompt, streaming to stdout.

use std::io::{IsTerminal, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use actix_web::rt::System;
use clap::Args;
use serde_json::{Map, json};
use souffleur::engine::{EngineHandle, Generation};
use souffleur::request::{ChatPrompt, Event, FinishReason, GenerateRequest, Prompt};
use souffleur::state::sampling::SamplingParams;

use super::failure::Failure;
use super::flags::LocalFlags;
use super::local;
use crate::cli::settings::Settings;

const STOP_DEADLINE: Duration = Duration::from_secs(5);

/// Flags of the command.
#[derive(Args, Debug)]
pub struct GenerateArgs {
    /// Prompt to answer; read from stdin if not given or -
    prompt: Option<String>,
    /// Continue the prompt as it is, without the model's chat template
    #[arg(long, help_heading = "Prompt")]
    raw: bool,
    /// System message before the prompt
    #[arg(
        long,
        value_name = "TEXT",
        conflicts_with = "raw",
        help_heading = "Prompt"
    )]
    system: Option<String>,
    #[command(flatten)]
    sampling: SamplingFlags,
    #[command(flatten)]
    pub flags: LocalFlags,
}

#[derive(Args, Debug)]
struct SamplingFlags {
    /// Maximum number of tokens to generate
    #[arg(
        long,
        value_name = "TOKENS",
        default_value_t = 512,
        help_heading = "Sampling"
    )]
    max_new_tokens: u32,
    /// Sampling randomness; 0 always picks the most likely token
    #[arg(long, default_value_t = 1.0, help_heading = "Sampling")]
    temperature: f32,
    /// Choose only among the most likely tokens whose probabilities add up to this
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "0..1",
        help_heading = "Sampling"
    )]
    top_p: f32,
    /// Choose only among this many most likely tokens; -1 chooses among all
    #[arg(long, default_value_t = -1, value_name = "N", allow_negative_numbers = true, help_heading = "Sampling")]
    top_k: i32,
    /// Drop tokens whose probability is below this fraction of the most likely token's
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "0..1",
        help_heading = "Sampling"
    )]
    min_p: f32,
    /// Subtracted from a token's logit for each time it already occurs in the output
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "-2..2",
        allow_negative_numbers = true,
        help_heading = "Sampling"
    )]
    frequency_penalty: f32,
    /// Subtracted once from a token's logit if it already occurs in the output
    #[arg(
        long,
        default_value_t = 0.0,
        value_name = "-2..2",
        allow_negative_numbers = true,
        help_heading = "Sampling"
    )]
    presence_penalty: f32,
    /// Above 1 makes tokens of the prompt and the output less likely; 1 changes nothing
    #[arg(
        long,
        default_value_t = 1.0,
        value_name = "0..2",
        help_heading = "Sampling"
    )]
    repetition_penalty: f32,
    /// Seed of the random choices: the same seed gives the same answer
    #[arg(long, value_name = "SEED", help_heading = "Sampling")]
    sampling_seed: Option<u64>,
    /// String that ends the output; may be repeated
    #[arg(long, value_name = "TEXT", help_heading = "Sampling")]
    stop: Vec<String>,
    /// Continue after the end-of-text token
    #[arg(long, help_heading = "Sampling")]
    ignore_eos: bool,
}

impl SamplingFlags {
    fn params(&self) -> SamplingParams {
        SamplingParams {
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            frequency_penalty: self.frequency_penalty,
            presence_penalty: self.presence_penalty,
            repetition_penalty: self.repetition_penalty,
            sampling_seed: self.sampling_seed,
            stop: self.stop.as_slice().into(),
            ignore_eos: self.ignore_eos,
            ..SamplingParams::default()
        }
    }
}

pub fn run(args: &GenerateArgs, settings: Settings) -> Result<(), Failure> {
    let text = read_prompt(args.prompt.as_deref())?;
    let config = local::with_text(settings.engine)?;
    let engine = local::start(config, |parts| {
        if args.raw || local::has_chat_template(parts) {
            return Ok(());
        }
        let reason = "the model has no chat template: add --raw to continue the prompt as it is";
        Err(Failure::Usage(reason.to_owned()))
    })?;
    let prompt = if args.raw {
        Prompt::Text(text.into())
    } else {
        chat(args.system.as_deref(), text)
    };
    let request = GenerateRequest {
        sampling: args.sampling.params(),
        ..GenerateRequest::new(prompt)
    };
    System::new().block_on(async {
        let answered = answer(&engine, request).await;
        engine.shutdown(STOP_DEADLINE).await;
        answered
    })
}

fn read_prompt(argument: Option<&str>) -> Result<String, Failure> {
    if let Some(text) = argument.filter(|text| *text != "-") {
        return Ok(text.to_owned());
    }
    let mut stdin = std::io::stdin();
    if argument.is_none() && stdin.is_terminal() {
        let reason = "no prompt: pass it as an argument or on stdin";
        return Err(Failure::Usage(reason.to_owned()));
    }
    let mut text = String::new();
    let read = stdin.read_to_string(&mut text);
    read.map_err(Failure::to("read stdin"))?;
    Ok(text)
}

fn chat(system: Option<&str>, user: String) -> Prompt {
    let system = system.map(|text| json!({"role": "system", "content": text}));
    let user = json!({"role": "user", "content": user.trim_end()});
    Prompt::Chat(Arc::new(ChatPrompt {
        messages: system.into_iter().chain([user]).collect(),
        tools: None,
        template_kwargs: Map::new(),
        add_generation_prompt: true,
        continue_final_message: false,
        known: None,
        images: Vec::new(),
    }))
}

async fn answer(engine: &EngineHandle, request: GenerateRequest) -> Result<(), Failure> {
    let wanted = request.sampling.max_new_tokens;
    let generation = engine.generate(request).map_err(Failure::failed)?;
    stream(generation, wanted).await
}

/// Writes the text, of up to `wanted` tokens, as it is generated. If stdout is closed, cancels the request.
async fn stream(mut generation: Generation, wanted: u32) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let mut put = |text: &str| {
        out.write_all(text.as_bytes())
            .and_then(|()| out.flush())
            .is_ok()
    };
    while let Some(event) = generation.next().await {
        match event {
            Event::Delta(delta) => {
                if !put(&delta.text) {
                    return Ok(());
                }
            }
            Event::Finished(end) | Event::Cancelled(end) => {
                put(&end.delta.text);
                put("\n");
                if let FinishReason::Length { max_new_tokens } = end.reason {
                    let flags = if max_new_tokens < wanted {
                        "--context-length or --max-total-tokens, as one of them is used up"
                    } else {
                        "--max-new-tokens"
                    };
                    tracing::warn!(max_new_tokens, "the answer was cut off: raise {flags}");
                }
                tracing::debug!(usage = ?end.delta.usage, seconds = end.e2e_latency_s, "done");
                return Ok(());
            }
            Event::Failed(error) => return Err(Failure::failed(error)),
        }
    }
    Err(Failure::failed(
        "the engine stopped before the answer was complete: see the log",
    ))
}
