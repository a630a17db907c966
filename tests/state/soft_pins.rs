//! Tests of soft pins, which keep a prefix from eviction only as long as no request needs its memory.

use souffleur_state::plan::preemption::PriorityRules;
use souffleur_state::scheduler::BatchRules;

use crate::scheduler_world::{Ask, Setup, VOCAB, World};

const SOON: u64 = 9;

fn prompt(family: u32, len: usize) -> Vec<u32> {
    let token = |at: usize| (at as u32 * (family + 3) + at as u32 / 5 + family) % VOCAB;
    (0..len).map(token).collect()
}

fn small(n_pages: u32) -> Setup {
    Setup {
        page_size: 1,
        n_pages,
        ..Setup::default()
    }
}

fn pinned(world: &mut World, family: u32, len: usize, replaces: bool) -> u64 {
    world.submit(Ask::exactly(prompt(family, len), 2));
    world.drain();
    let name = world.pin_softly(&prompt(family, len), SOON, replaces);
    world.finish_plan();
    name
}

fn pins(world: &World) -> (usize, usize) {
    (world.stats().soft_pins, world.stats().protected_tokens)
}

#[test]
fn later_prompts_do_not_evict_a_pinned_prefix() {
    let mut world = World::new(small(64));
    let name = pinned(&mut world, 0, 20, false);
    for family in 1..6 {
        world.submit(Ask::exactly(prompt(family, 20), 5));
        world.drain();
    }
    assert_eq!(pins(&world), (1, 20));
    assert!(world.unpin_softly(name) && !world.unpin_softly(name));
    world.finish_plan();
    assert_eq!(pins(&world), (0, 0));
    world.assert_clean();
}

#[test]
fn a_soft_pin_expires() {
    let mut world = World::new(small(64));
    pinned(&mut world, 0, 20, false);
    world.expire_pins(SOON - 1);
    assert_eq!(pins(&world).0, 1);
    world.expire_pins(SOON);
    world.finish_plan();
    assert_eq!(pins(&world), (0, 0));
    world.assert_clean();
}

#[test]
fn the_oldest_soft_pins_are_released_for_a_candidate_while_requests_run() {
    let mut world = World::new(small(100));
    for family in 0..3 {
        pinned(&mut world, family, 16, false);
    }
    assert_eq!(pins(&world), (3, 48));
    let running = world
        .submit(Ask::exactly(prompt(7, 10), 24))
        .expect("it fits");
    world.turn();
    let next = world
        .submit(Ask::exactly(prompt(8, 30), 4))
        .expect("it fits");
    for _ in 0..8 {
        world.turn();
    }
    let [running, next] = [running, next].map(|number| &world.views[number].delivered);
    assert!(
        running.len() < 24 && !next.is_empty(),
        "the candidate waited for the running request"
    );
    let pins = pins(&world).0;
    assert!((1..3).contains(&pins), "{pins} soft pins are left");
    world.drain();
    world.assert_clean();
}

#[test]
fn soft_pins_are_released_before_pins_of_hosts_and_before_a_retraction() {
    let mut world = World::new(small(64));
    world.submit(Ask::exactly(prompt(1, 12), 2));
    world.drain();
    world.pin(&prompt(1, 12), SOON);
    pinned(&mut world, 0, 30, false);
    assert_eq!(pins(&world), (1, 42));
    // Two requests that fit together with the host's pin, but not with both pins.
    for family in [2, 3] {
        world.submit(Ask::exactly(prompt(family, 6), 16));
    }
    world.drain();
    let stats = world.stats();
    assert_eq!((stats.pins, stats.soft_pins, stats.retractions), (1, 0, 0));
    world.assert_clean();
}

#[test]
fn soft_pins_are_released_before_a_request_is_preempted() {
    let rules = BatchRules {
        priority: Some(PriorityRules {
            low_values_first: false,
            preemption_threshold: Some(1),
            max_requests: usize::MAX,
        }),
        ..BatchRules::default()
    };
    let mut world = World::new(Setup { rules, ..small(64) });
    pinned(&mut world, 0, 30, false);
    let low = Ask {
        priority: Some(0),
        ..Ask::exactly(prompt(1, 8), 8)
    };
    world.submit(low);
    world.turn();
    let high = Ask {
        priority: Some(50),
        ..Ask::exactly(prompt(2, 20), 8)
    };
    world.submit(high);
    world.drain();
    assert_eq!((pins(&world).0, world.stats().preemptions), (0, 0));
    world.assert_clean();
}

#[test]
fn no_request_is_refused_for_soft_pins() {
    let mut world = World::new(small(64));
    pinned(&mut world, 0, 30, false);
    let large = world
        .submit(Ask::exactly(prompt(1, 50), 9))
        .expect("it fits");
    world.drain();
    assert_eq!(world.views[large].delivered.len(), 9);
    assert_eq!(pins(&world).0, 0);
    world.assert_clean();
}

#[test]
fn a_flush_ends_soft_pins() {
    let mut world = World::new(small(64));
    pinned(&mut world, 0, 20, false);
    world.flush_cache().expect("a flush");
    world.finish_plan();
    assert_eq!(pins(&world), (0, 0));
    assert_eq!(world.stats().evictable_tokens, 0);
    world.assert_clean();
}

#[test]
fn soft_pins_hold_at_most_half_of_the_pool_and_four_prefixes() {
    let mut world = World::new(small(100));
    let names: Vec<u64> = (0..4)
        .map(|family| pinned(&mut world, family, 15, false))
        .collect();
    assert_eq!(pins(&world), (3, 45), "four would hold 60 of 100");
    assert!(!world.unpin_softly(names[0]) && world.unpin_softly(names[1]));
    world.assert_clean();
    let mut world = World::new(small(400));
    for family in 0..6 {
        pinned(&mut world, family, 10, false);
    }
    assert_eq!(pins(&world), (4, 40));
    // This prefix alone takes more than half of the pool.
    pinned(&mut world, 7, 210, false);
    assert_eq!(pins(&world), (0, 0));
    world.assert_clean();
}

#[test]
fn the_pin_of_the_next_turn_replaces_the_previous_one() {
    let mut world = World::new(small(100));
    for turn in 1..5 {
        pinned(&mut world, 0, 10 * turn, true);
        assert_eq!(pins(&world), (1, 10 * turn));
    }
    world.assert_clean();
}

#[test]
fn a_pin_removed_before_it_was_granted_holds_nothing() {
    let mut world = World::new(small(64));
    world.submit(Ask::exactly(prompt(0, 20), 5));
    world.drain();
    world.finish_plan();
    // The plan that grants the pin is open.
    let name = world.pin_softly(&prompt(0, 20), SOON, false);
    assert!(world.unpin_softly(name));
    world.finish_plan();
    assert_eq!(pins(&world), (0, 0));
    world.assert_clean();
}
