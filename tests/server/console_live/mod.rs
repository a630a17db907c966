//! Tests of `GET /console/live`, the event stream of the engine's work.

mod drawing;
mod requests;
mod tree;

use serde_json::{Value, json};
use souffleur::server::{ApiKey, ServerConfig};

use crate::http::{Events, get, listen, post};
use crate::world::World;
use drawing::Drawing;

const LIVE: &str = "/console/live?hz=10";
const ADMIN_KEY: &str = "sk-of-the-admin";

/// A client of the stream, which keeps the same state as the page.
pub struct Viewer {
    events: Events,
    pub hello: Value,
    pub frame: Value,
    pub drawing: Drawing,
}

impl Viewer {
    #[track_caller]
    pub fn open(world: &World) -> Self {
        Self::open_at(world, LIVE, "")
    }

    /// `header` is a line of the request, or empty.
    #[track_caller]
    pub fn open_at(world: &World, path: &str, header: &str) -> Self {
        let mut viewer = Self {
            events: listen(world.addr, path, header),
            hello: Value::Null,
            frame: Value::Null,
            drawing: Drawing::default(),
        };
        assert_eq!(viewer.next().as_deref(), Some("hello"));
        assert_eq!(viewer.next().as_deref(), Some("frame"));
        viewer
    }

    /// Takes the next event, checks it, and returns its name; `None` at the end of the stream.
    #[track_caller]
    pub fn next(&mut self) -> Option<String> {
        loop {
            let event = self.events.next_event()?;
            if event.starts_with(':') {
                continue;
            }
            let event = event.strip_prefix("event: ").expect("an event has a name");
            let (name, data) = event.split_once("\ndata: ").expect("an event has data");
            let value: Value = serde_json::from_str(data).expect("data is JSON");
            match name {
                "hello" => self.hello = value,
                "frame" => {
                    assert!(data.len() <= 16 << 10, "{} bytes", data.len());
                    check_frame(&value);
                    self.frame = value;
                }
                "tree" => {
                    assert!(data.len() <= 32 << 10, "{} bytes", data.len());
                    self.drawing.take(&value);
                }
                other => panic!("an event {other}"),
            }
            return Some(name.to_owned());
        }
    }

    /// Takes events until one makes this true.
    #[track_caller]
    pub fn wait(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            assert!(self.next().is_some(), "the stream ended before {what}");
        }
    }

    #[track_caller]
    pub fn wait_for_phase(&mut self, phase: &str) {
        self.wait(phase, |viewer| viewer.hello["phase"] == phase);
    }

    /// Takes events until frame and tree show the idle engine.
    #[track_caller]
    pub fn catch_up(&mut self, world: &World) {
        world.wait_until_idle();
        let stats = json!(world.stats());
        let is_current = |viewer: &Self| {
            let (counters, pools) = (&viewer.frame["counters"], &viewer.frame["pools"]);
            let counts = [
                "steps",
                "prompt_tokens",
                "evicted_tokens",
                "running_requests",
            ];
            let parts = ["free", "evictable", "protected", "private"];
            let has_part =
                |part: &str| pools[0]["parts"][part] == stats[format!("{part}_tokens").as_str()];
            counts.iter().all(|name| counters[*name] == stats[*name])
                && parts.into_iter().all(has_part)
        };
        self.wait("a current frame", is_current);
        // The tree's event, if there is one, comes before the next frame.
        loop {
            let name = self.next().expect("the stream goes on");
            if name == "frame" {
                break;
            }
        }
        assert!(is_current(self), "{}", self.frame);
    }
}

fn numbers(parts: &Value) -> impl Iterator<Item = u64> {
    let parts = parts.as_object().expect("an object").values();
    parts.map(|part| part.as_u64().expect("a number"))
}

/// Every frame: the parts of each pool sum to the pool, and rows have their columns.
#[track_caller]
fn check_frame(frame: &Value) {
    for pool in frame["pools"].as_array().expect("pools") {
        let total = numbers(&pool["parts"]).sum::<u64>();
        assert_eq!(pool["total"], total, "{pool}");
    }
    let requests = frame["requests"].as_array().expect("requests");
    assert!(requests.len() <= 64);
    for request in requests {
        let [prompt, cached, computed] = [2, 3, 4].map(|at| request[at].as_u64());
        let reached = cached
            .zip(computed)
            .map(|(cached, computed)| cached + computed);
        assert!(reached.is_some() && reached <= prompt, "{request}");
        assert_eq!(request.as_array().map(Vec::len), Some(10));
    }
    let steps = frame["steps"].as_array().expect("steps");
    assert!(steps.len() <= 128);
    let ids: Vec<Option<u64>> = steps.iter().map(|step| step[0].as_u64()).collect();
    assert!(ids.is_sorted(), "{ids:?}");
}

fn complete(world: &World, prompt: &str, max_tokens: u32) -> Value {
    let call = json!({"prompt": prompt, "max_tokens": max_tokens, "temperature": 0});
    post(world.addr, "/v1/completions", &call).ok()
}

#[test]
fn events_have_the_form_of_the_protocol() {
    let world = World::scripted(&[("sea", "The sea is salty, and wide, and deep.")]);
    let mut viewer = Viewer::open(&world);
    let hello = viewer.hello.clone();
    let expected = json!({
        "protocol": 1, "version": env!("CARGO_PKG_VERSION"), "phase": "ready", "reason": null,
        "model": "scripted", "device": hello["device"], "generation": 1, "died": null,
        "is_admin": false, "hz": 10,
        "limits": {
            "context_length": hello["limits"]["context_length"], "max_total_tokens": 66560,
            "page_size": 1, "max_running_requests": 32,
        },
        "actors": ["tokenizer", "scheduler", "radix_cache", "allocator", "executor"],
        "columns": hello["columns"],
    });
    assert_eq!(hello, expected);
    assert!(
        hello["device"]
            .as_str()
            .expect("a text")
            .starts_with("cpu, "),
        "{hello}"
    );
    let answer = complete(&world, "Tell me of the sea", 8);
    viewer.catch_up(&world);
    let frame = &viewer.frame;
    let counters = &frame["counters"];
    let prompt_tokens = &answer["usage"]["prompt_tokens"];
    assert_eq!(&counters["prompt_tokens"], prompt_tokens, "{counters}");
    assert_eq!(counters["output_tokens"], 8, "{counters}");
    assert_eq!(counters.as_object().map(|all| all.len()), Some(13));
    let pools: Vec<&Value> = frame["pools"].as_array().expect("pools").iter().collect();
    let named: Vec<&Value> = pools.iter().map(|pool| &pool["pool"]).collect();
    assert_eq!(named, ["kv", "rows"]);
    assert_eq!(pools[0]["total"], 66560);
    let mailboxes = frame["mailboxes"].as_array().expect("mailboxes");
    for (actor, message) in [
        ("tokenizer", "Generate"),
        ("scheduler", "Submit"),
        ("tokenizer", "TokensReady"),
        ("radix_cache", "PlanStep"),
        ("allocator", "ReservePages"),
        ("scheduler", "StepPlanned"),
        ("executor", "RunStep"),
        ("scheduler", "StepDone"),
    ] {
        let is_it = |row: &&Value| row[0] == actor && row[1] == message;
        let row = mailboxes
            .iter()
            .find(is_it)
            .unwrap_or_else(|| panic!("no {message}"));
        assert!(row[3].as_u64() > Some(0), "{row}");
    }
}

#[test]
fn steps_are_told_once_and_in_order() {
    let world = World::scripted(&[(
        "",
        "A line that is long enough for several steps of the engine.",
    )]);
    let mut viewer = Viewer::open(&world);
    let mut ids: Vec<u64> = Vec::new();
    for round in 0..3 {
        complete(&world, &format!("Prompt {round}"), 6);
        world.wait_until_idle();
        let steps = world.stats().steps;
        while ids.last() != Some(&steps) {
            if viewer.next().as_deref() != Some("frame") {
                continue;
            }
            assert_eq!(viewer.frame["steps_left_out"], 0);
            let rows = viewer.frame["steps"].as_array().expect("steps");
            ids.extend(rows.iter().map(|row| row[0].as_u64().expect("an id")));
            for row in rows {
                assert_eq!(row.as_array().map(Vec::len), Some(6), "{row}");
                assert!(row[3].as_u64() >= row[5].as_u64(), "{row}");
                let ended_us = row[1].as_u64().zip(row[2].as_u64());
                let ended_us = ended_us.map(|(start, took)| (start + took) as f64);
                let now_us = viewer.frame["t_ms"].as_f64().map(|now| now * 1000.0 + 1.0);
                assert!(ended_us <= now_us, "{row}");
            }
        }
    }
    let expected: Vec<u64> = (1..=world.stats().steps).collect();
    assert_eq!(ids, expected);
}

#[test]
fn another_rate_and_other_viewers_than_eight_are_refused() {
    let world = World::scripted(&[]);
    for hz in ["0", "11", "4.5", "fast"] {
        let refused = get(world.addr, &format!("/console/live?hz={hz}"));
        assert_eq!(refused.status, 400, "{hz}");
        assert_eq!(refused.json()["error"]["param"], "hz");
    }
    let mut viewers: Vec<Viewer> = (0..8).map(|_| Viewer::open(&world)).collect();
    let ninth = get(world.addr, LIVE);
    let code = &ninth.json()["error"]["code"];
    assert_eq!((ninth.status, code), (503, &json!("too_many_viewers")));
    assert_eq!(ninth.header("retry-after"), Some("10"));
    complete(&world, "Hello", 3);
    for viewer in &mut viewers {
        viewer.catch_up(&world);
    }
    drop(viewers.pop());
    crate::world::wait_until("a seat is free", || get(world.addr, LIVE).status == 200);
}

#[test]
fn only_admins_see_request_ids_and_names() {
    let world = World::with(|_, server: &mut ServerConfig| {
        server.api_key = ApiKey::new("sk-of-a-user").ok();
        server.admin_api_key = ApiKey::new(ADMIN_KEY).ok();
    });
    let ask = |key: &str| {
        let addr = world.addr;
        let head = format!("GET {LIVE} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{key}\r\n");
        crate::http::send(addr, &head)
    };
    assert_eq!(ask("").status, 401);
    assert_eq!(ask("Authorization: Bearer sk-of-a-user\r\n").status, 401);
    let admin = format!("Authorization: Bearer {ADMIN_KEY}\r\n");
    assert_eq!(ask(&admin).status, 200);
    let mut viewer = Viewer::open_at(&world, LIVE, &admin);
    assert_eq!(viewer.hello["is_admin"], true);
    requests::check_rids(&world, &mut viewer, Some("of-the-test"), &admin);
    let world = World::new();
    let mut viewer = Viewer::open(&world);
    assert_eq!(viewer.hello["is_admin"], false);
    requests::check_rids(&world, &mut viewer, None, "");
}

#[test]
fn loading_failure_and_shutdown_are_told() {
    let mut world = World::without_engine(ServerConfig::default());
    let mut viewer = Viewer::open(&world);
    assert_eq!(viewer.hello["phase"], "loading");
    for name in ["model", "device", "limits"] {
        assert_eq!(viewer.hello[name], Value::Null, "{name}");
    }
    let loading = |done: u64, total: u64| json!({"done_bytes": done, "total_bytes": total});
    assert_eq!(viewer.frame["loading"], loading(0, 0));
    world.state.slot().report_loading(5, 10);
    viewer.wait("the progress", |viewer| {
        viewer.frame["loading"] == loading(5, 10)
    });
    world.state.slot().fail("no such file");
    viewer.wait_for_phase("failed");
    assert_eq!(viewer.hello["reason"], "no such file");
    world.stop();
    while viewer.next().is_some() {}
    world.join();
}

#[test]
fn streams_end_with_a_serving_server() {
    let mut world = World::scripted(&[]);
    let mut viewers = [Viewer::open(&world), Viewer::open(&world)];
    world.stop();
    for viewer in &mut viewers {
        while viewer.next().is_some() {}
    }
    world.join();
}

#[test]
fn a_pause_is_a_phase() {
    let world = World::scripted(&[]);
    let mut viewer = Viewer::open(&world);
    post(
        world.addr,
        "/pause_generation",
        &json!({"mode": "in_place"}),
    )
    .ok();
    viewer.wait_for_phase("paused");
    post(world.addr, "/continue_generation", &json!({})).ok();
    viewer.wait_for_phase("ready");
}
