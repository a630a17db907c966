//! An engine on the host program's Arbiter, used through messages only.
//!
//! `Listener` runs on the same Arbiter as the engine's actors. It sends [`Generate`] to the engine's [`Doors`], the
//! recipients of its messages: several samples of one prompt in one message, so that the prompt is tokenized once. The
//! engine fails requests above its limit with `overloaded`.
//!
//! ```text
//! cargo run --example own_arbiter
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::path::Path;
use std::time::Duration;

use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, System};
use actix_rt::Arbiter;
use anyhow::{Context as _, ensure};
use souffleur::actors::messages::{Asked, Doors, Generate, TokenEvent};
use souffleur::config::EngineConfig;
use souffleur::engine::Engine;
use souffleur::ids::RequestId;
use souffleur::request::{CancelFlag, Event, GenerateRequest, Prompt};
use souffleur::sink::EventSink;
use tokio::sync::mpsc;

/// The largest number of requests in the engine.
const MAX_REQUESTS: usize = 2;

/// Sends requests on command, and reports to `ends` how each request ended.
struct Listener {
    doors: Doors,
    ends: mpsc::UnboundedSender<(RequestId, Event)>,
}

impl Actor for Listener {
    type Context = Context<Self>;
}

/// Several samples of one prompt.
#[derive(Message)]
#[rtype(result = "()")]
struct Sample {
    prompt: &'static str,
    names: Vec<&'static str>,
}

impl Handler<Sample> for Listener {
    type Result = ();

    fn handle(&mut self, sample: Sample, ctx: &mut Context<Self>) {
        let mut request = GenerateRequest::new(Prompt::Text(sample.prompt.into()));
        request.sampling.max_new_tokens = 40;
        let asked = sample.names.into_iter().map(|name| {
            // Clones share the prompt.
            let mut request = request.clone();
            request.rid = RequestId::new(name);
            let events = ctx.address().recipient();
            Asked {
                sink: EventSink::recipient(request.rid.clone(), events, None),
                request,
                cancel: CancelFlag::default(),
            }
        });
        // These doors are valid until the engine is rebuilt: then the handle has new ones.
        self.doors.generate.do_send(Generate::call(asked.collect()));
    }
}

impl Handler<TokenEvent> for Listener {
    type Result = ();

    fn handle(&mut self, TokenEvent { rid, event }: TokenEvent, _: &mut Context<Self>) {
        match &event {
            Event::Delta(delta) => return println!("{rid}: {:?}", delta.text),
            Event::Finished(end) => println!("{rid}: finished, {}", end.reason.as_str()),
            Event::Cancelled(_) => println!("{rid}: cancelled"),
            Event::Failed(error) => println!("{rid}: failed, {error}"),
        }
        // The receiver may be gone.
        let _ = self.ends.send((rid, event));
    }
}

fn main() -> anyhow::Result<()> {
    System::new().block_on(run())
}

async fn run() -> anyhow::Result<()> {
    let model_path = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/souffleur-tiny");
    let config = EngineConfig {
        model_path,
        max_total_tokens: Some(8192),
        max_queued_requests: MAX_REQUESTS,
        ..Default::default()
    };
    let engine = Engine::start_in(&Arbiter::current(), config).await?;
    let (ends, mut ended) = mpsc::unbounded_channel();
    let doors = engine.doors()?;
    let listener: Addr<Listener> = Listener { doors, ends }.start();
    let sample = Sample {
        prompt: "Once upon a time",
        names: vec!["first", "second", "one too many"],
    };
    listener.send(sample).await?;
    for _ in 0..=MAX_REQUESTS {
        let (rid, end) = ended.recv().await.context("the listener stopped")?;
        let is_expected = match (rid.as_str(), &end) {
            ("one too many", Event::Failed(error)) => error.code() == "overloaded",
            (_, end) => matches!(end, Event::Finished(_)),
        };
        ensure!(is_expected, "{rid} ended with {end:?}");
    }
    engine.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
