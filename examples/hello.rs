//! The shortest program: an engine with default settings and the bundled model answers a question.
//!
//! ```text
//! cargo run --example hello
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use actix::System;
use souffleur::config::EngineConfig;
use souffleur::engine::Engine;
use souffleur::request::{ChatPrompt, Event, GenerateRequest};

fn main() -> anyhow::Result<()> {
    let engine = Engine::start(EngineConfig::default())?;
    let mut request = GenerateRequest::new(ChatPrompt::of_user("Who are you?").into());
    request.sampling.max_new_tokens = 40;
    let mut generation = engine.generate(request)?;
    System::new().block_on(async {
        while let Some(event) = generation.next().await {
            match event {
                Event::Delta(delta) => print!("{}", delta.text),
                Event::Finished(finished) => println!("{}", finished.delta.text),
                other => anyhow::bail!("the request ended with {other:?}"),
            }
        }
        Ok(())
    })
}
