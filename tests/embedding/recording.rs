//! Tests that the message log of a whole engine under load is replayed to the same plans, without actors.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use souffleur::actors::messages::{CancelAll, CancelRequest, PinPrefix, SetPolicy, UnpinPrefix};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, Generation};
use souffleur::record::entry::Entry;
use souffleur::record::file::{LogEnd, LogReader, Record};
use souffleur::record::replay::{Replayed, replay};
use souffleur::request::{CancelFlag, FinishReason};
use souffleur::state::cache::namespace::Namespace;
use souffleur::state::control::ControlSetup;

use super::doubles::{Fault, faulty_parts, question, start_bundled};
use super::world::{
    Build, SHUTDOWN_DEADLINE, World, assert_finished, collect, expected, request, within,
};

/// Records the log in `tests/fixtures/record` again: `REMAKE_FIXTURES=1 cargo test --test embedding recording`.
const REMAKE: &str = "REMAKE_FIXTURES";

/// Tokens that a long request generates.
const LONG: u32 = 150;

fn log_in(dir: &Path) -> PathBuf {
    dir.join("control.log")
}

fn recording(dir: &Path) -> EngineConfig {
    EngineConfig {
        record: Some(log_in(dir)),
        chunked_prefill_size: 48,
        // Without a limit of step time, admission does not depend on the machine's speed.
        max_prefill_step_ms: 0,
        schedule_conservativeness: 0.05,
        ..EngineConfig::default()
    }
}

fn replayed(file: &Path) -> Replayed {
    let log = std::fs::read(file).expect("a log");
    replay(log.as_slice(), &ControlSetup::build).expect("the log can be replayed")
}

fn messages_in(file: &Path) -> BTreeSet<&'static str> {
    let log = std::fs::read(file).expect("a log");
    let mut reader = LogReader::open(log.as_slice()).expect("the file is a log");
    let mut messages = BTreeSet::new();
    while let Some(Record::Entry(entry)) = reader.next().expect("the log is intact") {
        messages.insert(Entry::message(&entry));
    }
    messages
}

fn assert_same(replayed: &Replayed) {
    let found = replayed.difference.as_ref().map(ToString::to_string);
    assert_eq!(found, None);
    assert_eq!((replayed.ending, replayed.has_gap), (LogEnd::Closed, false));
}

/// A prompt that shares its first 40 tokens with every fourth prompt.
fn prompt(number: u32) -> Vec<u32> {
    let shared = (0..40).map(|place| 1 + (number % 4 * 31 + place * 7) % 499);
    let own = (0..10 + number * 13 % 50).map(|place| 1 + (number * 17 + place) % 499);
    shared.chain(own).collect()
}

/// Runs sixty requests at once on a pool that holds four. Some are cancelled, in every possible way; during others,
/// policies change, or prefixes are pinned and unpinned.
async fn load(world: &World) {
    let doors = world.engine.doors().expect("the engine lives");
    let mut collecting = Vec::new();
    for number in 0..60 {
        let tokens = prompt(number);
        // Short requests end early, so that more long requests are admitted than fit at full length.
        let is_long = number % 2 == 0;
        let max_new_tokens = if is_long { LONG } else { 3 + number % 8 };
        let asked = request(&tokens, max_new_tokens, u64::from(number));
        let rid = asked.rid.clone();
        let mut generation = world.generate(asked);
        let doors = doors.clone();
        collecting.push(tokio::spawn(async move {
            match number % 10 {
                3 => drop(generation),
                6 => {
                    let _ = within(generation.next()).await;
                    drop(generation);
                }
                7 => {
                    // A flag that is not the request's: the first message cancels nothing.
                    let foreign = Some(CancelFlag::default());
                    doors.cancel.do_send(CancelRequest { rid, flag: foreign });
                    let flag = None;
                    let rid = generation.rid().clone();
                    doors.cancel.do_send(CancelRequest { rid, flag });
                    while within(generation.next()).await.is_some() {}
                }
                5 => {
                    let set = SetPolicy {
                        schedule_policy: Some(["hrrn", "lpm"][number as usize / 10 % 2].to_owned()),
                        radix_eviction_policy: Some("slru".to_owned()),
                    };
                    let set = within(doors.set_policy.send(set)).await;
                    set.expect("an answer").expect("both exist");
                    drop(collect(generation).await);
                }
                8 => {
                    let pin = PinPrefix {
                        namespace: Namespace::default(),
                        tokens: tokens.into(),
                        ttl_s: number % 3,
                    };
                    let pinned = within(doors.pin.send(pin)).await.expect("an answer");
                    drop(collect(generation).await);
                    let pin = pinned.map_or(0, |pinned| pinned.pin);
                    within(doors.unpin.send(UnpinPrefix { pin }))
                        .await
                        .expect("an answer");
                }
                _ => drop(collect(generation).await),
            }
        }));
    }
    for collected in collecting {
        collected.await.expect("no task panics");
    }
}

#[tokio::test]
async fn flushes_between_requests_are_replayed() {
    let dir = tempfile::tempdir().expect("a temporary folder can be made");
    let build = Build {
        config: recording(dir.path()),
        n_pages: 600,
        ..Build::default()
    };
    let world = build.start();
    for policy in ["fcfs", "lpm"] {
        let set = SetPolicy {
            schedule_policy: Some(policy.to_owned()),
            radix_eviction_policy: None,
        };
        within(world.engine.set_policy(set))
            .await
            .expect("it exists");
        for number in 0..6 {
            drop(collect(world.generate(request(&prompt(number), 5, 7))).await);
        }
        let pause = |paused| within(world.engine.set_paused(paused));
        pause(true).await.expect("an answer");
        let waits = world.generate(request(&prompt(7), 5, 7));
        pause(false).await.expect("an answer");
        drop(collect(waits).await);
        let tokens = prompt(2).into();
        let pin = within(world.engine.pin_prefix(
            Namespace::default(),
            tokens,
            std::time::Duration::from_secs(1000),
        ));
        let pinned = pin.await.expect("the prefix is pinned");
        // Two flushes at once: the second finds an empty cache, or is merged with the first.
        let (first, second) = tokio::join!(
            within(world.engine.flush_cache()),
            within(world.engine.flush_cache())
        );
        let first = first.expect("no request is in flight");
        second.expect("no request is in flight");
        assert_eq!(first.kept_tokens, pinned.tokens);
        assert!(first.flushed_tokens > 0, "{first:?}");
        let running = world.generate(request(&prompt(1), LONG, 7));
        let refused = within(world.engine.flush_cache()).await.map(drop);
        assert!(
            refused.is_ok() || refused.map_err(|error| error.code()) == Err("busy"),
            "a flush is refused only as busy"
        );
        drop(collect(running).await);
        let unpinned = within(world.engine.unpin_prefix(pinned.pin)).await;
        assert!(unpinned.expect("an answer"));
        world.assert_no_leaks().await;
    }
    world.stop().await;
    let file = log_in(dir.path());
    assert_same(&replayed(&file));
    let messages = messages_in(&file);
    for message in ["FlushCache", "SetPaused"] {
        assert!(messages.contains(message), "{message}");
    }
}

/// Sends long requests one by one. Each is admitted while the other outputs are short; later they outgrow the pool.
async fn overcommit(world: &World, steps: &crossbeam_channel::Sender<()>) -> Vec<Generation> {
    let is_long = |prompt: &[u32], seed| {
        let (_, reason) = expected(prompt, LONG, seed);
        matches!(reason, FinishReason::Length { .. })
    };
    let mut in_flight = Vec::new();
    for prompt in (0..3).map(prompt) {
        let seed = (0..1000).find(|seed| is_long(&prompt, *seed));
        let seed = seed.expect("some output is long");
        let mut generation = world.generate(request(&prompt, LONG, seed));
        within(async {
            // Until the engine has the new request, earlier requests would use the steps that are granted below.
            while requests_in_flight(world).await <= in_flight.len() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        // Enough steps for the chunks of the prompt, but not for the whole output.
        (0..12).for_each(|_| steps.send(()).expect("the executor lives"));
        within(generation.next()).await.expect("an event");
        in_flight.push(generation);
    }
    in_flight
}

async fn requests_in_flight(world: &World) -> usize {
    let stats = world.engine.stats().await.expect("the engine lives");
    stats.running_requests + stats.waiting_requests
}

async fn run_under_load(dir: &Path, page_size: u32, policy: &str) {
    let (steps, gate) = crossbeam_channel::unbounded();
    let build = Build {
        config: EngineConfig {
            page_size,
            schedule_policy: policy.to_owned(),
            ..recording(dir)
        },
        n_pages: 480 / page_size as usize,
        rows: 12,
        gate: Some(gate),
        ..Build::default()
    };
    let world = build.start();
    let overcommitted = overcommit(&world, &steps).await;
    drop(steps);
    load(&world).await;
    for generation in overcommitted {
        drop(collect(generation).await);
    }
    let last: Vec<_> = (0..6)
        .map(|number| world.generate(request(&prompt(number), 500, 1)))
        .collect();
    let doors = world.engine.doors().expect("the engine lives");
    doors.cancel_all.do_send(CancelAll);
    for mut generation in last {
        while within(generation.next()).await.is_some() {}
    }
    let stats = world.engine.stats().await.expect("stats");
    assert!(
        stats.retractions > 0 && stats.evicted_tokens > 0,
        "{stats:?}"
    );
    world.stop().await;
}

#[tokio::test]
async fn an_engine_under_load_is_replayed_to_the_same_plans() {
    for (page_size, policy) in [(1, "fcfs"), (16, "lpm")] {
        let dir = tempfile::tempdir().expect("a folder can be made");
        run_under_load(dir.path(), page_size, policy).await;
        let file = log_in(dir.path());
        let replayed = replayed(&file);
        assert_same(&replayed);
        // Requests that are cancelled before they are encoded are not submitted.
        assert!(replayed.counts.requests > 50, "{:?}", replayed.counts);
        assert!(replayed.counts.steps > 100, "{:?}", replayed.counts);
        let messages = messages_in(&file);
        for message in [
            "CancelRequest",
            "CancelAll",
            "PinPrefix",
            "UnpinPrefix",
            "SetPolicy",
            "PrefixesProbed",
        ] {
            assert!(messages.contains(message), "{messages:?}");
        }
    }
}

#[tokio::test]
async fn a_model_with_stop_strings_is_replayed_to_the_same_plans() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let engine = start_bundled(recording(dir.path()));
    let generations = (0..12).map(|number| {
        let mut asked = question(40 + number);
        asked.sampling.stop = ["e ".to_owned()].into();
        asked.sampling.temperature = 1.0;
        asked.sampling.sampling_seed = Some(u64::from(number));
        engine.generate(asked).expect("it is admitted")
    });
    for mut generation in generations.collect::<Vec<_>>() {
        while within(generation.next()).await.is_some() {}
    }
    within(engine.shutdown(SHUTDOWN_DEADLINE)).await;
    let file = log_in(dir.path());
    assert_same(&replayed(&file));
    assert!(messages_in(&file).contains("StopFound"));
}

#[tokio::test]
async fn the_log_of_a_rebuilt_engine_is_replayed_across_the_rebuild() {
    let dir = tempfile::tempdir().expect("a folder can be made");
    let build = Build {
        config: recording(dir.path()),
        ..Build::default()
    };
    let parts = faulty_parts(&build, 5, Fault::DeviceLost);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let resumed = collect(world.generate(request(&prompt(1), 50, 1))).await;
    assert_finished(&resumed, &prompt(1), 50, 1);
    drop(collect(world.generate(request(&prompt(2), 10, 1))).await);
    world.stop().await;
    let replayed = replayed(&log_in(dir.path()));
    assert_same(&replayed);
    let counts = replayed.counts;
    assert_eq!((counts.units, counts.requests, counts.resumed), (2, 2, 1));
}

#[cfg(unix)]
#[tokio::test]
async fn a_log_is_private_and_overwrites_no_other_file() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().expect("a folder can be made");
    let file = log_in(dir.path());
    std::fs::write(&file, "an older one").expect("a file can be written");
    let build = Build {
        config: recording(dir.path()),
        ..Build::default()
    };
    build.clone().start().stop().await;
    let mode = std::fs::metadata(&file).expect("a log").permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    let old = std::fs::read_to_string(dir.path().join("control.log.old"));
    assert_eq!(old.expect("the older file was kept"), "an older one");
    let folder_as_log = EngineConfig {
        record: Some(dir.path().to_owned()),
        ..EngineConfig::default()
    };
    let started = Engine::start_with(folder_as_log, build.parts());
    let error = started.err().expect("a folder cannot be a log").to_string();
    assert!(
        error.contains("record") && error.contains("regular file"),
        "{error}"
    );
}

#[tokio::test]
async fn the_log_of_the_repository_is_replayed_to_the_same_plans() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/record/control.log");
    if std::env::var_os(REMAKE).is_some() {
        let dir = tempfile::tempdir().expect("a folder can be made");
        run_under_load(dir.path(), 1, "lpm").await;
        std::fs::copy(log_in(dir.path()), &file).expect("the fixture can be written");
    }
    let replayed = replayed(&file);
    assert_same(&replayed);
    assert!(replayed.counts.steps > 100, "{:?}", replayed.counts);
}
