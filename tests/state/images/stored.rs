//! Tests of images whose K/V the KV store has, and then does not give: they are encoded.

use super::prompts::Prompt;
use super::world::{Setup, World};
use crate::scheduler_world::Outcome;
use crate::tiers::store::Disk;

/// A hundred tokens, of which the store has six blocks of 16. The image's last vector is at position 80.
fn pictured() -> Prompt {
    Prompt::new(1, 10, &[2], &[200; 18])
}

fn setup() -> Setup {
    Setup {
        buffers: 32,
        blocks_per_load: 2,
        ..Setup::default()
    }
}

/// An engine after a restart, whose store has [`pictured`].
fn with_stored(setup: Setup) -> World {
    let mut world = World::new(setup, Disk::default());
    world.submit(pictured(), 1);
    let world = world.restart();
    assert_eq!(world.store.disk.blocks.len(), 6);
    world
}

/// Runs until the store is asked for the second of the request's rounds.
fn until_second_round(world: &mut World) {
    while world.tier().fetches < 2 {
        let is_fetch = world.answer_fetch(usize::MAX);
        assert!(is_fetch || world.answer(0, usize::MAX) || world.end_step(Outcome::Done));
    }
}

/// Checks that the request was retracted once, and that its image was then encoded.
fn assert_encoded(world: &mut World, number: usize, loaded: u32) {
    world.assert_clean();
    let view = &world.views[number];
    assert_eq!((view.retractions, view.loaded_tokens), (1, loaded));
    assert_eq!(world.tower.encoded, [2]);
}

#[test]
fn an_image_in_the_store_is_not_encoded() {
    let mut world = with_stored(setup());
    let number = world.submit(pictured(), 3);
    world.assert_clean();
    let view = &world.views[number];
    assert_eq!((view.retractions, view.loaded_tokens), (0, 96));
    assert!(world.tower.encoded.is_empty());
}

/// Loads end with whole pages, and the last token of a prompt is always computed.
#[test]
fn an_image_that_ends_in_the_last_page_is_encoded_before_the_load() {
    // Six pages, the last of which has the image's last vector.
    let prompt = || Prompt::new(1, 10, &[2], &[200; 14]);
    let setup = Setup {
        page_size: 16,
        ..setup()
    };
    let mut world = World::new(setup, Disk::default());
    world.submit(prompt(), 1);
    let mut world = world.restart();
    assert_eq!(world.store.disk.blocks.len(), 6);
    let number = world.submit(prompt(), 3);
    world.assert_clean();
    assert_eq!(world.views[number].retractions, 0);
    assert_eq!(world.tower.encoded, [2]);
}

#[test]
fn an_image_is_encoded_if_a_later_round_comes_back_short() {
    for limit in [0, 1] {
        let mut world = with_stored(setup());
        let number = world.submit(pictured(), 3);
        until_second_round(&mut world);
        assert!(world.answer_fetch(limit));
        // The first round gave 32 tokens. Of the second one nothing is loaded.
        assert_encoded(&mut world, number, 32);
    }
}

#[test]
fn an_image_is_encoded_if_the_store_stops_with_a_later_round_in_memory() {
    let mut world = with_stored(setup());
    world.submit(Prompt::new(3, 20, &[], &[]), 60);
    let number = world.submit(pictured(), 3);
    until_second_round(&mut world);
    // With two steps in flight the second round is fetched, and no plan uses it before the store stops.
    assert_eq!(world.steps.len(), 2);
    assert!(world.answer_fetch(usize::MAX));
    assert_eq!(world.tier().ready_buffers, 4);
    world.kill_store();
    assert_encoded(&mut world, number, 32);
}

#[test]
fn an_image_is_encoded_if_the_store_stops_between_two_rounds() {
    for starts_again in [false, true] {
        let mut world = with_stored(setup());
        let number = world.submit(pictured(), 3);
        until_second_round(&mut world);
        world.kill_store();
        if starts_again {
            world.start_store_again();
        }
        assert_encoded(&mut world, number, 32);
    }
}

#[test]
fn an_image_is_encoded_if_memory_suffices_for_a_part_of_a_round() {
    let setup = Setup {
        page_size: 16,
        n_tokens: 14 * 16,
        ..setup()
    };
    let mut world = with_stored(setup);
    let stream = world.submit(Prompt::new(3, 20, &[], &[]), 150);
    while world.views[stream].delivered.is_empty() {
        assert!(world.tick());
    }
    let number = world.submit(pictured(), 3);
    until_second_round(&mut world);
    // The stream takes all pages but two. Since a part of its output is reserved, only one of them may be loaded.
    while world.free_pages() > 2 {
        assert!(world.end_step(Outcome::Done));
    }
    assert!(world.answer_fetch(usize::MAX));
    assert_encoded(&mut world, number, 32);
}
