//! Tests of request ids in answers, and of the access log.

use std::io::{self, Write as _};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use serde_json::json;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::{Layer, fmt, registry};

use crate::http::{self, Response, get, post, send, stream};
use crate::world::World;

/// Maximum time to wait for a line.
const LINE_TIMEOUT: Duration = Duration::from_secs(60);

/// The access log of all servers of this process, as the binary would write it.
struct Log {
    lines: Mutex<Vec<String>>,
    more: Condvar,
}

static LOG: Log = Log {
    lines: Mutex::new(Vec::new()),
    more: Condvar::new(),
};

impl Log {
    /// Starts capturing; call it before there are requests.
    fn listen() -> &'static Self {
        static STARTED: OnceLock<()> = OnceLock::new();
        STARTED.get_or_init(|| {
            let only = Targets::new().with_target("souffleur::access", tracing::Level::INFO);
            let lines = fmt::layer().with_ansi(false).with_writer(&LOG);
            let subscriber = registry().with(lines.with_filter(only));
            tracing::subscriber::set_global_default(subscriber).expect("no other subscriber");
        });
        &LOG
    }

    fn lines(&self) -> MutexGuard<'_, Vec<String>> {
        self.lines.lock().expect("no holder of the lines panics")
    }

    /// Waits for a line with all these parts.
    #[track_caller]
    fn line(&self, parts: &[&str]) -> String {
        let matches = |line: &&String| parts.iter().all(|part| line.contains(part));
        let find = |lines: &Vec<String>| lines.iter().find(matches).cloned();
        let waited = self
            .more
            .wait_timeout_while(self.lines(), LINE_TIMEOUT, |lines| find(lines).is_none());
        let (lines, _) = waited.expect("no holder of the lines panics");
        find(&lines).unwrap_or_else(|| panic!("no line with {parts:?} in {lines:?}"))
    }
}

struct Writer;

impl io::Write for Writer {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(text);
        let lines = text.lines().map(str::to_owned);
        LOG.lines().extend(lines);
        LOG.more.notify_all();
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for &'static Log {
    type Writer = Writer;

    fn make_writer(&'a self) -> Writer {
        Writer
    }
}

fn ask(world: &World, method: &str, path: &str, headers: &str, body: &str) -> Response {
    let (host, length) = (world.addr, body.len());
    send(
        world.addr,
        &format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
}

fn id_of(response: &Response) -> &str {
    let ids = response
        .headers
        .iter()
        .filter(|(name, _)| name == "x-request-id");
    let ids: Vec<&str> = ids.map(|(_, id)| id.as_str()).collect();
    assert_eq!(ids.len(), 1, "{:?}", response.headers);
    ids[0]
}

const CALL: &str =
    r#"{"input_ids": [1, 2], "sampling_params": {"max_new_tokens": 2, "ignore_eos": true}}"#;

#[test]
fn every_answer_has_an_id_and_a_clients_id_is_kept() {
    let world = World::with(|_, server| {
        server.api_key = souffleur::server::ApiKey::new("sk-1").ok();
    });
    let key = "Authorization: Bearer sk-1\r\n";
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let handshake = format!("{key}{upgrade}");
    let foreign = "Origin: https://evil.example\r\n".to_owned();
    let cases = [
        ("POST", "/generate", key, CALL, 200),
        ("POST", "/generate", key, "{", 400),
        ("POST", "/generate", "", CALL, 401),
        ("GET", "/generate", key, "", 405),
        ("GET", "/nowhere", key, "", 404),
        ("GET", "/health", "", "", 200),
        ("GET", "/health", &foreign, "", 403),
        ("HEAD", "/v1/models", key, "", 200),
        ("POST", "/v1/messages", key, "{}", 400),
        ("POST", "/v1/messages", "", "{}", 401),
    ];
    for (index, (method, path, headers, body, status)) in cases.into_iter().enumerate() {
        let id = format!("case-{index}.a:b_C");
        let with_id = format!("{headers}X-Request-Id: {id}\r\n");
        if method != "HEAD" {
            let response = ask(&world, method, path, &with_id, body);
            assert_eq!(
                (response.status, id_of(&response)),
                (status, &*id),
                "{path}"
            );
        }
        let with_id = format!("{headers}X-Request-Id: not an id\r\n");
        let mut stream = http::connect(world.addr);
        let (host, length) = (world.addr, body.len());
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\nHost: {host}\r\n{with_id}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        )
        .expect("the server reads");
        let head = http::read_head_of(stream);
        let generated = head.header("x-request-id").expect("an id");
        assert!(
            generated.starts_with("req_") && generated.len() == 36,
            "{path}: {generated}"
        );
        if path == "/v1/messages" {
            assert_eq!(head.header("request-id"), Some(generated));
        }
    }
    let mut stream = http::connect(world.addr);
    let host = world.addr;
    write!(
        stream,
        "GET /v1/ws/generate HTTP/1.1\r\nHost: {host}\r\n{handshake}X-Request-Id: ws-1\r\n\r\n"
    )
    .expect("the server reads");
    let head = http::read_head_of(stream);
    assert_eq!((head.status, id_of(&head)), (101, "ws-1"));
}

#[test]
fn pages_of_allowed_origins_may_read_the_ids() {
    let world = World::with(|_, server| {
        server.allowed_origins = vec!["https://chat.example".to_owned()];
    });
    let origin = "Origin: https://chat.example\r\n";
    let response = ask(&world, "GET", "/v1/models", origin, "");
    let exposed = response.header("access-control-expose-headers");
    let exposed = exposed.expect("a list").to_lowercase();
    let mut names = exposed.split(',').map(str::trim);
    assert!(names.any(|name| name == "x-request-id"), "{exposed}");
}

#[test]
fn a_request_is_logged_as_one_line_with_the_engines_ids() {
    let log = Log::listen();
    let world = World::new();
    let body = json!({"rid": "rid-1", "input_ids": [[1, 2], [3]],
        "sampling_params": {"max_new_tokens": 2, "ignore_eos": true}});
    let ids = "X-Request-Id: line-1\r\nx-client-request-id: turn-7\r\n";
    let path = "/generate?api_key=secret";
    let response = ask(&world, "POST", path, ids, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    let line = log.line(&["request_id=\"line-1\""]);
    let bytes = format!("bytes={}", response.body.len());
    for part in [
        "INFO souffleur::access: ",
        "method=POST path=/generate status=200",
        &bytes,
        "client_request_id=\"turn-7\"",
        "rids=rid-1-0,rid-1-1",
        "client=127.0.0.1:",
        "ended=\"whole\"",
    ] {
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
    assert!(!line.contains("secret"), "{line}");
}

#[test]
fn text_of_clients_cannot_forge_lines_or_fields_of_the_log() {
    let log = Log::listen();
    let world = World::new();
    let body = json!({"rid": "x\n2026 INFO root: status=200 \u{1b}[2J", "input_ids": [1],
        "sampling_params": {"max_new_tokens": 1}});
    let id = "X-Request-Id: injected-1\r\n";
    let response = ask(&world, "POST", "/generate", id, &body.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    let line = log.line(&["injected-1"]);
    let rid = r#"rids="x\n2026 INFO root: status=200 \u{1b}[2J""#;
    assert!(line.contains(rid), "{line}");
    let id = "X-Request-Id: injected-2\r\n";
    ask(&world, "GET", "/no\"where%0Astatus=200?key=secret", id, "");
    let line = log.line(&["injected-2"]);
    let path = r#"path="/no\"where%0Astatus=200" status=404"#;
    assert!(line.contains(path) && !line.contains("secret"), "{line}");
}

#[test]
fn ids_in_paths_are_not_logged() {
    let log = Log::listen();
    let world = World::new();
    let id = "X-Request-Id: stored-1\r\n";
    ask(&world, "GET", "/v1/responses/resp_secret", id, "");
    let line = log.line(&["stored-1"]);
    assert!(
        line.contains("path=/v1/responses/{id} status=404"),
        "{line}"
    );
}

#[test]
fn a_stream_is_logged_at_its_end_with_whether_the_client_left() {
    let log = Log::listen();
    let world = World::new();
    let body = |rid: &str, tokens: usize| {
        json!({"rid": rid, "input_ids": [1], "stream": true,
            "sampling_params": {"max_new_tokens": tokens, "ignore_eos": true}})
    };
    stream(world.addr, "/generate", &body("stream-whole", 4)).rest();
    let line = log.line(&["rids=stream-whole"]);
    assert!(
        line.contains("status=200") && line.contains("ended=\"whole\""),
        "{line}"
    );

    let mut events = stream(world.addr, "/generate", &body("stream-left", 60_000));
    events.next_json();
    drop(events);
    let line = log.line(&["rids=stream-left"]);
    assert!(
        line.contains("status=200") && line.contains("ended=\"client_left\""),
        "{line}"
    );
    world.wait_until_idle();
}

#[test]
fn a_client_that_leaves_before_its_answer_is_logged_with_499() {
    let log = Log::listen();
    let world = World::new();
    let body = json!({"rid": "left-early", "input_ids": [1],
        "sampling_params": {"max_new_tokens": 60_000, "ignore_eos": true}});
    let connection = http::open(world.addr, "/generate", &body);
    world.wait_until("the request runs", |stats| stats.running_requests == 1);
    drop(connection);
    let line = log.line(&["rids=left-early"]);
    assert!(line.contains("status=499 bytes=0"), "{line}");
    assert!(line.contains("ended=\"client_left\""), "{line}");
    world.wait_until_idle();
}

#[test]
fn probes_are_left_out_and_the_log_can_be_turned_off() {
    let log = Log::listen();
    let silent = World::with(|_, server| server.access_log = false);
    let id = |id: &str| format!("X-Request-Id: {id}\r\n");
    ask(&silent, "GET", "/v1/models", &id("off-1"), "");
    drop(silent);
    let world = World::with(|_, server| server.access_log_exclude.push("/v1/models/{id}".into()));
    ask(&world, "GET", "/health", &id("off-2"), "");
    ask(&world, "GET", "/v1/models/tiny", &id("off-3"), "");
    assert_eq!(
        post(world.addr, "/abort_request", &json!({"rid": "x"})).status,
        200
    );
    let last = get(world.addr, "/v1/models");
    // A worker writes a request's line when the answer ends, so a dropped server has written all its lines.
    drop(world);
    log.line(&[id_of(&last), "path=/v1/models "]);
    let lines = log.lines();
    let found = lines.iter().find(|line| line.contains("\"off-"));
    assert_eq!(found, None);
}

#[test]
fn a_websocket_is_logged_as_one_line_at_its_end() {
    let log = Log::listen();
    let world = World::new();
    let mut socket = http::connect(world.addr);
    let host = world.addr;
    write!(
        socket,
        "GET /v1/ws/generate HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\n\
         Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nX-Request-Id: socket-1\r\n\
         Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    .expect("the server reads");
    let head = http::read_head_of(socket.try_clone().expect("a socket has two ends"));
    assert_eq!(head.status, 101);
    drop(socket);
    let line = log.line(&["request_id=\"socket-1\""]);
    assert!(line.contains("path=/v1/ws/generate status=101"), "{line}");
}

#[test]
fn a_request_that_does_not_arrive_in_time_is_logged_with_the_id_of_its_answer() {
    let log = Log::listen();
    let world = World::with(|_, server| (server.header_timeout_s, server.body_timeout_s) = (1, 1));
    for (sent, path) in [
        ("POST /generate HTTP/1.1\r\nHost: local", "path=\"-\""),
        (
            "POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{",
            "path=/generate",
        ),
    ] {
        let answer = send(world.addr, sent);
        assert_eq!(answer.status, 408);
        let line = log.line(&[id_of(&answer), "status=408"]);
        assert!(line.contains(path), "{line}");
    }
}
