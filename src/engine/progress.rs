//! The callback for the progress of loading a model.

use std::sync::Arc;

/// Receives the loaded and the total bytes of the weights. Called on the executor's thread.
#[derive(Clone)]
pub struct Progress(Arc<dyn Fn(u64, u64) + Send + Sync>);

impl Progress {
    pub fn new(report: impl Fn(u64, u64) + Send + Sync + 'static) -> Self {
        Self(Arc::new(report))
    }

    pub(super) fn report(&self, done_bytes: u64, all_bytes: u64) {
        (self.0)(done_bytes, all_bytes);
    }

    pub fn silent() -> Self {
        Self::new(|_, _| ())
    }
}
