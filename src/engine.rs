//! Starting an engine, and the handle through which hosts use it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix::Recipient;
use actix_rt::ArbiterHandle;
use tokio::sync::mpsc;

use crate::actors::messages::{Doors, PrefixPinned, TokenEvent};
use crate::config::EngineConfig;
use crate::error::{RequestError, StartError};
use crate::ids::RequestId;
use crate::request::{Event, GenerateRequest};
use crate::state::namespace::Namespace;
use crate::state::stats::EngineStats;

/// Starts engines.
pub struct Engine;

impl Engine {
    /// Loads the model and starts the engine on a thread and an actix System of its own. Blocks until it is ready;
    /// needs no runtime in the caller.
    ///
    /// # Errors
    /// A configuration or model that cannot be used, before any KV memory is taken.
    pub fn start(_config: EngineConfig) -> Result<EngineHandle, StartError> {
        todo!()
    }

    /// Loads the model and starts the actors on an Arbiter of the host's System.
    ///
    /// # Errors
    /// As [`Engine::start`].
    pub async fn start_in(
        _arbiter: &ArbiterHandle,
        _config: EngineConfig,
    ) -> Result<EngineHandle, StartError> {
        todo!()
    }
}

/// What a host should know of the loaded model.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// Name that `/v1/models` lists.
    pub served_model_name: String,
    /// Folder it came from.
    pub model_path: PathBuf,
    /// Longest sequence, in tokens.
    pub context_length: usize,
    /// Tokens of the KV pool.
    pub max_total_tokens: usize,
    /// Tokens a page.
    pub page_size: usize,
    /// Most requests that run at once.
    pub max_running_requests: usize,
    /// Size of the vocabulary (rows of the output head).
    pub vocab_size: usize,
    /// Tokens that end an output.
    pub eos_token_ids: Vec<u32>,
}

/// A host's side of one engine. Cheap to clone; the engine stops when the last clone is dropped.
#[derive(Clone)]
pub struct EngineHandle {
    _inner: Arc<()>,
}

impl EngineHandle {
    /// Sends a request. The stream ends with exactly one terminal event.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] or [`RequestError::ShuttingDown`] at the door; everything else arrives as the
    /// terminal event.
    pub fn generate(&self, _request: GenerateRequest) -> Result<Generation, RequestError> {
        todo!()
    }

    /// Sends a request whose events go to an actor of the host's own.
    ///
    /// # Errors
    /// As [`EngineHandle::generate`].
    pub fn generate_to(
        &self,
        _request: GenerateRequest,
        _recipient: Recipient<TokenEvent>,
    ) -> Result<(), RequestError> {
        todo!()
    }

    /// Cancels a request by its id; unknown ids are ignored.
    pub fn cancel(&self, _rid: &RequestId) {
        todo!()
    }

    /// Tokens of `tokens` that are cached now.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn peek_prefix(
        &self,
        _namespace: Namespace,
        _tokens: Arc<[u32]>,
    ) -> Result<usize, RequestError> {
        todo!()
    }

    /// Keeps the cached part of a prefix in memory.
    ///
    /// # Errors
    /// [`RequestError::Overloaded`] with too many pins, [`RequestError::EngineDown`].
    pub async fn pin_prefix(
        &self,
        _namespace: Namespace,
        _tokens: Arc<[u32]>,
        _ttl: Duration,
    ) -> Result<PrefixPinned, RequestError> {
        todo!()
    }

    /// Gives a pin back; false if it was gone.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn unpin_prefix(&self, _pin: u64) -> Result<bool, RequestError> {
        todo!()
    }

    /// Queues, pools and counters.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`].
    pub async fn stats(&self) -> Result<EngineStats, RequestError> {
        todo!()
    }

    /// The engine's recipients, for hosts that speak in messages.
    ///
    /// # Errors
    /// [`RequestError::EngineDown`] while the unit is being rebuilt.
    pub fn doors(&self) -> Result<Doors, RequestError> {
        todo!()
    }

    /// The loaded model.
    pub fn model(&self) -> &ModelInfo {
        todo!()
    }

    /// Requests inside, queued ones included.
    pub fn requests_inside(&self) -> usize {
        todo!()
    }

    /// True while requests are served: false once shutting down and while the unit is being rebuilt.
    pub fn is_ready(&self) -> bool {
        todo!()
    }

    /// Takes no more requests from now on; what is inside goes on.
    pub fn close_admission(&self) {
        todo!()
    }

    /// Takes no more requests, waits until those inside have ended or `deadline` has passed, cancels the rest and
    /// stops the actors and the executor thread.
    pub async fn shutdown(&self, _deadline: Duration) {
        todo!()
    }
}

/// One request under way. Dropping it before its terminal event cancels the request.
pub struct Generation {
    rid: RequestId,
    events: mpsc::Receiver<Event>,
}

impl Generation {
    /// The request.
    pub fn rid(&self) -> &RequestId {
        &self.rid
    }

    /// The next event; `None` after the terminal one.
    pub async fn next(&mut self) -> Option<Event> {
        self.events.recv().await
    }
}
