//! Metrics of actors' mailboxes: waiting messages and handler times.

use std::sync::Arc;

use metrics::{Gauge, Histogram, gauge, histogram};

/// The messages of one type in one actor's mailbox, and the time that their handler takes.
pub struct MailboxMetrics {
    depth: Gauge,
    handler_seconds: Histogram,
}

impl MailboxMetrics {
    /// Binds the handles to the recorder that is installed now.
    pub fn register(actor: &'static str, message: &'static str) -> Arc<Self> {
        let depth = gauge!("souffleur_actor_mailbox_depth", "actor" => actor);
        let handler_seconds = histogram!(
            "souffleur_actor_handler_seconds", "actor" => actor, "message" => message
        );
        Arc::new(Self {
            depth,
            handler_seconds,
        })
    }

    /// Counts a message in.
    pub fn entered(&self) {
        self.depth.increment(1.0);
    }

    /// Counts a message out.
    pub fn left(&self) {
        self.depth.decrement(1.0);
    }

    /// Records one handler's time.
    pub fn handled(&self, seconds: f64) {
        self.handler_seconds.record(seconds);
    }
}
