//! Tests of many requests that wait for room for their vectors: images are encoded in the order of the queue, and
//! requests that need no vectors, or have them, do not wait for those that have none.

use souffleur_state::scheduler::policy::PriorityOrder;

use super::prompts::Prompt;
use super::world::{Setup, World};
use crate::scheduler_world::Outcome;
use crate::tiers::store::Disk;

/// More than a plan has candidates.
const N_WAITING: usize = 260;
/// Vectors of the largest picture.
const MAX_VECTORS: usize = 101;

/// An engine with a request that holds vectors, then many of higher rank that find no room for theirs, then a text.
/// Nothing is planned between the last of them.
fn crowded() -> (World, usize, usize) {
    let setup = Setup {
        n_tokens: 1 << 14,
        n_rows: 16,
        priority: PriorityOrder::LargerFirst,
        max_vectors: MAX_VECTORS,
        ..Setup::default()
    };
    let mut world = World::new(setup, Disk::default());
    world.is_slow = true;
    let holds = world.submit_ranked(Prompt::new(0, 5, &[203], &[200]), 2, Some(0));
    assert_eq!(world.states.scheduler.wanted_vectors(), (MAX_VECTORS, 1));
    world.holds_plans = true;
    for number in 0..N_WAITING {
        // No two prompts have an image after the same text, which the cache would cover.
        let prompt = Prompt::new(0, 5 + number / 200, &[(number % 200) as u8], &[201]);
        world.submit_ranked(prompt, 2, Some(1));
    }
    let text = world.submit_ranked(Prompt::new(1, 20, &[], &[203]), 2, Some(0));
    world.holds_plans = false;
    world.plan();
    (world, holds, text)
}

#[test]
fn a_text_does_not_wait_for_requests_without_room() {
    let (mut world, _, text) = crowded();
    while world.end_step(Outcome::Done) {}
    assert!(world.views[text].end.is_some());
    assert!(world.tower.encoded.is_empty());
    world.assert_clean();
}

#[test]
fn requests_without_room_do_not_wait_for_a_holder_that_waits_for_them() {
    let (mut world, holds, text) = crowded();
    let mut most = 0;
    while world.tick() {
        let (wanted, _) = world.states.scheduler.wanted_vectors();
        most = most.max(wanted);
    }
    assert_eq!(most, MAX_VECTORS);
    world.assert_clean();
    // The holder asked first. Of the others, each began in its turn.
    let (first, others) = world.hand_out.starts.split_at(2);
    assert_eq!(first, [text, holds]);
    assert_eq!(others.len(), N_WAITING);
    assert!(others.is_sorted(), "{others:?}");
}
