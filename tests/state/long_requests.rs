//! Tests of the log of long-running requests, in virtual time.

use crate::scheduler_world::{Ask, Setup, World};

const EVERY_S: f64 = 30.0;

/// The phase and tokens of each request logged between two moments, and the number of requests left out.
fn logged(world: &World, since_s: f64, now_s: f64) -> (Vec<(&'static str, usize, usize)>, usize) {
    let scheduler = &world.states.scheduler;
    let (shown, others) = scheduler.long_requests((since_s, now_s), EVERY_S);
    let shown = shown.iter().map(|request| {
        assert_eq!((request.prompt_tokens, request.max_new_tokens), (40, 9));
        (
            request.phase,
            request.computed_tokens,
            request.output_tokens,
        )
    });
    (shown.collect(), others)
}

#[test]
fn a_request_is_logged_with_its_progress_once_in_each_period() {
    let mut world = World::new(Setup {
        n_rows: 1,
        n_pages: 600,
        chunk_tokens: Some(16),
        ..Setup::default()
    });
    world.submit(Ask::exactly(vec![1; 40], 9));
    assert_eq!(logged(&world, 0.0, 29.9), (vec![], 0));
    assert_eq!(logged(&world, 29.9, 30.0), (vec![("waiting", 0, 0)], 0));
    world.turn();
    assert_eq!(logged(&world, 30.0, 59.0), (vec![], 0), "once in a period");
    let (shown, _) = logged(&world, 59.0, 61.0);
    let [("prefilling", computed, 0)] = shown[..] else {
        panic!("{shown:?}")
    };
    assert!((16..40).contains(&computed), "{computed}");
    for _ in 0..4 {
        world.turn();
    }
    let (shown, _) = logged(&world, 61.0, 200.0);
    assert!(matches!(shown[..], [("decoding", 40.., 1..)]), "{shown:?}");
    world.drain();
    assert_eq!(logged(&world, 200.0, 500.0), (vec![], 0));
    world.assert_clean();
}

#[test]
fn a_full_queue_does_not_fill_the_log() {
    let mut world = World::new(Setup {
        n_rows: 1,
        n_pages: 600,
        ..Setup::default()
    });
    for token in 0..20 {
        world.submit(Ask::exactly(vec![token; 40], 9));
    }
    let (shown, others) = logged(&world, 0.0, 31.0);
    assert_eq!((shown.len(), others), (4, 16));
    world.drain();
    world.assert_clean();
}
