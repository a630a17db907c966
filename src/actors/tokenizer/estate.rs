//! The part of the Tokenizer that outlives it: live requests, their clients, and calls that were not read yet.
//!
//! A dying Tokenizer sends it to the Watchdog, which starts the next Tokenizer with it.

use std::collections::VecDeque;
use std::time::Instant;

use actix::Message;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;

use souffleur_base::ids::{IntakeId, RequestId, UnitId};
use souffleur_state::docket::Docket;
use souffleur_state::docket::quarantine::Quarantine;
use souffleur_state::scheduler::news::RequestTokens;

use super::intake::Intake;
use super::live::ActiveRequest;

pub struct Estate {
    pub(super) docket: Docket,
    pub(super) quarantine: Quarantine,
    pub(super) active: FxHashMap<IntakeId, ActiveRequest>,
    pub(super) intakes: FxHashMap<RequestId, IntakeId>,
    pub(super) intake: Intake,
    /// Results that the docket has noted and that were not sent to their clients yet.
    pub(super) in_hand: VecDeque<RequestTokens>,
    /// Senders that are notified when no request is left.
    waiting: Vec<oneshot::Sender<()>>,
    /// The clock of the docket.
    started: Instant,
}

impl Default for Estate {
    fn default() -> Self {
        Self {
            docket: Docket::default(),
            quarantine: Quarantine::default(),
            active: FxHashMap::default(),
            intakes: FxHashMap::default(),
            intake: Intake::new(),
            in_hand: VecDeque::new(),
            waiting: Vec::new(),
            started: Instant::now(),
        }
    }
}

impl Estate {
    /// Seconds on the docket's clock.
    pub(super) fn seconds_at(&self, at: Instant) -> f64 {
        at.saturating_duration_since(self.started).as_secs_f64()
    }

    pub(super) fn now_s(&self) -> f64 {
        self.seconds_at(Instant::now())
    }

    /// Returns a receiver that is notified when no request is left, at once if there is none.
    pub(super) fn idle(&mut self) -> oneshot::Receiver<()> {
        let (idle, is_idle) = oneshot::channel();
        self.waiting.push(idle);
        self.notify_if_idle();
        is_idle
    }

    pub(super) fn notify_if_idle(&mut self) {
        if !self.waiting.is_empty() && self.docket.is_empty() && self.intake.is_empty() {
            for waiting in self.waiting.drain(..) {
                // The waiting side may be gone.
                let _ = waiting.send(());
            }
        }
    }

    /// Raises the flag of a request that was submitted.
    pub(super) fn cancel(&self, rid: &RequestId) {
        let entry = self.intakes.get(rid);
        if let Some(entry) = entry.and_then(|intake| self.docket.get(*intake)) {
            entry.request().cancel.raise();
        }
    }

    /// The unit of a request that was submitted.
    pub(super) fn unit_of(&self, rid: &RequestId) -> Option<UnitId> {
        let intake = self.intakes.get(rid)?;
        Some(self.docket.get(*intake)?.unit())
    }

    /// Cancels all requests. Those that a Scheduler has end when it gets the message for this, or resumes them.
    pub(super) fn cancel_all(&self) {
        self.intake.cancel_all();
        for intake in self.docket.intakes() {
            if let Some(entry) = self.docket.get(intake) {
                entry.request().cancel.raise();
            }
        }
    }

    /// The results that clients lack although the docket has them, oldest request first.
    pub(super) fn take_missing(&mut self) -> Vec<RequestTokens> {
        let mut missing: Vec<RequestTokens> = std::mem::take(&mut self.in_hand).into();
        for intake in self.docket.intakes() {
            let (Some(entry), Some(active)) = (self.docket.get(intake), self.active.get(&intake))
            else {
                continue;
            };
            let in_hand = missing.iter().filter(|update| update.intake == intake);
            let known =
                active.n_passed() + in_hand.map(|update| update.tokens.len()).sum::<usize>();
            let has_end = missing
                .iter()
                .any(|update| update.intake == intake && update.end.is_some());
            let end = entry.end().filter(|_| !has_end);
            if entry.told().len() > known || end.is_some() {
                missing.push(RequestTokens {
                    intake,
                    tokens: entry.told()[known.min(entry.told().len())..].into(),
                    logprobs: None,
                    cached_tokens: entry.cached_tokens(),
                    loaded_tokens: entry.loaded_tokens(),
                    num_retractions: entry.retractions(),
                    drafts: Default::default(),
                    end: end.cloned().map(Box::new),
                });
            }
        }
        missing
    }
}

/// A dying Tokenizer -> Watchdog: the live requests and their clients, for the next Tokenizer.
#[derive(Message)]
#[rtype(result = "()")]
pub struct HandOver(pub Box<Estate>);
