//! Tests of gateways, unmodified from their wheels, in front of two engines: prompts go to the engine that has cached
//! their prefix, and requests after the death of an engine succeed.

use std::fs;
use std::path::Path;

use crate::binary::Binary;
use crate::environment::{self, Found};
use crate::peers::{Peer, free_port};
use crate::python::{interpreter, run_module_with};

const REQUIREMENTS: &str = "tests/clients/gateways.txt";

struct GatewayKind {
    module: &'static str,
    flags: &'static [&'static str],
}

/// By default, smg reads the engines' loads every ten seconds, not often enough for these tests.
const SMG: GatewayKind = GatewayKind {
    module: "smg",
    flags: &["--load-monitor-interval", "1"],
};

/// sglang_router retries a request on the same engine until a health check has found that engine dead: the retries must
/// last longer than the interval of health checks.
const SGLANG_ROUTER: GatewayKind = GatewayKind {
    module: "sglang_router",
    flags: &[
        "--health-check-interval-secs",
        "1",
        "--health-failure-threshold",
        "1",
        "--retry-max-retries",
        "10",
        "--disable-circuit-breaker",
    ],
};

struct Gateway {
    peer: Peer,
    url: String,
    metrics_url: String,
}

impl Gateway {
    fn start(python: &Path, kind: &GatewayKind, workers: &[String]) -> Self {
        let (port, metrics_port) = (free_port(), free_port());
        let peer = Peer::start(python, kind.module, |command| {
            command
                .args(["launch", "--host", "127.0.0.1"])
                .args(["--port", &port, "--policy", "cache_aware"])
                .args(["--prometheus-host", "127.0.0.1"])
                .args(["--prometheus-port", &metrics_port])
                .args(kind.flags)
                .arg("--worker-urls")
                .args(workers);
        });
        Self {
            peer,
            url: format!("http://127.0.0.1:{port}"),
            metrics_url: format!("http://127.0.0.1:{metrics_port}/metrics"),
        }
    }
}

/// Two engines, and the addresses under which the gateway knows them.
struct Pair {
    engines: [Binary; 2],
    workers: [String; 2],
}

impl Pair {
    fn over_http() -> Self {
        let engines = [(); 2].map(|()| Binary::start(&["--threads", "1"]));
        let workers = engines.each_ref().map(|engine| engine.url.clone());
        Self { engines, workers }
    }

    #[cfg(feature = "grpc")]
    fn over_grpc() -> Self {
        let ports = [(); 2].map(|()| free_port());
        let engines = ports.each_ref().map(|port| {
            let flags = ["--threads", "1", "--page-size", "16", "--grpc-port", port];
            let events = ["--kv-events-config", GRPC_EVENTS];
            Binary::start(&[&flags[..], &events].concat())
        });
        let workers = ports.map(|port| format!("grpc://127.0.0.1:{port}"));
        Self { engines, workers }
    }
}

/// No subscriber connects to the socket: the gateway gets the events over gRPC.
#[cfg(feature = "grpc")]
const GRPC_EVENTS: &str = r#"{"publisher": "zmq", "endpoint": "tcp://*:0"}"#;

/// Runs the tests of a Python module with a gateway in front of two engines. The module may kill the first engine; the
/// second must end gracefully.
#[track_caller]
fn check(kind: &GatewayKind, module: &str, pair: impl FnOnce() -> Pair) {
    static GATEWAYS: Found = Found::new();
    let Some(clients) = interpreter() else {
        return;
    };
    let Some(python) = environment::python_at(&GATEWAYS, REQUIREMENTS) else {
        return;
    };
    let Pair { engines, workers } = pair();
    let gateway = Gateway::start(python, kind, &workers);
    let urls = format!("{} {}", engines[0].url, engines[1].url);
    let variables = [
        ("SOUFFLEUR_ENGINES", urls.as_str()),
        ("SOUFFLEUR_WORKERS", &workers.join(" ")),
        ("SOUFFLEUR_GATEWAY", kind.module),
        ("SOUFFLEUR_METRICS", &gateway.metrics_url),
    ];
    let victim = engines[0].process_id();
    let ran = run_module_with(clients, module, &gateway.url, &victim, &variables);
    if let Err(text) = ran {
        let logs = engines.map(|engine| engine.log());
        let log = gateway.peer.log();
        panic!("{text}\ngateway:\n{log}\nengines:\n{logs:?}");
    }
    drop(gateway);
    let [_, survivor] = engines;
    survivor.stop();
}

#[test]
fn the_document_starts_gateways_as_these_tests_do() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/scale-out.md")).expect("the file exists");
    let requirements = fs::read_to_string(root.join(REQUIREMENTS)).expect("the file exists");
    for kind in [&SMG, &SGLANG_ROUTER] {
        let launch = format!("python -m {} launch --host 127.0.0.1", kind.module);
        let flags = kind.flags.join(" ");
        for command in [launch, flags] {
            assert!(document.contains(&command), "{command}");
        }
        let package = kind.module.replace('_', "-");
        let mut pinned = requirements.lines();
        let pinned = pinned.find(|line| line.starts_with(&format!("{package}==")));
        let pinned = pinned.expect("the version is pinned");
        assert!(
            document.contains(&format!("pip install {pinned}")),
            "{pinned}"
        );
    }
}

#[test]
fn smg_sends_prefixes_to_the_engine_that_has_them() {
    check(&SMG, "test_gateway", Pair::over_http);
}

#[test]
fn smg_fails_no_request_after_the_death_of_an_engine() {
    check(&SMG, "test_gateway_death", Pair::over_http);
}

#[test]
fn sglang_router_sends_prefixes_to_the_engine_that_has_them() {
    check(&SGLANG_ROUTER, "test_gateway", Pair::over_http);
}

#[test]
fn sglang_router_fails_no_request_after_the_death_of_an_engine() {
    check(&SGLANG_ROUTER, "test_gateway_death", Pair::over_http);
}

#[cfg(feature = "grpc")]
#[test]
fn smg_over_grpc_learns_which_engine_has_a_prompt() {
    check(&SMG, "test_gateway_grpc", Pair::over_grpc);
}

#[cfg(feature = "grpc")]
#[test]
fn smg_over_grpc_fails_no_chat_after_the_death_of_an_engine() {
    check(&SMG, "test_chat_death", Pair::over_grpc);
}
