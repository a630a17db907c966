//! Tests of `/v1/responses` over a WebSocket. Requests with the same `stream_id` form a lane.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use futures_util::SinkExt;
use serde_json::{Value, json};
use souffleur::server::ServerConfig;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::http::get;
use crate::responses::check_order;
use crate::websocket::Client;
use crate::world::{World, block_on};

const PATH: &str = "/v1/responses";
/// More tokens than any test generates.
const ENDLESS: u32 = 60_000;

async fn connect(addr: SocketAddr) -> Client {
    let connected = Client::connect_to(addr, PATH, None).await;
    connected.unwrap_or_else(|error| panic!("{error}"))
}

fn create(input: &str) -> Value {
    json!({"type": "response.create", "input": input})
}

fn endless(lane: &str) -> Value {
    json!({
        "type": "response.create", "input": "x", "ignore_eos": true, "stream_id": lane, "rid": lane,
        "max_output_tokens": ENDLESS,
    })
}

fn is_terminal(event: &Value) -> bool {
    let ends = [
        "response.completed",
        "response.incomplete",
        "response.failed",
    ];
    ends.iter().any(|end| event["type"] == *end)
}

/// Reads the next response, and checks the order of its events.
async fn response(client: &mut Client) -> Value {
    let mut events = Vec::new();
    loop {
        let event = client.json().await;
        assert_ne!(event["type"], "error", "{event}");
        let is_over = is_terminal(&event);
        events.push(event);
        if is_over {
            break;
        }
    }
    check_order(&events);
    assert!(events.iter().all(|event| event.get("stream_id").is_none()));
    events.pop().expect("an event")["response"].take()
}

async fn ask(client: &mut Client, frame: Value) -> Value {
    client.send(frame).await;
    response(client).await
}

async fn refused(client: &mut Client, frame: Value, status: u16, code: &str) -> Value {
    client.send(frame).await;
    let error = client.json().await;
    assert_eq!(error["type"], "error", "{error}");
    assert_eq!(
        (&error["status"], &error["status_code"]),
        (&json!(status), &json!(status))
    );
    assert_eq!(error["error"]["code"], code, "{error}");
    error
}

fn scripted_world() -> World {
    World::scripted(&[("hello", "Hello to you."), ("bye", "Good bye.")])
}

fn text(response: &Value) -> Option<&str> {
    response["output"][0]["content"][0]["text"].as_str()
}

#[test]
fn responses_of_one_lane_come_in_order_with_one_terminal_event_each() {
    let world = scripted_world();
    block_on(async {
        let mut client = connect(world.addr).await;
        for input in ["hello", "bye", "hello"] {
            client.send(create(input)).await;
        }
        for expected in ["Hello to you.", "Good bye.", "Hello to you."] {
            assert_eq!(text(&response(&mut client).await), Some(expected));
        }
        let mut other = Client::connect_to(world.addr, "/responses", None)
            .await
            .expect("a connection");
        // The answer is a stream, even if the request sets `stream` to false.
        let mut frame = create("bye");
        frame["stream"] = false.into();
        assert_eq!(text(&ask(&mut other, frame).await), Some("Good bye."));
    });
    world.wait_until_idle();
}

#[test]
fn lanes_are_answered_concurrently_and_named_in_every_event() {
    let world = World::with(|_, server| server.ws_active_lanes = 2);
    block_on(async {
        let mut client = connect(world.addr).await;
        for lane in ["a", "b", "c"] {
            client.send(endless(lane)).await;
        }
        let mut seen: BTreeMap<String, u64> = BTreeMap::new();
        while seen.len() < 2 || seen.values().any(|events| *events < 5) {
            let event = client.json().await;
            let lane = event["stream_id"].as_str().expect("a lane").to_owned();
            let events = seen.entry(lane).or_default();
            assert_eq!(
                event["sequence_number"], *events,
                "the sequence numbers of a lane have no gaps"
            );
            *events += 1;
        }
        assert_eq!(seen.keys().collect::<Vec<_>>(), ["a", "b"]);
        // An abort by request id lets the waiting lane start.
        let addr = world.addr;
        let abort = move || crate::http::post(addr, "/abort_request", &json!({"rid": "a"})).ok();
        tokio::task::spawn_blocking(abort).await.expect("an answer");
        let mut failed = 0;
        loop {
            let event = client.json().await;
            failed += usize::from(event["type"] == "response.failed");
            if event["stream_id"] == "c" {
                break;
            }
        }
        assert_eq!(failed, 1);
    });
    // The connection is closed, which cancels its requests.
    world.wait_until_idle();
    assert!(world.stats().steps < u64::from(ENDLESS));
}

#[test]
fn a_conversation_continues_although_nothing_is_stored() {
    let world = scripted_world();
    block_on(async {
        let mut client = connect(world.addr).await;
        let unstored = |mut frame: Value| {
            frame["store"] = false.into();
            frame
        };
        let first = ask(&mut client, unstored(create("hello"))).await;
        let id = first["id"].as_str().expect("an id").to_owned();
        let mut next = unstored(create("bye"));
        next["previous_response_id"] = id.as_str().into();
        let second = ask(&mut client, next.clone()).await;
        assert_eq!(text(&second), Some("Good bye."));
        let computed = first["usage"]["total_tokens"].as_u64().expect("a number") - 1;
        assert_eq!(
            second["usage"]["input_tokens_details"]["cached_tokens"],
            computed
        );
        // No other client can read the response.
        let path = format!("{PATH}/{id}");
        let addr = world.addr;
        let found = tokio::task::spawn_blocking(move || get(addr, &path).status);
        assert_eq!(found.await.expect("an answer"), 404);
        let mut stranger = connect(world.addr).await;
        refused(
            &mut stranger,
            next.clone(),
            400,
            "previous_response_not_found",
        )
        .await;
        // A failure on another lane keeps the response; a failure on the response's lane drops the response.
        let mut wrong = next.clone();
        wrong["background"] = true.into();
        wrong["stream_id"] = "fork".into();
        let error = refused(&mut client, wrong.clone(), 400, "not_supported").await;
        assert_eq!(error["stream_id"], "fork");
        assert_eq!(
            text(&ask(&mut client, next.clone()).await),
            Some("Good bye.")
        );
        wrong
            .as_object_mut()
            .expect("an object")
            .shift_remove("stream_id");
        let error = refused(&mut client, wrong, 400, "not_supported").await;
        assert_eq!(error.get("stream_id"), None);
        refused(&mut client, next, 400, "previous_response_not_found").await;
    });
    world.wait_until_idle();
}

#[test]
fn a_warm_up_fills_the_cache_and_generates_nothing() {
    let world = scripted_world();
    block_on(async {
        let mut client = connect(world.addr).await;
        for option in [
            json!({"generate": false}),
            json!({"prompt_cache_options": {"prewarm": true}}),
        ] {
            let mut warm = json!({
                "type": "response.create", "instructions": "Be brief, be kind.", "input": [], "store": false,
            });
            let fields = warm.as_object_mut().expect("an object");
            fields.extend(option.as_object().expect("an object").clone());
            let warm = ask(&mut client, warm).await;
            assert_eq!(
                (&warm["status"], &warm["output"]),
                (&json!("completed"), &json!([]))
            );
            assert_eq!(warm["usage"]["output_tokens"], 0);
            let mut next = create("hello");
            next["instructions"] = "Be brief, be kind.".into();
            next["previous_response_id"] = warm["id"].clone();
            let answer = ask(&mut client, next).await;
            assert_eq!(text(&answer), Some("Hello to you."));
            let cached = answer["usage"]["input_tokens_details"]["cached_tokens"].as_u64();
            assert!(cached >= warm["usage"]["input_tokens"].as_u64(), "{answer}");
        }
    });
    world.wait_until_idle();
}

#[test]
fn a_request_that_fails_after_it_started_has_one_terminal_event() {
    let world = World::scripted_with(&[], |engine, _| engine.max_total_tokens = Some(512));
    block_on(async {
        let mut client = connect(world.addr).await;
        client.send(create(&"word ".repeat(2000))).await;
        assert_eq!(client.json().await["type"], "response.created");
        assert_eq!(client.json().await["type"], "response.in_progress");
        let failed = client.json().await;
        assert_eq!(failed["type"], "response.failed");
        assert_eq!(
            failed["response"]["error"]["code"],
            "context_length_exceeded"
        );
        client.send(create("hi")).await;
        assert_eq!(client.json().await["type"], "response.created");
    });
    world.wait_until_idle();
}

/// Frames that are refused, and the codes of their errors.
fn invalid_frames() -> Vec<(Value, &'static str)> {
    vec![
        (json!({}), "invalid_request"),
        (json!({"type": "response.sing"}), "invalid_request"),
        (json!({"type": "response.create"}), "invalid_request"),
        (
            json!({"type": "response.create", "input": "x", "background": true}),
            "not_supported",
        ),
        (
            json!({"type": "response.create", "input": "x", "stream_id": "ä"}),
            "invalid_stream_id",
        ),
        (
            json!({"type": "response.create", "input": "x", "stream_id": ""}),
            "invalid_stream_id",
        ),
        (
            json!({"type": "response.create", "input": "x", "stream_id": 7}),
            "invalid_stream_id",
        ),
        (
            json!({"type": "response.create", "input": "x", "stream_id": "l".repeat(257)}),
            "invalid_stream_id",
        ),
        (
            json!({"type": "response.create", "input": "x", "previous_response_id": "resp_other"}),
            "previous_response_not_found",
        ),
    ]
}

#[test]
fn invalid_frames_get_errors_and_the_connection_stays() {
    let world = World::scripted_with(&[("hello", "Hello to you.")], |_, server| {
        server.ws_lanes = 2;
        server.ws_max_requests = 3;
    });
    block_on(async {
        let mut client = connect(world.addr).await;
        for (frame, code) in invalid_frames() {
            refused(&mut client, frame, 400, code).await;
        }
        for text in ["{", "[]", "\"x\""] {
            client
                .0
                .send(Message::text(text))
                .await
                .expect("the server reads");
            assert_eq!(client.json().await["error"]["code"], "invalid_request");
        }
        client
            .0
            .send(Message::binary(vec![0, 1]))
            .await
            .expect("the server reads");
        assert!(
            client.json().await["error"]["message"]
                .to_string()
                .contains("binary")
        );
        let steer =
            json!({"type": "response.steer", "previous_response_id": "resp_x", "input": "left"});
        client.send(steer).await;
        let failed = client.json().await;
        assert_eq!(failed["type"], "response.steer.failed");
        assert_eq!(failed["error"]["code"], "steering_not_supported");
        assert_eq!(failed["steer"]["input"], "left");
        // A third lane is above the limit.
        for lane in ["a", "b"] {
            let mut frame = create("hello");
            frame["stream_id"] = lane.into();
            client.send(frame).await;
            while !is_terminal(&client.json().await) {}
        }
        let mut third = create("hello");
        third["stream_id"] = "c".into();
        refused(&mut client, third, 400, "websocket_stream_limit_reached").await;
        assert_eq!(
            text(&ask(&mut client, create("hello")).await),
            Some("Hello to you.")
        );
    });
    world.wait_until_idle();
}

#[test]
fn waiting_requests_are_limited_and_cancelled_with_their_connection() {
    let world = World::with(|_, server| server.ws_max_requests = 3);
    block_on(async {
        let mut client = connect(world.addr).await;
        for _ in 0..3 {
            client.send(endless("a")).await;
        }
        client.send(endless("a")).await;
        let error = loop {
            let event = client.json().await;
            if event["type"] == "error" {
                break event;
            }
        };
        assert_eq!(
            (&error["status"], &error["error"]["code"]),
            (&json!(503), &json!("too_many_requests"))
        );
        assert_eq!(error["headers"]["retry-after"], "1");
        assert_eq!(error["stream_id"], "a");
    });
    world.wait_until_idle();
}

#[test]
fn messages_that_are_too_large_end_the_connection_before_they_have_arrived() {
    let world = World::with(|_, server| server.max_body_bytes = 2000);
    block_on(async {
        let mut client = connect(world.addr).await;
        client.send(create(&"x".repeat(1000))).await;
        assert_eq!(client.json().await["type"], "response.created");
        let sent = client.0.send(Message::text("x".repeat(3000))).await;
        sent.expect("the server reads");
        let code = loop {
            match client.any().await {
                Message::Close(Some(frame)) => break frame.code,
                Message::Close(None) => panic!("the close frame has no code"),
                _ => (),
            }
        };
        assert_eq!(code, CloseCode::Size);
    });
    world.wait_until_idle();
}

#[test]
fn handshakes_are_refused_before_the_upgrade() {
    let refused = |addr: SocketAddr, origin| match block_on(Client::connect_to(addr, PATH, origin))
    {
        Err(Error::Http(response)) => response.status().as_u16(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the connection was not refused"),
    };
    let loading = World::without_engine(ServerConfig::default());
    assert_eq!(refused(loading.addr, None), 503);
    let world = World::with(|_, server| server.ws_max_connections = 0);
    assert_eq!(refused(world.addr, Some("http://evil.example")), 403);
    assert_eq!(refused(world.addr, None), 503);
}

#[test]
fn a_draining_server_ends_the_lanes_first() {
    let mut world = World::with(|_, server| server.shutdown_deadline_s = 60);
    block_on(async {
        let mut client = connect(world.addr).await;
        let mut frame = endless("a");
        frame["max_output_tokens"] = 1500.into();
        client.send(frame).await;
        client.json().await;
        world.stop();
        let end = loop {
            let event = client.json().await;
            if is_terminal(&event) {
                break event;
            }
        };
        assert_eq!(end["response"]["usage"]["output_tokens"], 1500);
        assert_eq!(client.close_code().await, CloseCode::Away);
    });
    world.join();
}
