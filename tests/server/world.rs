//! A server with its own engine for one test, stopped when it is dropped.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use actix_web::web::Data;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use serde_json::Value;
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineHandle};
use souffleur::metrics::buckets;
use souffleur::server::{self, AppState, EngineSlot, ServerConfig};
use souffleur::state::scheduler::stats::EngineStats;
use tempfile::TempDir;
use tokio::sync::oneshot;

use crate::scripted::{self, Line};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The model's context length: more tokens than any test generates.
pub const CONTEXT_TOKENS: usize = 1 << 16;
/// Ids of the tokens `no` and `yes` in [`long_model`].
pub const NO_TOKEN: u32 = 126;
pub const YES_TOKEN: u32 = 127;

pub struct World {
    pub addr: SocketAddr,
    pub state: Data<AppState>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    _model: Option<TempDir>,
}

impl World {
    pub fn new() -> Self {
        Self::with(|_, _| ())
    }

    /// A server with an engine, both configured by the test.
    pub fn with(configure: impl FnOnce(&mut EngineConfig, &mut ServerConfig)) -> Self {
        Self::built(configure, |state| state)
    }

    /// Like [`Self::with`]; `adapt` changes the server's state before the server starts.
    pub fn built(
        configure: impl FnOnce(&mut EngineConfig, &mut ServerConfig),
        adapt: impl FnOnce(AppState) -> AppState,
    ) -> Self {
        // The engine's metrics go to the recorder that is installed when the engine starts.
        recorder();
        let model = long_model();
        let mut engine = EngineConfig {
            model_path: model.path().to_owned(),
            served_model_name: Some("tiny".to_owned()),
            max_total_tokens: Some(CONTEXT_TOKENS + 1024),
            max_running_requests: Some(32),
            threads: 1,
            ..EngineConfig::default()
        };
        let mut config = ServerConfig::default();
        configure(&mut engine, &mut config);
        let mut world = Self::start_server(config, adapt);
        let engine = Engine::start(engine).unwrap_or_else(|error| panic!("{error}"));
        world.state.slot().fill(engine);
        world._model = Some(model);
        world
    }

    /// A server on the checkpoint with tool tokens, whose model replies with these lines.
    pub fn scripted(lines: &[Line<'_>]) -> Self {
        Self::scripted_with(lines, |_, _| ())
    }

    /// Like [`Self::scripted`], with engine and server configured by the test.
    pub fn scripted_with(
        lines: &[Line<'_>],
        configure: impl FnOnce(&mut EngineConfig, &mut ServerConfig),
    ) -> Self {
        recorder();
        let mut engine = EngineConfig {
            model_path: scripted::checkpoint(),
            served_model_name: Some("scripted".to_owned()),
            max_total_tokens: Some(CONTEXT_TOKENS + 1024),
            max_running_requests: Some(32),
            ..EngineConfig::default()
        };
        let mut config = ServerConfig::default();
        configure(&mut engine, &mut config);
        let world = Self::without_engine(config);
        let parts = scripted::parts(&engine, lines);
        let engine = Engine::start_with(engine, parts).unwrap_or_else(|error| panic!("{error}"));
        world.state.slot().fill(engine);
        world
    }

    pub fn without_engine(config: ServerConfig) -> Self {
        Self::start_server(config, |state| state)
    }

    fn start_server(config: ServerConfig, adapt: impl FnOnce(AppState) -> AppState) -> Self {
        let recorder = recorder();
        let render = Arc::new(move || recorder.render());
        let state = AppState::new(config, EngineSlot::default(), render);
        let state = Data::new(adapt(state));
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let addr = listener.local_addr().expect("the socket is bound");
        let (stop, stopped) = oneshot::channel();
        let server_state = state.clone();
        let serve = move || {
            let stopped = async { drop(stopped.await) };
            actix_web::rt::System::new().block_on(server::run(listener, server_state, stopped))
        };
        let thread = Some(std::thread::spawn(serve));
        Self {
            addr,
            state,
            stop: Some(stop),
            thread,
            _model: None,
        }
    }

    pub fn engine(&self) -> EngineHandle {
        self.state
            .slot()
            .engine()
            .expect("the engine is loaded")
            .clone()
    }

    pub fn stats(&self) -> EngineStats {
        let stats = block_on(self.engine().stats());
        stats.unwrap_or_else(|error| panic!("{error}"))
    }

    /// Waits until no request is in flight and every page is free or cached.
    #[track_caller]
    pub fn wait_until_idle(&self) {
        self.wait_until("no page is in use", |stats| stats.is_idle_and_whole());
        let engine = self.engine();
        wait_until("no request is active", || engine.requests_inside() == 0);
    }

    #[track_caller]
    pub fn wait_until(&self, what: &str, holds: impl Fn(&EngineStats) -> bool) {
        wait_until(what, || holds(&self.stats()));
    }

    pub fn stop(&mut self) {
        drop(self.stop.take());
    }

    #[track_caller]
    pub fn join(&mut self) {
        let thread = self.thread.take().expect("the server is joined once");
        wait_until("the server stops", || thread.is_finished());
        thread
            .join()
            .expect("the server does not panic")
            .expect("no I/O error");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended
                    .expect("the server does not panic")
                    .expect("no I/O error");
            }
        }
    }
}

#[track_caller]
pub fn wait_until(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < TIMEOUT, "timed out before {what}");
        std::thread::yield_now();
    }
}

pub fn block_on<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime can be built").block_on(future)
}

pub fn recorder() -> &'static PrometheusHandle {
    static RECORDER: OnceLock<PrometheusHandle> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let builder = buckets().try_fold(PrometheusBuilder::new(), |builder, (name, bounds)| {
            builder.set_buckets_for_metric(Matcher::Full(name.to_owned()), bounds)
        });
        let installed = builder.and_then(PrometheusBuilder::install_recorder);
        installed.expect("no other recorder is installed")
    })
}

/// A tiny random model with a chat template, and with a context longer than the fixture's.
pub fn long_model() -> TempDir {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen3");
    let folder = TempDir::new().expect("a folder can be made");
    for file in ["generation_config.json", "model.safetensors"] {
        fs::copy(source.join(file), folder.path().join(file)).expect("the fixture is complete");
    }
    let mut config = read_json(source.join("config.json"));
    config["max_position_embeddings"] = CONTEXT_TOKENS.into();
    write_json(folder.path().join("config.json"), &config);
    write_json(folder.path().join("tokenizer.json"), &with_answers(&source));
    let mut tokenizer = read_json(source.join("tokenizer_config.json"));
    let template = "{% if note %}{{ note }}\n{% endif %}{% for message in messages %}{{ message.role }}: {{ message.content }}\n\
                    {% endfor %}{% if add_generation_prompt %}assistant: {% endif %}";
    tokenizer["chat_template"] = template.into();
    write_json(folder.path().join("tokenizer_config.json"), &tokenizer);
    folder
}

/// The model's tokenizer with the tokens `no` and `yes`, and the marks of a gap to fill, instead of bytes that never
/// occur in UTF-8.
fn with_answers(source: &Path) -> Value {
    let mut tokenizer = read_json(source.join("tokenizer.json"));
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut();
    let vocabulary = vocabulary.expect("an object");
    for (byte, answer, id) in [("À", "no", NO_TOKEN), ("Á", "yes", YES_TOKEN)] {
        assert_eq!(vocabulary.shift_remove(byte), Some(id.into()));
        vocabulary.insert(answer.to_owned(), id.into());
    }
    let marks = [
        ("õ", "<|fim_prefix|>"),
        ("ö", "<|fim_suffix|>"),
        ("÷", "<|fim_middle|>"),
    ];
    let marks = marks.map(|(byte, mark)| {
        let id = vocabulary.shift_remove(byte).expect("the byte has a token");
        vocabulary.insert(mark.to_owned(), id.clone());
        (id, mark)
    });
    let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
    for (id, mark) in marks {
        let mut token = added[0].clone();
        token["id"] = id;
        token["content"] = mark.into();
        added.push(token);
    }
    tokenizer
}

fn read_json(path: PathBuf) -> Value {
    let text = fs::read_to_string(path).expect("the fixture is complete");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

fn write_json(path: PathBuf, value: &Value) {
    fs::write(path, value.to_string()).expect("the folder can be written");
}
