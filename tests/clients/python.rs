//! Runs the modules of Python tests in `py`, each against a separate server.

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use crate::binary::Binary;
use crate::environment;

/// A module that takes longer fails with a traceback.
const MODULE_SECONDS: &str = "240";

/// Runs the tests of a module against a server with these flags, which must then stop gracefully.
#[track_caller]
pub fn check(module: &str, flags: &[&str]) {
    if let Some(server) = run(module, flags) {
        server.stop();
    }
}

/// Runs the tests of a module and returns the server that they talked to; `None` without Python.
#[track_caller]
fn run(module: &str, flags: &[&str]) -> Option<Binary> {
    let python = interpreter()?;
    let server = Binary::start(flags);
    if let Err(text) = run_module(python, module, &server.url, &server.process_id()) {
        panic!("{text}\nserver:\n{}", server.log());
    }
    Some(server)
}

/// The interpreter with all clients; `None` without Python.
pub fn interpreter() -> Option<&'static Path> {
    environment::python("tests/clients/requirements.txt")
}

/// Runs the tests of a module against the server at `url`; the error is their output.
pub fn run_module(python: &Path, module: &str, url: &str, process_id: &str) -> Result<(), String> {
    run_module_with(python, module, url, process_id, &[])
}

/// Like [`run_module`], with more environment variables.
pub fn run_module_with(
    python: &Path,
    module: &str,
    url: &str,
    process_id: &str,
    variables: &[(&str, &str)],
) -> Result<(), String> {
    // Compiled Python code is cached in the environment's folder, not in the repository.
    let environment = python.parent().and_then(Path::parent);
    let bytecode = environment.expect("a bin folder").join("bytecode");
    let mut command = Command::new(python);
    command
        .arg(format!("-Xpycache_prefix={}", bytecode.display()))
        .args(["-m", "unittest", "--verbose", module])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/py"))
        .env_remove("PYTHONDONTWRITEBYTECODE")
        .env("SOUFFLEUR_URL", url)
        .env("SOUFFLEUR_PID", process_id)
        .env("SOUFFLEUR_TEST_SECONDS", MODULE_SECONDS)
        .envs(variables.iter().copied());
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    let output = command.output().expect("the interpreter runs");
    let text = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true if text.contains("\nRan ") => Ok(()),
        true => Err(format!("no test ran: {text}")),
        false => Err(text.into_owned()),
    }
}

#[test]
fn completions() {
    check("test_completions", &[]);
}

#[test]
fn chat() {
    check("test_chat", &[]);
}

#[test]
fn errors() {
    check("test_errors", &[]);
}

#[test]
fn clients_that_disconnect() {
    check("test_cancel", &[]);
}

#[test]
fn clients_that_disconnect_in_the_queue() {
    check("test_queue", &["--max-running-requests", "1"]);
}

#[test]
fn sixteen_clients_share_a_prefix() {
    check("test_sharing", &[]);
}

#[test]
fn sixteen_clients_share_the_whole_pages_of_a_prefix() {
    check("test_sharing", &["--page-size", "16"]);
}

#[test]
fn sglangs_native_endpoint() {
    check("test_native", &[]);
}

#[test]
fn ollamas_endpoints() {
    check("test_ollama", &[]);
}

#[test]
fn websocket() {
    check("test_websocket", &[]);
}

#[test]
fn kv_events() {
    let config = r#"{"publisher": "zmq", "endpoint": "tcp://*:0", "replay_endpoint": "tcp://*:0", "topic": "kv"}"#;
    check("test_kv_events", &["--kv-events-config", config]);
}

#[test]
fn kv_events_in_array_encoding() {
    // The port is freed again: the subscriber binds it, and the server connects.
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.expect("a port is free").port();
    let config = format!(
        r#"{{"publisher": "zmq", "endpoint": "tcp://127.0.0.1:{port}", "topic": "kv@pod@model", "encoding": "array"}}"#
    );
    check("test_kv_events_array", &["--kv-events-config", &config]);
}

#[cfg(unix)]
#[test]
fn kv_events_over_unix_sockets() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let at = |name: &str| format!("ipc://{}", folder.path().join(name).display());
    let config = format!(
        r#"{{"publisher": "zmq", "endpoint": "{}", "replay_endpoint": "{}", "topic": "kv"}}"#,
        at("events"),
        at("replays"),
    );
    check("test_kv_events_ipc", &["--kv-events-config", &config]);
}

#[test]
fn more_clients_than_a_server_admits() {
    check("test_overload", &["--max-queued-requests", "2"]);
}

#[test]
fn a_signal_to_stop_lets_clients_finish() {
    if let Some(server) = run("test_shutdown", &["--shutdown-deadline-s", MODULE_SECONDS]) {
        server.expect_exit();
    }
}
