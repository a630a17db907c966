//! Metrics of actors' mailboxes: waiting messages and handler times.

use std::sync::Arc;

use metrics::{Gauge, Histogram, gauge, histogram};

pub struct MailboxMetrics {
    depth: Gauge,
    handler_seconds: Histogram,
}

impl MailboxMetrics {
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

    pub fn entered(&self) {
        self.depth.increment(1.0);
    }

    pub fn left(&self) {
        self.depth.decrement(1.0);
    }

    pub fn handled(&self, seconds: f64) {
        self.handler_seconds.record(seconds);
    }
}
