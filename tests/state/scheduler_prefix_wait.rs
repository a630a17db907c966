//! Tests that requests that arrive together compute their shared prefix only once.

use crate::scheduler_world::{Ask, Setup, VOCAB, World};

const N_REQUESTS: u32 = 16;
const SHARED_TOKENS: usize = 512;

fn asks() -> impl Iterator<Item = Ask> {
    let shared: Vec<u32> = (0..SHARED_TOKENS as u32)
        .map(|at| (at * 5 + at / 7) % VOCAB)
        .collect();
    (0..N_REQUESTS).map(move |number| {
        let mut prompt = shared.clone();
        // The prompts differ in the first token after the prefix.
        prompt.extend([number, 1, 2, number]);
        Ask::exactly(prompt, 3)
    })
}

fn run(page_size: u32, prefix_wait: bool) -> World {
    let mut world = World::new(Setup {
        page_size,
        n_pages: 16384 / page_size,
        n_rows: N_REQUESTS,
        prefix_wait,
        ..Setup::default()
    });
    // Submitted one by one, the first request would be planned before the others arrive.
    let mut asks = asks();
    world.submit_all(&mut asks);
    world.assert_clean();
    world
}

#[test]
fn all_but_one_of_sixteen_report_the_shared_prefix_as_cached() {
    for page_size in [1, 4, 16, 64] {
        let world = run(page_size, true);
        let page = page_size as usize;
        let common = (SHARED_TOKENS - SHARED_TOKENS % page) as u32;
        let cached: Vec<u32> = world.views.iter().map(|view| view.cached_tokens).collect();
        let n_cached = cached.iter().filter(|cached| **cached == common).count();
        assert_eq!(n_cached, 15, "page size {page_size}: {cached:?}");
        assert_eq!(cached[0], 0);
        // The first step prefills one whole prompt, the second the remaining tokens of the others.
        assert_eq!(world.history[0].rows.len(), 1);
        assert_eq!(world.history[1].rows.len(), 15);
    }
}

#[test]
fn without_the_wait_all_sixteen_are_computed_at_once() {
    let world = run(16, false);
    assert_eq!(world.history[0].rows.len(), 16);
    assert!(world.views.iter().all(|view| view.cached_tokens == 0));
}
