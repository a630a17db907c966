//! Tests that requests of a program that embeds the engine count towards the server's admission limits.

use serde_json::json;
use souffleur::actors::messages::{CancelRequest, Generate};
use souffleur::request::{CancelFlag, Event, GenerateRequest, Prompt};
use souffleur::sink::EventSink;

use crate::http::post;
use crate::world::{World, block_on};

#[test]
fn a_request_of_an_embedding_program_counts_towards_the_queue_limit() {
    let world = World::with(|engine, _| engine.max_queued_requests = 1);
    let doors = world.engine().doors().expect("a live engine");
    let mut endless = GenerateRequest::new(Prompt::Tokens([7, 8].into()));
    endless.sampling.ignore_eos = true;
    endless.sampling.max_new_tokens = 60_000;
    let (rid, flag) = (endless.rid.clone(), CancelFlag::default());
    let (sink, mut events) = EventSink::channel(rid.clone(), 8, None);
    let generate = Generate::new(endless, sink, flag.clone());
    doors.generate.do_send(generate);
    let first = block_on(events.recv()).expect("an event");
    assert!(matches!(first, Event::Delta(_)), "{first:?}");
    let body = json!({"text": "hi", "sampling_params": {"max_new_tokens": 1}});
    let refused = post(world.addr, "/generate", &body);
    assert_eq!(refused.status, 503, "{}", refused.body);
    flag.raise();
    let flag = Some(flag);
    doors.cancel.do_send(CancelRequest { rid, flag });
    while !block_on(events.recv()).expect("an event").is_terminal() {}
    world.wait_until_idle();
    assert_eq!(post(world.addr, "/generate", &body).status, 200);
}
