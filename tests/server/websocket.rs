//! Tests of `/v1/ws/generate`: generation, aborts, refusals and shutdown over a WebSocket.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use souffleur::server::ServerConfig;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, client_async};

use crate::world::{World, block_on};

pub struct Client(pub WebSocketStream<TcpStream>);

impl Client {
    async fn connect(addr: SocketAddr) -> Self {
        Self::connect_from(addr, None)
            .await
            .unwrap_or_else(|error| panic!("{error}"))
    }

    async fn connect_from(addr: SocketAddr, origin: Option<&str>) -> Result<Self, Error> {
        Self::connect_to(addr, "/v1/ws/generate", origin).await
    }

    pub async fn connect_to(
        addr: SocketAddr,
        path: &str,
        origin: Option<&str>,
    ) -> Result<Self, Error> {
        let mut request = format!("ws://{addr}{path}").into_client_request()?;
        if let Some(origin) = origin {
            request
                .headers_mut()
                .insert("origin", origin.parse().expect("a header"));
        }
        let stream = TcpStream::connect(addr).await?;
        Ok(Self(client_async(request, stream).await?.0))
    }

    pub async fn send(&mut self, frame: Value) {
        self.0
            .send(Message::text(frame.to_string()))
            .await
            .expect("the server reads");
    }

    pub async fn any(&mut self) -> Message {
        loop {
            match self
                .0
                .next()
                .await
                .expect("the server sends a frame")
                .expect("the frame is valid")
            {
                Message::Ping(_) | Message::Pong(_) => (),
                frame => return frame,
            }
        }
    }

    pub async fn json(&mut self) -> Value {
        let frame = self.any().await;
        let text = frame
            .to_text()
            .unwrap_or_else(|error| panic!("{error}: {frame:?}"));
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    pub async fn close_code(&mut self) -> CloseCode {
        match self.any().await {
            Message::Close(Some(frame)) => frame.code,
            other => panic!("no close: {other:?}"),
        }
    }
}

fn generate(rid: &str, max_new_tokens: u32) -> Value {
    let sampling = json!({"max_new_tokens": max_new_tokens, "ignore_eos": true, "temperature": 0});
    json!({"op": "generate", "rid": rid, "text": rid, "sampling_params": sampling})
}

/// More tokens than any test generates.
const ENDLESS: u32 = 60_000;

#[track_caller]
fn check_ends_early(world: &World) {
    world.wait_until_idle();
    assert!(
        world.stats().steps < u64::from(ENDLESS),
        "the request ran to its end"
    );
}

#[test]
fn requests_share_a_connection_and_answer_as_over_http() {
    let world = World::new();
    block_on(async {
        let mut client = Client::connect(world.addr).await;
        for rid in ["a", "b", "c"] {
            client.send(generate(rid, 20)).await;
        }
        let mut texts: BTreeMap<String, String> = BTreeMap::new();
        let mut tokens: BTreeMap<String, Vec<Value>> = BTreeMap::new();
        let mut ended = 0;
        while ended < 3 {
            let frame = client.json().await;
            let rid = frame["rid"].as_str().expect("an id").to_owned();
            if frame["done"] == true {
                assert_eq!(frame["meta"]["finish_reason"]["type"], "length");
                assert_eq!(frame["meta"]["completion_tokens"], 20);
                ended += 1;
                continue;
            }
            assert_eq!(frame["meta"]["finish_reason"], Value::Null);
            let delta = frame["delta"].as_str().expect("a text");
            texts.entry(rid.clone()).or_default().push_str(delta);
            let new = frame["output_ids"].as_array().expect("a list").clone();
            tokens.entry(rid).or_default().extend(new);
        }
        for rid in ["a", "b", "c"] {
            let mut call = generate(rid, 20);
            call.as_object_mut().expect("an object").remove("op");
            let whole = tokio::task::spawn_blocking({
                let addr = world.addr;
                move || crate::http::post(addr, "/generate", &call).ok()
            });
            let whole = whole.await.expect("an answer");
            assert_eq!(whole["text"], texts[rid]);
            assert_eq!(whole["output_ids"], json!(tokens[rid]));
        }
    });
    world.wait_until_idle();
}

#[test]
fn an_abort_ends_one_request_and_leaves_the_others() {
    let world = World::new();
    block_on(async {
        let mut client = Client::connect(world.addr).await;
        client.send(generate("a", ENDLESS)).await;
        client.send(generate("b", ENDLESS)).await;
        client.json().await;
        client.send(json!({"op": "abort", "rid": "a"})).await;
        let end = loop {
            let frame = client.json().await;
            if frame["done"] == true {
                break frame;
            }
        };
        assert_eq!(
            (&end["rid"], &end["meta"]["finish_reason"]["type"]),
            (&json!("a"), &json!("abort"))
        );
        assert_eq!(client.json().await["rid"], "b");
        client.send(json!({"op": "abort", "rid": "b"})).await;
        while client.json().await["done"] != true {}
    });
    check_ends_early(&world);
}

#[test]
fn an_abort_right_after_its_request_is_not_lost() {
    let world = World::new();
    block_on(async {
        let mut client = Client::connect(world.addr).await;
        for round in 0..20 {
            let rid = format!("r{round}");
            client.send(generate(&rid, ENDLESS)).await;
            client.send(json!({"op": "abort", "rid": rid})).await;
            while client.json().await["done"] != true {}
        }
    });
    check_ends_early(&world);
}

#[test]
fn a_client_that_disappears_cancels_its_requests() {
    let world = World::new();
    block_on(async {
        let mut client = Client::connect(world.addr).await;
        for rid in ["a", "b", "c"] {
            client.send(generate(rid, ENDLESS)).await;
        }
        client.json().await;
        // No closing handshake: the socket just closes.
        drop(client);
    });
    check_ends_early(&world);
}

#[test]
fn frames_that_cannot_be_served_are_answered_and_the_connection_stays() {
    let world = World::with(|_, server| server.ws_max_requests = 2);
    block_on(async {
        let mut client = Client::connect(world.addr).await;
        client.send(json!({"op": "ping"})).await;
        assert_eq!(client.json().await, json!({"op": "pong"}));
        let table = [
            (json!({"op": "sing", "rid": "a"}), "a", "op is \"sing\""),
            (
                json!({"op": "generate", "rid": "b"}),
                "b",
                "text is missing",
            ),
            (
                json!({"op": "generate", "rid": "c", "text": ["x", "y", "z"]}),
                "c",
                "2 requests",
            ),
            (
                json!({"op": "generate", "rid": "d", "input_ids": [9999]}),
                "d",
                "9999",
            ),
        ];
        for (frame, rid, message) in table {
            client.send(frame).await;
            let answer = client.json().await;
            assert_eq!(answer["rid"], rid);
            let text = answer["error"]["message"].as_str().expect("a message");
            assert!(text.contains(message), "{text}");
        }
        client
            .0
            .send(Message::text("{"))
            .await
            .expect("the server reads");
        assert_eq!(client.json().await["rid"], Value::Null);
        client
            .0
            .send(Message::binary(vec![1]))
            .await
            .expect("the server reads");
        assert_eq!(client.json().await["error"]["code"], "invalid_request");
        client.send(generate("e", 2)).await;
        while client.json().await["done"] != true {}
    });
    world.wait_until_idle();
}

#[test]
fn an_overloaded_engine_closes_idle_connections_with_try_again() {
    let world = World::with(|engine, _| engine.max_queued_requests = 1);
    block_on(async {
        let mut busy = Client::connect(world.addr).await;
        busy.send(generate("a", ENDLESS)).await;
        busy.json().await;
        busy.send(generate("b", 2)).await;
        let refused = loop {
            let frame = busy.json().await;
            if frame["rid"] == "b" {
                break frame;
            }
        };
        assert_eq!(refused["error"]["code"], "overloaded");
        let mut idle = Client::connect(world.addr).await;
        idle.send(generate("c", 2)).await;
        assert_eq!(idle.json().await["error"]["code"], "overloaded");
        assert_eq!(idle.close_code().await, CloseCode::Again);
        assert_eq!(busy.json().await["rid"], "a");
    });
    check_ends_early(&world);
}

#[test]
fn a_draining_server_closes_with_going_away_after_the_last_request() {
    let mut world = World::with(|_, server| server.shutdown_deadline_s = 60);
    block_on(async {
        let mut idle = Client::connect(world.addr).await;
        let mut busy = Client::connect(world.addr).await;
        busy.send(generate("a", 1500)).await;
        busy.json().await;
        world.stop();
        assert_eq!(idle.close_code().await, CloseCode::Away);
        let end = loop {
            let frame = busy.json().await;
            if frame["done"] == true {
                break frame;
            }
        };
        assert_eq!(end["meta"]["completion_tokens"], 1500);
        assert_eq!(busy.close_code().await, CloseCode::Away);
    });
    world.join();
}

#[test]
fn too_large_messages_close_the_connection() {
    let world = World::with(|_, server| server.ws_max_frame_bytes = 1000);
    block_on(async {
        let mut client = Client::connect(world.addr).await;
        client
            .0
            .send(Message::text("x".repeat(1001)))
            .await
            .expect("the server reads");
        assert_eq!(client.close_code().await, CloseCode::Size);
    });
}

#[test]
fn clients_that_answer_no_pings_are_dropped() {
    let world = World::with(|_, server| server.ws_ping_interval_s = 1);
    let client = block_on(async {
        let mut client = Client::connect(world.addr).await;
        client.send(generate("a", ENDLESS)).await;
        client.json().await;
        client
    });
    // The client holds the connection and reads nothing, so it answers no ping.
    check_ends_early(&world);
    drop(client);
}

#[test]
fn handshakes_are_refused_before_the_upgrade() {
    let refused = |addr: SocketAddr, origin: Option<&'static str>| match block_on(
        Client::connect_from(addr, origin),
    ) {
        Err(Error::Http(response)) => response.status().as_u16(),
        Err(error) => panic!("{error}"),
        Ok(_) => panic!("the connection was not refused"),
    };
    let loading = World::without_engine(ServerConfig::default());
    assert_eq!(refused(loading.addr, None), 503);
    assert_eq!(refused(loading.addr, Some("http://evil.example")), 403);
    assert_eq!(
        crate::http::get(loading.addr, "/v1/ws/generate").status,
        503
    );
    let world = World::with(|_, server| {
        server.ws_max_connections = 1;
        server.allowed_origins = vec!["https://chat.example".to_owned()];
    });
    assert_eq!(refused(world.addr, Some("http://evil.example")), 403);
    assert_eq!(crate::http::get(world.addr, "/v1/ws/generate").status, 400);
    let one = block_on(Client::connect_from(
        world.addr,
        Some("https://chat.example"),
    ));
    assert_eq!(refused(world.addr, None), 503);
    drop(one);
}

#[test]
fn the_server_ends_the_connection_after_the_closing_handshake() {
    let world = World::new();
    let mut stream = crate::http::connect(world.addr);
    write!(
        stream,
        "GET /v1/ws/generate HTTP/1.1\r\nHost: {}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
         Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        world.addr
    )
    .expect("the server reads");
    let mut reader = BufReader::new(stream.try_clone().expect("a socket has two ends"));
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        let read = reader.read_line(&mut line);
        assert!(read.expect("the server answers") > 0, "the server refuses");
    }
    // A close with code 1000, masked with zeros. The client keeps its side open.
    stream
        .write_all(&[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8])
        .expect("the server reads");
    let mut rest = Vec::new();
    reader
        .read_to_end(&mut rest)
        .expect("the server ends the connection");
    assert_eq!(rest, [0x88, 2, 0x03, 0xe8]);
}
