//! The addresses of a Scheduler for the Tokenizer.

use actix::Recipient;

use crate::mailbox::Mailbox;
use crate::messages::{CancelAll, CancelRequest, Drain, ResumeRequests, StopFound, Submit};

/// The addresses of a unit's Scheduler.
pub struct SchedulerLinks {
    pub submit: Mailbox<Submit>,
    pub resume: Mailbox<ResumeRequests>,
    pub stop_found: Mailbox<StopFound>,
    /// Requests whose client is gone.
    pub cancel: Recipient<CancelRequest>,
    pub cancel_all: Recipient<CancelAll>,
    pub drain: Recipient<Drain>,
}
