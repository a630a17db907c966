//! Tests of an engine with a block store: prefixes survive eviction and restarts, and no behaviour of the store changes
//! a request's output.
//!
//! The fake executor's K/V is a hash of all tokens up to a position, so a block that was saved too early, that belongs
//! to another path or that was loaded to the wrong place fails the next step.

mod chaos;
mod misses;
mod restarts;
pub mod store;
mod world;

use souffleur_state::scheduler::tier::StoreOrder;

use self::world::{TierSetup, TierWorld, prompt};
use crate::scheduler_world::Outcome;

fn discards(world: &TierWorld) -> usize {
    let is_discard = |order: &&StoreOrder| matches!(order, StoreOrder::Discard { .. });
    world.store.seen.iter().filter(is_discard).count()
}

#[test]
fn a_prompt_after_a_restart_is_loaded_and_gets_the_same_output() {
    for (page_size, block_tokens) in [(1, 64), (16, 64), (64, 64), (128, 128)] {
        let setup = TierSetup {
            page_size,
            n_pages: 2048 / page_size as usize,
            block_tokens,
            ..TierSetup::default()
        };
        let mut world = TierWorld::new(setup, Default::default());
        let number = world.submit(prompt(1, 300, 0), 4);
        world.drain();
        assert_eq!(world.views[number].cached_tokens, 0);
        let mut world = world.restart();
        let number = world.submit(prompt(1, 300, 0), 4);
        world.assert_clean();
        let whole = (300 / block_tokens * block_tokens) as u32;
        let view = &world.views[number];
        assert_eq!(
            (view.cached_tokens, view.loaded_tokens),
            (whole, whole),
            "pages of {page_size}"
        );
        // Loaded blocks are not saved again.
        assert_eq!(world.written(), 0);
    }
}

#[test]
fn a_prompt_of_a_model_with_states_resumes_after_a_stored_prefix() {
    // With larger pages, the reply's row has left a state at the end of the prompt's last whole page.
    for (page_size, reused) in [(1, 256), (16, 288)] {
        let setup = TierSetup {
            page_size,
            n_pages: 2048 / page_size as usize,
            block_tokens: 64,
            n_states: 32,
            ..TierSetup::default()
        };
        let mut world = TierWorld::new(setup, Default::default());
        world.submit(prompt(1, 300, 0), 4);
        world.drain();
        assert!(!world.store.disk.states.is_empty());
        let mut world = world.restart();
        let number = world.submit(prompt(1, 300, 0), 4);
        world.drain();
        let view = &world.views[number];
        assert_eq!((view.cached_tokens, view.loaded_tokens), (256, 256));
        // The loaded state is in the tree, for later requests.
        let number = world.submit(prompt(1, 290, 9), 4);
        world.assert_clean();
        let view = &world.views[number];
        assert_eq!((view.cached_tokens, view.loaded_tokens), (reused, 0));
    }
}

#[test]
fn a_load_ends_before_the_last_token_of_a_prompt() {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world.submit(prompt(1, 64, 0), 1);
    let mut world = world.restart();
    let number = world.submit(prompt(1, 64, 0), 1);
    world.assert_clean();
    assert_eq!(world.views[number].loaded_tokens, 63);
    // The whole prompt except its last token is in the tree now.
    let number = world.submit(prompt(1, 64, 0), 1);
    world.assert_clean();
    let view = &world.views[number];
    assert_eq!((view.cached_tokens, view.loaded_tokens), (63, 0));
}

#[test]
fn a_load_continues_inside_a_block_where_the_tree_ends() {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world.submit(prompt(1, 80, 0), 1);
    let mut world = world.restart();
    // The engine computes the first block and a half while the disk is empty.
    let disk = std::mem::take(&mut world.store.disk);
    world.submit(prompt(1, 24, 0), 1);
    world.drain();
    world.store.disk = disk;
    let number = world.submit(prompt(1, 80, 9), 3);
    world.assert_clean();
    let view = &world.views[number];
    assert_eq!((view.cached_tokens, view.loaded_tokens), (80, 56));
}

#[test]
fn a_request_that_waits_for_blocks_stops_no_other_and_keeps_its_place() {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world.submit(prompt(1, 64, 0), 1);
    let mut world = world.restart();
    let waits = world.submit(prompt(1, 64, 3), 2);
    world.answer();
    assert_eq!(world.tier().fetching_buffers, 4);
    let other = world.submit(prompt(2, 40, 0), 2);
    world.answer_with(1, usize::MAX);
    while world.end_step(Outcome::Done) {}
    assert!(world.views[other].end.is_some() && world.views[waits].end.is_none());
    world.assert_clean();
    assert_eq!(world.views[waits].loaded_tokens, 64);
}

#[test]
fn requests_that_share_a_prefix_fetch_it_once() {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world.submit(prompt(1, 96, 0), 1);
    let mut world = world.restart();
    let numbers: Vec<usize> = (0..4)
        .map(|own| world.submit(prompt(1, 96, own + 2), 2))
        .collect();
    world.assert_clean();
    assert_eq!(world.tier().fetches, 1);
    let loaded: Vec<u32> = numbers
        .iter()
        .map(|n| world.views[*n].loaded_tokens)
        .collect();
    assert_eq!(loaded, [96, 0, 0, 0]);
    assert!(numbers.iter().all(|n| world.views[*n].cached_tokens == 96));
}

#[test]
fn blocks_that_come_in_time_are_used_and_the_rest_is_computed() {
    for (limit, loaded) in [(0, 0), (2, 32)] {
        let mut world = TierWorld::new(TierSetup::default(), Default::default());
        world.submit(prompt(1, 64, 0), 1);
        let mut world = world.restart();
        let number = world.submit(prompt(1, 64, 5), 3);
        world.answer();
        world.answer_with(0, limit);
        world.assert_clean();
        let view = &world.views[number];
        assert_eq!((view.cached_tokens, view.loaded_tokens), (loaded, loaded));
        assert_eq!(world.tier().late_fetches, u64::from(limit == 0));
    }
}

#[test]
fn blocks_that_a_fetch_did_not_return_are_saved_once_computed() {
    for (limit, written) in [(0, 4), (2, 2), (4, 0)] {
        let mut world = TierWorld::new(TierSetup::default(), Default::default());
        world.submit(prompt(1, 64, 0), 1);
        let mut world = world.restart();
        world.submit(prompt(1, 64, 5), 3);
        world.answer();
        world.answer_with(0, limit);
        world.assert_clean();
        assert_eq!(world.written(), written, "a fetch of {limit} blocks");
    }
}

#[test]
fn a_store_that_dies_leaves_the_engine_serving() {
    for n_answers in 0..3 {
        let mut world = TierWorld::new(TierSetup::default(), Default::default());
        world.submit(prompt(1, 64, 0), 1);
        let mut world = world.restart();
        let first = world.submit(prompt(1, 64, 5), 3);
        for _ in 0..n_answers {
            world.answer();
        }
        world.kill_store();
        let after = world.submit(prompt(1, 64, 6), 3);
        world.assert_clean();
        let loaded = [first, after].map(|number| world.views[number].loaded_tokens);
        // No block waits to be saved any more.
        assert_eq!(world.tier().queued_paths, 0);
        // Blocks that arrived before the store died remain valid.
        assert_eq!(loaded, [if n_answers == 2 { 64 } else { 0 }, 0]);
        assert!(!world.tier().serves);
    }
}

#[test]
fn a_request_cancelled_while_it_waits_leaks_no_buffer() {
    for n_answers in 0..2 {
        let mut world = TierWorld::new(TierSetup::default(), Default::default());
        world.submit(prompt(1, 64, 0), 1);
        let mut world = world.restart();
        let number = world.submit(prompt(1, 64, 5), 3);
        for _ in 0..n_answers {
            world.answer();
        }
        world.cancel(number);
        world.assert_clean();
        assert!(world.views[number].delivered.is_empty());
    }
}

#[test]
fn a_step_that_is_lost_writes_nothing_and_loads_nothing() {
    for outcome in [Outcome::LostBeforeItRan, Outcome::LostAfterItRan] {
        let mut world = TierWorld::new(TierSetup::default(), Default::default());
        world.submit(prompt(1, 64, 0), 8);
        world.answer();
        world.end_step(Outcome::Done);
        let saves = |world: &TierWorld| {
            let copies = world.steps.iter().filter_map(|step| step.copies.as_ref());
            copies.map(|copies| copies.saves.len()).sum::<usize>()
        };
        while saves(&world) == 0 {
            assert!(world.end_step(Outcome::Done));
        }
        let (written, discarded) = (world.written(), discards(&world));
        let n_saves = saves(&world);
        while world
            .steps
            .front()
            .is_some_and(|step| step.copies.is_none())
        {
            world.end_step(Outcome::Done);
        }
        world.end_step(outcome);
        while world.end_step(Outcome::Done) && discards(&world) == discarded {}
        assert_eq!(world.written(), written);
        assert!(discards(&world) >= discarded + n_saves.min(1));
        world.assert_clean();

        let mut world = world.restart();
        let number = world.submit(prompt(1, 64, 5), 3);
        world.answer();
        world.answer();
        assert!(world.steps.iter().any(|step| step.copies.is_some()));
        world.end_step(outcome);
        world.assert_clean();
        assert_eq!(world.views[number].delivered.len(), 3);
    }
}

#[test]
fn an_idle_engine_saves_with_half_of_the_buffers() {
    let setup = TierSetup {
        buffers: 4,
        ..TierSetup::default()
    };
    let mut world = TierWorld::new(setup, Default::default());
    world.submit(prompt(1, 200, 0), 1);
    world.answer();
    while world.end_step(Outcome::Done) {}
    // Nothing runs, and the buffers for saves wait to be written.
    assert_eq!(world.tier().saving_buffers, 2);
    world.assert_clean();
    assert_eq!(world.store.disk.blocks.len(), 200 / 16);
    assert_eq!(world.tier().dropped_tokens, 0);
}

#[test]
fn the_selective_policy_does_not_write_prefixes_used_once() {
    let setup = TierSetup {
        min_hits: 2,
        ..TierSetup::default()
    };
    let mut world = TierWorld::new(setup, Default::default());
    world.submit(prompt(1, 64, 20), 1);
    world.drain();
    assert_eq!(world.store.disk.blocks.len(), 0);
    world.submit(prompt(1, 64, 21), 1);
    world.assert_clean();
    assert_eq!(world.store.disk.blocks.len(), 4);
}

#[test]
fn without_a_free_buffer_a_block_is_not_saved_and_no_request_fails() {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world
        .store
        .buffers
        .lock()
        .expect("no holder panics")
        .is_full = true;
    world.submit(prompt(1, 64, 0), 4);
    world.assert_clean();
    assert_eq!(world.store.disk.blocks.len(), 0);
}

#[test]
fn a_block_that_found_no_buffer_is_written_at_its_next_use() {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    let set_full = |world: &TierWorld, is_full| {
        let mut buffers = world.store.buffers.lock().expect("no holder panics");
        buffers.is_full = is_full;
    };
    set_full(&world, true);
    world.submit(prompt(1, 64, 0), 1);
    world.assert_clean();
    assert_eq!(world.store.disk.blocks.len(), 0);
    set_full(&world, false);
    // Only the tree has the prefix. The store must get it before it can use blocks after it.
    world.submit(prompt(1, 64, 40), 1);
    world.assert_clean();
    assert_eq!(world.store.disk.blocks.len(), 104 / 16);
    // Blocks that the store evicts while memory keeps them are saved again once a block after them is saved.
    world.store.evict(0);
    assert_eq!(world.store.disk.blocks.len(), 0);
    world.submit(prompt(1, 64, 80), 1);
    world.assert_clean();
    world.submit(prompt(1, 64, 80), 1);
    world.assert_clean();
    assert_eq!(world.store.disk.blocks.len(), 144 / 16);
}

#[test]
fn a_prefix_that_is_longer_than_the_buffers_is_loaded_in_rounds() {
    for (page_size, chunk_tokens) in [(1, None), (1, Some(32)), (16, None), (16, Some(32))] {
        let setup = TierSetup {
            page_size,
            n_pages: 1024 / page_size as usize,
            chunk_tokens,
            buffers: 4,
            ..TierSetup::default()
        };
        let mut world = TierWorld::new(setup, Default::default());
        world.submit(prompt(1, 200, 0), 1);
        let mut world = world.restart();
        let number = world.submit(prompt(1, 200, 5), 2);
        world.assert_clean();
        let view = &world.views[number];
        assert_eq!((view.cached_tokens, view.loaded_tokens), (192, 192));
        // Of four buffers one is for saves; one block is fetched while another one is copied.
        assert_eq!(world.tier().fetches, 12);
        assert_eq!(world.written(), 0);
    }
}

/// A world whose store has six blocks of a prompt, of which each step loads two (a round). The first round is in a
/// step, and the second one is requested from the store.
fn in_rounds() -> (TierWorld, usize) {
    in_rounds_with(None)
}

fn in_rounds_with(chunk_tokens: Option<usize>) -> (TierWorld, usize) {
    let setup = TierSetup {
        blocks_per_load: 2,
        chunk_tokens,
        ..TierSetup::default()
    };
    let mut world = TierWorld::new(setup, Default::default());
    world.submit(prompt(1, 96, 0), 1);
    let mut world = world.restart();
    let number = world.submit(prompt(1, 96, 5), 3);
    world.answer();
    world.answer();
    assert_eq!((world.steps.len(), world.store.pending.len()), (1, 1));
    assert_eq!(world.tier().fetches, 2);
    (world, number)
}

#[test]
fn no_step_loads_more_than_the_configured_number_of_blocks() {
    let (mut world, number) = in_rounds();
    world.assert_clean();
    let view = &world.views[number];
    assert_eq!((view.cached_tokens, view.loaded_tokens), (96, 96));
    assert_eq!(world.tier().fetches, 3);
}

#[test]
fn other_requests_continue_between_two_rounds() {
    let (mut world, number) = in_rounds();
    let other = world.submit(prompt(2, 10, 0), 4);
    // The store answers no order in this loop.
    while world.end_step(Outcome::Done) {}
    assert!(world.views[other].end.is_some() && world.views[number].end.is_none());
    world.assert_clean();
    assert_eq!(world.views[number].loaded_tokens, 96);
}

#[test]
fn a_long_prompt_is_not_chunked_between_two_rounds_and_stops_no_other() {
    let (mut world, number) = in_rounds_with(Some(32));
    let long = world.submit(prompt(2, 100, 0), 4);
    let short = world.submit(prompt(3, 10, 0), 4);
    while world.end_step(Outcome::Done) {}
    assert!(world.views[short].end.is_some() && world.views[number].end.is_none());
    assert!(world.views[long].delivered.is_empty());
    // The next round is loaded while the long prompt could begin.
    world.answer();
    world.assert_clean();
    assert_eq!(world.views[number].loaded_tokens, 96);
}

#[test]
fn a_round_that_is_late_or_short_is_the_last() {
    for (limit, loaded) in [(0, 32), (1, 48)] {
        let (mut world, number) = in_rounds();
        world.answer_with(0, limit);
        world.assert_clean();
        let view = &world.views[number];
        assert_eq!((view.cached_tokens, view.loaded_tokens), (loaded, loaded));
        assert_eq!(world.tier().fetches, 2);
    }
}

#[test]
fn a_request_cancelled_between_two_rounds_leaks_no_buffer() {
    let (mut world, number) = in_rounds();
    world.cancel(number);
    world.assert_clean();
    assert!(world.views[number].delivered.is_empty());
    // The second round is in a step too, and the third is requested.
    let (mut world, number) = in_rounds();
    world.answer();
    world.cancel(number);
    world.assert_clean();
    assert!(world.views[number].delivered.is_empty());
}

#[test]
fn a_store_that_dies_between_two_rounds_leaves_the_rest_to_be_computed() {
    let (mut world, number) = in_rounds();
    world.kill_store();
    world.assert_clean();
    let view = &world.views[number];
    assert_eq!((view.loaded_tokens, view.delivered.len()), (32, 3));
}

#[test]
fn a_round_that_is_lost_is_computed() {
    for outcome in [Outcome::LostBeforeItRan, Outcome::LostAfterItRan] {
        let (mut world, number) = in_rounds();
        world.end_step(outcome);
        world.assert_clean();
        assert_eq!(world.views[number].delivered.len(), 3);
    }
}

#[test]
fn decode_steps_save_single_blocks_and_an_idle_engine_saves_more() {
    let mut world = TierWorld::new(TierSetup::default(), Default::default());
    world.submit(prompt(1, 96, 0), 20);
    world.answer();
    let mut most_saved = 0;
    while world.end_step(Outcome::Done) {
        let saves = world.steps.iter().filter_map(|step| {
            let copies = step.copies.as_ref()?;
            (!step.rows.is_empty()).then_some(copies.saves.len())
        });
        most_saved = most_saved.max(saves.max().unwrap_or(0));
    }
    assert_eq!(
        most_saved, 1,
        "the prompt's blocks are saved one by one during decodes"
    );
    world.assert_clean();
    assert_eq!(world.store.disk.blocks.len(), 115 / 16);
}
