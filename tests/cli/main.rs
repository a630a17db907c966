//! Tests of the `souffleur` binary: exit codes, output and signals.

mod bench;
mod chat;
mod commands;
mod dashboard;
mod deploy;
mod docs;
mod doctor;
mod endings;
mod first_hour;
#[allow(dead_code, reason = "shared with the tests of models")]
#[path = "../common/gguf.rs"]
mod gguf;
mod hub;
mod manifests;
#[cfg(target_os = "linux")]
mod service;
mod serving;
mod sparse;
mod table;
mod taught;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn souffleur(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_souffleur"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SOUFFLEUR_") {
            command.env_remove(name);
        }
    }
    command.args(args);
    command
}

fn tiny_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen3")
}

/// A model with tokens for tool calls and reasoning.
fn agents_model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/qwen3-agents")
}

fn run(args: &[&str]) -> Output {
    souffleur(args).output().expect("the binary runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
