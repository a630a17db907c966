//! Kills servers under load at random moments: a restarted server finds the blocks of answers older than five seconds,
//! and all its outputs are correct.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::http::stream;
use crate::server::{Launch, Server, call};
use crate::{BLOCK_TOKENS, kills, model, number};

const DEFAULT_KILLS: u64 = 2;
/// Number of prompts that are answered and written before the load during which the server is killed.
const WRITTEN_PROMPTS: u32 = 6;
/// Answers older than this are written.
const WRITTEN_WITHIN: Duration = Duration::from_secs(5);
/// Token ids of prompts are less than this.
const VOCABULARY: u32 = 2000;
const MAX_LOAD_PROMPTS: u32 = 8;
/// Disk space for the blocks of a few rounds: later blocks replace earlier ones.
const DISK_BYTES: &str = "50331648";

/// A prompt of a dozen blocks and some more tokens, long enough to be worth loading. No two prompts begin alike.
fn long_prompt(seed: u32) -> Vec<u32> {
    let rest = (2..840 + seed % 60).map(|i| (i * 13 + i / 5 + seed * (i % 7 + 3)) % VOCABULARY);
    [seed % VOCABULARY, seed / VOCABULARY]
        .into_iter()
        .chain(rest)
        .collect()
}

fn block_tokens(prompt: &[u32]) -> u64 {
    prompt.len() as u64 / BLOCK_TOKENS * BLOCK_TOKENS
}

struct Reference(Server);

impl Reference {
    fn new() -> Self {
        let launch = Launch::new(&model("souffleur-tiny"));
        Self(launch.args(&["--disable-radix-cache"]).start())
    }

    /// Checks that a server's answer equals the reference. Returns the number of tokens cached in memory or files.
    fn check(&self, server: &Server, seed: u32) -> u64 {
        let prompt = long_prompt(seed);
        let (expected, got) = (self.0.ask(&prompt), server.ask(&prompt));
        assert_eq!(
            got.output,
            expected.output,
            "prompt {seed}\n{}",
            server.log()
        );
        got.stored + got.device
    }
}

/// Sends new prompts and kills the server during one of them.
fn kill_under_load(server: Server, seeds: std::ops::Range<u32>, random: &mut fastrand::Rng) {
    let last = random.u32(seeds.clone());
    for seed in seeds.start..last {
        server.ask(&long_prompt(seed));
    }
    let mut body = call(&long_prompt(last));
    body["stream"] = true.into();
    // The kill comes during the prefill, or after some tokens.
    let n_events = random.usize(0..10);
    if n_events == 0 {
        let socket = crate::http::open(server.addr, "/v1/completions", &body);
        server.kill();
        drop(socket);
        return;
    }
    let mut events = stream(server.addr, "/v1/completions", &body);
    for _ in 1..n_events {
        if events.next_data().is_none() {
            break;
        }
    }
    server.kill();
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("the folder can be read") {
        let path = entry.expect("the entry can be read").path();
        if path.is_dir() {
            files(&path, found)
        } else {
            found.push(path)
        }
    }
}

/// Changes a bit of a file, truncates it or removes it.
fn damage(folder: &Path, random: &mut fastrand::Rng) -> String {
    let mut found = Vec::new();
    files(folder, &mut found);
    found.sort();
    let path = random.choice(&found).expect("the store has files");
    let mut bytes = fs::read(path).expect("the entry can be read");
    let at = random.usize(..bytes.len().max(1));
    let what = random.u8(..4);
    let done = match what {
        0 => fs::remove_file(path),
        1 => fs::write(path, &bytes[..at.min(bytes.len())]),
        _ => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.u8(..8);
            }
            fs::write(path, bytes)
        }
    };
    done.expect("the file can be changed");
    format!("damage {what} of {} at {at}", path.display())
}

#[test]
fn blocks_of_answers_before_a_kill_are_found_and_correct() {
    let folder = TempDir::new().expect("a folder can be made");
    let seed = number("SOUFFLEUR_RESTART_SEED").unwrap_or(1);
    let mut random = fastrand::Rng::with_seed(seed);
    let reference = Reference::new();
    let launch = Launch::new(&model("souffleur-tiny")).with_store(folder.path());
    let launch = launch.args(&["--kv-disk-bytes", DISK_BYTES]);
    let launch = launch.args(&["--max-total-tokens", "16384"]);
    let mut next = 0;
    for kill in 0..kills().unwrap_or(DEFAULT_KILLS) {
        let written = next..next + WRITTEN_PROMPTS;
        next = written.end + MAX_LOAD_PROMPTS;
        let server = launch.start_serving();
        let mut tokens = 0;
        for seed in written.clone() {
            tokens += block_tokens(&long_prompt(seed));
            reference.check(&server, seed);
        }
        server.wait_at_most(WRITTEN_WITHIN, "all answers are written", || {
            server.written_tokens() >= tokens
        });
        kill_under_load(server, written.end..next, &mut random);
        let is_damaged = kill % 3 == 2;
        if is_damaged {
            // Shown if the test fails.
            eprintln!("kill {kill}: {}", damage(folder.path(), &mut random));
        }
        let server = launch.start_serving();
        let found: u64 = written
            .clone()
            .map(|seed| reference.check(&server, seed))
            .sum();
        assert!(
            is_damaged || found * 100 >= tokens * 95,
            "kill {kill}: {found} of {tokens} tokens are found\n{}",
            server.log()
        );
        // The prompts of the load, of which some may have been written.
        for seed in written.end..next {
            reference.check(&server, seed);
        }
        // From kill 2 on, the store may contain damaged records, which reads count.
        let is_expected = is_damaged || kill > 1 || server.damages() == 0;
        assert!(is_expected, "kill {kill}: {}", server.log());
        server.kill();
    }
}
