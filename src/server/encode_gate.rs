//! Limits `encode` to one text at a time, since the model needs the cores.

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
    /// Waits for a turn, which ends when the permit is dropped; `None` once the gate is closed.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_owned().await.ok()
    }
}
