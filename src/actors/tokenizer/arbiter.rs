//! The Tokenizer on a separate Arbiter, because encoding a long prompt must not delay a step.

use std::time::Duration;

use actix::{Actor, Addr, Recipient};
use actix_rt::Arbiter;

use crate::death::{Obituary, StopActor};
use crate::messages::ActorDied;
use souffleur_base::beat::Beat;
use souffleur_chaos::Chaos;
use souffleur_metrics::RequestMetrics;

use super::{Estate, HandOver, Tokenizer, TokenizerSettings};

/// Stack size of threads that render templates, encode prompts and parse requests: their libraries are recursive.
const STACK_BYTES: usize = 16 << 20;

/// The runtime of the Tokenizer's Arbiter, whose blocking threads have large stacks.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_stack_size(STACK_BYTES)
        .build()
}

/// A running Tokenizer; it stops when this is dropped.
pub struct TokenizerArbiter {
    pub tokenizer: Addr<Tokenizer>,
    /// `None` once the Arbiter is being stopped.
    arbiter: Option<Arbiter>,
}

impl TokenizerArbiter {
    /// Starts Tokenizer `number`, with the estate of the one before, if one has died. It beats at the given interval,
    /// if there is one.
    pub fn start(
        (settings, model_name, chaos): (TokenizerSettings, &str, Chaos),
        number: u64,
        estate: Option<Box<Estate>>,
        (heir, died): (Recipient<HandOver>, Recipient<ActorDied>),
        (beat, every): (Beat, Option<Duration>),
    ) -> Self {
        let arbiter = Arbiter::try_with_tokio_rt(runtime).unwrap_or_else(|_| Arbiter::new());
        let obituary = Obituary::new("tokenizer", number, died);
        let metrics = RequestMetrics::register(model_name);
        let tokenizer = Tokenizer::start_in_arbiter(&arbiter.handle(), move |_| {
            Tokenizer::new(settings, metrics, estate, (heir, obituary))
                .with_chaos(chaos)
                .beating(beat, every)
        });
        Self {
            tokenizer,
            arbiter: Some(arbiter),
        }
    }

    /// Stops the Tokenizer after all messages that were sent to it before. Its requests get their terminal event from
    /// their sinks. Returns the Arbiter, to stop and join.
    pub async fn stop(mut self) -> Option<Arbiter> {
        // A dead Tokenizer has stopped too.
        let _ = self.tokenizer.send(StopActor).await;
        self.arbiter.take()
    }
}

impl Drop for TokenizerArbiter {
    fn drop(&mut self) {
        self.tokenizer.do_send(StopActor);
        if let Some(arbiter) = &self.arbiter {
            arbiter.stop();
        }
    }
}
