//! The KvStore actor's points for `--chaos`. Those of the files are in the store.

use super::KvStore;
use souffleur_chaos::{Actor, Chaos, Kind, Phase, Point};
use souffleur_store::Answer;

impl KvStore {
    pub fn with_chaos(mut self, chaos: Chaos) -> Self {
        self.chaos = chaos;
        self
    }

    pub(super) fn strike(&self, phase: Phase, message: &'static str) {
        self.chaos.strike(Actor::KvStore, phase, message);
    }

    /// Whether the store has no memory for an order.
    pub(super) fn refuses(&self, order: &'static str) -> bool {
        let point = Point::new(Actor::KvStore, Phase::Middle, order);
        self.chaos.at(point, &[Kind::Refuse]).is_some()
    }

    /// Whether an answer is dropped. Only lookups and loads have timers that answer in the store's place.
    pub(super) fn drops(&self, answer: &Answer) -> bool {
        let message = match answer {
            Answer::Found { .. } => "Found",
            Answer::Fetched { .. } | Answer::Late { .. } => "Fetched",
            Answer::State(_) | Answer::Committed { .. } => return false,
        };
        let point = Point::new(Actor::KvStore, Phase::Entry, message);
        self.chaos.at(point, &[Kind::DropReply]).is_some()
    }
}
