//! Tests of `EngineHandle::shutdown`: running requests, the deadline, and later requests.

use std::time::Duration;

use futures_util::future::join_all;
use souffleur::error::RequestError;
use souffleur::request::{Event, GenerateRequest};

use super::doubles::notifying_parts;
use super::world::{Build, SHUTDOWN_DEADLINE, World, assert_finished, collect, request, within};

fn large() -> World {
    Build {
        context: 100_000,
        n_pages: 100_000,
        ..Build::default()
    }
    .start()
}

fn endless(seed: u64) -> GenerateRequest {
    let mut endless = request(&[1, 2, 3], 90_000, seed);
    endless.sampling.ignore_eos = true;
    endless
}

#[tokio::test]
async fn requests_sent_before_the_shutdown_are_finished() {
    let world = Build::default().start();
    let prompts: Vec<Vec<u32>> = (0..8)
        .map(|i| (1..40).map(|t| t * 5 + i).collect())
        .collect();
    let sent: Vec<_> = prompts
        .iter()
        .map(|prompt| world.generate(request(prompt, 50, 7)))
        .collect();
    world.stop().await;
    for (outcome, prompt) in join_all(sent.into_iter().map(collect))
        .await
        .iter()
        .zip(&prompts)
    {
        assert_finished(outcome, prompt, 50, 7);
    }
}

#[tokio::test]
async fn requests_past_the_deadline_are_cancelled() {
    let world = large();
    let mut begun = world.generate(endless(1));
    within(begun.next()).await.expect("an event");
    let just_sent = world.generate(endless(2));
    within(world.engine.shutdown(Duration::ZERO)).await;
    for generation in [begun, just_sent] {
        let end = collect(generation).await.end;
        assert!(matches!(end, Event::Cancelled(_)), "ended with {end:?}");
    }
}

#[tokio::test]
async fn no_request_is_admitted_after_a_shutdown() {
    let world = Build::default().start();
    assert!(world.engine.is_ready());
    let engine = world.engine.clone();
    world.stop().await;
    assert!(!engine.is_ready() && !engine.is_alive());
    assert_eq!(
        engine.generate(request(&[1], 1, 1)).err(),
        Some(RequestError::ShuttingDown)
    );
    assert_eq!(
        engine.stats().await.map_err(|error| error.code()),
        Err("engine_down")
    );
    within(engine.shutdown(Duration::from_secs(1))).await;
}

#[tokio::test]
async fn two_concurrent_shutdowns_both_return() {
    let world = Build::default().start();
    let prompt: Vec<u32> = (1..40).collect();
    let sent = world.generate(request(&prompt, 50, 7));
    let (one, other) = (world.engine.clone(), world.engine.clone());
    let shutdowns = [one, other].map(async |engine| engine.shutdown(SHUTDOWN_DEADLINE).await);
    within(join_all(shutdowns)).await;
    assert_finished(&collect(sent).await, &prompt, 50, 7);
}

#[tokio::test]
async fn a_shutdown_ends_the_executors_thread_before_it_returns() {
    let build = Build::default();
    let (parts, dropped) = notifying_parts(&build);
    let engine = souffleur::engine::Engine::start_with(build.config, parts);
    let world = World {
        engine: engine.expect("the engine starts"),
    };
    collect(world.generate(request(&[1, 2], 5, 1))).await;
    world.stop().await;
    assert!(dropped.try_recv().is_ok());
}
