//! Tests of hosts that send messages to an engine's actors through `Doors`.

use actix::MailboxError;
use souffleur::actors::messages::{Asked, Doors, Generate, GetStats, TokenEvent};
use souffleur::engine::Engine;
use souffleur::error::RequestError;
use souffleur::ids::RequestId;
use souffleur::request::{CancelFlag, Event, GenerateRequest};
use souffleur::sink::EventSink;
use tokio::sync::mpsc;

use super::doubles::{Fault, Probe, faulty_parts};
use super::world::{Build, World, collect, request, within};

fn no_permit(request: GenerateRequest) -> (Asked, mpsc::Receiver<Event>) {
    let (sink, events) = EventSink::channel(request.rid.clone(), 8, None);
    let cancel = CancelFlag::default();
    (
        Asked {
            request,
            sink,
            cancel,
        },
        events,
    )
}

fn send(doors: &Doors, request: GenerateRequest) -> mpsc::Receiver<Event> {
    let (asked, events) = no_permit(request);
    doors.generate.do_send(Generate::call(vec![asked]));
    events
}

async fn end(mut events: mpsc::Receiver<Event>) -> Event {
    loop {
        let event = within(events.recv()).await.expect("a terminal event comes");
        if event.is_terminal() {
            return event;
        }
    }
}

fn overloaded(what: &'static str, queued: usize, limit: usize) -> RequestError {
    RequestError::Overloaded {
        what,
        queued,
        limit,
    }
}

async fn assert_failed(events: mpsc::Receiver<Event>, expected: RequestError) {
    match end(events).await {
        Event::Failed(error) => assert_eq!(error, expected),
        other => panic!("ended with {other:?}"),
    }
}

#[tokio::test]
async fn a_request_through_the_doors_takes_a_permit() {
    let (hold, gate) = crossbeam_channel::unbounded();
    let mut build = Build {
        gate: Some(gate),
        ..Build::default()
    };
    build.config.max_queued_requests = 2;
    build.config.max_queued_tokens = 100;
    let world = build.start();
    let doors = world.engine.doors().expect("it runs");
    let prompt: Vec<u32> = (1..=60).collect();
    let first = send(&doors, request(&prompt, 5, 1));
    let too_many = send(&doors, request(&prompt, 5, 2));
    assert_failed(too_many, overloaded("prompt tokens", 60, 100)).await;
    let second = send(&doors, request(&[1, 2], 5, 3));
    let third = send(&doors, request(&[1, 2], 5, 4));
    assert_failed(third, overloaded("requests", 2, 2)).await;
    assert_eq!(world.engine.requests_inside(), 2);
    let refused = world.engine.generate(request(&[1, 2], 5, 5)).err();
    assert_eq!(refused, Some(overloaded("requests", 2, 2)));
    drop(hold);
    for events in [first, second] {
        assert!(matches!(end(events).await, Event::Finished(_)));
    }
    world.assert_no_leaks().await;
    assert_eq!(world.engine.requests_inside(), 0);
    world.engine.close_admission();
    let late = send(&doors, request(&[1, 2], 5, 6));
    assert_failed(late, RequestError::ShuttingDown).await;
    world.stop().await;
}

#[actix::test]
async fn requests_of_a_call_through_the_doors_are_submitted_in_their_order() {
    let world = Build {
        rows: 1,
        ..Build::default()
    }
    .start();
    let doors = world.engine.doors().expect("it runs");
    let one = request(&[1, 2, 3], 3, 7);
    let requests = (0..40).map(|i| {
        let mut sample = one.clone();
        sample.rid = RequestId::new(format!("sample-{i}"));
        sample
    });
    let (recipient, mut events) = Probe::<TokenEvent>::spawn();
    let asked = requests.map(|request| Asked {
        sink: EventSink::recipient(request.rid.clone(), recipient.clone(), None),
        request,
        cancel: CancelFlag::default(),
    });
    doors.generate.do_send(Generate::call(asked.collect()));
    let mut ended = Vec::new();
    while ended.len() < 40 {
        let TokenEvent { rid, event } = within(events.recv()).await.expect("an event");
        if event.is_terminal() {
            assert!(matches!(event, Event::Finished(_)), "{event:?}");
            ended.push(rid.to_string());
        }
    }
    let expected: Vec<String> = (0..40).map(|i| format!("sample-{i}")).collect();
    assert_eq!(ended, expected);
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn one_request_of_a_call_is_cancelled_alone() {
    let world = Build::default().start();
    let doors = world.engine.doors().expect("it runs");
    let one = request(&[1, 2, 3], 3, 7);
    let mut other = one.clone();
    other.rid = RequestId::new("other");
    let ((first, first_events), (second, second_events)) = (no_permit(one), no_permit(other));
    first.cancel.raise();
    doors.generate.do_send(Generate::call(vec![first, second]));
    assert!(matches!(end(first_events).await, Event::Cancelled(_)));
    assert!(matches!(end(second_events).await, Event::Finished(_)));
    world.assert_no_leaks().await;
    world.stop().await;
}

#[tokio::test]
async fn doors_of_dead_actors_are_closed_and_the_tokenizers_still_takes_requests() {
    let build = Build::default();
    let parts = faulty_parts(&build, 2, Fault::DeviceLost);
    let engine = Engine::start_with(build.config, parts).expect("the engine starts");
    let world = World { engine };
    let old = world.engine.doors().expect("it runs");
    assert!(old.are_open());
    let died = collect(world.generate(request(&[1, 2], 50, 7))).await;
    assert!(matches!(died.end, Event::Finished(_)));
    within(async {
        while !world.engine.is_ready() || old.are_open() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let finished = end(send(&old, request(&[1, 2], 5, 1))).await;
    assert!(matches!(finished, Event::Finished(_)), "{finished:?}");
    let asked = within(old.stats.send(GetStats)).await;
    assert!(matches!(asked, Err(MailboxError::Closed)));
    let new = world.engine.doors().expect("it runs again");
    assert!(new.are_open());
    let finished = end(send(&new, request(&[1, 2], 5, 1))).await;
    assert!(matches!(finished, Event::Finished(_)), "{finished:?}");
    world.assert_no_leaks().await;
    assert_eq!(world.engine.requests_inside(), 0);
    world.stop().await;
}

#[tokio::test]
async fn doors_of_a_stopped_engine_fail_requests_with_a_hint() {
    let world = Build::default().start();
    let old = world.engine.doors().expect("it runs");
    world.stop().await;
    match end(send(&old, request(&[1, 2], 5, 1))).await {
        Event::Failed(RequestError::EngineDown(text)) => {
            assert!(text.contains("EngineHandle::doors()"), "{text}");
        }
        other => panic!("ended with {other:?}"),
    }
}
