//! Kills each part of the engine while the 32 requests stream.

use crate::models::Model;
use crate::plan::{self, KILLS_OF_AN_ENGINE, Kill, PHASES, SLOW, Target};
use crate::undisturbed::Undisturbed;
use crate::watch::Firing;
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
/// In full, kills of a part inside of a handler: in the middle, or at its end if the part has no such point.
const MIN_INSIDE: usize = 5;
/// In full, kills of a part during a rebuild.
const MIN_IN_REBUILD: usize = 2;

/// Numbers of kills that count.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    all: usize,
    inside: usize,
    in_rebuild: usize,
}

impl Tally {
    /// The numbers that a part needs.
    fn goal() -> Self {
        let Some(all) = full_kills() else {
            return Self {
                all: 1,
                ..Self::default()
            };
        };
        Self {
            all,
            inside: MIN_INSIDE.min(all),
            in_rebuild: MIN_IN_REBUILD.min(all),
        }
    }

    fn has(self, goal: Self) -> bool {
        self.all >= goal.all && self.inside >= goal.inside && self.in_rebuild >= goal.in_rebuild
    }
}

/// Kills parts of an engine during a run, and checks all answers. Returns the kills, of which those of `actor` count
/// that meet enough open streams.
fn survive(model: Model, actor: &str, kills: &[Kill]) -> Vec<Firing> {
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
    let n_counted = panics.iter().filter(|panic| counts(panic, actor)).count();
    assert!(wave.gaps.len() >= n_counted, "{panics:?}");
    panics
}

pub fn counts(panic: &Firing, actor: &str) -> bool {
    panic.point.actor == actor && panic.n_open >= MIN_OPEN
}

pub fn random_of(model: Model, target: &Target) -> fastrand::Rng {
    let name = target.actor.bytes().map(u64::from);
    let hash = name.fold(model as u64, |hash, byte| {
        hash.wrapping_mul(31).wrapping_add(byte)
    });
    fastrand::Rng::with_seed(seed().wrapping_mul(1 << 32).wrapping_add(hash))
}

/// Runs for a kill that counts: others come when few streams are open.
pub const RUNS_OF_A_KILL: usize = 16;

/// Kills a part until enough kills count.
fn kill_often(model: Model, target: &Target) {
    let passages = Undisturbed::of(model).passages();
    let (goal, inner) = (Tally::goal(), target.inner_phase(passages));
    let mut random = random_of(model, target);
    let (mut tally, mut n_runs) = (Tally::default(), 0);
    while !tally.has(goal) {
        let is_last = n_runs >= RUNS_OF_A_KILL * goal.all + goal.in_rebuild;
        assert!(!is_last, "{tally:?} of the {goal:?} kills count");
        let is_rebuild = tally.in_rebuild < goal.in_rebuild;
        let kills = if is_rebuild {
            target.draw_rebuild(passages, &mut random)
        } else {
            let n = goal.all.saturating_sub(tally.all);
            let phase = if tally.inside < goal.inside {
                inner
            } else {
                PHASES[(n_runs + 1) % PHASES.len()]
            };
            target.draw(passages, phase, n.clamp(1, KILLS_OF_AN_ENGINE), &mut random)
        };
        for (place, panic) in survive(model, target.actor, &kills).iter().enumerate() {
            if counts(panic, target.actor) {
                tally.all += 1;
                tally.inside += usize::from(panic.point.phase == inner);
                // The first kill of such a run causes the rebuild.
                tally.in_rebuild += usize::from(is_rebuild && place > 0);
            }
        }
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
    let passages = Undisturbed::of(Model::Bundled).passages();
    for actor in PARTS_IN_SMALL {
        let target = plan::target_of(actor);
        let mut random = random_of(Model::Bundled, target);
        let kills = target.draw_rebuild(passages, &mut random);
        let panics = survive(Model::Bundled, actor, &kills);
        let n_counted = panics.iter().filter(|panic| counts(panic, actor)).count();
        assert_eq!(n_counted, kills.len());
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
