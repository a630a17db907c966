//! Tests of hostile grammars: each is refused or served, harms no other client, and leaves little in memory.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Map, Value, json};

use super::child::{ChildServer, MIB};
use super::tokenizer::{check_streams_continue, metric};
use crate::http::{Response, open, post};
use crate::world::{World, wait_until};

/// Maximum growth of memory while up to four hostile grammars at a time are compiled and used.
const GROWTH_BYTES: usize = 256 * MIB;
/// Maximum memory that stays in use after thousands of grammars: the last 64 are cached, and the allocator keeps some.
const LEFT_BYTES: usize = 256 * MIB;
/// The number of different schemas that are sent.
const N_SCHEMAS: usize = 4_000;

/// A label, and the body of a call with a hostile grammar.
struct Bomb(String, Value);

fn bomb(name: &str, key: &str, value: impl Into<Value>) -> Bomb {
    let sampling = json!({"max_new_tokens": 16, key: value.into()});
    let body = json!({"input_ids": [5, 6], "sampling_params": sampling});
    Bomb(name.to_owned(), body)
}

fn schema_bomb(name: &str, schema: Value) -> Bomb {
    bomb(name, "json_schema", schema.to_string())
}

/// Checks the answer to a hostile call: 200, a short refusal (400), or 503.
#[track_caller]
fn check_answer(name: &str, response: &Response) {
    let status = response.status;
    assert!(
        [200, 400, 503].contains(&status),
        "{name}: {status} {}",
        response.body
    );
    if status == 400 {
        let message = response.json()["error"]["message"].to_string();
        assert!(
            message.contains(' ') && message.len() < 1000,
            "{name}: {message}"
        );
    }
}

/// Checks that no request is in flight, and every page is free or cached.
#[track_caller]
fn check_idle(server: &ChildServer) {
    wait_until("no request is in flight", || {
        post(server.addr, "/flush_cache", &json!({})).status == 200
    });
    for name in [
        "souffleur_pages_lost_total",
        "souffleur_integrity_failures_total",
    ] {
        assert_eq!(metric(server.addr, name), 0, "{name}");
    }
    assert_eq!(sum_of(server.addr, "sglang:num_grammar_queue_reqs"), 0);
    let log = server.log();
    assert!(!log.contains("panicked"), "{log}");
}

/// The sum of a metric's values over all its labels.
fn sum_of(addr: SocketAddr, name: &str) -> usize {
    let page = crate::http::get(addr, "/metrics").body;
    let values = page.lines().filter_map(|line| {
        let labels = line.strip_prefix(name)?.strip_prefix('{')?;
        labels.rsplit(' ').next()?.parse::<f64>().ok()
    });
    values.map(|value| value as usize).sum()
}

/// Sends hostile calls while another client's stream continues. Each call must take less than `GROWTH_BYTES`.
fn check_survives(bombs: &[Bomb]) {
    let server = ChildServer::start(&["--tool-call-parser", "hermes"]);
    check_streams_continue(&server, || {
        for Bomb(name, body) in bombs {
            let is_chat = body["messages"].is_array();
            let path = if is_chat {
                "/v1/chat/completions"
            } else {
                "/generate"
            };
            let began = std::time::Instant::now();
            let grown = server.growth_bytes(|| check_answer(name, &post(server.addr, path, body)));
            eprintln!("{name}: {} MiB, {:?}", grown / MIB, began.elapsed());
            assert!(grown < GROWTH_BYTES, "{name} took {} MiB", grown / MIB);
        }
    });
    check_idle(&server);
}

/// The schema of an object with `n` properties.
fn properties(n: usize, value: impl Fn(usize) -> Value) -> Value {
    let properties = (0..n).map(|at| (format!("property_{at}"), value(at)));
    json!({"type": "object", "properties": properties.collect::<Map<_, _>>()})
}

#[test]
fn schemas_that_are_deep_wide_or_endless() {
    let nested = |open: &str, close: &str| {
        let depth = 10_000;
        format!("{}{{}}{}", open.repeat(depth), close.repeat(depth))
    };
    let chain = (0..5_000).map(|at| {
        let next = json!({"$ref": format!("#/$defs/d{}", at + 1)});
        (format!("d{at}"), next)
    });
    let chain: Map<String, Value> = chain.chain([("d5000".to_owned(), json!({}))]).collect();
    let words: Vec<String> = (0..50_000).map(|at| format!("w{at}")).collect();
    let more: Vec<String> = (0..100_000).map(|at| format!("word-{at}")).collect();
    check_survives(&[
        bomb("nested items", "json_schema", nested("{\"items\":", "}")),
        bomb("nested lists", "json_schema", nested("{\"anyOf\":[", "]}")),
        schema_bomb("itself", json!({"$ref": "#"})),
        schema_bomb(
            "a circle",
            json!({"$ref": "#/$defs/a", "$defs": {
            "a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}),
        ),
        schema_bomb(
            "itself or itself",
            json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        ),
        schema_bomb(
            "itself and itself",
            json!({"allOf": [{"$ref": "#"}, {"$ref": "#"}]}),
        ),
        schema_bomb(
            "an array in itself",
            json!({"type": "array", "items": {"$ref": "#"}, "minItems": 1}),
        ),
        schema_bomb("a chain", json!({"$ref": "#/$defs/d0", "$defs": chain})),
        schema_bomb(
            "an address elsewhere",
            json!({"$ref": "http://127.0.0.1:1/schema.json"}),
        ),
        schema_bomb("50,000 words", json!({"enum": words})),
        schema_bomb("100,000 words", json!({"enum": more})),
        schema_bomb(
            "50 kB of properties",
            properties(900, |at| json!({"type": "string", "maxLength": at})),
        ),
        schema_bomb(
            "50 kB of patterns",
            properties(700, |at| json!({"pattern": format!("^a{{{at},900}}b*$")})),
        ),
        schema_bomb(
            "50 kB of objects",
            properties(300, |at| properties(3, |_| json!({"minimum": at}))),
        ),
    ]);
}

#[test]
fn schemas_whose_combinations_multiply() {
    let options = |n: usize| -> Vec<Value> {
        let option = |at| json!({"properties": {format!("p{at}"): {"type": "integer"}}});
        (0..n).map(option).collect()
    };
    let all: Vec<Value> = (0..10).map(|_| json!({"anyOf": options(10)})).collect();
    let overlapping: Vec<Value> = (0..60)
        .map(|at| json!({"pattern": format!("a.*{at}")}))
        .collect();
    check_survives(&[
        schema_bomb("anyOf in allOf", json!({"allOf": all})),
        schema_bomb("oneOf of patterns", json!({"type": "string", "oneOf": overlapping})),
        schema_bomb("allOf of patterns", json!({"type": "string", "allOf": overlapping})),
        schema_bomb("long arrays", json!({"type": "array", "items": {}, "minItems": 1_000_000_000})),
        schema_bomb("longer arrays", json!({"type": "array", "maxItems": u64::MAX})),
        schema_bomb("arrays of arrays", (0..6).fold(json!({"type": "null"}), |items, _| {
            json!({"type": "array", "items": items, "minItems": 100, "maxItems": 200})
        })),
        schema_bomb("long strings", json!({"type": "string", "minLength": 1_000_000_000})),
        schema_bomb("long patterns", json!({"type": "string", "pattern": "^(a+)+(b|c{1,500}){1,500}$", "minLength": 100})),
        schema_bomb("small multiples", json!({"type": "number", "multipleOf": 0.000_000_7})),
        schema_bomb("large numbers", json!({"type": "integer", "minimum": -1e300, "maximum": 1e300})),
    ]);
}

#[test]
fn expressions_and_grammars_that_explode() {
    let doubled: String = (0..64)
        .map(|at| format!("r{at} ::= r{} r{}\n", at + 1, at + 1))
        .collect();
    let rules: String = (0..4_000)
        .map(|at| format!("r{at} ::= r{} | \"{at}\"\n", at + 1))
        .collect();
    let texts: Vec<String> = (0..20_000).map(|at| format!("{at:030}")).collect();
    let groups = format!("{}a{}", "(".repeat(20_000), ")".repeat(20_000));
    let grouped = format!("root ::= {}\"a\"{}", "(".repeat(20_000), ")".repeat(20_000));
    check_survives(&[
        bomb("powers", "regex", "((a{1,100}){1,100}){1,100}"),
        bomb("options", "regex", "(a|aa|aaa)*(b|bb)*c{1000}"),
        bomb("look far", "regex", "(.*a.{200}){1,5}"),
        bomb("words", "regex", r"(\w+\s?){1,1000}"),
        bomb("classes", "regex", r"[\p{L}\p{N}]{1,20000}"),
        bomb("many", "regex", "[a-z]{1,100000}"),
        bomb("nested groups", "regex", groups),
        bomb("a long expression", "regex", "ab?".repeat(300_000)),
        bomb("a rule of itself", "ebnf", "root ::= root"),
        bomb("two of itself", "ebnf", "root ::= root root | \"a\""),
        bomb(
            "nothing of itself",
            "ebnf",
            "root ::= \"\" root | root \"\" | \"\"",
        ),
        bomb(
            "ambiguous",
            "ebnf",
            "root ::= a* a* a* a* a* a* \"b\"\na ::= \"a\" | \"aa\" | \"\" a",
        ),
        bomb(
            "doubled",
            "ebnf",
            format!("root ::= r0\n{doubled}r64 ::= \"a\""),
        ),
        bomb(
            "many rules",
            "ebnf",
            format!("root ::= r0\n{rules}r4000 ::= \"a\""),
        ),
        bomb("nested groups of rules", "ebnf", grouped),
        bomb(
            "Lark",
            "ebnf",
            "%llguidance {}\nstart: start start | A\nA: /(a{1,1000}){1,1000}/",
        ),
        Bomb(
            "many texts".to_owned(),
            json!({
                "messages": [{"role": "user", "content": "hi"}], "max_tokens": 16,
                "structured_outputs": {"choice": texts},
            }),
        ),
    ]);
}

#[test]
fn thousands_of_tags_and_tools() {
    let structure = |at: usize| json!({"begin": format!("<f={at}>"), "schema": {"type": "object"}, "end": "</f>"});
    let tags = |n: usize| {
        let structures: Vec<Value> = (0..n).map(structure).collect();
        let triggers: Vec<String> = (0..n).map(|at| format!("<f={at}")).collect();
        json!({"type": "structural_tag", "structures": structures, "triggers": triggers})
    };
    let nested = (0..60).fold(json!({"type": "any_text"}), |content, at| {
        json!({"type": "tag", "begin": format!("<{at}>"), "content": content, "end": format!("</{at}>")})
    });
    let tool = |at: usize| {
        let schema = properties(3, |_| json!({"type": "string", "pattern": "^(a|b){1,50}$"}));
        json!({"type": "function", "function": {"name": format!("tool_{at}"), "strict": true, "parameters": schema}})
    };
    let with_tools = |n: usize, choice: &str| {
        let tools: Vec<Value> = (0..n).map(tool).collect();
        Bomb(
            format!("{n} tools, {choice}"),
            json!({
                "messages": [{"role": "user", "content": "hi"}], "tools": tools, "tool_choice": choice, "max_tokens": 16,
            }),
        )
    };
    check_survives(&[
        bomb("100 tags", "structural_tag", tags(100)),
        bomb("5,000 tags", "structural_tag", tags(5_000)),
        bomb(
            "nested tags",
            "structural_tag",
            json!({"type": "structural_tag", "format": nested}),
        ),
        with_tools(1_000, "auto"),
        with_tools(1_000, "required"),
        with_tools(10_000, "auto"),
        with_tools(10_000, "required"),
    ]);
}

#[test]
fn thousands_of_schemas_leave_only_cached_grammars_in_memory() {
    let server = ChildServer::start(&[]);
    let next = AtomicUsize::new(0);
    let ask_until = |end: usize| {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while let Some(at) = take_below(&next, end) {
                        let schema = json!({"enum": [at, format!("{at}")]}).to_string();
                        let sampling = json!({"json_schema": schema, "max_new_tokens": 1});
                        let body = json!({"input_ids": [5], "sampling_params": sampling});
                        post(server.addr, "/generate", &body).ok();
                    }
                });
            }
        });
    };
    ask_until(N_SCHEMAS / 10);
    let before = server.resident_bytes();
    ask_until(N_SCHEMAS);
    let left = server.resident_bytes().saturating_sub(before);
    assert!(left < LEFT_BYTES, "{} MiB are left", left / MIB);
    check_idle(&server);
    let count = |name: &str| sum_of(server.addr, &format!("sglang:num_{name}_total"));
    assert_eq!(count("grammar"), N_SCHEMAS);
    assert_eq!(count("so_requests"), N_SCHEMAS);
    assert_eq!(count("grammar_cache_hit"), 0);
}

/// Takes the next number, if it is below the end.
fn take_below(next: &AtomicUsize, end: usize) -> Option<usize> {
    let update = |at| (at < end).then_some(at + 1);
    next.fetch_update(Ordering::SeqCst, Ordering::SeqCst, update)
        .ok()
}

#[test]
fn many_hostile_grammars_at_once_do_not_block_other_requests() {
    let server = ChildServer::start(&[]);
    let hostile = |at: usize| {
        let schema =
            json!({"type": "string", "pattern": format!("^(a{{1,{}}}|b.*){{1,500}}$", 900 + at)});
        let sampling = json!({"json_schema": schema.to_string(), "max_new_tokens": 4});
        json!({"input_ids": [5], "sampling_params": sampling})
    };
    let grown = server.growth_bytes(|| {
        check_streams_continue(&server, || {
            std::thread::scope(|scope| {
                for at in 0..32 {
                    let server = &server;
                    scope.spawn(move || {
                        check_answer("a pattern", &post(server.addr, "/generate", &hostile(at)));
                    });
                }
                // Grammars of disconnected clients are dropped.
                for at in 32..64 {
                    drop(open(server.addr, "/generate", &hostile(at)));
                }
                let plain = json!({"text": "Once", "sampling_params": {"max_new_tokens": 4}});
                post(server.addr, "/generate", &plain).ok();
                let small = json!({"text": "Once", "sampling_params": {"regex": "[ab]", "max_new_tokens": 4}});
                post(server.addr, "/generate", &small).ok();
            });
        });
    });
    assert!(grown < GROWTH_BYTES, "{} MiB", grown / MIB);
    check_idle(&server);
}

#[test]
fn cached_and_failed_grammars_are_counted() {
    let server = ChildServer::start(&[]);
    let sampling = json!({"regex": "[ab]", "max_new_tokens": 4});
    let good = json!({"input_ids": [5], "sampling_params": sampling});
    for _ in 0..3 {
        post(server.addr, "/generate", &good).ok();
    }
    let sampling = json!({"regex": "(", "max_new_tokens": 4});
    let bad = json!({"input_ids": [5], "sampling_params": sampling});
    assert_eq!(post(server.addr, "/generate", &bad).status, 400);
    let count = |name: &str| sum_of(server.addr, &format!("sglang:{name}"));
    assert_eq!(count("num_grammar_total"), 4);
    assert_eq!(count("num_grammar_cache_hit_total"), 2);
    assert_eq!(count("num_grammar_aborted_total"), 1);
    assert_eq!(count("num_grammar_timeout_total"), 0);
    assert_eq!(count("num_so_requests_total"), 3);
    assert_eq!(count("grammar_compilation_time_seconds_count"), 2);
    check_idle(&server);
}

#[test]
fn json_that_a_model_never_closes_ends_at_the_length_limit() {
    let endless = format!("{{\"text\": \"{}", "more and ".repeat(3_000));
    let world = World::scripted(&[("", &endless)]);
    for stream in [false, true] {
        let body = json!({
            "messages": [{"role": "user", "content": "?"}], "max_tokens": 2_000, "stream": stream,
            "response_format": {"type": "json_object"},
        });
        let answer = post(world.addr, "/v1/chat/completions", &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert!(answer.body.contains("\"finish_reason\":\"length\""));
    }
    world.wait_until_idle();
}

#[test]
fn endless_openings_of_calls_are_delivered_as_text() {
    let openings = "<tool_call>\n".repeat(5_000);
    let tool = json!({"type": "function", "function": {"name": "seat"}});
    let world = World::scripted(&[("", &openings)]);
    let mut body = json!({"messages": [{"role": "user", "content": "?"}], "tools": [tool]});
    let whole = post(world.addr, "/v1/chat/completions", &body).ok();
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "stop");
    assert!(choice["message"]["tool_calls"].is_null());
    let text = choice["message"]["content"].as_str().expect("a text");
    assert!(text.len() > openings.len() - 100, "{} bytes", text.len());
    body["stream"] = true.into();
    let events = crate::http::stream(world.addr, "/v1/chat/completions", &body).rest();
    let deltas = events
        .iter()
        .map(|event| &event["choices"][0]["delta"]["content"]);
    let streamed: String = deltas.filter_map(Value::as_str).collect();
    assert_eq!(streamed, text);
    world.wait_until_idle();
}
