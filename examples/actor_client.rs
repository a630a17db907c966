//! An actor of the host program that exchanges messages with the engine.
//!
//! `Listener` makes two requests. Their tokens arrive in its mailbox as [`TokenEvent`]s, like any other message. It
//! reads one answer to the end, and cancels the other after a few tokens with a [`CancelRequest`] to the engine's
//! [`Doors`](souffleur::actors::messages::Doors), the recipients of its messages.
//!
//! ```text
//! cargo run --example actor_client
//! ```

#![allow(clippy::print_stdout, reason = "an example prints its results")]

use std::path::Path;
use std::sync::Arc;

use actix::{Actor, AsyncContext, Context, Handler, Message, System};
use anyhow::{Context as _, ensure};
use serde_json::json;
use souffleur::actors::messages::{CancelRequest, TokenEvent};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle};
use souffleur::ids::RequestId;
use souffleur::request::{ChatPrompt, Event, GenerateRequest, Prompt};
use tokio::sync::oneshot;

const PATIENT: &str = "patient";
const IMPATIENT: &str = "impatient";
/// Tokens after which the impatient request is cancelled.
const ENOUGH_TOKENS: u32 = 8;

/// Sends both prompts, receives their events, and sends both terminal events to `ends`.
struct Listener {
    engine: EngineHandle,
    ends: Option<oneshot::Sender<Vec<(RequestId, Event)>>>,
    ended: Vec<(RequestId, Event)>,
}

impl Actor for Listener {
    type Context = Context<Self>;
}

#[derive(Message)]
#[rtype(result = "anyhow::Result<()>")]
struct Ask {
    rid: RequestId,
    question: &'static str,
    max_new_tokens: u32,
}

impl Handler<Ask> for Listener {
    type Result = anyhow::Result<()>;

    fn handle(&mut self, ask: Ask, ctx: &mut Context<Self>) -> anyhow::Result<()> {
        let mut request = GenerateRequest::new(Prompt::Chat(Arc::new(ChatPrompt {
            messages: json!([{ "role": "user", "content": ask.question }]),
            tools: None,
            template_kwargs: Default::default(),
            add_generation_prompt: true,
            continue_final_message: false,
            known: None,
            images: Vec::new(),
        })));
        request.rid = ask.rid;
        request.sampling.temperature = 0.0;
        request.sampling.max_new_tokens = ask.max_new_tokens;
        // Continues past the end-of-sequence token, so that there is something to cancel.
        request.sampling.ignore_eos = request.rid.as_str() == IMPATIENT;
        self.engine
            .generate_to(request, ctx.address().recipient())?;
        Ok(())
    }
}

impl Handler<TokenEvent> for Listener {
    type Result = ();

    fn handle(&mut self, TokenEvent { rid, event }: TokenEvent, _: &mut Context<Self>) {
        match &event {
            Event::Delta(delta) => {
                println!("{rid}: {:?}", delta.text);
                if rid.as_str() == IMPATIENT && delta.usage.completion_tokens >= ENOUGH_TOKENS {
                    self.cancel(rid);
                }
                return;
            }
            Event::Finished(end) => println!("{rid}: finished, {}", end.reason.as_str()),
            Event::Cancelled(_) => println!("{rid}: cancelled"),
            Event::Failed(error) => println!("{rid}: failed, {error}"),
        }
        self.ended.push((rid, event));
        if self.ended.len() == 2
            && let Some(ends) = self.ends.take()
        {
            // The receiver may be gone.
            let _ = ends.send(std::mem::take(&mut self.ended));
        }
    }
}

impl Listener {
    /// The engine ignores a second cancel of the same request.
    fn cancel(&self, rid: RequestId) {
        if let Ok(doors) = self.engine.doors() {
            doors.cancel.do_send(CancelRequest { rid, flag: None });
        }
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
        ..Default::default()
    };
    let engine = Engine::start(config)?;
    let (ends, all_ended) = oneshot::channel();
    let listener = Listener {
        engine: engine.clone(),
        ends: Some(ends),
        ended: Vec::new(),
    }
    .start();
    let ask = |rid, question, max_new_tokens| {
        listener.send(Ask {
            rid: RequestId::new(rid),
            question,
            max_new_tokens,
        })
    };
    ask(PATIENT, "Who are you?", 60).await??;
    ask(IMPATIENT, "Tell me a story.", 2000).await??;

    let ends = all_ended.await.context("the listener stopped")?;
    for (rid, end) in ends {
        let is_expected = match rid.as_str() {
            PATIENT => matches!(end, Event::Finished(_)),
            _ => matches!(end, Event::Cancelled(_)),
        };
        ensure!(is_expected, "{rid} ended with {end:?}");
    }
    engine.shutdown(std::time::Duration::from_secs(5)).await;
    Ok(())
}
