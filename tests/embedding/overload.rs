//! Tests of more requests than the engine admits at once.

use souffleur::error::RequestError;
use souffleur::request::Event;

use super::world::{Build, collect, request};

#[tokio::test]
async fn a_request_above_the_limit_is_refused_at_admission() {
    let (hold, gate) = crossbeam_channel::unbounded();
    let mut build = Build {
        gate: Some(gate),
        ..Build::default()
    };
    build.config.max_queued_requests = 3;
    let world = build.start();
    let admitted: Vec<_> = (0..3)
        .map(|seed| world.generate(request(&[1, 2], 5, seed)))
        .collect();
    let refused = world.engine.generate(request(&[1, 2], 5, 9)).err();
    assert_eq!(
        refused,
        Some(RequestError::Overloaded {
            what: "requests",
            queued: 3,
            limit: 3
        })
    );
    drop(hold);
    for generation in admitted {
        assert!(matches!(collect(generation).await.end, Event::Finished(_)));
    }
    world.assert_no_leaks().await;
    assert_eq!(world.engine.requests_inside(), 0);
    world.stop().await;
}

#[tokio::test]
async fn requests_of_one_call_are_refused_together() {
    let mut build = Build::default();
    build.config.max_queued_requests = 2;
    let world = build.start();
    let requests = |n: u64| (0..n).map(|seed| request(&[1, 2], 1, seed)).collect();
    let overloaded = RequestError::Overloaded {
        what: "requests",
        queued: 2,
        limit: 2,
    };
    // If requests were admitted one by one, each could end before the next one, and none would be refused.
    for _ in 0..20 {
        let refused = world.engine.generate_all(requests(3)).err();
        assert_eq!(refused.as_ref(), Some(&overloaded));
        assert_eq!(world.engine.requests_inside(), 0);
    }
    assert_eq!(world.engine.stats().await.expect("it runs").steps, 0);
    let both = world.engine.generate_all(requests(2)).expect("two fit");
    for generation in both {
        assert!(matches!(collect(generation).await.end, Event::Finished(_)));
    }
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn a_permit_is_returned_before_the_terminal_event_is_sent() {
    let mut build = Build::default();
    build.config.max_queued_requests = 1;
    let world = build.start();
    for seed in 0..200 {
        let outcome = collect(world.generate(request(&[1, 2], 2, seed))).await;
        assert!(matches!(outcome.end, Event::Finished(_)));
    }
    world.stop().await;
}

#[tokio::test]
async fn prompt_tokens_above_the_limit_are_refused() {
    let (hold, gate) = crossbeam_channel::unbounded();
    let mut build = Build {
        gate: Some(gate),
        ..Build::default()
    };
    build.config.max_queued_tokens = 100;
    let world = build.start();
    let prompt: Vec<u32> = (1..=60).collect();
    let first = world.generate(request(&prompt, 5, 1));
    let overloaded = RequestError::Overloaded {
        what: "prompt tokens",
        queued: 60,
        limit: 100,
    };
    let second = world.engine.generate(request(&prompt, 5, 2));
    assert_eq!(second.err(), Some(overloaded));
    let short = world.generate(request(&[1, 2], 5, 3));
    drop(hold);
    for generation in [first, short] {
        assert!(matches!(collect(generation).await.end, Event::Finished(_)));
    }
    let again = collect(world.generate(request(&prompt, 5, 2))).await;
    assert!(matches!(again.end, Event::Finished(_)));
    world.assert_no_leaks().await;
    world.stop().await;
}
