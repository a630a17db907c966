//! Tests that a paused engine is paused after a death too, and keeps its policies.

use serde_json::json;

use crate::http::post;
use crate::models::Model;
use crate::plan::Kill;
use crate::server::wait_until;
use crate::undisturbed::Undisturbed;
use crate::wave::Wave;
use crate::world::World;

const MIN_OPEN: usize = 16;
const ATTEMPTS: usize = 20;

/// Checks that the next generation of a paused engine with `min_open` streams computes nothing, and resumes it.
fn check_pause(world: &World, min_open: usize) {
    let (server, engine) = (&world.server, world.engine());
    wait_until("all requests wait", || {
        server.stats().waiting_requests == engine.requests_inside()
    });
    let stats = server.stats();
    assert!(stats.is_paused, "{stats:?}");
    assert_eq!(
        (stats.schedule_policy, stats.radix_eviction_policy),
        ("lpm", "slru")
    );
    assert!(stats.waiting_requests >= min_open && stats.running_requests == 0);
    assert!(world.watch.n_open() >= min_open);
    assert_eq!(server.stats().steps, stats.steps, "a step was planned");
    post(server.addr, "/continue_generation", &json!({})).ok();
    assert!(!server.stats().is_paused);
}

#[test]
fn an_engine_that_dies_in_a_pause_stays_paused_and_keeps_its_policies() {
    let known = Undisturbed::of(Model::Bundled);
    let counts = (0..ATTEMPTS).any(|_| check_once(known));
    assert!(counts, "fewer than {MIN_OPEN} streams were open");
}

/// Whether enough streams were open at the death.
fn check_once(known: &Undisturbed) -> bool {
    let at = known.middle_launch();
    let kill = Kill::new("scheduler", "StepDone", "entry", at);
    let world = World::start(Model::Bundled, &[kill.spec()], Some(at));
    let addr = world.server.addr;
    let policies = json!({"schedule_policy": "lpm", "radix_eviction_policy": "slru"});
    post(addr, "/set_policy", &policies).ok();
    let mut counts = false;
    let wave = Wave::run(&world, &known.calls, || {
        counts = world.is_held_with(MIN_OPEN);
        post(addr, "/pause_generation", &json!({"mode": "in_place"})).ok();
        world.release();
        world.wait_until_generation(2);
        check_pause(&world, if counts { MIN_OPEN } else { 1 });
    });
    known.check(&wave);
    world.check_end();
    assert_eq!((world.generation(), world.watch.panics().len()), (2, 1));
    assert_eq!(wave.gaps.len(), 1, "the request in the pause is answered");
    counts
}
