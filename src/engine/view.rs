//! Methods of [`EngineHandle`] for the server's console and its `/debug` routes.

use std::sync::Arc;

use crate::handle::{EngineHandle, down};
use souffleur_actors::messages::{
    EngineView, GetLocks, GetRequests, GetView, KnownRequests, TakeTreeNotes, TreeNotes,
    ViewedRequests,
};
use souffleur_actors::status::UnitStatus;
use souffleur_base::error::RequestError;
use souffleur_chaos::SpecState;

pub use souffleur_actors::messages::TreeReader;

impl EngineHandle {
    /// Queues, pools, requests, and the newest steps after the step `steps_after`; `u64::MAX` for no steps.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn view(
        &self,
        steps_after: u64,
        requests: ViewedRequests,
    ) -> Result<Box<EngineView>, RequestError> {
        let view = GetView {
            steps_after,
            requests,
        };
        self.doors()?.view.send(view).await.map_err(down)
    }

    /// The requests that the Tokenizer knows: those of the Scheduler, those that wait for one after a death, and those
    /// that are encoded.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn known_requests(
        &self,
        requests: ViewedRequests,
    ) -> Result<KnownRequests, RequestError> {
        let get = GetRequests { requests };
        self.doors()?.requests.send(get).await.map_err(down)
    }

    /// The changes of the prefix tree since the reader's last call. The tree is noted from the first call on, until
    /// `reader` is dropped or another reader calls.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn tree_notes(&self, reader: &Arc<TreeReader>) -> Result<TreeNotes, RequestError> {
        let take = TakeTreeNotes {
            reader: Arc::downgrade(reader),
        };
        self.doors()?.tree_notes.send(take).await.map_err(down)
    }

    /// How many locks keep each of these nodes of the prefix tree.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn locks_of(&self, nodes: Vec<u32>) -> Result<Vec<u32>, RequestError> {
        self.doors()?
            .locks
            .send(GetLocks { nodes })
            .await
            .map_err(down)
    }

    /// The generation of the unit that runs or is built next, its restarts and the last death. Sends no message.
    pub fn unit_status(&self) -> UnitStatus {
        self.inner.status.borrow().clone()
    }

    /// The faults that the engine injects into itself, and how often each has fired.
    pub fn chaos(&self) -> Vec<SpecState> {
        self.inner.chaos.describe()
    }

    /// The prompt tokens of the requests in flight, as counted for the admission.
    pub fn prompt_tokens_inside(&self) -> usize {
        self.inner.admission.prompt_tokens()
    }

    /// Why the engine has failed permanently; `None` if it has not.
    pub fn failure_reason(&self) -> Option<Arc<str>> {
        self.inner.failure.borrow().clone()
    }

    /// The bytes that the KV store may use on its disk; `None` without a store.
    pub fn store_bytes(&self) -> Option<u64> {
        self.inner.store_bytes
    }

    /// Whether the engine has a vision tower.
    pub fn encodes_images(&self) -> bool {
        self.inner.encodes_images
    }
}
