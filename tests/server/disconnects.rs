//! Tests of clients that disconnect: in any state, their requests end, and no page of the pool is lost.

use std::net::{Shutdown, TcpStream};

use serde_json::{Value, json};

use crate::http::{open, stream};
use crate::world::World;

/// More tokens than any test generates.
const ENDLESS: usize = 60_000;

fn endless(stream: bool) -> Value {
    let sampling = json!({"max_new_tokens": ENDLESS, "ignore_eos": true});
    json!({"text": "a", "stream": stream, "sampling_params": sampling})
}

#[track_caller]
fn check_ends_early(world: &World) {
    world.wait_until_idle();
    assert!(world.stats().steps < ENDLESS as u64, "not cancelled early");
}

#[test]
fn a_stream_without_its_reader_is_cancelled_in_decode() {
    let world = World::new();
    let mut events = stream(world.addr, "/generate", &endless(true));
    events.next_json();
    drop(events);
    check_ends_early(&world);
}

#[test]
fn a_chat_stream_without_its_reader_is_cancelled() {
    let world = World::new();
    let call = json!({
        "messages": [{"role": "user", "content": "hi"}], "stream": true, "ignore_eos": true, "n": 3,
    });
    let mut events = stream(world.addr, "/v1/chat/completions", &call);
    for _ in 0..6 {
        events.next_json();
    }
    drop(events);
    check_ends_early(&world);
}

#[test]
fn a_request_that_is_not_streamed_is_cancelled_in_decode_without_its_client() {
    let world = World::new();
    let client = open(world.addr, "/generate", &endless(false));
    world.wait_until("the request decodes", |stats| stats.steps > 3);
    drop(client);
    check_ends_early(&world);
}

#[test]
fn a_half_closed_connection_counts_as_disconnected() {
    let world = World::new();
    let client = open(world.addr, "/generate", &endless(false));
    world.wait_until("the request decodes", |stats| stats.steps > 3);
    client
        .shutdown(Shutdown::Write)
        .expect("the connection is open");
    check_ends_early(&world);
}

#[test]
fn a_request_without_its_client_is_cancelled_in_prefill() {
    const PROMPT_TOKENS: u32 = 60_000;
    const CHUNK_TOKENS: u32 = 16;
    let world = World::with(|engine, _| engine.chunked_prefill_size = CHUNK_TOKENS.into());
    let prompt: Vec<u32> = (0..PROMPT_TOKENS).map(|index| 2 + index % 250).collect();
    let sampling = json!({"max_new_tokens": 4});
    let call = json!({"input_ids": prompt, "sampling_params": sampling});
    let client = open(world.addr, "/generate", &call);
    world.wait_until("the request prefills", |stats| stats.steps > 2);
    drop(client);
    world.wait_until_idle();
    assert!(
        world.stats().steps < u64::from(PROMPT_TOKENS / CHUNK_TOKENS),
        "the prompt was prefilled to its end"
    );
}

#[test]
fn queued_requests_without_their_clients_leave_the_queue() {
    let world = World::with(|engine, _| engine.max_running_requests = Some(1));
    let mut running = stream(world.addr, "/generate", &endless(true));
    running.next_json();
    let queued: Vec<TcpStream> = [true, false]
        .map(|stream| open(world.addr, "/generate", &endless(stream)))
        .into();
    world.wait_until("both requests wait", |stats| stats.waiting_requests == 2);
    drop(queued);
    world.wait_until("no request waits", |stats| stats.waiting_requests == 0);
    running.next_json();
    drop(running);
    check_ends_early(&world);
}

#[test]
fn a_client_that_does_not_read_is_cancelled_and_gets_the_error_when_it_reads() {
    let world = World::with(|engine, _| {
        engine.client_channel_events = 4;
        engine.client_backlog_bytes = 1000;
    });
    let mut events = stream(world.addr, "/generate", &endless(true));
    // Socket buffers hold a few megabytes; chunks that repeat all text so far soon fill them.
    check_ends_early(&world);
    let mut last = events.next_json();
    while let Some(data) = events.next_data().filter(|data| data != "[DONE]") {
        last = serde_json::from_str(&data).expect("data is JSON");
    }
    assert_eq!(last["error"]["code"], "slow_client");
}
