//! The modules in `py`, each against a server of its own.

use std::path::Path;
use std::process::Command;

use crate::binary::Binary;
use crate::environment;

/// A module that takes longer ends with the traceback of where it is.
const MODULE_SECONDS: &str = "240";

/// Runs the tests of a module against a server with these flags, which must end gracefully when asked to.
#[track_caller]
fn check(module: &str, flags: &[&str]) {
    if let Some(server) = run(module, flags) {
        server.stop();
    }
}

/// Runs the tests of a module and returns the server that they talked to; nothing where Python is missing.
#[track_caller]
fn run(module: &str, flags: &[&str]) -> Option<Binary> {
    let python = environment::python("tests/clients/requirements.txt")?;
    let server = Binary::start(flags);
    let mut command = Command::new(python);
    command
        .args(["-B", "-m", "unittest", "--verbose", module])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/py"))
        .env("SOUFFLEUR_URL", &server.url)
        .env("SOUFFLEUR_PID", server.process_id())
        .env("SOUFFLEUR_TEST_SECONDS", MODULE_SECONDS);
    for name in ["http_proxy", "https_proxy", "all_proxy"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    let output = command.output().expect("the interpreter runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\nserver:\n{}", server.log());
    assert!(text.contains("\nRan "), "no test ran: {text}");
    Some(server)
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
fn clients_that_go_away() {
    check("test_cancel", &[]);
}

#[test]
fn clients_that_leave_the_queue() {
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
fn websocket() {
    check("test_websocket", &[]);
}

#[test]
fn more_clients_than_a_server_takes() {
    check("test_overload", &["--max-queued-requests", "2"]);
}

#[test]
fn a_signal_to_stop_lets_clients_finish() {
    if let Some(server) = run("test_shutdown", &["--shutdown-deadline-s", MODULE_SECONDS]) {
        server.expect_exit();
    }
}
