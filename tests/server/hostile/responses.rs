//! Tests that responses conform to HTTP for any request, and that the server ends responses that clients do not read.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};

use serde_json::{Value, json};

use super::child::{ChildServer, MIB};
use crate::http::{Response, connect, get, open, post, send};
use crate::routes;
use crate::world::{World, wait_until};

fn head(addr: SocketAddr, path: &str) -> Response {
    send(
        addr,
        &format!("HEAD {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\r\n"),
    )
}

/// The headers that two answers to one request share, and the length if both have the `same_body`.
fn stable_headers(response: &Response, same_body: bool) -> Vec<(&str, &str)> {
    let headers = response.headers.iter();
    let mut headers: Vec<_> = headers
        .filter(|(name, _)| name != "date" && name != "x-request-id")
        .filter(|(name, _)| same_body || name != "content-length")
        // The order of this header's list is not fixed.
        .filter(|(name, _)| name != "access-control-expose-headers")
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    headers.sort_unstable();
    headers
}

#[test]
fn head_is_answered_like_get_without_a_body() {
    let world = World::new();
    let mut same_bodies = 0;
    let routes = routes::with_method(world.addr, "GET").into_iter();
    // A path with an existing model, in addition to those with example parameters.
    let paths = routes
        .map(|route| route.path)
        .chain(["/v1/models/tiny".to_owned()]);
    for path in paths {
        let before = get(world.addr, &path);
        let head = head(world.addr, &path);
        let after = get(world.addr, &path);
        assert_eq!(head.status, after.status, "{path}");
        // Bodies with counts may change between two requests.
        let same_body = before.body == after.body;
        same_bodies += usize::from(same_body);
        let expected = stable_headers(&after, same_body);
        assert_eq!(stable_headers(&head, same_body), expected, "{path}");
        assert_eq!(head.body, "", "{path}");
        let length = head.header("content-length");
        let is_sized = length.or(head.header("transfer-encoding")).is_some();
        assert!(is_sized, "{path}");
    }
    assert!(same_bodies > 10, "{same_bodies}");
    let refused = post(world.addr, "/health", &json!({}));
    assert_eq!(
        (refused.status, refused.header("allow")),
        (405, Some("GET, HEAD"))
    );
    let refused = head(world.addr, "/generate");
    assert_eq!(
        (refused.status, refused.header("allow")),
        (405, Some("POST"))
    );
}

#[test]
fn a_request_after_head_is_answered_on_the_same_connection() {
    let world = World::without_engine(Default::default());
    let mut client = connect(world.addr);
    let requests = "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n\
                    GET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    client
        .write_all(requests.as_bytes())
        .expect("the server reads");
    let mut text = String::new();
    client
        .read_to_string(&mut text)
        .expect("the server answers");
    let statuses: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("HTTP/1.1 "))
        .collect();
    assert_eq!(statuses, ["HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found"]);
    assert!(!text.contains("# TYPE"), "{text}");
}

#[test]
fn head_opens_no_websocket() {
    let world = World::new();
    let addr = world.addr;
    let response = send(
        addr,
        &format!(
            "HEAD /v1/ws/generate HTTP/1.1\r\nHost: {addr}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        ),
    );
    assert_eq!((response.status, response.body.as_str()), (400, ""));
}

#[test]
fn http_1_0_streams_end_with_the_connection() {
    let world = World::new();
    let calls = [
        (
            "/generate",
            json!({"text": "abc", "stream": true, "sampling_params": {"max_new_tokens": 5}}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "abc", "stream": true, "max_tokens": 5}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "a"}], "stream": true, "max_tokens": 5}),
        ),
    ];
    for (path, call) in calls {
        for connection in ["close", "keep-alive"] {
            let (addr, body) = (world.addr, call.to_string());
            let response = send(
                addr,
                &format!(
                    "POST {path} HTTP/1.0\r\nHost: {addr}\r\nConnection: {connection}\r\n\
                     Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                ),
            );
            assert_eq!(response.status, 200, "{}", response.body);
            assert_eq!(response.header("transfer-encoding"), None, "{path}");
            assert_ne!(response.header("connection"), Some("keep-alive"), "{path}");
            let (events, rest) = response
                .body
                .rsplit_once("data: [DONE]\n\n")
                .expect("the stream's end");
            assert_eq!(rest, "", "{path}");
            for event in events.split_terminator("\n\n") {
                let data = event
                    .strip_prefix("data: ")
                    .expect("an event, not a chunk's size");
                serde_json::from_str::<Value>(data).expect("JSON");
            }
        }
    }
    world.wait_until_idle();
}

/// The lines of a page of metrics without their values.
fn names(page: &str) -> Vec<&str> {
    let lines = page.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            if line.starts_with('#') {
                line
            } else {
                line.rsplit_once(' ').expect("a value").0
            }
        })
        .collect()
}

#[test]
fn the_metrics_keep_their_order_from_scrape_to_scrape() {
    let child = ChildServer::start(&[]);
    let scrape = || get(child.addr, "/metrics").body;
    let chat = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 3});
    post(child.addr, "/v1/chat/completions", &chat);
    for path in ["/health", "/ready", "/v1/models", "/v1/models/other"] {
        get(child.addr, path);
    }
    let before = scrape();
    let call = json!({"text": "abc", "sampling_params": {"max_new_tokens": 5}});
    post(child.addr, "/generate", &call);
    get(child.addr, "/server_info");
    let after = scrape();
    let (before, after) = (names(&before), names(&after));
    let still_present: Vec<&str> = after
        .into_iter()
        .filter(|name| before.contains(name))
        .collect();
    assert_eq!(still_present, before);
    let described = before
        .iter()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let families: Vec<&str> = described
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert!(families.len() > 20 && families.is_sorted(), "{families:?}");
    let mut family = "";
    for line in before {
        if let Some(described) = line.strip_prefix("# ") {
            family = described.split(' ').nth(1).expect("a name");
        } else {
            assert!(line.starts_with(family), "{line} is not below {family}");
        }
    }
}

/// Byte sequences that are not valid HTTP or, after a handshake, not valid WebSocket frames.
fn malformed() -> Vec<Vec<u8>> {
    let head = "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n";
    let texts = [
        "GARBAGE\r\n\r\n".to_owned(),
        "GET / HTTP/9.9\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nno colon\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: abc\r\n\r\n".to_owned(),
        "GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n".to_owned(),
        format!(
            "GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n",
            "x".repeat(1 << 18)
        ),
        format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(1 << 17)),
        format!("{head}Transfer-Encoding: chunked\r\n\r\nnot a size\r\n"),
        format!("{head}Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\n"),
        format!("{head}Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nzz\r\n"),
        format!("{head}Content-Length: 3\r\nContent-Length: 4\r\n\r\n{{}}"),
        format!("{head}Transfer-Encoding: gzip\r\n\r\n{{}}"),
    ];
    let mut all: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
    all.push(vec![0; 64]);
    // WebSocket frames: a continuation or a start out of place, a fragmented ping, an unknown opcode, no mask.
    let handshake = "GET /v1/ws/generate HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                     Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    for frames in [
        &b"\x80\x81\0\0\0\0a"[..],
        b"\x01\x81\0\0\0\0a\x01\x81\0\0\0\0a",
        b"\x09\x80\0\0\0\0",
        b"\x8f\x80\0\0\0\0",
        b"\x81\x01a",
    ] {
        all.push([handshake.as_bytes(), frames].concat());
    }
    all
}

#[test]
fn malformed_requests_log_no_errors() {
    let child = ChildServer::start(&["--header-timeout-s", "2", "--body-timeout-s", "2"]);
    for bytes in malformed() {
        let mut client = connect(child.addr);
        // The server may close before it has read everything, which resets the connection.
        let _ = client.write_all(&bytes);
        let _ = client.read_to_end(&mut Vec::new());
    }
    // Clients that disconnect: one that speaks TLS, and two in the middle of a request.
    for bytes in [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        b"POST /generate HTTP/1.1\r\nHost: localh",
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
    ] {
        let mut client = connect(child.addr);
        let _ = client.write_all(bytes);
        let _ = client.shutdown(Shutdown::Write);
        let _ = client.read_to_end(&mut Vec::new());
    }
    assert_eq!(get(child.addr, "/health").status, 200);
    let log = child.log();
    assert!(!log.contains("ERROR"), "{log}");
}

#[test]
fn an_unread_stream_ends() {
    let child = ChildServer::start(&["--http-send-timeout-s", "1"]);
    let idle = child.sockets();
    let sampling = json!({"max_new_tokens": 60_000, "ignore_eos": true});
    let call = json!({"text": "a", "stream": true, "sampling_params": sampling});
    let client = open(child.addr, "/generate", &call);
    wait_until("the client is connected", || child.sockets() > idle);
    // Socket buffers hold a few megabytes; chunks that repeat all text so far soon fill them.
    wait_until("the connection is closed", || child.sockets() <= idle);
    let page = get(child.addr, "/metrics").body;
    let no_active = r#"sglang:http_requests_active{endpoint="/generate",method="POST"} 0"#;
    assert!(page.contains(no_active), "{page}");
    drop(client);
}

#[test]
fn an_unread_whole_answer_ends() {
    let child = ChildServer::start(&["--http-send-timeout-s", "1"]);
    let idle = child.sockets();
    let tokens: Vec<usize> = (0..3000).map(|index| 2 + index % 250).collect();
    let call = json!({
        "input_ids": tokens, "return_logprob": true, "logprob_start_len": 0, "top_logprobs_num": 1024,
        "sampling_params": {"max_new_tokens": 1},
    });
    let mut client = open(child.addr, "/generate", &call);
    wait_until("the client is connected", || child.sockets() > idle);
    wait_until("the connection is closed", || child.sockets() <= idle);
    let mut read = Vec::new();
    let ended = client.read_to_end(&mut read).map_err(|error| error.kind());
    assert!(
        matches!(ended, Ok(_) | Err(ErrorKind::ConnectionReset)),
        "{ended:?}"
    );
    assert!(read.len() < 12 * MIB, "{} bytes", read.len());
}
