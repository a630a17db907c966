//! Tests of Dynamo, unmodified from its wheels, as the frontend of two engines with a sidecar each. Dynamo routes by
//! the engines' KV events, cancels requests of clients that disconnect, and sends no requests to a dead engine.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use crate::binary::{self, Binary};
use crate::environment::{self, Found};
use crate::peers::{Peer, free_port};
use crate::python::{interpreter, run_module_with};

const REQUIREMENTS: &str = "tests/clients/dynamo.txt";
/// Modules that `docs/scale-out.md` starts.
const SIDECAR: &str = "dynamo.sglang.sidecar";
const FRONTEND: &str = "dynamo.frontend";
/// A sidecar stays in the registry after its engine has died: its requests must migrate to the other sidecar.
const FRONTEND_FLAGS: [&str; 4] = ["--router-mode", "kv", "--migration-limit", "3"];
/// Settings with which Dynamo needs neither etcd nor NATS.
const PLANES: [(&str, &str); 5] = [
    ("DYN_DISCOVERY_BACKEND", "file"),
    ("DYN_REQUEST_PLANE", "tcp"),
    ("DYN_TCP_RPC_HOST", "127.0.0.1"),
    ("DYN_EVENT_PLANE", "zmq"),
    ("DYN_EVENT_PLANE_HOST", "127.0.0.1"),
];
const EVENTS: &str = r#"{"publisher": "zmq", "endpoint": "tcp://*:0"}"#;

/// Engines' sidecars and the frontend in front of them, which discover each other through a folder.
struct Dynamo {
    peers: Vec<Peer>,
    url: String,
    _registry: TempDir,
}

impl Dynamo {
    fn start(python: &Path, grpc_ports: &[String]) -> Self {
        let registry = TempDir::new().expect("a folder can be made");
        let join = |command: &mut Command| {
            command.envs(PLANES).env("DYN_FILE_KV", registry.path());
        };
        let sidecar = |port: &String| {
            Peer::start(python, SIDECAR, |command| {
                join(command);
                command.args(["--grpc-endpoint", &format!("http://127.0.0.1:{port}")]);
            })
        };
        let mut peers: Vec<_> = grpc_ports.iter().map(sidecar).collect();
        let port = free_port();
        peers.push(Peer::start(python, FRONTEND, |command| {
            join(command);
            command
                .args(["--http-host", "127.0.0.1", "--http-port", &port])
                .args(FRONTEND_FLAGS);
        }));
        Self {
            peers,
            url: format!("http://127.0.0.1:{port}"),
            _registry: registry,
        }
    }

    fn logs(&self) -> Vec<String> {
        self.peers.iter().map(Peer::log).collect()
    }
}

/// Runs the tests of a Python module with Dynamo in front of two engines. The module may kill the first engine; the
/// second must end gracefully.
#[track_caller]
fn check(module: &str) {
    static DYNAMO: Found = Found::new();
    let Some(clients) = interpreter() else {
        return;
    };
    let Some(python) = environment::python_at(&DYNAMO, REQUIREMENTS) else {
        return;
    };
    let grpc_ports = [(); 2].map(|()| free_port());
    // Both engines serve the same path: Dynamo refuses an engine whose model description differs from the first one's.
    let model = binary::model().display().to_string();
    let engines = grpc_ports.each_ref().map(|port| {
        let flags = ["--threads", "1", "--page-size", "16", "--grpc-port", port];
        let more = ["--kv-events-config", EVENTS, "--model-path", &model];
        Binary::start(&[&flags[..], &more].concat())
    });
    let dynamo = Dynamo::start(python, &grpc_ports);
    let urls = format!("{} {}", engines[0].url, engines[1].url);
    let variables = [
        ("SOUFFLEUR_ENGINES", urls.as_str()),
        ("SOUFFLEUR_GATEWAY", "dynamo"),
    ];
    let victim = engines[0].process_id();
    let ran = run_module_with(clients, module, &dynamo.url, &victim, &variables);
    if let Err(text) = ran {
        let logs = engines.map(|engine| engine.log());
        let peers = dynamo.logs();
        panic!("{text}\nsidecars and frontend:\n{peers:?}\nengines:\n{logs:?}");
    }
    drop(dynamo);
    let [_, survivor] = engines;
    survivor.stop();
}

#[test]
fn dynamo_learns_which_engine_has_a_prompt() {
    check("test_dynamo");
}

#[test]
fn dynamo_fails_no_chat_after_the_death_of_an_engine() {
    check("test_chat_death");
}

#[test]
fn the_document_starts_dynamo_as_this_test_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let document = fs::read_to_string(root.join("docs/scale-out.md")).expect("the file exists");
    for (name, value) in PLANES {
        assert!(document.contains(&format!("{name}={value}")), "{name}");
    }
    assert!(document.contains(&FRONTEND_FLAGS.join(" ")));
    for module in [SIDECAR, FRONTEND] {
        assert!(document.contains(&format!("-m {module} ")), "{module}");
    }
    let requirements = fs::read_to_string(root.join(REQUIREMENTS)).expect("the file exists");
    for package in ["ai-dynamo", "ai-dynamo-runtime"] {
        let pinned = requirements.lines().find(|line| {
            line.split_once("==")
                .is_some_and(|(name, _)| name == package)
        });
        let pinned = pinned.expect("the version is pinned");
        assert!(document.contains(pinned), "{pinned}");
    }
}
