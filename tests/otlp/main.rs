//! Tests of OTLP traces, as a collector receives them; they need the feature `otlp`.

#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/http.rs"]
mod http;
#[path = "../common/repository.rs"]
mod repository;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../common/scripted.rs"]
mod scripted;
#[allow(dead_code, reason = "shared with the tests of the server")]
#[path = "../server/world.rs"]
mod world;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::{Value, json};
use souffleur::server::otlp::Otlp;

use crate::world::World;

const FLUSH_LIMIT: Duration = Duration::from_secs(30);
const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const UNSAMPLED: &str = "00-0af7651916cd43dd8448eb211c80319d-b7ad6b7169203331-00";

/// A server with an engine, whose requests are traced.
fn traced(traces: Arc<Otlp>) -> World {
    World::built(|_, _| (), |state| state.with_traces(traces))
}

/// A collector that records the spans that it receives.
struct Collector {
    addr: SocketAddr,
    sent: Receiver<ExportTraceServiceRequest>,
}

impl Collector {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let addr = listener.local_addr().expect("the socket is bound");
        let (sender, sent) = channel();
        // The thread ends with the process, since no event signals the last connection.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let sender = sender.clone();
                std::thread::spawn(move || receive_batches(stream, &sender));
            }
        });
        Self { addr, sent }
    }

    fn endpoint(&self) -> String {
        format!("http://{}/v1/traces", self.addr)
    }

    fn spans(&self) -> Vec<Span> {
        let requests = self.sent.try_iter();
        let resources = requests.flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| {
            let resource_of = resource.resource.expect("a resource");
            let attributes = attributes(&resource_of.attributes);
            assert!(attributes.contains_key("service.name"), "{attributes:?}");
            resource.scope_spans
        });
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

/// Answers the requests of one connection.
fn receive_batches(stream: std::net::TcpStream, sender: &Sender<ExportTraceServiceRequest>) {
    let mut output = stream.try_clone().expect("a socket has two ends");
    let mut input = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if input.read_line(&mut head).unwrap_or(0) == 0 {
                return;
            }
        }
        let head = head.to_lowercase();
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        assert!(
            head.contains("content-type: application/x-protobuf"),
            "{head}"
        );
        let length = head.split("content-length: ").nth(1);
        let length = length.and_then(|rest| rest.lines().next()?.parse().ok());
        let mut body = vec![0; length.expect("a batch has a length")];
        input.read_exact(&mut body).expect("the batch is whole");
        let batch = ExportTraceServiceRequest::decode(&*body).expect("OTLP");
        let _ = sender.send(batch);
        let answer = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        output
            .write_all(answer.as_bytes())
            .expect("the exporter reads");
    }
}

fn attributes(list: &[KeyValue]) -> BTreeMap<&str, Value> {
    let pairs = list.iter().map(|pair| {
        let value = pair.value.as_ref().and_then(|value| value.value.as_ref());
        (pair.key.as_str(), value.map_or(Value::Null, json_of))
    });
    pairs.collect()
}

fn json_of(value: &Any) -> Value {
    let item = |item: &AnyValue| item.value.as_ref().map_or(Value::Null, json_of);
    match value {
        Any::StringValue(text) => json!(text),
        Any::BoolValue(flag) => json!(flag),
        Any::IntValue(number) => json!(number),
        Any::DoubleValue(number) => json!(number),
        Any::ArrayValue(array) => array.values.iter().map(item).collect(),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut found = spans.iter().filter(|span| span.name == name);
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let span = found
        .next()
        .unwrap_or_else(|| panic!("no {name:?} in {names:?}"));
    assert!(found.next().is_none(), "two of {name:?} in {names:?}");
    span
}

/// The spans of the requests that `work` sends to a server.
fn trace(work: impl FnOnce(&World)) -> Vec<Span> {
    let collector = Collector::new();
    let otlp = Otlp::start(Some(&collector.endpoint())).expect("the endpoint is a URL");
    let otlp = Arc::new(otlp);
    let world = traced(otlp.clone());
    work(&world);
    drop(world);
    otlp.shutdown(FLUSH_LIMIT).expect("a complete flush");
    collector.spans()
}

fn ask(world: &World, headers: &str, body: &Value) -> http::Response {
    let (host, body) = (world.addr, body.to_string());
    let length = body.len();
    http::send(
        world.addr,
        &format!(
            "POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{headers}\
             Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
        ),
    )
}

fn body() -> Value {
    json!({"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 4, "ignore_eos": true,
        "temperature": 0.5, "rid": "traced"})
}

#[test]
fn the_spans_of_a_request_are_below_its_clients_span() {
    let headers = format!("traceparent: {PARENT}\r\nX-Request-Id: trace-1\r\n");
    let spans = trace(|world| {
        ask(world, &headers, &body()).ok();
        http::get(world.addr, "/health");
    });
    assert_eq!(spans.len(), 5, "{spans:?}");
    let root = named(&spans, "POST /v1/completions");
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    assert_eq!(hex(&root.parent_span_id), &PARENT[36..52]);
    for span in &spans {
        assert_eq!(hex(&span.trace_id), &PARENT[3..35], "{}", span.name);
    }
    let found = attributes(&root.attributes);
    for (name, value) in [
        ("http.request.method", json!("POST")),
        ("http.route", json!("/v1/completions")),
        ("http.response.status_code", json!(200)),
        ("souffleur.request_id", json!("trace-1")),
        ("client.address", json!("127.0.0.1")),
    ] {
        assert_eq!(found.get(name), Some(&value), "{name}");
    }

    let request = named(&spans, "text_completion tiny");
    assert_eq!(request.parent_span_id, root.span_id);
    let found = attributes(&request.attributes);
    for (name, value) in [
        ("gen_ai.operation.name", json!("text_completion")),
        ("gen_ai.request.model", json!("tiny")),
        ("gen_ai.request.id", json!("traced")),
        ("gen_ai.request.max_tokens", json!(4)),
        ("gen_ai.request.temperature", json!(0.5)),
        ("gen_ai.usage.input_tokens", json!(3)),
        ("gen_ai.usage.output_tokens", json!(4)),
        ("gen_ai.response.finish_reasons", json!(["length"])),
    ] {
        assert_eq!(found.get(name), Some(&value), "{name}");
    }
    let seconds = |name| found[name].as_f64().expect("a latency is a number");
    let (queue, first) = (
        seconds("gen_ai.latency.time_in_queue"),
        seconds("gen_ai.latency.time_to_first_token"),
    );
    assert!(0.0 <= queue && queue <= first && first <= seconds("gen_ai.latency.e2e"));

    let phases = ["queue", "prefill", "decode"].map(|name| named(&spans, name));
    for phase in phases {
        assert_eq!(phase.parent_span_id, request.span_id, "{}", phase.name);
    }
    let [queue, prefill, decode] = phases;
    assert!(request.start_time_unix_nano <= queue.start_time_unix_nano);
    assert_eq!(queue.end_time_unix_nano, prefill.start_time_unix_nano);
    assert_eq!(prefill.end_time_unix_nano, decode.start_time_unix_nano);
    assert!(prefill.start_time_unix_nano <= prefill.end_time_unix_nano);
    assert!(decode.end_time_unix_nano <= request.end_time_unix_nano);
}

#[test]
fn requests_without_a_parent_begin_a_trace_and_unsampled_parents_give_none() {
    let spans = trace(|world| {
        ask(world, "traceparent: nonsense\r\n", &body()).ok();
        ask(world, &format!("traceparent: {UNSAMPLED}\r\n"), &body()).ok();
    });
    let root = named(&spans, "POST /v1/completions");
    assert_eq!(root.parent_span_id, Vec::<u8>::new());
    assert_eq!(spans.len(), 5);
}

#[test]
fn each_sample_has_its_own_spans_and_a_refused_call_has_one() {
    let spans = trace(|world| {
        let mut two = body();
        two["n"] = json!(2);
        ask(world, "", &two).ok();
        assert_eq!(ask(world, "", &json!({"prompt": 1.5})).status, 400);
    });
    let count = |name: &str| spans.iter().filter(|span| span.name == name).count();
    assert_eq!(count("POST /v1/completions"), 2);
    assert_eq!(count("text_completion tiny"), 2);
    assert_eq!(count("decode"), 2);
    assert_eq!(spans.len(), 10);
}

#[test]
fn a_client_that_disconnects_is_recorded() {
    let spans = trace(|world| {
        let mut long = body();
        (long["stream"], long["max_tokens"]) = (json!(true), json!(60_000));
        let mut events = http::stream(world.addr, "/v1/completions", &long);
        events.next_json();
        drop(events);
        world.wait_until_idle();
    });
    let found = attributes(&named(&spans, "text_completion tiny").attributes);
    assert_eq!(found["gen_ai.response.finish_reasons"], json!(["abort"]));
    assert!(found.contains_key("gen_ai.response.time_to_first_chunk"));
    let found = attributes(&named(&spans, "POST /v1/completions").attributes);
    assert_eq!(found["error.type"], json!("client_left"));
}

#[test]
fn without_a_collector_spans_are_lost_but_no_request_fails() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let addr = listener.local_addr().expect("the socket is bound");
    drop(listener);
    let otlp = Otlp::start(Some(&format!("http://{addr}/v1/traces")));
    let otlp = Arc::new(otlp.expect("the endpoint is a URL"));
    let world = traced(otlp.clone());
    ask(&world, "", &body()).ok();
    drop(world);
    otlp.shutdown(FLUSH_LIMIT).expect("no timeout");
}

#[test]
fn a_collector_that_never_answers_delays_shutdown_by_at_most_the_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let addr = listener.local_addr().expect("the socket is bound");
    let otlp = Otlp::start(Some(&format!("http://{addr}/v1/traces")));
    let otlp = Arc::new(otlp.expect("the endpoint is a URL"));
    let world = traced(otlp.clone());
    ask(&world, "", &body()).ok();
    drop(world);
    let late = otlp.shutdown(Duration::from_millis(1));
    late.expect_err("the collector has not answered");
}
