//! The command `souffleur serve`: serves an engine over HTTP and WebSocket, until a signal.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix_web::rt::{self, System};
use actix_web::web::Data;
use metrics_exporter_prometheus::PrometheusHandle;
use souffleur::config::EngineConfig;
use souffleur::engine::EngineHandle;
use souffleur::metrics::with_counter_types;
use souffleur::server::{self, AppState, EngineSlot, ServerConfig};
use tokio::sync::oneshot;

use super::failure::Failure;
use super::first_call::first_call;
use super::grpc::GrpcListener;
use super::output::say;
use super::signals::{HangUps, Signals};
use super::traces::{self, Tracing};
use super::{local, plan, progress, service, telemetry, version};
use crate::cli::settings::Settings;
use crate::cli::settings::log::LogFormat;

/// How often histogram samples, which accumulate in memory, are sorted into buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// How long clients may continue to read their answers after the engine has failed permanently.
const END_LIMIT: Duration = Duration::from_millis(1500);

/// Time after which a server that is not ready says that it listens.
const QUIET: Duration = Duration::from_millis(500);

pub fn run(settings: Settings) -> Result<(), Failure> {
    let began = Instant::now();
    let metrics = telemetry::install_recorder()?;
    telemetry::record_build();
    let listener = listen(&settings.server)?;
    let grpc = GrpcListener::open(&settings.server)?;
    let format = settings.log.log_format;
    let start = |slot: &EngineSlot| start_on_thread(settings.engine, format, slot.clone());
    let traces = traces::start(&settings.server)?;
    let traced = traces.clone();
    let listeners = (listener, grpc);
    let banner = Banner { format, began };
    let serving = serve(settings.server, start, listeners, metrics, traced, banner);
    let served = System::new().block_on(serving);
    traces.end();
    served
}

pub fn listen(config: &ServerConfig) -> Result<TcpListener, Failure> {
    TcpListener::bind((config.host.as_str(), config.port)).map_err(|error| {
        let ServerConfig { host, port, .. } = config;
        Failure::Failed(format!(
            "failed to listen on {host}:{port}: {error}: choose another --host or --port"
        ))
    })
}

type EngineStart = oneshot::Receiver<Result<EngineHandle, Failure>>;

async fn serve(
    server_config: ServerConfig,
    start: impl FnOnce(&EngineSlot) -> EngineStart,
    (listener, grpc): (TcpListener, GrpcListener),
    metrics: PrometheusHandle,
    traces: Tracing,
    banner: Banner,
) -> Result<(), Failure> {
    let refused = Failure::to("install signal handlers");
    let mut signals = Signals::install().map_err(&refused)?;
    let mut hang_ups = HangUps::install().map_err(refused)?;
    let address = listener.local_addr();
    let address = address.map_err(Failure::to("find the address of the listener"))?;
    let deadline_s = server_config.shutdown_deadline_s;
    let slot = EngineSlot::default();
    let state = state(server_config, slot.clone(), metrics);
    let state = Data::new(traces.installed_in(state));
    let grpc = grpc.serve(&state);
    let (stop, mut serving) = spawn(listener, state);
    let loading = [banner.listening(address), service::loading()];
    let mut starting = start(&slot);
    let mut is_starting = true;
    let outcome = loop {
        tokio::select! {
            started = &mut starting, if is_starting => match started {
                Ok(Ok(engine)) => {
                    is_starting = false;
                    slot.fill(engine.clone());
                    loading.iter().for_each(rt::task::JoinHandle::abort);
                    banner.serving(&engine, address);
                    service::serving(&engine);
                }
                Ok(Err(error)) => break Err(error),
                Err(_) => break Err(Failure::failed("the thread that starts the engine panicked")),
            },
            reason = failure(&slot), if !is_starting => break Err(Failure::Ended(reason.to_string())),
            signal = signals.next() => {
                tracing::info!(signal = signal.name(), deadline_s, "stopping once running requests have ended; a second signal exits at once");
                break Ok(());
            }
            () = hang_ups.next() => {
                tracing::info!("ignoring SIGHUP: settings are read at start; SIGTERM stops the server");
            }
            ended = &mut serving => return finish(ended),
        }
    };
    loading.iter().for_each(rt::task::JoinHandle::abort);
    service::stopping();
    rt::spawn(async move { signals.next().await.exit() });
    let _ = stop.send(());
    let ending = async {
        let served = finish(serving.await);
        grpc.ended().await;
        served
    };
    let served = match outcome {
        // All requests have ended. A thread that hangs must not delay the exit.
        Err(Failure::Ended(_)) => rt::time::timeout(END_LIMIT, ending).await.unwrap_or(Ok(())),
        _ => ending.await,
    };
    outcome.and(served)
}

/// Starts the engine on a separate thread, since downloading and loading block. The server answers 503 meanwhile.
fn start_on_thread(config: EngineConfig, format: LogFormat, slot: EngineSlot) -> EngineStart {
    let (started, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let engine = local::with_model(config).and_then(|config| {
            let replicas = plan::Replicas::of(&config);
            let report = move |done_bytes, all_bytes| slot.report_loading(done_bytes, all_bytes);
            local::start_reporting(config, progress::weights_bar_and(report), |parts| {
                if format == LogFormat::Text {
                    plan::show(parts, &replicas);
                }
                Ok(())
            })
        });
        let _ = started.send(engine);
    });
    receiver
}

/// Waits until the engine has failed permanently: the process must then exit, so that a supervisor restarts it.
async fn failure(slot: &EngineSlot) -> Arc<str> {
    match slot.engine() {
        Some(engine) => engine.failed().await,
        None => std::future::pending().await,
    }
}

/// The state of a server with this build's version and the process's metrics, which it keeps small from now on.
pub fn state(config: ServerConfig, slot: EngineSlot, metrics: PrometheusHandle) -> AppState {
    spawn_upkeep(metrics.clone());
    let render = Arc::new(move || with_counter_types(&metrics.render()));
    AppState::new(config, slot, render).with_build(version::build_info())
}

type Serving = rt::task::JoinHandle<io::Result<()>>;

/// Serves until the sender is used or dropped.
pub fn spawn(listener: TcpListener, state: Data<AppState>) -> (oneshot::Sender<()>, Serving) {
    let (stop, stopped) = oneshot::channel();
    let serving = rt::spawn(server::run(listener, state, async {
        let _ = stopped.await;
    }));
    (stop, serving)
}

pub fn finish(ended: Result<io::Result<()>, rt::task::JoinError>) -> Result<(), Failure> {
    let ended = ended.map_err(|error| Failure::Failed(format!("HTTP server failed: {error}")))?;
    ended.map_err(|error| Failure::Failed(format!("HTTP server failed: {error}")))
}

fn spawn_upkeep(metrics: PrometheusHandle) {
    rt::spawn(async move {
        let mut ticks = rt::time::interval(UPKEEP_INTERVAL);
        loop {
            ticks.tick().await;
            metrics.run_upkeep();
        }
    });
}

/// Says that the server listens and loads, and later that it serves: as lines on stdout, or in a JSON log.
struct Banner {
    format: LogFormat,
    began: Instant,
}

impl Banner {
    /// Reports the address after [`QUIET`], so that a start that is done or has failed by then prints nothing more.
    fn listening(&self, address: SocketAddr) -> rt::task::JoinHandle<()> {
        let (format, address) = (self.format, reachable(address));
        rt::spawn(async move {
            rt::time::sleep(QUIET).await;
            match format {
                LogFormat::Text => say(format_args!(
                    "listening on http://{address}, loading the model"
                )),
                LogFormat::Json => tracing::info!(%address, "listening, loading the model"),
            }
        })
    }

    fn serving(&self, engine: &EngineHandle, address: SocketAddr) {
        let model = engine.model();
        let at = reachable(address);
        let seconds = self.began.elapsed().as_secs_f64();
        if self.format == LogFormat::Json {
            tracing::info!(
                address = %at,
                model = model.served_model_name,
                model_path = %model.model_path.display(),
                start_s = seconds,
                context_length = model.context_length,
                max_total_tokens = model.max_total_tokens,
                version = version::version(),
                "serving"
            );
            return;
        }
        say(format_args!(
            "serving {} after {seconds:.2} s: {} tokens of context, {} tokens of KV",
            model.served_model_name, model.context_length, model.max_total_tokens,
        ));
        say(format_args!("  OpenAI      http://{at}/v1"));
        say(format_args!("  SGLang      http://{at}/generate"));
        say(format_args!("  WebSocket   ws://{at}/v1/ws/generate"));
        say(format_args!("  Prometheus  http://{at}/metrics"));
        let (path, body) = first_call(engine.text().map(AsRef::as_ref));
        say("try:");
        say(format_args!(
            "  curl -N http://{at}{path} -H 'Content-Type: application/json' -d '{body}'"
        ));
    }
}

/// An address that a client can connect to: the loopback address if the server listens on all addresses.
pub fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpStream;

    use metrics_exporter_prometheus::PrometheusBuilder;
    use souffleur::engine::{Engine, EngineParts, ModelInfo};
    use souffleur::error::{LoadError, StepError};
    use souffleur::executor::{DeviceLost, Executor};
    use souffleur::state::step::{StepOutput, StepPlan};

    use super::*;

    /// An executor that panics in its first step, and cannot be used afterwards.
    struct PanickingExecutor;

    impl Executor for PanickingExecutor {
        fn run(&mut self, _: &StepPlan) -> Result<StepOutput, StepError> {
            panic!("the device is gone");
        }

        fn reset(&mut self) -> Result<(), DeviceLost> {
            Err(DeviceLost("there is no device".to_owned()))
        }
    }

    /// An engine whose executor can be made only once.
    fn doomed() -> EngineHandle {
        let first = std::sync::atomic::AtomicBool::new(true);
        let executor = move || {
            if first.swap(false, std::sync::atomic::Ordering::SeqCst) {
                Ok(Box::new(PanickingExecutor) as Box<dyn Executor>)
            } else {
                Err(LoadError::Device("there is no device".to_owned()))
            }
        };
        let info = ModelInfo {
            served_model_name: "doomed".to_owned(),
            model_path: "doomed".into(),
            context_length: 100,
            max_total_tokens: 1000,
            page_size: 1,
            max_running_requests: 4,
            vocab_size: 100,
            hidden_size: None,
            images: souffleur::request::ImageSupport::Sequence,
            long_above: None,
            eos_token_ids: Vec::new(),
            generation: Default::default(),
            memory: None,
            kv_cache_dtype: None,
            attention_backend: None,
            kernel_path: None,
            double_sparsity: None,
            speculation: None,
            formats: Default::default(),
            card: None,
        };
        let parts = EngineParts {
            info,
            text: None,
            images: None,
            executor: Arc::new(executor),
            other_executors: Vec::new(),
            gpus: Vec::new(),
            store: None,
            vision: None,
        };
        let config = EngineConfig {
            rebuild_attempts: 3,
            rebuild_backoff_s: 0.0,
            ..EngineConfig::default()
        };
        Engine::start_with(config, parts).expect("the engine starts")
    }

    /// Sends one request on its own connection, and returns the response.
    fn ask(address: SocketAddr) -> String {
        let body = r#"{"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 4}}"#;
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let length = body.len();
        write!(
            stream,
            "POST /generate HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("the server reads the request");
        let mut answer = String::new();
        let _ = stream.read_to_string(&mut answer);
        answer
    }

    #[test]
    fn a_server_whose_engine_cannot_be_rebuilt_ends_with_a_failure() {
        let server_config = ServerConfig {
            port: 0,
            workers: 1,
            ..ServerConfig::default()
        };
        let listener = listen(&server_config).expect("a port is free");
        let address = listener.local_addr().expect("the listener is bound");
        let metrics = PrometheusBuilder::new().build_recorder().handle();
        let start = |_: &EngineSlot| {
            let (started, starting) = oneshot::channel();
            let _ = started.send(Ok(doomed()));
            starting
        };
        let client = std::thread::spawn(move || {
            // Repeats until the engine has started; the request then makes its executor panic.
            loop {
                let answer = ask(address);
                if !answer.contains("\"loading\"") {
                    return answer;
                }
            }
        });
        let banner = Banner {
            format: LogFormat::Text,
            began: Instant::now(),
        };
        let traces = Tracing::default();
        let listeners = (listener, GrpcListener::default());
        let served = serve(server_config, start, listeners, metrics, traces, banner);
        let Err(Failure::Ended(reason)) = System::new().block_on(served) else {
            panic!("serve must fail");
        };
        let expected = "the engine died and 3 attempts to rebuild it failed; the last error: there is no device";
        assert_eq!(reason, expected);
        let answer = client.join().expect("the client does not panic");
        assert!(answer.contains("engine_down"), "{answer}");
    }
}
