//! Tests of the simulator: replays of prompts, the engine in virtual time, replicas, drafts, the KV store, and traces.

mod cli;
mod drafts;
mod engine;
mod replay;
mod replicas;
mod store;
mod traces;

use std::path::{Path, PathBuf};

use souffleur::simulate::read::read_trace;
use souffleur::simulate::trace::Trace;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/traces")
        .join(name)
}

fn mooncake(max_requests: Option<usize>) -> Trace {
    read_trace(&fixture("mooncake_synthetic.jsonl.gz"), max_requests)
        .expect("the fixture is a trace")
}

fn azure(max_requests: Option<usize>) -> Trace {
    read_trace(&fixture("azure_llm_2023_code.csv.gz"), max_requests)
        .expect("the fixture is a trace")
}
