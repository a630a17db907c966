//! Pins the K/V of a conversation in the prefix cache until its next turn.

use std::sync::Arc;
use std::time::Duration;

use super::store::StoredResponse;
use souffleur_engine::{EngineHandle, SoftPin};
use souffleur_state::cache::namespace::Namespace;

pub(super) struct Pinning {
    pub(super) engine: EngineHandle,
    pub(super) namespace: Namespace,
    pub(super) ttl: Duration,
    pub(super) earlier: Option<Arc<StoredResponse>>,
}

impl Pinning {
    /// Pins `tokens`, and replaces the earlier response's pin if `tokens` extend it. `None` if the engine has stopped.
    pub(super) fn pin(&self, tokens: Arc<[u32]>) -> Option<SoftPin> {
        let is_extended = |earlier: &&Arc<StoredResponse>| {
            let known = earlier.tokens.as_ref();
            known.is_some_and(|known| tokens.starts_with(&known.tokens))
        };
        let earlier = self.earlier.as_ref().filter(is_extended);
        let replaced = earlier.and_then(|earlier| earlier.pin.as_ref());
        let pinned = self
            .engine
            .pin_softly(self.namespace.clone(), tokens, self.ttl, replaced);
        pinned.ok()
    }
}
