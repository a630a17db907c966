//! Tests that encoding one client's prompts does not stall other clients' streams.
//!
//! Time is counted in generated tokens: the engine generates a stream's tokens even if they are not sent. A stall is
//! the number of generated tokens that the stream's client has not received.

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use serde_json::{Value, json};

use super::child::{ChildServer, MIB};
use crate::http::{get, open, post, stream};
use crate::world::wait_until;

/// Tokens to generate after the other client got its answer, because work for that client may continue.
const TOKENS_AFTER: usize = 3000;
/// The size of a prompt that takes one or two seconds to tokenize. Longer prompts are refused before tokenization.
const LONG_BYTES: usize = 1_700_000;
/// A position past every prompt. Log probabilities from this position are refused after the prompt is tokenized.
const NO_POSITION: u32 = 65_000;

/// A stream that another thread reads to its end, and its progress.
struct Listener {
    received: Arc<AtomicUsize>,
    is_dropped: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Listener {
    fn start(addr: SocketAddr) -> Self {
        let usage = json!({"include_usage": true, "continuous_usage_stats": true});
        let body = json!({
            "model": "tiny", "prompt": "Once", "max_tokens": 60_000, "ignore_eos": true,
            "stream": true, "stream_options": usage,
        });
        let mut events = stream(addr, "/v1/completions", &body);
        let (received, is_dropped) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (count, end) = (received.clone(), is_dropped.clone());
        let reader = std::thread::spawn(move || {
            while !end.load(Ordering::Relaxed) {
                let event = events.next_json();
                let tokens = event["usage"]["completion_tokens"].as_u64();
                count.store(tokens.expect("a count") as usize, Ordering::Relaxed);
            }
        });
        Self {
            received,
            is_dropped,
            reader: Some(reader),
        }
    }

    fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_dropped.store(true, Ordering::Relaxed);
        let ended = self.reader.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("a reader").expect("a stream without errors");
        }
    }
}

pub(super) fn metric(addr: SocketAddr, name: &str) -> usize {
    let page = get(addr, "/metrics").body;
    let lines = page.lines();
    let values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    values
        .map(|value| value.parse::<f64>().expect("a number") as usize)
        .sum()
}

fn encoded_bytes(addr: SocketAddr) -> usize {
    metric(addr, "souffleur_encoded_prompt_bytes_total")
}

/// Checks that a stream receives most of its tokens without delay while the server answers the requests of `ask`, and
/// shortly afterwards.
#[track_caller]
pub(super) fn check_streams_continue(server: &ChildServer, ask: impl FnOnce() + Send) {
    let addr = server.addr;
    let listener = Listener::start(addr);
    wait_until("the stream has begun", || listener.received() > 100);
    let steps = || metric(addr, "souffleur_steps_planned_total");
    let (steps_before, received_before) = (steps(), listener.received());
    let answered = AtomicUsize::new(usize::MAX);
    let (mut most_waiting, mut steps_now) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            ask();
            answered.store(steps(), Ordering::SeqCst);
        });
        while steps_now < answered.load(Ordering::SeqCst).saturating_add(TOKENS_AFTER) {
            steps_now = steps();
            let received = listener.received() - received_before;
            most_waiting = most_waiting.max((steps_now - steps_before).saturating_sub(received));
        }
    });
    let steps = steps_now - steps_before;
    assert!(
        most_waiting < steps / 2,
        "{most_waiting} of {steps} tokens waited for the other client"
    );
}

fn refused(server: &ChildServer, path: &str, body: &Value) {
    let response = post(server.addr, path, body);
    assert_eq!(response.status, 400, "{}", response.body);
}

fn chat(arguments: Value) -> Value {
    json!({
        "model": "tiny", "max_tokens": 1, "chat_template_kwargs": arguments,
        "messages": [{"role": "user", "content": "hi"}],
    })
}

/// A request that is encoded and then refused.
fn encoded_only(prompt: Value) -> Value {
    json!({
        "text": prompt, "return_logprob": true, "logprob_start_len": NO_POSITION,
        "sampling_params": {"max_new_tokens": 1},
    })
}

fn words(bytes: usize) -> String {
    "abc ".repeat(bytes / 4)
}

#[test]
fn template_arguments_of_six_megabytes_stall_no_stream() {
    let server = ChildServer::start(&[]);
    check_streams_continue(&server, || {
        let body = chat(json!({"note": words(6_000_000)}));
        refused(&server, "/v1/chat/completions", &body);
    });
    assert!(
        encoded_bytes(server.addr) < 1000,
        "a prompt that cannot fit is not encoded"
    );
}

#[test]
fn template_arguments_that_may_fit_stall_no_stream() {
    let server = ChildServer::start(&[]);
    check_streams_continue(&server, || {
        let body = chat(json!({"note": words(LONG_BYTES)}));
        refused(&server, "/v1/chat/completions", &body);
    });
}

#[test]
fn template_arguments_without_text_stall_no_stream() {
    let server = ChildServer::start(&[]);
    check_streams_continue(&server, || {
        let empties = vec![json!([]); 1_000_000];
        let body = chat(json!({"empties": empties, "note": words(200_000)}));
        refused(&server, "/v1/chat/completions", &body);
    });
}

#[test]
fn samples_of_a_long_prompt_stall_no_stream_and_are_encoded_once() {
    let server = ChildServer::start(&[]);
    let mut body = encoded_only(words(800_000).into());
    body["sampling_params"]["n"] = 64.into();
    check_streams_continue(&server, || refused(&server, "/generate", &body));
    let encoded = encoded_bytes(server.addr);
    assert!((800_000..801_000).contains(&encoded), "{encoded} bytes");
}

#[test]
fn a_thousand_prompts_of_some_kilobytes_stall_no_stream() {
    let server = ChildServer::start(&[]);
    let prompts: Vec<String> = (0..1024).map(|i| format!("{i} {}", words(7000))).collect();
    let body = encoded_only(prompts.into());
    check_streams_continue(&server, || refused(&server, "/generate", &body));
}

#[test]
fn many_calls_of_short_prompts_stall_no_stream() {
    let server = ChildServer::start(&[]);
    let body = encoded_only(words(1000).into());
    check_streams_continue(&server, || {
        let sent: Vec<TcpStream> = (0..400)
            .map(|_| open(server.addr, "/generate", &body))
            .collect();
        for socket in sent {
            assert_eq!(crate::http::read_response(socket).status, 400);
        }
    });
}

#[test]
fn a_thousand_prompts_of_token_ids_stall_no_stream() {
    let server = ChildServer::start(&[]);
    let prompts = vec![vec![7u32; 4000]; 1000];
    let body = json!({
        "input_ids": prompts, "return_logprob": true, "logprob_start_len": NO_POSITION,
        "sampling_params": {"max_new_tokens": 1},
    });
    check_streams_continue(&server, || refused(&server, "/generate", &body));
}

#[test]
fn a_short_prompt_is_answered_while_long_ones_of_others_are_encoded() {
    let server = ChildServer::start(&[]);
    let long: Vec<TcpStream> = (0..3)
        .map(|_| {
            open(
                server.addr,
                "/generate",
                &encoded_only(words(LONG_BYTES).into()),
            )
        })
        .collect();
    wait_until("encoding has begun", || encoded_bytes(server.addr) > 0);
    for bytes in [9_000, 40_000] {
        refused(&server, "/generate", &encoded_only(words(bytes).into()));
    }
    let encoded = encoded_bytes(server.addr);
    assert!(
        encoded < 2 * LONG_BYTES + 100_000,
        "{encoded} bytes were encoded before the short prompts"
    );
    drop(long);
}

#[test]
fn prompts_of_disconnected_clients_are_not_encoded() {
    let server = ChildServer::start(&[]);
    let body = encoded_only(words(LONG_BYTES).into());
    for _ in 0..5 {
        drop(open(server.addr, "/generate", &body));
    }
    refused(&server, "/generate", &body);
    // The server may have encoded one prompt before its client disconnected.
    let encoded = encoded_bytes(server.addr);
    let expected = LONG_BYTES..2 * LONG_BYTES + 1000;
    assert!(expected.contains(&encoded), "{encoded} bytes");
}

#[test]
fn a_prompt_that_cannot_fit_is_not_encoded_whole() {
    let child = ChildServer::start(&[]);
    let text = "q z ".repeat(450_000);
    let message = json!([{"role": "user", "content": text}]);
    let calls = [
        ("/generate", json!({"text": text})),
        ("/v1/completions", json!({"prompt": text})),
        ("/v1/chat/completions", json!({"messages": message})),
    ];
    for (path, call) in calls {
        let growth = child.growth_bytes(|| {
            let refused = post(child.addr, path, &call);
            assert_eq!(refused.status, 400, "{}", refused.body);
        });
        assert!(growth < 64 * MIB, "{path}: {growth} bytes");
    }
}
