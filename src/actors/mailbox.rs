//! Mailboxes with metrics: an envelope counts a message in the actor's mailbox, and times its handler.
//!
//! actix does not expose the length of a mailbox. So the envelope increments a counter when the message is posted, and
//! decrements it when the message is opened or dropped with its actor.

use std::sync::Arc;
use std::time::Instant;

use actix::dev::ToEnvelope;
use actix::{Actor, Addr, Handler, Message, Recipient};

use crate::panics;
use souffleur_metrics::MailboxMetrics;

/// An actor's address for one type of message, with its metric labels.
pub struct Mailbox<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    to: Recipient<Posted<M>>,
    metrics: Arc<MailboxMetrics>,
}

impl<M> Mailbox<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    /// The address of `actor`, with the names for metric labels.
    pub fn of<A>(actor: &Addr<A>, actor_name: &'static str, message_name: &'static str) -> Self
    where
        A: Actor + Handler<Posted<M>>,
        A::Context: ToEnvelope<A, Posted<M>>,
    {
        let metrics = MailboxMetrics::register(actor_name, message_name);
        Self {
            to: actor.clone().recipient(),
            metrics,
        }
    }

    /// Sends a message. If the actor has stopped, the message is dropped and no longer counted.
    pub fn post(&self, message: M) {
        self.metrics.entered();
        self.to.do_send(Posted {
            message: Some(message),
            metrics: self.metrics.clone(),
        });
    }
}

impl<M> Clone for Mailbox<M>
where
    M: Message<Result = ()> + Send + 'static,
{
    fn clone(&self) -> Self {
        Self {
            to: self.to.clone(),
            metrics: self.metrics.clone(),
        }
    }
}

pub struct Posted<M> {
    message: Option<M>,
    metrics: Arc<MailboxMetrics>,
}

impl<M: Message> Message for Posted<M> {
    type Result = M::Result;
}

impl<M> Posted<M> {
    /// Takes the message out; the handler's time counts until the timer is dropped.
    pub fn open(mut self) -> (M, HandlerTimer) {
        let message = self.message.take().expect("a message must be opened once");
        self.metrics.left();
        (message, HandlerTimer::start(&self.metrics))
    }
}

impl<M> Drop for Posted<M> {
    fn drop(&mut self) {
        if self.message.is_some() {
            self.metrics.left();
        }
    }
}

#[must_use]
pub struct HandlerTimer {
    started: Instant,
    metrics: Arc<MailboxMetrics>,
}

impl HandlerTimer {
    fn start(metrics: &Arc<MailboxMetrics>) -> Self {
        let started = Instant::now();
        metrics.began(started);
        panics::began(metrics.message());
        Self {
            started,
            metrics: metrics.clone(),
        }
    }
}

impl Drop for HandlerTimer {
    fn drop(&mut self) {
        self.metrics.handled(self.started.elapsed().as_secs_f64());
        // The note of a dying actor reads the message, and is dropped later.
        if !std::thread::panicking() {
            panics::ended();
        }
    }
}

/// Counts a message that hosts send without an envelope.
pub struct InFlight {
    metrics: Arc<MailboxMetrics>,
}

impl InFlight {
    pub fn enter(actor_name: &'static str, message_name: &'static str) -> Self {
        let metrics = MailboxMetrics::register(actor_name, message_name);
        metrics.entered();
        Self { metrics }
    }

    pub fn open(self) -> HandlerTimer {
        HandlerTimer::start(&self.metrics)
    }
}

impl std::fmt::Debug for InFlight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InFlight")
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.left();
    }
}
