//! A small load after which each histogram has samples and each kind of answer was given.

use std::net::TcpStream;

use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::handshake::HandshakeError;
use tokio_tungstenite::tungstenite::{Error, Message, client};

use crate::serving::Server;

/// The server's flags: a second WebSocket gets 503.
pub const FLAGS: [&str; 4] = ["--served-model-name", "tiny", "--ws-max-connections", "1"];

pub fn play(server: &Server) {
    let post = |path: &str, body: Value, expected: u16| {
        let (status, answer) = server.ask("POST", path, &body.to_string());
        assert_eq!(status, expected, "{answer}");
    };
    let messages = json!([{"role": "user", "content": "Hello"}]);
    let chat = json!({"model": "tiny", "messages": messages, "max_tokens": 8});
    post("/v1/chat/completions", chat, 200);
    let completion = json!({"model": "tiny", "prompt": "Hello", "max_tokens": 8, "stream": true});
    post("/v1/completions", completion, 200);
    let regex =
        json!({"text": "Hello", "sampling_params": {"max_new_tokens": 8, "regex": "yes|no"}});
    post("/generate", regex, 200);
    post(
        "/generate",
        json!({"text": "Hello", "sampling_params": {"top_p": 2}}),
        400,
    );
    // More tokens than the pool has, so that some are evicted.
    for first in 1..=8 {
        let prompt: Vec<u32> = (0..400).map(|i| first + i % 100).collect();
        let body = json!({"input_ids": prompt, "sampling_params": {"max_new_tokens": 2}});
        post("/generate", body, 200);
    }
    websockets(server);
}

/// One WebSocket with a request, and one above the limit.
fn websockets(server: &Server) {
    let open = || {
        let stream = TcpStream::connect(&server.address).expect("the server listens");
        client(format!("ws://{}/v1/ws/generate", server.address), stream).map_err(Box::new)
    };
    let (mut socket, _) = open().expect("a WebSocket");
    let refusal = open().map(drop).expect_err("only one WebSocket");
    match *refusal {
        HandshakeError::Failure(Error::Http(answer)) => assert_eq!(answer.status(), 503),
        other => panic!("refused by {other}"),
    }
    let body = json!({"op": "generate", "text": "Hello", "sampling_params": {"max_new_tokens": 4}});
    socket.send(Message::text(body.to_string())).expect("sent");
    let is_last = |message: Message| {
        let text = message.into_text().expect("a text");
        text.contains(r#""done":true"#)
    };
    while !is_last(socket.read().expect("an answer")) {}
    socket.close(None).expect("closed");
    while socket.read().is_ok() {}
}
