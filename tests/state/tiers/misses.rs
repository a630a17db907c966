//! Misses with a store have a cause, at the position where the store's blocks end.

use souffleur_state::cache::prefix_history::{Cause, StoredMiss};

use super::world::{TierWorld, Tiered, prompt};

/// An engine that finds the 5 blocks of a prompt of 80 tokens on its disk.
fn restarted() -> TierWorld {
    let mut world = TierWorld::new(Tiered::default(), Default::default());
    world.submit(prompt(1, 80, 0), 1);
    world.restart()
}

/// Submits the prompt with 9 unique tokens after it.
fn ask(world: &mut TierWorld) -> usize {
    world.submit(prompt(1, 80, 9), 2)
}

#[track_caller]
fn check(world: &mut TierWorld, number: usize, expected: (Cause, usize, usize)) {
    world.assert_clean();
    let report = world.lives[number].report.as_ref();
    let report = report.expect("it was admitted");
    let found = (report.cause, report.position, report.loaded_tokens);
    assert_eq!(found, expected, "{report:?}");
}

#[test]
fn what_is_loaded_is_cached_and_the_rest_was_never_stored() {
    let mut world = restarted();
    let number = ask(&mut world);
    check(&mut world, number, (Cause::NeverCached, 80, 80));
}

#[test]
fn a_prompt_that_nobody_stored_has_the_causes_of_memory() {
    let mut world = restarted();
    let number = world.submit(prompt(2, 80, 0), 1);
    check(&mut world, number, (Cause::NeverCached, 0, 0));
}

#[test]
fn blocks_that_are_computed_sooner_are_too_slow() {
    let mut world = restarted();
    world.store.is_slow = true;
    let number = ask(&mut world);
    check(&mut world, number, (Cause::StoredTooSlow, 0, 0));
    // They are in memory now.
    let number = ask(&mut world);
    check(&mut world, number, (Cause::MatchLimit, 88, 0));
}

#[test]
fn a_fetch_that_brings_nothing_in_time_is_late() {
    let mut world = restarted();
    let number = ask(&mut world);
    world.answer();
    world.answer_with(0, 0);
    check(&mut world, number, (Cause::StoredLate, 0, 0));
}

#[test]
fn a_store_that_ends_under_a_fetch_is_late() {
    let mut world = restarted();
    let number = ask(&mut world);
    world.answer();
    world.kill_store();
    check(&mut world, number, (Cause::StoredLate, 0, 0));
}

#[test]
fn a_damaged_block_ends_what_is_loaded() {
    let mut world = restarted();
    world.store.cut_by = StoredMiss::Damaged;
    let number = ask(&mut world);
    world.answer();
    world.answer_with(0, 2);
    check(&mut world, number, (Cause::StoredDamaged, 32, 32));
}

#[test]
fn a_block_that_gave_way_is_evicted_whenever_that_was() {
    // Before the query,
    let mut world = restarted();
    world.store.evict(3);
    let number = ask(&mut world);
    check(&mut world, number, (Cause::StoredEvicted, 48, 48));
    // or between the query and the fetch.
    let mut world = restarted();
    let number = ask(&mut world);
    world.answer();
    world.store.evict(1);
    check(&mut world, number, (Cause::StoredEvicted, 16, 16));
}

#[test]
fn what_memory_has_behind_a_stored_miss_is_no_miss() {
    let mut world = restarted();
    world.store.evict(0);
    let number = ask(&mut world);
    check(&mut world, number, (Cause::StoredEvicted, 0, 0));
    let number = world.submit(prompt(1, 80, 3), 1);
    world.assert_clean();
    let report = world.lives[number].report.as_ref();
    let report = report.expect("it was admitted");
    assert_eq!((report.cached_tokens, report.loaded_tokens), (80, 0));
    assert_eq!(report.cause, Cause::Divergence, "{report:?}");
}
