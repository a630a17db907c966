//! Limits `encode` to one text at a time, so that the CPU cores stay free for the model.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const MAX_AT_ONCE: usize = 1;

pub(super) struct EncodeGate(Arc<Semaphore>);

impl Default for EncodeGate {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(MAX_AT_ONCE)))
    }
}

impl EncodeGate {
    /// Waits until no other text is being encoded. Dropping the permit ends the turn. `None` if the gate is closed.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_owned().await.ok()
    }
}
