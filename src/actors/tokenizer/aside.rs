//! Long prompts that are being encoded aside, one at a time, while the Tokenizer goes on with the others' text.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use rustc_hash::FxHashMap;
use tokio::sync::{Semaphore, oneshot};

use crate::error::RequestError;
use crate::ids::RequestId;
use crate::request::CancelFlag;

/// Prompts that are encoded at once: the other cores are the model's.
const ENCODERS: usize = 1;

/// The requests whose prompts are being encoded aside.
pub(super) struct Aside {
    requests: FxHashMap<RequestId, CancelFlag>,
    turns: Arc<Semaphore>,
    /// Who waits until none is left.
    waiting: Vec<oneshot::Sender<()>>,
}

impl Aside {
    pub(super) fn new() -> Self {
        Self {
            requests: FxHashMap::default(),
            turns: Arc::new(Semaphore::new(ENCODERS)),
            waiting: Vec::new(),
        }
    }

    pub(super) fn contains(&self, rid: &RequestId) -> bool {
        self.requests.contains_key(rid)
    }

    pub(super) fn enter(&mut self, rid: &RequestId, cancel: &CancelFlag) {
        self.requests.insert(rid.clone(), cancel.clone());
    }

    pub(super) fn leave(&mut self, rid: &RequestId) {
        self.requests.remove(rid);
        if self.requests.is_empty() {
            for waiting in self.waiting.drain(..) {
                // Whoever waited may have given up.
                let _ = waiting.send(());
            }
        }
    }

    /// Cancels all of them: they end when they are encoded.
    pub(super) fn cancel_all(&self) {
        self.requests.values().for_each(CancelFlag::raise);
    }

    /// Is told when none is left; at once if none is there.
    pub(super) fn emptied(&mut self) -> oneshot::Receiver<()> {
        let (emptied, is_empty) = oneshot::channel();
        match self.requests.is_empty() {
            true => drop(emptied.send(())),
            false => self.waiting.push(emptied),
        }
        is_empty
    }

    /// Runs `encode` on a thread of its own when it is its turn.
    pub(super) fn run<T: Send + 'static>(
        &self,
        encode: impl FnOnce() -> Result<T, RequestError> + Send + 'static,
    ) -> LocalBoxFuture<'static, Result<T, RequestError>> {
        let turns = self.turns.clone();
        Box::pin(async move {
            let died = || RequestError::EngineDown("the prompt could not be encoded".to_owned());
            let _turn = turns.acquire().await.map_err(|_| died())?;
            actix_rt::task::spawn_blocking(encode)
                .await
                .map_err(|_| died())?
        })
    }
}
