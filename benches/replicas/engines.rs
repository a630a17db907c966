//! The engines that are measured, and their requests.

use std::sync::Arc;

use anyhow::{Context, bail};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle, EngineParts, Generation, Progress};
use souffleur::error::LoadError;
use souffleur::executor::Executor;
use souffleur::executor::fake::{FakeExecutor, FakeOptions};
use souffleur::request::{Event, GenerateRequest, Prompt, Usage};

pub struct Answer {
    pub tokens: Vec<u32>,
    pub usage: Usage,
}

/// An engine of the bundled model, whose executors compute nothing: a token depends on a hash of those before it.
pub fn without_model(config: EngineConfig) -> anyhow::Result<EngineHandle> {
    let mut parts = EngineParts::from_model(&config, Progress::silent())?;
    let info = &parts.info;
    let options = FakeOptions {
        page_size: info.page_size,
        n_pages: info.max_total_tokens / info.page_size,
        vocab_size: u32::try_from(info.vocab_size)?,
        verify: false,
        n_states: 0,
        hidden_size: 0,
        faults: Vec::new(),
    };
    parts.executor = Arc::new(move || -> Result<Box<dyn Executor>, LoadError> {
        Ok(Box::new(FakeExecutor::new(options.clone())))
    });
    Ok(Engine::start_with(config, parts)?)
}

/// A request whose output has exactly this length.
pub fn request(prompt: &[u32], output_tokens: u32) -> GenerateRequest {
    let mut request = GenerateRequest::new(Prompt::Tokens(prompt.into()));
    request.sampling.temperature = 0.0;
    request.sampling.ignore_eos = true;
    request.sampling.max_new_tokens = output_tokens;
    request
}

/// Reads an answer to its end.
pub async fn read(mut generation: Generation) -> anyhow::Result<Answer> {
    let mut tokens = Vec::new();
    loop {
        let event = generation.next().await;
        match event.context("a request has no end")? {
            Event::Delta(delta) => tokens.extend(delta.tokens),
            Event::Finished(finished) => {
                let delta = finished.delta;
                tokens.extend(delta.tokens);
                return Ok(Answer {
                    tokens,
                    usage: delta.usage,
                });
            }
            end @ (Event::Cancelled(_) | Event::Failed(_)) => bail!("a request ended: {end:?}"),
        }
    }
}
