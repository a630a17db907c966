//! Measures the memory of the radix tree itself, without K/V, per cached token after a long random run.
//!
//! The result is the growth of resident memory of a separate process, including the allocator's headers and waste.

use std::process::Command;
use std::sync::Arc;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::prompts::prompt;
use crate::subjects::{Ours, Subject};

/// The capacity of the tree in tokens.
const CAPACITY: usize = 4_000_000;
/// New tokens that a run inserts into the tree.
const TOKENS: usize = 10 * CAPACITY;
const MAX_CONVERSATION_TOKENS: usize = 32_768;

pub const RUNS: [&str; 2] = ["conversations", "prompts of 256 shared and 64 new tokens"];

/// The size of the tree at the end of a run.
#[derive(Debug, Serialize, Deserialize)]
pub struct Memory {
    run: String,
    cached_tokens: usize,
    nodes: usize,
    bytes_a_token: f64,
}

impl Memory {
    pub fn line(&self) -> String {
        let Self {
            run,
            cached_tokens,
            nodes,
            bytes_a_token,
        } = self;
        format!("| {run} | {cached_tokens} | {nodes} | {bytes_a_token:.2} |")
    }
}

/// Does each run in a separate process.
pub fn all() -> anyhow::Result<Vec<Memory>> {
    let program = std::env::current_exe()?;
    let run = |name: &&str| {
        let output = Command::new(&program)
            .args(["--memory-of", name])
            .output()?;
        if !output.status.success() {
            bail!("{}", String::from_utf8_lossy(&output.stderr));
        }
        let memory: Memory = serde_json::from_slice(&output.stdout)?;
        eprintln!("{}", memory.line());
        Ok(memory)
    };
    RUNS.iter().map(run).collect()
}

/// Does one run in this process.
pub fn run(name: &str) -> anyhow::Result<Memory> {
    let mut ours = Ours::new(CAPACITY + 2 * MAX_CONVERSATION_TOKENS);
    let before = resident_bytes()?;
    match name {
        "conversations" => conversations(&mut ours),
        _ => prompts(&mut ours),
    }
    let cached_tokens = ours.tree.total_size();
    let tree_bytes = resident_bytes()?.saturating_sub(before);
    Ok(Memory {
        run: name.to_owned(),
        cached_tokens,
        nodes: ours.tree.n_nodes(),
        bytes_a_token: tree_bytes as f64 / cached_tokens as f64,
    })
}

fn add(ours: &mut Ours, key: &Arc<[u32]>) {
    let needed = ours.tree.total_size() + key.len();
    ours.remove(needed.saturating_sub(CAPACITY));
    ours.add(key);
}

/// Each step continues the conversation, returns to an earlier point of it, or begins a new one.
fn conversations(ours: &mut Ours) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut key: Vec<u32> = Vec::new();
    let mut n_tokens = 0;
    while n_tokens < TOKENS {
        let kept = [0, key.len(), random.usize(..=key.len())][random.usize(..3)];
        key.truncate(kept);
        let n_new = random.usize(50..1_500);
        key.extend((0..n_new).map(|_| random.u32(..150_000)));
        add(ours, &Arc::from(&key[..]));
        n_tokens += n_new;
        key.truncate(MAX_CONVERSATION_TOKENS);
    }
}

fn prompts(ours: &mut Ours) {
    for number in 0..(TOKENS / 64) as u64 {
        add(ours, &prompt(number));
    }
}

fn resident_bytes() -> anyhow::Result<usize> {
    let status = std::fs::read_to_string("/proc/self/status").context("cannot read VmRSS")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    let kib: usize = kib.context("no VmRSS in /proc/self/status")?.parse()?;
    Ok(kib * 1024)
}
