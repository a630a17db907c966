//! Tests of lookups in the prefix cache (`peek`) and pinned prefixes, through the engine's doors.

use std::sync::Arc;
use std::time::Duration;

use souffleur::actors::messages::{PeekPrefix, PinPrefix, PrefixPinned, UnpinPrefix};
use souffleur::error::{RequestError, StepError};
use souffleur::ids::{RequestId, StepId};
use souffleur::request::Event;
use souffleur::state::cache::namespace::Namespace;

use super::world::{Build, World, collect, request, within};

/// A pool that holds two of the prompts below, not three.
fn small() -> Build {
    Build {
        n_pages: 300,
        rows: 4,
        ..Build::default()
    }
}

/// A hundred tokens, of which the first is different for each number.
fn prompt(number: u32) -> Vec<u32> {
    (0..100)
        .map(|place| 1 + (number * 31 + place * 7) % 499)
        .collect()
}

async fn run(world: &World, prompt: &[u32]) {
    let outcome = collect(world.generate(request(prompt, 4, 1))).await;
    assert!(
        matches!(outcome.end, Event::Finished(_)),
        "{:?}",
        outcome.end
    );
    world.assert_no_leaks().await;
}

async fn peek(world: &World, tokens: &[u32]) -> usize {
    let doors = world.engine.doors().expect("the engine lives");
    let query = PeekPrefix {
        namespace: Namespace::default(),
        tokens: tokens.into(),
    };
    within(doors.peek.send(query))
        .await
        .expect("the cache answers")
}

async fn pin(world: &World, tokens: &[u32], ttl_s: u32) -> Result<PrefixPinned, RequestError> {
    let doors = world.engine.doors().expect("the engine lives");
    let tokens: Arc<[u32]> = tokens.into();
    let pin = PinPrefix {
        namespace: Namespace::default(),
        tokens,
        ttl_s,
    };
    within(doors.pin.send(pin))
        .await
        .expect("the scheduler answers")
}

async fn unpin(world: &World, pin: u64) -> bool {
    let doors = world.engine.doors().expect("the engine lives");
    within(doors.unpin.send(UnpinPrefix { pin }))
        .await
        .expect("the scheduler answers")
}

#[tokio::test]
async fn a_peek_changes_nothing() {
    let world = small().start();
    run(&world, &prompt(1)).await;
    run(&world, &prompt(2)).await;
    let before = world.engine.stats().await.expect("stats");
    assert_eq!(peek(&world, &prompt(1)).await, 100);
    assert_eq!(peek(&world, &prompt(1)[..50]).await, 50);
    assert_eq!(peek(&world, &prompt(3)).await, 0);
    let other = Namespace::new(Some("other"), None);
    let elsewhere = world.engine.peek_prefix(other, prompt(1).into()).await;
    assert_eq!(elsewhere, Ok(0));
    assert_eq!(world.engine.stats().await.expect("stats"), before);
    // If the peeks had touched the first prompt, the second would now be the least recently used.
    run(&world, &prompt(3)).await;
    assert!(peek(&world, &prompt(1)).await < 100);
    assert_eq!(peek(&world, &prompt(2)).await, 100);
    world.stop().await;
}

#[tokio::test]
async fn a_pinned_prefix_outlives_more_recent_ones() {
    let world = small().start();
    run(&world, &prompt(1)).await;
    let pinned = pin(&world, &prompt(1), 3600)
        .await
        .expect("the limit of pins is not reached");
    assert_eq!(pinned.tokens, 100);
    for number in 2..8 {
        run(&world, &prompt(number)).await;
    }
    assert_eq!(peek(&world, &prompt(1)).await, 100);
    assert!(unpin(&world, pinned.pin).await);
    assert!(!unpin(&world, pinned.pin).await);
    for number in 8..12 {
        run(&world, &prompt(number)).await;
    }
    assert!(peek(&world, &prompt(1)).await < 100);
    let stats = world.assert_no_leaks().await;
    assert_eq!((stats.pins, stats.protected_tokens), (0, 0));
    world.stop().await;
}

/// Computes the first prompt again after the tree was flushed, and checks that the pin then keeps it.
async fn check_pinned_again(world: &World, pin: u64) {
    assert_eq!(peek(world, &prompt(1)).await, 0, "the tree was not flushed");
    assert_eq!(world.engine.stats().await.expect("stats").pins, 1);
    for number in 1..8 {
        run(world, &prompt(number)).await;
    }
    assert_eq!(peek(world, &prompt(1)).await, 100);
    assert!(unpin(world, pin).await);
    assert!(!unpin(world, pin).await);
    world.until(|stats| stats.protected_tokens == 0).await;
    assert_eq!(world.assert_no_leaks().await.pins, 0);
}

#[tokio::test]
async fn a_pin_outlives_a_death_and_its_number_is_not_assigned_again() {
    let mut build = small();
    let spec = "actor=scheduler,kind=panic,message=Submit,rid=kill,count=1";
    build.config.chaos = vec![spec.parse().expect("a valid spec")];
    let world = build.start();
    run(&world, &prompt(1)).await;
    let first = pin(&world, &prompt(1), 3600)
        .await
        .expect("the limit of pins is not reached");
    let mut killer = request(&[1, 2], 4, 1);
    killer.rid = RequestId::new("kill");
    let outcome = collect(world.generate(killer)).await;
    assert!(matches!(outcome.end, Event::Finished(_)));
    assert_eq!(world.engine.unit_status().generation, 2);
    let second = pin(&world, &prompt(2), 3600)
        .await
        .expect("the limit of pins is not reached");
    assert!(second.pin > first.pin, "{second:?} after {first:?}");
    assert!(unpin(&world, second.pin).await);
    check_pinned_again(&world, first.pin).await;
    world.stop().await;
}

#[tokio::test]
async fn a_pin_outlives_a_lost_step() {
    let lost = StepError::Lost("as the test requires".to_owned());
    let build = Build {
        // After the steps of the first request, which are four to six.
        faults: vec![(StepId::new(12), lost)],
        ..small()
    };
    let world = build.start();
    run(&world, &prompt(1)).await;
    let pinned = pin(&world, &prompt(1), 3600)
        .await
        .expect("the limit of pins is not reached");
    assert_eq!(pinned.tokens, 100);
    for number in 2..6 {
        run(&world, &prompt(number)).await;
    }
    check_pinned_again(&world, pinned.pin).await;
    world.stop().await;
}

#[tokio::test]
async fn a_pin_ends_when_its_time_has_passed() {
    let world = small().start();
    run(&world, &prompt(1)).await;
    let pinned = pin(&world, &prompt(1), 0)
        .await
        .expect("the limit of pins is not reached");
    within(async {
        while world.engine.stats().await.expect("stats").protected_tokens > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    assert_eq!(world.assert_no_leaks().await.pins, 0);
    assert!(!unpin(&world, pinned.pin).await);
    world.stop().await;
}

#[tokio::test]
async fn a_pin_above_the_limit_is_refused() {
    let mut build = small();
    build.config.max_pins = 1;
    let world = build.start();
    run(&world, &prompt(1)).await;
    let first = pin(&world, &prompt(1), 3600)
        .await
        .expect("the limit of pins is not reached");
    let overloaded = RequestError::Overloaded {
        what: "pins",
        queued: 1,
        limit: 1,
    };
    assert_eq!(pin(&world, &prompt(1), 3600).await, Err(overloaded));
    assert!(unpin(&world, first.pin).await);
    assert!(pin(&world, &prompt(1), 3600).await.is_ok());
    world.stop().await;
}

#[tokio::test]
async fn a_prefix_that_is_not_cached_pins_nothing() {
    let world = small().start();
    let pinned = pin(&world, &prompt(1), 3600)
        .await
        .expect("the limit of pins is not reached");
    assert_eq!(pinned.tokens, 0);
    run(&world, &prompt(1)).await;
    assert!(unpin(&world, pinned.pin).await);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn an_idle_engine_revokes_pins_before_it_refuses_a_request() {
    let world = small().start();
    run(&world, &prompt(1)).await;
    let pinned = pin(&world, &prompt(1), 3600)
        .await
        .expect("the limit of pins is not reached");
    let large: Vec<u32> = (0..240).map(|place| 1 + (place * 11) % 499).collect();
    run(&world, &large).await;
    assert_eq!(world.assert_no_leaks().await.pins, 0);
    assert!(!unpin(&world, pinned.pin).await);
    world.stop().await;
}
