//! Kills a replica, or the Router, while the 32 requests stream from two replicas. The answers must be those of one
//! engine.

use std::sync::OnceLock;

use crate::full_kills;
use crate::kills::{RUNS_OF_A_KILL, counts, random_of};
use crate::models::Model;
use crate::plan::{self, KILLS_OF_AN_ENGINE, Kill, PHASES, Passage, Target};
use crate::server::{block_on, wait_until};
use crate::undisturbed::Undisturbed;
use crate::watch::Firing;
use crate::wave::Wave;
use crate::world::World;

/// The actors whose death is that of their replica. The test command kills the first one.
const PARTS: [&str; 4] = ["scheduler", "radix_cache", "allocator", "executor"];

/// The passages of all points in a run without deaths.
fn passages() -> &'static [Passage] {
    static PASSAGES: OnceLock<Vec<Passage>> = OnceLock::new();
    PASSAGES.get_or_init(|| {
        let mut counters = plan::counters();
        counters.push("actor=router,kind=delay,for=0ms".to_owned());
        let world = World::with_replicas(&counters);
        let known = Undisturbed::of(Model::Bundled);
        known.check(&Wave::run(&world, &known.calls, || ()));
        world.check_end();
        let loads = block_on(world.engine().loads());
        let loads = loads.expect("the engine runs").into_iter().flatten();
        let prompt_tokens: Vec<u64> = loads.map(|load| load.stats.prompt_tokens).collect();
        let both_served = prompt_tokens.len() == 2 && !prompt_tokens.contains(&0);
        assert!(both_served, "{prompt_tokens:?}");
        plan::passages(&world.watch.firings())
    })
}

/// Waits until both replicas run, and each death was followed by the start of one of them and by nothing else.
fn check_starts(world: &World, panics: &[Firing]) {
    let is_of_replica = |panic: &&Firing| PARTS.contains(&panic.point.actor.as_str());
    let n_deaths = panics.iter().filter(is_of_replica).count() as u64;
    let engine = world.engine();
    wait_until("the replicas run again", || {
        let replicas = engine.unit_status().replicas;
        let n_starts: u64 = replicas.iter().map(|replica| replica.generation).sum();
        let all_run = replicas.iter().all(|replica| replica.is_up);
        all_run && n_starts == replicas.len() as u64 + n_deaths
    });
}

/// Kills parts during a run, and checks all answers. Returns the number of kills that meet enough open streams.
fn survive(actor: &str, kills: &[Kill]) -> usize {
    let known = Undisturbed::of(Model::Bundled);
    // Only the first spec that fires counts the passage: the later one of two kills at a point comes first.
    let specs: Vec<String> = kills.iter().rev().map(Kill::spec).collect();
    let world = World::with_replicas(&specs);
    let wave = Wave::run(&world, &known.calls, || ());
    known.check(&wave);
    let panics = world.watch.panics();
    check_starts(&world, &panics);
    world.check_end();
    let n_counted = panics.iter().filter(|panic| counts(panic, actor)).count();
    assert!(wave.gaps.len() >= n_counted, "{panics:?}");
    n_counted
}

/// Kills a part until enough kills count.
fn kill_often(target: &Target) {
    let (passages, goal) = (passages(), full_kills().unwrap_or(1));
    let mut random = random_of(Model::Bundled, target);
    let (mut n_counted, mut n_runs) = (0, 0);
    while n_counted < goal {
        assert!(
            n_runs < RUNS_OF_A_KILL * goal,
            "{n_counted} of {goal} kills of {} count",
            target.actor
        );
        let n_kills = (goal - n_counted).min(KILLS_OF_AN_ENGINE);
        let phase = PHASES[n_runs % PHASES.len()];
        let kills = target.draw(passages, phase, n_kills, &mut random);
        n_counted += survive(target.actor, &kills);
        n_runs += 1;
    }
}

#[test]
fn deaths_of_a_replica_lose_no_request() {
    let n_parts = full_kills().map_or(1, |_| PARTS.len());
    for actor in &PARTS[..n_parts] {
        kill_often(plan::target_of(actor));
    }
}

#[test]
fn deaths_of_the_router_lose_no_request() {
    kill_often(&plan::ROUTER);
}
