//! A server and its engine, with a KV store, KV events, a message log and faults.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam_channel::Sender;
use serde_json::json;
use souffleur::chaos::Spec;
use souffleur::config::{EngineConfig, SpeculativeAlgorithm};
use souffleur::engine::{Engine, EngineHandle, EngineParts, Progress};
use souffleur::server::ServerConfig;
use tempfile::TempDir;

use crate::gate::Gate;
use crate::models::Model;
use crate::server::{self, block_on, wait_until};
use crate::watch::Watch;

/// Enough for all requests of a run at once.
const MAX_TOTAL_TOKENS: usize = 32_768;
const MAX_RUNNING_REQUESTS: usize = 48;
const KV_DISK_BYTES: u64 = 64 << 20;
const KV_HOST_BYTES: u64 = 32 << 20;
/// How long streams may take to open after a step is held.
const GRACE: Duration = Duration::from_secs(10);
/// The name of the message log in the folder of files.
const LOG: &str = "log";

/// The fields are dropped in this order: a held step would keep the server from stopping.
pub struct World {
    release: Sender<()>,
    pub server: server::World,
    pub gate: Arc<Gate>,
    pub watch: Arc<Watch>,
    /// The model's files.
    pub model: TempDir,
    files: TempDir,
}

impl World {
    /// An engine with these faults, whose executor holds the launch with the number `hold_at`, counted from 1.
    pub fn start(model: Model, faults: &[String], hold_at: Option<u64>) -> Self {
        Self::configured(model, faults, hold_at, |_, _| ())
    }

    /// Two replicas of the bundled model with these faults, without KV store, KV events and message log.
    pub fn with_replicas(faults: &[String]) -> Self {
        Self::configured(Model::Bundled, faults, None, |config, _| {
            config.dp_size = 2;
            config.kv_disk_path = None;
            config.kv_host_bytes = None;
            config.kv_events_config = None;
            config.record = None;
        })
    }

    /// As [`Self::start`], with a configuration that the caller changes.
    pub fn configured(
        model: Model,
        faults: &[String],
        hold_at: Option<u64>,
        configure: impl FnOnce(&mut EngineConfig, &mut ServerConfig),
    ) -> Self {
        let speculates = model == Model::Windowed;
        let (model, files) = (
            model.folder(),
            TempDir::new().expect("a folder can be made"),
        );
        let watch = Watch::new();
        let spec = |(place, fault): (usize, &String)| -> Spec {
            let parsed = watch.mark(fault, place).parse::<Spec>();
            parsed.unwrap_or_else(|error| panic!("{fault}: {error}"))
        };
        let mut config = EngineConfig {
            chaos: faults.iter().enumerate().map(spec).collect(),
            speculative_algorithm: speculates.then_some(SpeculativeAlgorithm::Ngram),
            // Streams with longer drafts could end before a kill.
            speculative_num_draft_tokens: speculates.then_some(2),
            ..config(model.path(), files.path())
        };
        let mut server_config = ServerConfig::default();
        configure(&mut config, &mut server_config);
        // The engine's metrics go to the recorder that the server installs.
        let server = server::World::without_engine(server_config);
        let mut parts = EngineParts::from_model(&config, Progress::silent())
            .unwrap_or_else(|error| panic!("{error}"));
        let (gate, release) = Gate::around(&mut parts, hold_at);
        let engine = Engine::start_with(config, parts).unwrap_or_else(|error| panic!("{error}"));
        server.state.slot().fill(engine);
        Self {
            release,
            server,
            gate,
            watch,
            model,
            files,
        }
    }

    pub fn engine(&self) -> EngineHandle {
        self.server.engine()
    }

    /// The generation of the unit that runs, or is started next.
    pub fn generation(&self) -> u64 {
        self.engine().unit_status().generation
    }

    /// Waits until the executor holds its step. Whether `n` streams are open then: on a busy machine, some may begin
    /// after it.
    pub fn is_held_with(&self, n: usize) -> bool {
        wait_until("a step is held", || self.gate.is_held());
        let started = Instant::now();
        while self.watch.n_open() < n {
            if started.elapsed() > GRACE {
                return false;
            }
            std::thread::yield_now();
        }
        true
    }

    pub fn release(&self) {
        self.release.send(()).expect("the gate lives");
    }

    pub fn wait_until_generation(&self, generation: u64) {
        let engine = self.engine();
        wait_until("the unit is started again", || {
            let status = engine.unit_status();
            status.is_up && status.generation == generation
        });
    }

    /// Waits until no request is left and every page is free or cached, then checks that the engine lives.
    pub fn check_idle(&self) {
        let engine = self.engine();
        wait_until("the engine is idle, and no page is lost", || {
            let stats = block_on(engine.stats());
            let is_whole = stats.is_ok_and(|stats| stats.is_idle_and_whole());
            is_whole && engine.requests_inside() == 0
        });
        assert_eq!(engine.failure_reason(), None);
    }

    /// As [`Self::check_idle`], and checks that each replica has loaded its weights once.
    pub fn check_end(&self) {
        self.check_idle();
        let n_replicas = self.engine().replicas();
        assert_eq!(
            self.gate.n_builds(),
            n_replicas,
            "the weights were loaded again"
        );
    }

    /// Stops the server and the engine, and returns the message log.
    pub fn stop(self) -> Vec<u8> {
        let Self {
            release,
            server,
            files,
            ..
        } = self;
        drop(release);
        drop(server);
        fs::read(files.path().join(LOG)).expect("the engine has a message log")
    }
}

fn config(model: &Path, files: &Path) -> EngineConfig {
    let kv_events = json!({
        "publisher": "zmq", "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0", "block_size": 16,
        "buffer_steps": 100,
    });
    EngineConfig {
        model_path: model.to_owned(),
        served_model_name: Some("deaths".to_owned()),
        tool_call_parser: "qwen25".to_owned(),
        max_total_tokens: Some(MAX_TOTAL_TOKENS),
        max_running_requests: Some(MAX_RUNNING_REQUESTS),
        threads: 1,
        kv_disk_path: Some(files.join("store")),
        kv_disk_bytes: KV_DISK_BYTES,
        kv_host_bytes: Some(KV_HOST_BYTES),
        kv_write_share: 1.0,
        kv_events_config: Some(kv_events.to_string()),
        record: Some(files.join(LOG)),
        rebuild_backoff_s: 0.0,
        ..EngineConfig::default()
    }
}
