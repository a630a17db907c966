//! Tests of clients that disconnect from an embedded engine.

use std::time::Duration;

use souffleur::request::{Event, GenerateRequest};
use souffleur::state::scheduler::stats::EngineStats;

use super::doubles::Probe;
use super::world::{Build, World, collect, request, within};

fn large() -> Build {
    Build {
        context: 100_000,
        n_pages: 100_000,
        ..Build::default()
    }
}

/// An engine that waits before each step until the sender sends or is dropped.
fn gated() -> (World, crossbeam_channel::Sender<()>) {
    let (pass, gate) = crossbeam_channel::unbounded();
    let build = Build {
        gate: Some(gate),
        ..large()
    };
    (build.start(), pass)
}

fn endless(seed: u64) -> GenerateRequest {
    let mut endless = request(&[1, 2, 3], 20_000, seed);
    endless.sampling.ignore_eos = true;
    endless
}

/// Polls, since no event reports that the engine has become idle.
async fn wait_until(world: &World, condition: impl Fn(&EngineStats) -> bool) -> EngineStats {
    within(async {
        loop {
            let stats = world.engine.stats().await.expect("the engine lives");
            if condition(&stats) {
                return stats;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

#[tokio::test]
async fn dropped_generations_free_their_memory() {
    let world = large().start();
    let mut begun = world.generate(endless(1));
    within(begun.next()).await.expect("an event");
    // The first request runs when it is dropped; most of the others are dropped before their first step.
    drop(begun);
    for seed in 2..40 {
        drop(world.generate(endless(seed)));
    }
    // The message that this call sends is queued after those of the dropped requests.
    world.assert_no_leaks().await;
    wait_until(&world, |_| world.engine.requests_inside() == 0).await;
    let outcome = collect(world.generate(request(&[4, 5, 6], 20, 7))).await;
    assert!(matches!(outcome.end, Event::Finished(_)));
    world.stop().await;
}

#[tokio::test]
async fn a_cancelled_generation_still_ends_once() {
    let (world, pass) = gated();
    let mut generation = world.generate(endless(1));
    pass.send(()).expect("the executor lives");
    within(generation.next()).await.expect("an event");
    generation.cancel();
    generation.cancel();
    drop(pass);
    let mut ends = 0;
    while let Some(event) = within(generation.next()).await {
        ends += usize::from(event.is_terminal());
        assert!(
            matches!(event, Event::Delta(_) | Event::Cancelled(_)),
            "{event:?}"
        );
    }
    assert_eq!(ends, 1);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[actix::test]
async fn a_request_is_cancelled_when_the_actor_that_listens_has_stopped() {
    use actix::{Actor, ActorContext, Context, Handler};
    use souffleur::actors::messages::TokenEvent;

    struct Stopping;
    impl Actor for Stopping {
        type Context = Context<Self>;
    }
    impl Handler<TokenEvent> for Stopping {
        type Result = ();
        fn handle(&mut self, _: TokenEvent, ctx: &mut Context<Self>) {
            ctx.stop();
        }
    }
    let (world, pass) = gated();
    let listener = Stopping.start();
    world
        .engine
        .generate_to(endless(1), listener.clone().recipient())
        .expect("it is admitted");
    pass.send(()).expect("the executor lives");
    wait_until(&world, |_| !listener.connected()).await;
    // The next token has no receiver.
    pass.send(()).expect("the executor lives");
    wait_until(&world, |_| world.engine.requests_inside() == 0).await;
    drop(pass);
    let stats = wait_until(&world, EngineStats::is_idle_and_whole).await;
    assert!(stats.steps < 15_000, "ran to its end: {stats:?}");
    world.stop().await;
}

#[actix::test]
async fn a_request_to_an_actor_is_cancelled_before_the_engine_has_handled_it() {
    let (world, pass) = gated();
    let (listener, mut events) = Probe::spawn();
    let sent = world.engine.generate_to(endless(1), listener.clone());
    let canceller = sent.expect("it is admitted");
    canceller.cancel();
    drop(pass);
    let end = within(async {
        loop {
            let event: souffleur::actors::messages::TokenEvent =
                events.recv().await.expect("a terminal event comes first");
            if event.event.is_terminal() {
                return event;
            }
        }
    })
    .await;
    assert_eq!(&end.rid, canceller.rid());
    assert!(matches!(end.event, Event::Cancelled(_)), "{end:?}");
    world.assert_no_leaks().await;
    world.stop().await;
}
