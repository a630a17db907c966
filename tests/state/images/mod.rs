//! Tests of prompts with images in a whole engine without actors: the vectors that rows get, and the memory, tickets and
//! vectors that a request leaves in pools, tree, store and queue of images at its end: none.
//!
//! [`world`] checks every plan: each position of an image gets its own vector, once and in order, and no step computes
//! one without. [`chaos`] has random loads, and planted mistakes that the checks find.

mod chaos;
mod hand_out;
mod order;
mod prompts;
mod stored;
mod tower;
mod world;

use self::prompts::Prompt;
use self::world::{Setup, World};
use crate::scheduler_world::Outcome;
use crate::tiers::store::Disk;

fn engine(setup: Setup) -> World {
    World::new(setup, Disk::default())
}

/// Caches the first `cut` tokens of a prompt, and then runs the prompt.
fn check_cut(setup: Setup, prompt: &Prompt, cut: usize) {
    let mut world = engine(setup);
    world.submit(prompt.cut(cut), 1);
    world.drain();
    let number = world.submit(prompt.clone(), 3);
    world.assert_clean();
    let page_size = setup.page_size as usize;
    let reusable = cut.min(prompt.n_tokens() - 1);
    let cached = reusable - reusable % page_size;
    assert_eq!(world.views[number].cached_tokens as usize, cached, "{cut}");
    // Only images that the cache does not cover are encoded.
    assert_eq!(
        world.tower.encoded,
        prompt.pictures_after(cached),
        "{cut} tokens are cached"
    );
    let is_inside = prompt.is_inside(cached as u32);
    assert_eq!(world.hand_out.starts_inside, usize::from(is_inside));
}

#[test]
fn a_prefix_cached_up_to_any_token_of_an_image_continues_there() {
    let prompt = Prompt::new(1, 10, &[2, 1], &[200, 201, 202]);
    for chunk_tokens in [Some(16), None] {
        let setup = Setup {
            chunk_tokens,
            ..Setup::default()
        };
        for cut in 0..=prompt.n_tokens() {
            check_cut(setup, &prompt, cut);
        }
        let setup = Setup {
            page_size: 16,
            ..setup
        };
        for cut in (0..=prompt.n_tokens()).step_by(3) {
            check_cut(setup, &prompt, cut);
        }
    }
}

#[test]
fn a_prefix_cached_up_to_a_large_page_in_an_image_continues_there() {
    // The first page ends inside of the first image.
    let prompt = Prompt::new(1, 200, &[3, 2], &[200, 201, 202]);
    assert!(prompt.is_inside(256));
    for chunk_tokens in [Some(256), Some(4096), None] {
        let setup = Setup {
            page_size: 256,
            chunk_tokens,
            ..Setup::default()
        };
        for cut in (0..=prompt.n_tokens()).step_by(37) {
            check_cut(setup, &prompt, cut);
        }
    }
}

#[test]
fn a_prefill_that_is_retracted_inside_of_an_image_begins_anew() {
    let mut world = engine(Setup {
        n_tokens: 195,
        chunk_tokens: Some(16),
        conservativeness: 0.0,
        // The stream grows by eight tokens from one chunk to the next, until the pages are used up.
        decode_interval: 8,
        ..Setup::default()
    });
    let stream = world.submit(Prompt::new(2, 20, &[], &[]), 160);
    while world.views[stream].delivered.len() < 20 {
        assert!(world.tick());
    }
    let number = world.submit(Prompt::new(1, 10, &[3], &[200; 18]), 3);
    world.assert_clean();
    assert!(world.views[number].retractions > 0);
    assert!(world.hand_out.restarts_inside > 0);
    // The vectors were released with the first row, and nothing keeps them.
    assert!(world.tower.encoded.len() > 1, "{:?}", world.tower.encoded);
}

#[test]
fn a_step_that_is_lost_inside_of_an_image_is_computed_again() {
    for outcome in [Outcome::LostBeforeItRan, Outcome::LostAfterItRan] {
        for page_size in [1, 16] {
            let mut world = engine(Setup {
                page_size,
                chunk_tokens: Some(16),
                ..Setup::default()
            });
            let number = world.submit(Prompt::new(1, 10, &[3], &[200; 18]), 3);
            while world.hand_out.ends_inside < 3 {
                assert!(world.tick());
            }
            world.end_step(outcome);
            world.assert_clean();
            assert_eq!(world.views[number].delivered.len(), 3);
            assert!(world.hand_out.restarts_inside > 0);
        }
    }
}

/// Cancels a request after each number of events, while another one with the same images runs.
fn check_cancels(setup: Setup, n_text: usize) {
    let prompt = |question: u32| Prompt::new(1, n_text, &[2, 3], &[question; 18]);
    let mut is_over = false;
    for n_ticks in 0..1000 {
        // A store has the prompt up to a position in the second image.
        let mut before = engine(setup);
        before.submit(prompt(200).cut(n_text + 120), 1);
        let mut world = before.restart();
        world.is_slow = true;
        let cancelled = world.submit(prompt(201), 4);
        let shares = world.submit(prompt(202), 4);
        for _ in 0..n_ticks {
            world.tick();
        }
        is_over = world.views[cancelled].end.is_some();
        world.cancel(cancelled);
        world.assert_clean();
        assert_eq!(world.views[shares].delivered.len(), 4);
        if is_over {
            assert!(n_ticks > 10);
            break;
        }
    }
    assert!(is_over);
}

#[test]
fn requests_cancelled_at_any_stage_leave_nothing() {
    let sizes = [(1, Some(32), 10), (16, Some(64), 10), (256, None, 200)];
    for (page_size, chunk_tokens, n_text) in sizes {
        for buffers in [0, 32] {
            let setup = Setup {
                page_size,
                chunk_tokens,
                cache_bytes: 1 << 10,
                buffers,
                ..Setup::default()
            };
            check_cancels(setup, n_text);
        }
    }
}
