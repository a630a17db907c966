//! Kills each part of the engine while the 32 requests stream.

use crate::models::Model;
use crate::plan::{self, KILLS_OF_AN_ENGINE, Kill, PHASES, SLOW, Target};
use crate::undisturbed::Undisturbed;
use crate::wave::Wave;
use crate::world::World;
use crate::{full_kills, seed};

/// Streams between their first and their last token at a kill that counts.
const MIN_OPEN: usize = 16;
/// The parts that the test command kills during a rebuild, and on the tiny models.
const PARTS_IN_SMALL: [&str; 2] = ["scheduler", "tokenizer"];
/// The actors whose death starts the next generation.
const ACTORS_OF_A_UNIT: [&str; 5] = [
    "tokenizer",
    "scheduler",
    "radix_cache",
    "allocator",
    "executor",
];
/// In full, runs with a kill during a rebuild.
const REBUILDS: usize = 2;

/// Kills parts of an engine during a run, and checks all answers. Returns the number of kills of `actor` that count.
fn survive(model: Model, actor: &str, kills: &[Kill]) -> usize {
    let known = Undisturbed::of(model);
    // Only the first spec that fires counts the passage: the later one of two kills at a point comes first.
    let mut specs: Vec<String> = kills.iter().rev().map(Kill::spec).collect();
    if kills
        .iter()
        .any(|kill| ["record", "kv_store"].contains(&kill.actor))
    {
        specs.push(SLOW.to_owned());
    }
    let world = World::start(model, &specs, None);
    let wave = Wave::run(&world, &known.calls, || ());
    known.check(&wave);
    world.check_end();
    let panics = world.watch.panics();
    let of_unit = panics
        .iter()
        .filter(|panic| ACTORS_OF_A_UNIT.contains(&panic.point.actor.as_str()));
    assert_eq!(world.generation(), 1 + of_unit.count() as u64, "{panics:?}");
    let counts = panics
        .iter()
        .filter(|panic| panic.point.actor == actor && panic.n_open >= MIN_OPEN);
    let n_counted = counts.count();
    assert!(wave.gaps.len() >= n_counted, "{panics:?}");
    n_counted
}

fn random_of(model: Model, target: &Target) -> fastrand::Rng {
    let name = target.actor.bytes().map(u64::from);
    let hash = name.fold(model as u64, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte)
    });
    fastrand::Rng::with_seed(seed().wrapping_mul(1 << 32).wrapping_add(hash))
}

/// Runs for a kill that counts: others come when few streams are open.
const RUNS_OF_A_KILL: usize = 6;

/// Kills a part until enough kills count.
fn kill_often(model: Model, target: &Target) {
    let passages = &Undisturbed::of(model).passages;
    let wanted = full_kills().unwrap_or(1);
    let mut random = random_of(model, target);
    let (mut n_counted, mut n_runs) = (0, 0);
    while n_counted < wanted {
        let runs_left = RUNS_OF_A_KILL * wanted + REBUILDS - n_runs;
        assert!(runs_left > 0, "only {n_counted} of {wanted} kills count");
        let kills = if full_kills().is_some() && n_runs < REBUILDS {
            target.draw_rebuild(passages, &mut random)
        } else {
            let n = KILLS_OF_AN_ENGINE.min(wanted - n_counted);
            let phase = PHASES[(n_runs + 1) % PHASES.len()];
            target.draw(passages, phase, n, &mut random)
        };
        n_counted += survive(model, target.actor, &kills);
        n_runs += 1;
    }
}

#[test]
fn deaths_of_the_tokenizer_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("tokenizer"));
}

#[test]
fn deaths_of_the_scheduler_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("scheduler"));
}

#[test]
fn deaths_of_the_radix_cache_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("radix_cache"));
}

#[test]
fn deaths_of_the_allocator_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("allocator"));
}

#[test]
fn deaths_of_the_executor_actor_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("executor"));
}

#[test]
fn panics_of_the_executor_thread_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("executor_thread"));
}

#[test]
fn panics_of_kernel_workers_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("worker"));
}

#[test]
fn deaths_of_the_kv_store_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("kv_store"));
}

#[test]
fn deaths_of_the_publisher_of_kv_events_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("kv_events"));
}

#[test]
fn deaths_of_the_message_log_lose_no_request() {
    kill_often(Model::Bundled, plan::target_of("record"));
}

#[test]
fn deaths_during_a_rebuild_lose_no_request() {
    let passages = &Undisturbed::of(Model::Bundled).passages;
    for actor in PARTS_IN_SMALL {
        let target = plan::target_of(actor);
        let mut random = random_of(Model::Bundled, target);
        let kills = target.draw_rebuild(passages, &mut random);
        assert_eq!(survive(Model::Bundled, actor, &kills), kills.len());
    }
}

fn kill_parts_of(model: Model) {
    let is_killed =
        |target: &&Target| full_kills().is_some() || PARTS_IN_SMALL.contains(&target.actor);
    for target in plan::TARGETS.iter().filter(is_killed) {
        kill_often(model, target);
    }
}

#[test]
fn a_model_with_recurrent_states_loses_no_request() {
    kill_parts_of(Model::Hybrid);
}

#[test]
fn a_model_with_windows_loses_no_request() {
    kill_parts_of(Model::Windowed);
}
