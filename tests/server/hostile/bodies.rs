//! Tests of hostile bodies, which parse to much more than their size, or arrive slowly and many at once.

use std::io::{ErrorKind, Write};
use std::net::TcpStream;

use serde_json::json;

use super::child::{ChildServer, MIB};
use crate::http::{Response, connect, post, post_text, read_response};
use crate::world::wait_until;

/// The approximate size of each hostile body.
pub(super) const BODY_BYTES: usize = 2 * MIB;
/// Maximum memory per byte of a body: a token id of two bytes (`0,`) takes four, and is copied once to a shared list.
const MAX_PER_BYTE: usize = 10;

/// Fields of `/generate`.
const NATIVE: [&str; 12] = [
    "text",
    "input_ids",
    "sampling_params",
    "return_logprob",
    "token_ids_logprob",
    "stream",
    "rid",
    "extra_key",
    "image_data",
    "priority",
    "nobody_knows",
    "waiting_timeout",
];
/// Fields of `sampling_params`.
const SAMPLING: [&str; 7] = [
    "stop",
    "stop_token_ids",
    "logit_bias",
    "temperature",
    "n",
    "regex",
    "nobody_knows",
];
/// Fields of `/v1/chat/completions`.
const CHAT: [&str; 11] = [
    "messages",
    "chat_template_kwargs",
    "tools",
    "modalities",
    "response_format",
    "stream_options",
    "stop",
    "logit_bias",
    "model",
    "extra_body",
    "nobody_knows",
];

#[test]
fn lists_and_objects_take_little_more_memory_than_their_text_in_any_field() {
    let server = ChildServer::start(&["--workers", "1"]);
    let zeros = format!("[{}0]", "0,".repeat(BODY_BYTES / 2));
    let lists = format!("[{}[]]", "[],".repeat(BODY_BYTES / 3));
    let fields = format!("{{{}\"a\":0}}", "\"a\":0,".repeat(BODY_BYTES / 6));
    for name in NATIVE {
        for value in [&zeros, &lists, &fields] {
            let prompt = if matches!(name, "text" | "input_ids") {
                "x"
            } else {
                "text"
            };
            let body = format!("{{\"{prompt}\": \"a\", \"{name}\": {value}, \"stream\": 5}}");
            check(&server, "/generate", &body, name);
        }
    }
    for name in SAMPLING {
        let body = format!(
            "{{\"text\": [\"a\", \"b\"], \"sampling_params\": {{\"{name}\": {zeros}}}, \"stream\": 5}}"
        );
        check(&server, "/generate", &body, name);
    }
    for name in CHAT {
        let messages = if name == "messages" { "x" } else { "messages" };
        for value in [&zeros, &lists, &fields] {
            let chat = "[{\"role\": \"user\", \"content\": \"a\"}]";
            let body = format!("{{\"{messages}\": {chat}, \"{name}\": {value}, \"stream\": 5}}");
            check(&server, "/v1/chat/completions", &body, name);
        }
    }
    for value in [&zeros, &lists, &fields] {
        let body = format!("{{\"prompt\": {value}, \"stream\": 5}}");
        check(&server, "/v1/completions", &body, "prompt");
        check(
            &server,
            "/abort_request",
            &format!("{{\"rid\": {value}}}"),
            "rid",
        );
        check(&server, "/set_policy", value, "a body");
    }
}

/// Posts a body, and checks that it gets a short refusal and takes little memory.
#[track_caller]
pub(super) fn check(server: &ChildServer, path: &str, body: &str, name: &str) {
    let growth = server.growth_bytes(|| {
        let response = post_text(server.addr, path, body);
        let text = &response.body;
        assert_eq!(response.status, 400, "{path}, {name}: {text}");
        assert!(text.len() < 1000, "{path}, {name}: {text}");
    });
    assert!(
        growth < MAX_PER_BYTE * BODY_BYTES,
        "{path}, {name}: {growth} bytes"
    );
}

#[test]
fn conversations_have_no_more_values_than_the_limit() {
    let server = ChildServer::start(&["--max-body-values", "100"]);
    let message = json!({"role": "user", "content": "a,,,,[[[["});
    let chat = |messages: usize| json!({"messages": vec![&message; messages], "max_tokens": 1});
    post(server.addr, "/v1/chat/completions", &chat(20)).ok();
    let response = post(server.addr, "/v1/chat/completions", &chat(50));
    assert_eq!(response.status, 400);
    assert!(
        response.body.contains("limit is 100 per body"),
        "{}",
        response.body
    );
}

/// A connection that has sent a large body without the last byte.
struct SlowBody {
    stream: TcpStream,
}

impl SlowBody {
    fn open(server: &ChildServer, bytes: usize) -> Self {
        let addr = server.addr;
        let head = format!(
            "POST /generate HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
             Content-Type: application/json\r\nContent-Length: {bytes}\r\n\r\n"
        );
        let mut stream = connect(addr);
        stream.write_all(head.as_bytes()).expect("the server reads");
        // The server may have refused the body and closed the connection already.
        let _ = stream.write_all(" ".repeat(bytes - 1).as_bytes());
        Self { stream }
    }

    fn has_answer(&self) -> bool {
        self.stream.set_nonblocking(true).expect("a socket");
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).expect("a socket");
        !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    fn answer(self) -> Response {
        read_response(self.stream)
    }
}

#[test]
fn bodies_that_arrive_slowly_have_a_common_budget() {
    const N_BODIES: usize = 64;
    let server = ChildServer::start(&[
        "--max-body-bytes",
        "1048576",
        "--max-bodies-bytes",
        "4194304",
        "--body-timeout-s",
        "600",
    ]);
    let small = json!({"text": "a", "sampling_params": {"max_new_tokens": 2}});
    // The first request makes the engine's buffers.
    post(server.addr, "/generate", &small).ok();
    let growth = server.growth_bytes(|| {
        let mut slow: Vec<SlowBody> = (0..N_BODIES)
            .map(|_| SlowBody::open(&server, MIB))
            .collect();
        // Three quarters of the budget are for large bodies: no more than three of them fit.
        let refused = |slow: &[SlowBody]| slow.iter().filter(|body| body.has_answer()).count();
        wait_until("the bodies beyond the budget are refused", || {
            refused(&slow) >= N_BODIES - 3
        });
        let at = slow.iter().position(SlowBody::has_answer);
        let response = slow.swap_remove(at.expect("a refusal")).answer();
        assert_eq!(response.status, 503, "{}", response.body);
        assert_eq!(response.header("retry-after"), Some("1"));
        assert_eq!(response.json()["error"]["code"], "overloaded");
        post(server.addr, "/generate", &small).ok();
    });
    assert!(growth < N_BODIES / 2 * MIB, "{growth} bytes");
    // The slow bodies are gone, and their memory is free again.
    let large = format!(
        "{{\"text\": \"a\", \"stream\": 5{}}}",
        " ".repeat(MIB - 100)
    );
    wait_until("a large body is read again", || {
        post_text(server.addr, "/generate", &large).status == 400
    });
}

#[test]
fn a_content_length_alone_takes_no_memory() {
    let server = ChildServer::start(&["--max-bodies-bytes", "67108864"]);
    let announced: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = connect(server.addr);
            let head = "POST /generate HTTP/1.1\r\nHost: 127.0.0.1\r\n\
                        Content-Type: application/json\r\nContent-Length: 16000000\r\n\r\n{";
            stream.write_all(head.as_bytes()).expect("the server reads");
            stream
        })
        .collect();
    let large = format!("{{\"text\": \"a\", \"stream\": 5{}}}", " ".repeat(8 * MIB));
    assert_eq!(post_text(server.addr, "/generate", &large).status, 400);
    drop(announced);
}
