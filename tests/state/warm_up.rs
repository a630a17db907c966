//! Tests of warm-up requests, which generate nothing: their prompt is computed and stays in the tree.

use souffleur_request::FinishReason;
use souffleur_state::scheduler::news::RequestEnd;

use crate::scheduler_world::{Ask, End, Setup, World};

fn check(setup: Setup, cached: u32) {
    let mut world = World::new(setup);
    let prompt: Vec<u32> = (1..=50).collect();
    let warm_up = Ask {
        max_new_tokens: 0,
        prompt: prompt.clone(),
        ..Ask::default()
    };
    world.submit(warm_up.clone());
    world.drain();
    let end = RequestEnd::Finished(FinishReason::Length { max_new_tokens: 0 });
    assert_eq!(world.views[0].end, Some(End::Reported(end.clone())));
    assert!(world.views[0].delivered.is_empty());
    let mut rows = world.history.iter().flat_map(|step| &step.rows);
    assert!(rows.all(|row| !row.sample), "nothing is sampled");
    // A second warm-up finds the prompt in the cache, and so does a request that generates.
    world.submit(warm_up);
    world.drain();
    assert_eq!(world.views[1].cached_tokens, cached);
    assert_eq!(world.views[1].end, Some(End::Reported(end)));
    world.submit(Ask::exactly(prompt, 5));
    world.drain();
    assert_eq!(world.views[2].cached_tokens, cached);
    world.assert_clean();
}

#[test]
fn a_warm_up_leaves_its_prompt_in_the_tree_and_generates_nothing() {
    check(Setup::default(), 49);
}

#[test]
fn a_warm_up_in_chunks_and_pages_leaves_its_prompt_in_the_tree() {
    let setup = Setup {
        page_size: 4,
        n_pages: 64,
        chunk_tokens: Some(16),
        ..Setup::default()
    };
    check(setup, 48);
}

#[test]
fn warm_ups_run_together_with_requests_that_generate() {
    let mut world = World::new(Setup::default());
    let prompt = |family: u32| (0..30).map(|at| family * 30 + at).collect::<Vec<u32>>();
    for family in 0..6 {
        let max_new_tokens = if family % 2 == 0 { 0 } else { 12 };
        world.submit(Ask {
            max_new_tokens,
            ..Ask::exactly(prompt(family), max_new_tokens)
        });
        world.turn();
    }
    world.drain();
    let delivered = world.views.iter().map(|view| view.delivered.len());
    assert_eq!(delivered.collect::<Vec<_>>(), [0, 12, 0, 12, 0, 12]);
    world.assert_clean();
}
