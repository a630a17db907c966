//! Tests of the causes of prefix-cache misses with a block store, at the position where the store's blocks end.

use souffleur_state::cache::prefix_history::{Cause, StoredMiss};

use super::world::{TierSetup, TierWorld, prompt};

/// An engine that finds the 5 blocks of a prompt of 80 tokens on its disk.
fn restarted() -> TierWorld {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world.submit(prompt(1, 80, 0), 1);
    world.restart()
}

/// Submits the stored prompt with 9 new tokens after it.
fn ask(world: &mut TierWorld) -> usize {
    world.submit(prompt(1, 80, 9), 2)
}

#[track_caller]
fn check(world: &mut TierWorld, number: usize, expected: (Cause, usize, usize)) {
    world.assert_clean();
    let report = world.views[number].report.as_ref();
    let report = report.expect("a report");
    let found = (report.cause, report.position, report.loaded_tokens);
    assert_eq!(found, expected, "{report:?}");
}

#[test]
fn loaded_tokens_count_as_cached_and_the_rest_was_never_cached() {
    let mut world = restarted();
    let number = ask(&mut world);
    check(&mut world, number, (Cause::NeverCached, 80, 80));
}

#[test]
fn a_prompt_that_was_not_stored_has_the_cause_of_a_miss_in_memory() {
    let mut world = restarted();
    let number = world.submit(prompt(2, 80, 0), 1);
    check(&mut world, number, (Cause::NeverCached, 0, 0));
}

#[test]
fn a_miss_of_blocks_that_are_faster_to_compute_than_to_load_is_reported_as_too_slow() {
    let mut world = restarted();
    world.store.is_slow = true;
    let number = ask(&mut world);
    check(&mut world, number, (Cause::StoredTooSlow, 0, 0));
    // The tokens are in memory now.
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
fn a_fetch_from_a_store_that_dies_is_late() {
    let mut world = restarted();
    let number = ask(&mut world);
    world.answer();
    world.kill_store();
    check(&mut world, number, (Cause::StoredLate, 0, 0));
}

#[test]
fn a_damaged_block_ends_the_loaded_prefix() {
    let mut world = restarted();
    world.store.cut_by = StoredMiss::Damaged;
    let number = ask(&mut world);
    world.answer();
    world.answer_with(0, 2);
    check(&mut world, number, (Cause::StoredDamaged, 32, 32));
}

#[test]
fn an_evicted_block_is_reported_whenever_it_was_evicted() {
    // Evicted before the lookup.
    let mut world = restarted();
    world.store.evict(3);
    let number = ask(&mut world);
    check(&mut world, number, (Cause::StoredEvicted, 48, 48));
    // Evicted between the lookup and the fetch.
    let mut world = restarted();
    let number = ask(&mut world);
    world.answer();
    world.store.evict(1);
    check(&mut world, number, (Cause::StoredEvicted, 16, 16));
}

#[test]
fn tokens_in_memory_after_a_miss_in_the_store_are_no_miss() {
    let mut world = restarted();
    world.store.evict(0);
    let number = ask(&mut world);
    check(&mut world, number, (Cause::StoredEvicted, 0, 0));
    let number = world.submit(prompt(1, 80, 3), 1);
    world.assert_clean();
    let report = world.views[number].report.as_ref();
    let report = report.expect("a report");
    assert_eq!((report.cached_tokens, report.loaded_tokens), (80, 0));
    assert_eq!(report.cause, Cause::Divergence, "{report:?}");
}
