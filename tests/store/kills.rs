//! Kills a process that saves blocks in a KV store, then opens the store again. Every block that the store finds has
//! the saved contents, and the blocks that were saved last are found.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use souffleur_base::ids::Ticket;
use souffleur_store::Outcome;

use crate::world::{BLOCKS, DISK_BYTES, World};

/// Environment variable: the folder of the child's store.
const FOLDER: &str = "SOUFFLEUR_STORE_FOLDER";
/// Environment variable: the number of the child's first prompt.
const FIRST: &str = "SOUFFLEUR_STORE_FIRST";
/// Maximum number of prompts that a child saves: it is killed long before that.
const PROMPTS: u32 = 10_000;
/// Maximum number of the child's saves in flight.
const MAX_IN_FLIGHT: usize = 4;

fn number(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name}={text}")),
        Err(_) => default,
    }
}

/// The child: prints `saved PROMPT BLOCK` for each block that the store has acknowledged.
#[test]
fn a_child_saves_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let world = World::open(Path::new(&folder));
    let first = number(FIRST, 0) as u32;
    let mut in_flight = 0;
    let report = || {
        let (ticket, outcome) = world.saved();
        if outcome == Outcome::Written {
            let (prompt, block) = (ticket.get() / BLOCKS as u64, ticket.index() % BLOCKS);
            let mut out = std::io::stdout().lock();
            let written = writeln!(out, "saved {prompt} {block}").and_then(|()| out.flush());
            written.expect("the parent reads");
        }
    };
    for prompt in first..first + PROMPTS {
        for (block, place) in world.path(prompt).into_iter().enumerate() {
            let ticket = u64::from(prompt) * BLOCKS as u64 + block as u64;
            world.save(place, Ticket::new(ticket));
            in_flight += 1;
            if in_flight == MAX_IN_FLIGHT {
                report();
                in_flight -= 1;
            }
        }
    }
    (0..in_flight).for_each(|_| report());
}

/// Runs the child until it has saved `saves` blocks. Returns the last block that it printed.
fn run_child(folder: &Path, first: u32, saves: usize) -> Option<(u32, usize)> {
    let program = std::env::current_exe().expect("the test has a path");
    let mut child = Command::new(program)
        .args([
            "--exact",
            "kills::a_child_saves_until_it_is_killed",
            "--nocapture",
        ])
        .env(FOLDER, folder)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the test can be run again");
    let out = child.stdout.take().expect("stdout is piped");
    let lines = BufReader::new(out).lines().map_while(Result::ok);
    let mut saved = lines.filter_map(|line| {
        // The test harness writes text before the first `saved`, on the same line.
        let (_, text) = line.split_once("saved ")?;
        let (prompt, block) = text.split_once(' ')?;
        Some((prompt.parse().ok()?, block.parse().ok()?))
    });
    let mut last = None;
    for _ in 0..saves {
        last = saved.next().or(last);
    }
    child.kill().expect("the child can be killed");
    // The blocks that the child reported before it died.
    last = saved.last().or(last);
    child.wait().expect("the child has ended");
    last
}

/// Changes a byte of a random file of the store.
fn damage(folder: &Path, random: &mut fastrand::Rng) {
    let folders = std::fs::read_dir(folder).expect("the folder can be read");
    let folders = folders.filter_map(|entry| Some(entry.ok()?.path()));
    let files = folders.filter(|path| path.is_dir()).flat_map(|path| {
        let files = std::fs::read_dir(path).expect("the folder can be read");
        files.filter_map(|entry| Some(entry.ok()?.path()))
    });
    let mut files: Vec<PathBuf> = files.collect();
    files.sort();
    let path = random.choice(&files).expect("the store has files");
    let mut bytes = std::fs::read(path).expect("the file can be read");
    if !bytes.is_empty() {
        let at = random.usize(..bytes.len());
        bytes[at] ^= 1 << random.u8(..8);
        std::fs::write(path, bytes).expect("the file can be written");
    }
}

#[test]
fn after_a_kill_the_store_finds_the_saved_blocks_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a folder can be made");
    let mut random = fastrand::Rng::with_seed(number("SOUFFLEUR_STORE_SEED", 1));
    let (mut first, mut n_loaded_in_all) = (0, 0);
    for kill in 0..number("SOUFFLEUR_STORE_KILLS", 6) {
        let last = run_child(folder.path(), first, random.usize(1..150));
        let is_damaged = kill % 3 == 2;
        if is_damaged {
            damage(folder.path(), &mut random);
        }
        let world = World::open(folder.path());
        let end = last.map_or(first, |(prompt, _)| prompt + 2);
        for prompt in end.saturating_sub(60)..end {
            let n_loaded = world.load(prompt);
            n_loaded_in_all += n_loaded;
            let expected = last.filter(|(saved, _)| *saved == prompt && !is_damaged);
            let n_expected = expected.map_or(0, |(_, block)| block + 1);
            assert!(
                n_loaded >= n_expected,
                "kill {kill}: {n_loaded} of {n_expected}"
            );
        }
        let stats = world.store.stats();
        // From kill 2 on, the store may contain damaged records, which reads count.
        assert!(stats.damaged == 0 || kill >= 2, "kill {kill}: {stats:?}");
        assert!(stats.disk_bytes <= DISK_BYTES);
        assert!(world.store.shut_down());
        first = end;
    }
    assert!(n_loaded_in_all > 0);
}
