//! `souffleur serve`: an engine behind HTTP and WebSocket, until a signal.

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

use super::signals::Signals;
use super::{Failure, local, plan, say, telemetry};
use crate::settings::Settings;

/// Histogram samples pile up until they are sorted into buckets.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Runs the command.
pub fn run(settings: Settings) -> Result<(), Failure> {
    let began = Instant::now();
    let metrics = telemetry::install_recorder()?;
    let config = local::with_model(settings.engine)?;
    let listener = listen(&settings.server)?;
    System::new().block_on(serve(settings.server, config, listener, metrics, began))
}

fn listen(config: &ServerConfig) -> Result<TcpListener, Failure> {
    TcpListener::bind((config.host.as_str(), config.port)).map_err(|error| {
        let ServerConfig { host, port, .. } = config;
        Failure::Failed(format!(
            "cannot listen on {host}:{port}: {error}: choose another --host or --port"
        ))
    })
}

async fn serve(
    server_config: ServerConfig,
    config: EngineConfig,
    listener: TcpListener,
    metrics: PrometheusHandle,
    began: Instant,
) -> Result<(), Failure> {
    let mut signals =
        Signals::install().map_err(|error| Failure::Failed(format!("signals: {error}")))?;
    let address = listener.local_addr().map_err(Failure::failed)?;
    let deadline_s = server_config.shutdown_deadline_s;
    keep_up(metrics.clone());
    let slot = EngineSlot::default();
    let render = Arc::new(move || with_counter_types(&metrics.render()));
    let state = Data::new(AppState::new(server_config, slot.clone(), render));
    let (stop, stopped) = oneshot::channel::<()>();
    let mut serving = rt::spawn(server::run(listener, state, async {
        let _ = stopped.await;
    }));
    let mut starting = start_on_thread(config);
    let mut is_starting = true;
    let outcome = loop {
        tokio::select! {
            started = &mut starting, if is_starting => match started {
                Ok(Ok(engine)) => {
                    is_starting = false;
                    slot.fill(engine.clone());
                    announce(&engine, address, began);
                }
                Ok(Err(error)) => break Err(error),
                Err(_) => break Err(Failure::failed("the engine's thread died while starting")),
            },
            signal = signals.next() => {
                tracing::info!(signal = signal.name(), deadline_s, "stopping once running requests have ended; a second signal exits at once");
                break Ok(());
            }
            ended = &mut serving => return finish(ended),
        }
    };
    rt::spawn(async move { signals.next().await.exit() });
    let _ = stop.send(());
    outcome.and(finish(serving.await))
}

/// Loading blocks, so it has a thread of its own; the server answers 503 meanwhile.
fn start_on_thread(config: EngineConfig) -> oneshot::Receiver<Result<EngineHandle, Failure>> {
    let (started, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let engine = local::start(config, |parts| {
            plan::show(&parts.info);
            Ok(())
        });
        let _ = started.send(engine);
    });
    receiver
}

fn finish(ended: Result<io::Result<()>, rt::task::JoinError>) -> Result<(), Failure> {
    let ended = ended.map_err(|error| Failure::Failed(format!("server: {error}")))?;
    ended.map_err(|error| Failure::Failed(format!("server: {error}")))
}

fn keep_up(metrics: PrometheusHandle) {
    rt::spawn(async move {
        let mut ticks = rt::time::interval(UPKEEP_INTERVAL);
        loop {
            ticks.tick().await;
            metrics.run_upkeep();
        }
    });
}

fn announce(engine: &EngineHandle, address: SocketAddr, began: Instant) {
    let model = engine.model();
    let at = reachable(address);
    say(format_args!(
        "serving {} after {:.2} s: {} tokens of context, {} tokens of KV",
        model.served_model_name,
        began.elapsed().as_secs_f64(),
        model.context_length,
        model.max_total_tokens,
    ));
    say(format_args!("  OpenAI      http://{at}/v1"));
    say(format_args!("  SGLang      http://{at}/generate"));
    say(format_args!("  WebSocket   ws://{at}/v1/ws/generate"));
    say(format_args!("  Prometheus  http://{at}/metrics"));
    say("try:");
    say(format_args!(
        "  curl -N http://{at}/v1/chat/completions -H 'Content-Type: application/json' \
         -d '{{\"messages\": [{{\"role\": \"user\", \"content\": \"Who are you?\"}}], \"stream\": true}}'"
    ));
}

/// An address to connect to: "all addresses" is none.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
