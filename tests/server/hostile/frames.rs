//! Tests of hostile WebSocket clients: frames that are too large, fragmented or invalid, and unread replies.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};

use super::child::{ChildServer, MIB};
use crate::http;
use crate::world::{World, wait_until};

/// Opcodes, and the FIN bit of a message's last frame.
const CONTINUATION: u8 = 0x0;
const TEXT: u8 = 0x1;
const BINARY: u8 = 0x2;
const CLOSE: u8 = 0x8;
const PING: u8 = 0x9;
const PONG: u8 = 0xa;
const LAST: u8 = 0x80;

/// The default of `--ws-max-frame-bytes`.
const LIMIT: u64 = 1 << 20;
/// Maximum growth of a server's memory while clients send far more than the limits allow.
const GROWTH_BYTES: usize = 16 * MIB;
const MASK: [u8; 4] = [0x11, 0x22, 0x33, 0x44];

const NORMAL: u16 = 1000;
const PROTOCOL_ERROR: u16 = 1002;
const NOT_UTF8: u16 = 1007;
const TOO_LARGE: u16 = 1009;
const TRY_AGAIN: u16 = 1013;

struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(addr: SocketAddr) -> Self {
        Self::connect_to(addr, PATH)
    }

    fn connect_to(addr: SocketAddr, path: &str) -> Self {
        let mut stream = http::connect(addr);
        let handshake = handshake(addr, "HTTP/1.1", &HANDSHAKE);
        let handshake = handshake.replacen(PATH, path, 1);
        stream
            .write_all(handshake.as_bytes())
            .expect("the server reads");
        let mut client = Self(BufReader::new(stream));
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let read = client.0.read_line(&mut head);
            assert!(read.expect("the server answers") > 0, "refused: {head}");
        }
        assert!(head.starts_with("HTTP/1.1 101 "), "{head}");
        client
    }

    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the server reads");
    }

    /// Sends a block repeatedly while the server reads, at most `bytes` in total.
    fn flood(&mut self, block: &[u8], bytes: usize) {
        let stream = self.0.get_mut();
        let mut sent = 0;
        while sent < bytes && stream.write_all(block).is_ok() {
            sent += block.len();
        }
    }

    /// The next frame's first byte (FIN bit and opcode), and its payload.
    #[track_caller]
    fn frame(&mut self) -> (u8, Vec<u8>) {
        let mut head = [0; 2];
        self.0.read_exact(&mut head).expect("another frame");
        let length = match head[1] {
            126 => {
                let mut length = [0; 2];
                self.0.read_exact(&mut length).expect("a whole header");
                usize::from(u16::from_be_bytes(length))
            }
            length => usize::from(length),
        };
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).expect("a whole frame");
        (head[0], payload)
    }

    #[track_caller]
    fn json(&mut self) -> Value {
        let (first, payload) = self.frame();
        assert_eq!(first, LAST | TEXT, "{payload:?}");
        serde_json::from_slice(&payload).expect("texts are JSON")
    }

    /// Reads all events of a request's answer, none of which may be an error.
    #[track_caller]
    fn check_answered(&mut self) {
        while let event = self.json()
            && event["done"] != true
        {
            assert_eq!(event["error"], Value::Null);
        }
    }

    #[track_caller]
    fn close_code(&mut self) -> u16 {
        let (first, payload) = self.frame();
        assert_eq!(first, LAST | CLOSE, "{payload:?}");
        u16::from_be_bytes([payload[0], payload[1]])
    }

    /// Checks that no frame follows the close frame.
    #[track_caller]
    fn check_ended(mut self) {
        let mut rest = Vec::new();
        // A server that has not read all bytes of the client resets the connection.
        let _ = self.0.read_to_end(&mut rest);
        assert!(rest.is_empty(), "{rest:?}");
    }
}

const PATH: &str = "/v1/ws/generate";

const HANDSHAKE: [(&str, &str); 4] = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

fn handshake(addr: SocketAddr, version: &str, headers: &[(&str, &str)]) -> String {
    let lines = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"));
    let lines: String = lines.collect();
    format!("GET {PATH} {version}\r\nHost: {addr}\r\n{lines}\r\n")
}

/// The header of a masked frame that claims `length` bytes.
fn header(first: u8, length: u64) -> Vec<u8> {
    let mut bytes = vec![first];
    match length {
        0..126 => bytes.push(0x80 | length as u8),
        126..=0xffff => {
            bytes.push(0x80 | 126);
            bytes.extend((length as u16).to_be_bytes());
        }
        _ => {
            bytes.push(0x80 | 127);
            bytes.extend(length.to_be_bytes());
        }
    }
    bytes.extend(MASK);
    bytes
}

fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = header(first, payload.len() as u64);
    let masked = payload.iter().zip(MASK.iter().cycle());
    bytes.extend(masked.map(|(byte, mask)| byte ^ mask));
    bytes
}

fn close_payload(code: u16, reason: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes(), reason].concat()
}

/// Sends `bytes`, and returns the code of the close frame, which must be the server's first frame.
#[track_caller]
fn refusal(addr: SocketAddr, bytes: &[u8]) -> u16 {
    let mut client = Client::connect(addr);
    client.send(bytes);
    client.close_code()
}

const PING_OP: &[u8] = br#"{"op": "ping"}"#;

#[test]
fn a_frame_is_refused_by_its_header_and_other_streams_continue() {
    let server = ChildServer::start(&[]);
    let mut other = Client::connect(server.addr);
    let request = json!({"op": "generate", "rid": "story", "text": "a",
        "sampling_params": {"max_new_tokens": 50, "ignore_eos": true}});
    let block = vec![0; MIB];
    let growth = server.growth_bytes(|| {
        for claim in [LIMIT + 1, 1 << 40, 1 << 63, u64::MAX] {
            for opcode in [TEXT, BINARY] {
                let mut client = Client::connect(server.addr);
                client.send(&header(LAST | opcode, claim));
                other.send(&frame(LAST | TEXT, request.to_string().as_bytes()));
                client.flood(&block, 32 * MIB);
                assert_eq!(client.close_code(), TOO_LARGE, "{claim} bytes");
                other.check_answered();
            }
        }
    });
    assert!(growth < GROWTH_BYTES, "{} MiB", growth / MIB);
}

#[test]
fn a_message_to_the_responses_websocket_is_limited_like_a_body() {
    let server = ChildServer::start(&["--max-body-bytes", "3000000"]);
    let block = vec![0; MIB];
    let growth = server.growth_bytes(|| {
        for claim in [3_000_001, 1 << 40, u64::MAX] {
            let mut client = Client::connect_to(server.addr, "/v1/responses");
            client.send(&header(LAST | TEXT, claim));
            client.flood(&block, 32 * MIB);
            assert_eq!(client.close_code(), TOO_LARGE, "{claim} bytes");
        }
    });
    assert!(growth < GROWTH_BYTES, "{} MiB", growth / MIB);
    // A frame that is too large for the other WebSocket fits here.
    let mut client = Client::connect_to(server.addr, "/v1/responses");
    let mut text = br#"{"type": "response.sing"}"#.to_vec();
    text.resize(2 * LIMIT as usize, b' ');
    client.send(&frame(LAST | TEXT, &text));
    assert_eq!(client.json()["error"]["param"], "type");
    client.send(&frame(LAST | TEXT, b"{\"type\": \xff"));
    assert_eq!(client.close_code(), NOT_UTF8);
}

#[test]
fn a_fragmented_message_is_bounded_while_it_arrives() {
    let server = ChildServer::start(&[]);
    let growth = server.growth_bytes(|| {
        let half = frame(TEXT, &vec![b'x'; LIMIT as usize / 2]);
        let mut client = Client::connect(server.addr);
        client.send(&half);
        // The payload of the second half is never sent.
        client.send(&header(LAST | CONTINUATION, LIMIT / 2 + 1));
        assert_eq!(client.close_code(), TOO_LARGE);

        let mut client = Client::connect(server.addr);
        client.send(&frame(TEXT, b""));
        let fragment = frame(CONTINUATION, &[b'x'; 1000]);
        client.flood(&fragment.repeat(1000), 64 * MIB);
        assert_eq!(client.close_code(), TOO_LARGE);

        // Fragments without bytes cost nothing.
        let mut client = Client::connect(server.addr);
        client.send(&frame(TEXT, PING_OP));
        client.flood(&frame(CONTINUATION, b"").repeat(100_000), 4 * MIB);
        client.send(&frame(LAST | CONTINUATION, b""));
        assert_eq!(client.json(), json!({"op": "pong"}));
    });
    assert!(growth < GROWTH_BYTES, "{} MiB", growth / MIB);
}

#[test]
fn messages_of_exactly_the_limit_are_accepted_whole_or_in_fragments() {
    let world = World::new();
    let mut text = PING_OP.to_vec();
    text.resize(LIMIT as usize, b' ');
    let mut client = Client::connect(world.addr);
    client.send(&frame(LAST | TEXT, &text));
    assert_eq!(client.json(), json!({"op": "pong"}));
    let (start, end) = text.split_at(text.len() / 3);
    client.send(&frame(TEXT, start));
    client.send(&frame(LAST | PING, b"between"));
    assert_eq!(client.frame(), (LAST | PONG, b"between".to_vec()));
    client.send(&frame(LAST | CONTINUATION, end));
    assert_eq!(client.json(), json!({"op": "pong"}));
}

#[test]
fn unfinished_messages_share_the_budget_of_bodies() {
    let world = World::with(|_, server| {
        server.max_body_bytes = 64 << 10;
        server.max_bodies_bytes = 256 << 10;
    });
    let part = frame(TEXT, &[b'x'; 100 << 10]);
    let begin = || {
        let mut client = Client::connect(world.addr);
        client.send(&part);
        client.send(&frame(LAST | PING, b"arrived"));
        client
    };
    let arrived = (LAST | PONG, b"arrived".to_vec());
    let mut holding = [begin(), begin()];
    for client in &mut holding {
        assert_eq!(client.frame(), arrived);
    }
    assert_eq!(begin().close_code(), TRY_AGAIN);
    let mut small = Client::connect(world.addr);
    small.send(&frame(LAST | TEXT, PING_OP));
    assert_eq!(small.json()["op"], "pong");
    // A complete message gives its share of the budget back.
    let [first, _] = &mut holding;
    first.send(&frame(LAST | CONTINUATION, b""));
    assert_ne!(first.json()["error"], Value::Null);
    assert_eq!(begin().frame(), arrived);
}

#[test]
fn frames_that_the_standard_forbids_are_protocol_errors() {
    let world = World::new();
    let start = frame(TEXT, b"{");
    let mut unmasked = frame(LAST | TEXT, b"");
    unmasked.truncate(2);
    unmasked[1] = 2;
    unmasked.extend(b"{}");
    let mut table = vec![
        ("unmasked", unmasked),
        ("unmasked and empty", vec![LAST | TEXT, 0]),
        ("a fragmented ping", frame(PING, b"")),
        ("a fragmented pong", frame(PONG, b"")),
        ("a fragmented close", frame(CLOSE, b"")),
        ("a long ping", frame(LAST | PING, &[b'x'; 126])),
        ("a long pong", header(LAST | PONG, 1 << 16)),
        ("an endless close", header(LAST | CLOSE, 1 << 40)),
        ("nothing to continue", frame(CONTINUATION, b"{}")),
        ("nothing to end", frame(LAST | CONTINUATION, b"{}")),
        (
            "a text within a message",
            [start.clone(), frame(LAST | TEXT, b"{}")].concat(),
        ),
        (
            "a binary frame within a message",
            [start, frame(BINARY, b"{}")].concat(),
        ),
        ("a close of one byte", frame(LAST | CLOSE, &[3])),
    ];
    for bits in 1..8 {
        table.push(("reserved bits", frame(LAST | bits << 4 | TEXT, b"{}")));
        table.push(("reserved bits", frame(LAST | bits << 4 | PING, b"")));
    }
    for opcode in [3, 4, 5, 6, 7, 0xb, 0xc, 0xd, 0xe, 0xf] {
        table.push(("an unknown opcode", frame(LAST | opcode, b"")));
        table.push(("an unknown opcode", frame(LAST | opcode, b"{}")));
    }
    for code in [
        0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2999, 5000, 65535,
    ] {
        let payload = close_payload(code, b"");
        table.push(("an invalid close code", frame(LAST | CLOSE, &payload)));
    }
    for (name, bytes) in table {
        let code = refusal(world.addr, &bytes);
        assert_eq!(code, PROTOCOL_ERROR, "{name}: {bytes:?}");
    }
}

#[test]
fn invalid_utf8_has_its_own_close_code() {
    let world = World::new();
    let split =
        |start: &[u8], end: &[u8]| [frame(TEXT, start), frame(LAST | CONTINUATION, end)].concat();
    let table = [
        ("a text", frame(LAST | TEXT, b"{\"op\": \"\xff\"}")),
        ("a truncated text", frame(LAST | TEXT, b"\xe2\x82")),
        ("a surrogate", frame(LAST | TEXT, b"\xed\xa0\x80")),
        ("an overlong slash", frame(LAST | TEXT, b"\xc0\xaf")),
        // The last frame of the next two messages is never sent.
        ("a first fragment", frame(TEXT, b"\xff")),
        (
            "a later fragment",
            [frame(TEXT, b"{"), frame(CONTINUATION, b"\xff")].concat(),
        ),
        ("a wrong continuation", split(b"\xe2\x82", b"{}")),
        ("a character without end", split(b"{}\xe2", b"\x82")),
        (
            "a reason",
            frame(LAST | CLOSE, &close_payload(NORMAL, b"\xff")),
        ),
        (
            "a truncated reason",
            frame(LAST | CLOSE, &close_payload(NORMAL, b"\xe2\x82")),
        ),
    ];
    for (name, bytes) in table {
        let code = refusal(world.addr, &bytes);
        assert_eq!(code, NOT_UTF8, "{name}: {bytes:?}");
    }

    let name = "zur Z\u{fc}rcher \u{1f600} \u{20ac}";
    let text = json!({"op": "sing", "rid": name}).to_string();
    let mut client = Client::connect(world.addr);
    for cut in 0..=text.len() {
        let (start, end) = text.as_bytes().split_at(cut);
        client.send(&split(start, end));
        assert_eq!(client.json()["rid"], name, "cut at {cut}");
    }
}

#[test]
fn a_close_is_answered_with_its_code_and_reason() {
    let world = World::new();
    for code in [1000, 1001, 1002, 1003, 1007, 1011, 3000, 4999] {
        for reason in ["", "done \u{2713}"] {
            let payload = close_payload(code, reason.as_bytes());
            let mut client = Client::connect(world.addr);
            client.send(&frame(LAST | CLOSE, &payload));
            assert_eq!(client.frame(), (LAST | CLOSE, payload));
        }
    }
    let mut client = Client::connect(world.addr);
    client.send(&frame(LAST | CLOSE, b""));
    assert_eq!(client.frame(), (LAST | CLOSE, Vec::new()));
    client.check_ended();
}

#[test]
fn messages_before_a_refused_frame_are_served_and_none_after_it() {
    let world = World::new();
    let served = frame(LAST | TEXT, PING_OP);
    for (refused, code) in [
        (header(LAST | TEXT, 1 << 40), TOO_LARGE),
        (header(LAST | PING, 1 << 40), PROTOCOL_ERROR),
        (frame(LAST | 0x40 | TEXT, b"{}"), PROTOCOL_ERROR),
        (frame(LAST | TEXT, b"\xff"), NOT_UTF8),
        (frame(LAST | CLOSE, &close_payload(4000, b"")), 4000),
    ] {
        let mut client = Client::connect(world.addr);
        client.send(&[&served[..], &refused, &served].concat());
        assert_eq!(client.json(), json!({"op": "pong"}));
        assert_eq!(client.close_code(), code);
        client.check_ended();
    }
}

#[test]
fn a_refused_frame_cancels_the_requests_of_its_socket() {
    let world = World::new();
    let endless = json!({"op": "generate", "rid": "a", "text": "a",
        "sampling_params": {"max_new_tokens": 60_000, "ignore_eos": true}});
    let mut client = Client::connect(world.addr);
    client.send(&frame(LAST | TEXT, endless.to_string().as_bytes()));
    client.json();
    client.send(&header(LAST | TEXT, 1 << 40));
    while client.frame().0 != LAST | CLOSE {}
    world.wait_until_idle();
    assert!(world.stats().steps < 60_000, "the request ran to its end");
}

/// A client sends pings, or messages that get errors, and reads none of the replies.
#[test]
fn unread_replies_do_not_pile_up() {
    let server = ChildServer::start(&["--ws-send-timeout-s", "1"]);
    let no_sockets = || {
        let page = http::get(server.addr, "/metrics").body;
        page.contains("souffleur_websocket_connections_active 0\n")
    };
    let growth = server.growth_bytes(|| {
        for flood in [frame(LAST | PING, &[b'x'; 125]), frame(LAST | TEXT, b"{")] {
            let mut client = Client::connect(server.addr);
            let timeout = Some(Duration::from_secs(1));
            let stream = client.0.get_ref();
            stream
                .set_write_timeout(timeout)
                .expect("the timeout is not zero");
            client.flood(&flood.repeat(1000), 256 * MIB);
            wait_until("the server drops the client", no_sockets);
        }
    });
    assert!(growth < GROWTH_BYTES, "{} MiB", growth / MIB);
}

#[test]
fn handshakes_need_version_13_and_errors_are_json() {
    let world = World::new();
    let without = |name: &str| -> Vec<(&str, &str)> {
        let kept = HANDSHAKE.into_iter().filter(|(other, _)| *other != name);
        kept.collect()
    };
    let with = |name: &'static str, value: &'static str| {
        let mut headers = without(name);
        headers.push((name, value));
        headers
    };
    let table = [
        (without("Connection"), 400),
        (without("Upgrade"), 400),
        (without("Sec-WebSocket-Key"), 400),
        (without("Sec-WebSocket-Version"), 400),
        (with("Upgrade", "h2c"), 400),
        (with("Sec-WebSocket-Key", "short"), 400),
        (with("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ!!"), 400),
        (with("Sec-WebSocket-Version", "8"), 426),
        (with("Sec-WebSocket-Version", "14"), 426),
        (with("Sec-WebSocket-Version", "thirteen"), 426),
    ];
    for (headers, status) in table {
        let answer = http::send(world.addr, &handshake(world.addr, "HTTP/1.1", &headers));
        assert_eq!(answer.status, status, "{headers:?}");
        assert!(answer.json()["error"]["message"].is_string());
        let version = answer.header("sec-websocket-version");
        assert_eq!(version, (status == 426).then_some("13"));
    }
    let old = handshake(world.addr, "HTTP/1.0", &HANDSHAKE);
    assert_eq!(http::send(world.addr, &old).status, 400);
    let posted = handshake(world.addr, "HTTP/1.1", &HANDSHAKE).replacen("GET", "POST", 1);
    assert_eq!(http::send(world.addr, &posted).status, 405);
}
