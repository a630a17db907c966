//! The state that the workers of one server share: the configuration, the engine once loaded, and the open requests.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use tokio::sync::{Semaphore, watch};

use super::answers::AnswerBudget;
use super::budget::BodyBudget;
use super::build_info::BuildInfo;
use super::config::ServerConfig;
use super::encode_gate::EncodeGate;
use super::error::ApiError;
use super::images::Media;
use super::live::Viewers;
use super::open_requests::OpenRequests;
use super::openai::responses::store::ResponseStore;
use super::probe::Probe;
use super::sessions::store::SessionStore;
use super::spelling::Spelling;
use super::traces::Traces;
use souffleur_base::error::RequestError;
use souffleur_engine::EngineHandle;
use souffleur_metrics::in_order;

/// Maximum number of prompts whose tokens are counted at once.
const MAX_COUNTS: usize = 2;

pub type RenderMetrics = Arc<dyn Fn() -> String + Send + Sync>;

/// The slot for an engine that is loaded while the server already answers. Cheap to clone.
#[derive(Clone, Default)]
pub struct EngineSlot(Arc<Slot>);

#[derive(Default)]
struct Slot {
    engine: OnceLock<Result<Loaded, String>>,
    /// Bytes of the weights: loaded, and all.
    done_bytes: AtomicU64,
    total_bytes: AtomicU64,
}

pub(super) struct Loaded {
    pub(super) engine: EngineHandle,
    pub(super) spelling: Spelling,
}

impl EngineSlot {
    /// Sets the engine. Only the first call of `fill` or `fail` has an effect.
    pub fn fill(&self, engine: EngineHandle) {
        let spelling = Spelling::of(engine.text());
        let _ = self.0.engine.set(Ok(Loaded { engine, spelling }));
    }

    /// Records why loading the engine failed. Clients get the reason.
    pub fn fail(&self, reason: impl Into<String>) {
        let _ = self.0.engine.set(Err(reason.into()));
    }

    /// Records the progress of loading the weights, which the console shows.
    pub fn report_loading(&self, done_bytes: u64, total_bytes: u64) {
        self.0.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.0.done_bytes.store(done_bytes, Ordering::Relaxed);
    }

    /// The recorded progress: bytes loaded, and all.
    pub(super) fn loaded_bytes(&self) -> (u64, u64) {
        let total_bytes = self.0.total_bytes.load(Ordering::Relaxed);
        let done_bytes = self.0.done_bytes.load(Ordering::Relaxed);
        (done_bytes, total_bytes)
    }

    /// Why loading the engine failed, if it did.
    pub(super) fn failure(&self) -> Option<&str> {
        match self.0.engine.get() {
            Some(Err(reason)) => Some(reason),
            _ => None,
        }
    }

    pub fn engine(&self) -> Option<&EngineHandle> {
        self.loaded().ok().map(|loaded| &loaded.engine)
    }

    fn loaded(&self) -> Result<&Loaded, ApiError> {
        match self.0.engine.get() {
            None => Err(ApiError::loading()),
            Some(Err(reason)) => Err(ApiError::load_failed(reason)),
            Some(Ok(loaded)) => Ok(loaded),
        }
    }
}

pub struct AppState {
    config: ServerConfig,
    build: BuildInfo,
    slot: EngineSlot,
    render_metrics: RenderMetrics,
    open_requests: OpenRequests,
    bodies: BodyBudget,
    answers: AnswerBudget,
    encode_gate: EncodeGate,
    media: Media,
    responses: ResponseStore,
    sessions: SessionStore,
    counting: Semaphore,
    websockets: AtomicUsize,
    probe: Probe,
    viewers: Arc<Viewers>,
    traces: Option<Arc<dyn Traces>>,
    draining: watch::Sender<bool>,
    started_unix_s: u64,
}

impl AppState {
    pub fn new(config: ServerConfig, slot: EngineSlot, render_metrics: RenderMetrics) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            bodies: BodyBudget::new(config.max_bodies_bytes),
            answers: AnswerBudget::new(config.max_answers_bytes),
            encode_gate: EncodeGate::default(),
            media: Media::new(&config),
            responses: ResponseStore::new(&config),
            sessions: SessionStore::new(&config),
            counting: Semaphore::new(MAX_COUNTS),
            config,
            build: BuildInfo::default(),
            slot,
            render_metrics,
            open_requests: OpenRequests::default(),
            websockets: AtomicUsize::new(0),
            probe: Probe::default(),
            viewers: Arc::default(),
            traces: None,
            draining: watch::Sender::new(false),
            started_unix_s: now.map_or(0, |now| now.as_secs()),
        }
    }

    pub fn with_build(self, build: BuildInfo) -> Self {
        Self { build, ..self }
    }

    pub fn with_traces(self, traces: Arc<dyn Traces>) -> Self {
        Self {
            traces: Some(traces),
            ..self
        }
    }

    pub fn config(&self) -> &ServerConfig {
        &self.config
    }

    pub fn build(&self) -> &BuildInfo {
        &self.build
    }

    pub fn slot(&self) -> &EngineSlot {
        &self.slot
    }

    /// From now on `/ready` answers 503, new requests are refused and WebSockets close when their last request ends.
    pub fn drain(&self) {
        self.draining.send_replace(true);
        if let Some(engine) = self.slot.engine() {
            engine.close_admission();
        }
        self.viewers.wake();
    }

    pub fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// The loaded engine, even while the server drains.
    pub(super) fn loaded(&self) -> Result<&Loaded, ApiError> {
        self.slot.loaded()
    }

    /// The loaded engine, for new requests: fails while the server drains.
    pub(super) fn serving(&self) -> Result<&Loaded, ApiError> {
        if self.is_draining() {
            return Err(RequestError::ShuttingDown.into());
        }
        self.loaded()
    }

    pub(super) fn drain_signal(&self) -> watch::Receiver<bool> {
        self.draining.subscribe()
    }

    pub(super) fn traces(&self) -> Option<&dyn Traces> {
        self.traces.as_deref()
    }

    pub(super) fn render_metrics(&self) -> String {
        in_order(&(self.render_metrics)())
    }

    pub(super) fn started_unix_s(&self) -> u64 {
        self.started_unix_s
    }

    pub(super) fn open_requests(&self) -> &OpenRequests {
        &self.open_requests
    }

    pub(super) fn probe(&self) -> &Probe {
        &self.probe
    }

    /// The viewers of the console's live stream.
    pub(super) fn viewers(&self) -> &Arc<Viewers> {
        &self.viewers
    }

    pub(super) fn answers(&self) -> &AnswerBudget {
        &self.answers
    }

    pub(super) fn encode_gate(&self) -> &EncodeGate {
        &self.encode_gate
    }

    pub(super) fn media(&self) -> &Media {
        &self.media
    }

    pub(super) fn responses(&self) -> &ResponseStore {
        &self.responses
    }

    pub(super) fn sessions(&self) -> &SessionStore {
        &self.sessions
    }

    /// The permits of requests that count a prompt's tokens.
    pub(super) fn counting(&self) -> &Semaphore {
        &self.counting
    }

    pub(super) fn bodies(&self) -> &BodyBudget {
        &self.bodies
    }

    /// Counts a WebSocket as open until the guard is dropped.
    pub(super) fn open_websocket(self: &Arc<Self>) -> Result<OpenWebSocket, ApiError> {
        let limit = self.config.ws_max_connections;
        let is_free = |open: usize| (open < limit).then_some(open + 1);
        match self
            .websockets
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, is_free)
        {
            Ok(_) => Ok(OpenWebSocket(self.clone())),
            Err(_) => Err(ApiError::too_many_websockets(limit)),
        }
    }
}

pub(super) struct OpenWebSocket(Arc<AppState>);

impl Drop for OpenWebSocket {
    fn drop(&mut self) {
        self.0.websockets.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> Arc<AppState> {
        let config = ServerConfig {
            ws_max_connections: 1,
            ..ServerConfig::default()
        };
        let render = Arc::new(String::new);
        Arc::new(AppState::new(config, EngineSlot::default(), render))
    }

    #[test]
    fn an_ended_websocket_frees_its_slot() {
        let state = state();
        let open = state.open_websocket().expect("no WebSocket is open");
        assert!(state.open_websocket().is_err());
        drop(open);
        assert!(state.open_websocket().is_ok());
    }

    #[test]
    fn a_failed_load_is_reported() {
        let state = state();
        assert_eq!(state.loaded().err(), Some(ApiError::loading()));
        state.slot().fail("no such file");
        assert_eq!(
            state.loaded().err(),
            Some(ApiError::load_failed("no such file"))
        );
        state.drain();
        assert_eq!(
            state.serving().err().map(|error| error.code()),
            Some("shutting_down")
        );
    }
}
