//! Tests of `/debug/actors`, `/debug/engine` and `/debug/requests`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use actix_rt::{Arbiter, System};
use serde_json::{Value, json};
use souffleur::config::EngineConfig;
use souffleur::engine::{Engine, EngineParts, Progress};
use souffleur::error::StepError;
use souffleur::executor::{DeviceLost, Executor};
use souffleur::server::{ApiKey, ServerConfig};
use souffleur::state::step::{StepOutput, StepPlan};

use crate::dying_engine::{kill, world_with_dying_engine};
use crate::http::{Response, get, open, post, read_response, send, stream};
use crate::world::{World, long_model, wait_until};

const ADMIN_KEY: &str = "sk-of-the-admin";
const PATHS: [&str; 4] = [
    "/debug/actors",
    "/debug/engine",
    "/debug/requests",
    "/debug/requests/some",
];
const ACTORS: [&str; 6] = [
    "tokenizer",
    "scheduler",
    "radix_cache",
    "allocator",
    "executor",
    "executor_thread",
];

fn with_admin(_: &mut EngineConfig, server: &mut ServerConfig) {
    server.admin_api_key = ApiKey::new(ADMIN_KEY).ok();
}

fn ask(world: &World, path: &str) -> Response {
    let addr = world.addr;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Authorization: Bearer {ADMIN_KEY}\r\n\r\n"
    );
    send(addr, &request)
}

/// A request of three prompt tokens that does not end by itself.
fn endless(rid: &str) -> Value {
    let sampling = json!({"max_new_tokens": 60_000, "temperature": 0, "ignore_eos": true});
    json!({"rid": rid, "input_ids": [5, 6, 7], "stream": true, "sampling_params": sampling})
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

#[test]
fn the_admin_key_is_needed_if_one_is_set() {
    let world = World::with(with_admin);
    for path in PATHS {
        let refused = get(world.addr, path);
        let code = &refused.json()["error"]["code"];
        assert_eq!(
            (refused.status, code),
            (401, &json!("admin_key_required")),
            "{path}"
        );
        assert_ne!(ask(&world, path).status, 401, "{path}");
    }
}

#[test]
fn requests_are_listed_without_their_prompts() {
    let world = World::with(|engine, server| {
        engine.max_running_requests = Some(1);
        with_admin(engine, server);
    });
    let mut first = stream(world.addr, "/generate", &endless("first"));
    first.next_json();
    let second = open(world.addr, "/generate", &endless("second"));
    world.wait_until("one waits", |stats| stats.waiting_requests == 1);
    let listed = ask(&world, "/debug/requests").ok();
    assert_eq!(
        (&listed["total"], &listed["is_complete"]),
        (&json!(2), &json!(true))
    );
    let [runs, waits] = listed["requests"].as_array().expect("a list").as_slice() else {
        panic!("{listed}");
    };
    let fields: Vec<&String> = runs.as_object().expect("an object").keys().collect();
    assert_eq!(
        fields,
        [
            "rid",
            "number",
            "phase",
            "age_s",
            "queued_s",
            "running_s",
            "prompt_tokens",
            "cached_tokens",
            "loaded_tokens",
            "computed_tokens",
            "output_tokens",
            "pages",
            "retractions",
            "losses",
            "resumptions",
        ]
    );
    assert_eq!(
        (&runs["rid"], &runs["phase"]),
        (&json!("first"), &json!("decode"))
    );
    assert_eq!(
        (&waits["rid"], &waits["phase"]),
        (&json!("second"), &json!("waiting"))
    );
    let prompt = number(&runs["cached_tokens"]) + number(&runs["computed_tokens"]);
    assert_eq!((prompt, &runs["prompt_tokens"]), (3, &json!(3)));
    assert!(number(&runs["output_tokens"]) > 0, "{runs}");
    assert!(number(&runs["pages"]) > 0, "{runs}");
    let times = ["queued_s", "running_s", "age_s"].map(|name| runs[name].as_f64());
    let [Some(queued), Some(running), Some(age)] = times else {
        panic!("{runs}");
    };
    assert!(running > 0.0 && (age - queued - running).abs() < 1e-6);
    assert_eq!(
        (&waits["pages"], &waits["running_s"]),
        (&json!(0), &json!(0.0))
    );
    let one = ask(&world, "/debug/requests/second").ok();
    assert_eq!(
        (&one["rid"], &one["number"]),
        (&json!("second"), &waits["number"])
    );
    let unknown = ask(&world, "/debug/requests/third");
    let code = &unknown.json()["error"]["code"];
    assert_eq!((unknown.status, code), (404, &json!("unknown_request")));
    drop((first, second));
    world.wait_until_idle();
}

#[test]
fn the_list_has_a_limit_and_the_number_of_all_requests() {
    let world = World::with(with_admin);
    let clients = ["first", "second"].map(|rid| open(world.addr, "/generate", &endless(rid)));
    world.wait_until("both are in the engine", |stats| {
        stats.running_requests + stats.waiting_requests == 2
    });
    let limited = ask(&world, "/debug/requests?limit=1").ok();
    assert_eq!(limited["total"], 2);
    assert_eq!(limited["requests"].as_array().map(Vec::len), Some(1));
    for limit in ["0", "1001", "all"] {
        let refused = ask(&world, &format!("/debug/requests?limit={limit}"));
        let param = &refused.json()["error"]["param"];
        assert_eq!((refused.status, param), (400, &json!("limit")), "{limit}");
    }
    drop(clients);
    world.wait_until_idle();
}

#[test]
fn without_an_admin_key_the_list_has_no_ids() {
    let world = World::new();
    let mut running = stream(world.addr, "/generate", &endless("mine"));
    running.next_json();
    let listed = get(world.addr, "/debug/requests");
    assert_eq!(listed.ok()["requests"][0]["rid"], Value::Null);
    assert!(!listed.body.contains("mine"), "{}", listed.body);
    let one = get(world.addr, "/debug/requests/mine").ok();
    assert_eq!(one["rid"], "mine");
    drop(running);
    world.wait_until_idle();
}

#[test]
fn requests_are_listed_while_they_wait_for_a_restart() {
    let (world, _model, fail) = world_with_dying_engine();
    let waiting = kill(&world);
    let listed = || get(world.addr, "/debug/requests").ok();
    wait_until("the Scheduler is gone", || {
        listed()["requests"][0]["phase"] == "held"
    });
    let listed = listed();
    assert_eq!(
        (&listed["total"], &listed["is_complete"]),
        (&json!(1), &json!(true))
    );
    let held = &listed["requests"][0];
    let counts = ["prompt_tokens", "output_tokens", "pages"].map(|name| number(&held[name]));
    assert_eq!(counts, [2, 0, 0]);
    fail.send(()).expect("a rebuild");
    let answer = waiting.join().expect("the client does not panic");
    assert_eq!(answer.status, 503, "{}", answer.body);
}

#[test]
fn actors_are_listed_with_their_mailboxes() {
    let world = World::new();
    let call = json!({"text": "a", "sampling_params": {"max_new_tokens": 2}});
    post(world.addr, "/generate", &call).ok();
    let listed = get(world.addr, "/debug/actors").ok();
    assert_eq!(
        (&listed["is_up"], &listed["last_death"]),
        (&json!(true), &Value::Null)
    );
    let actors = listed["actors"].as_array().expect("a list");
    let names: Vec<&Value> = actors.iter().map(|actor| &actor["actor"]).collect();
    assert_eq!(names, ACTORS);
    for actor in actors {
        assert_eq!(
            (&actor["state"], &actor["generation"], &actor["restarts"]),
            (&json!("up"), &json!(1), &json!(0)),
            "{actor}"
        );
        let messages = actor["messages"].as_array().expect("a list");
        for part in ["depth", "handled"] {
            let sum: u64 = messages.iter().map(|of| number(&of[part])).sum();
            assert_eq!(number(&actor[part]), sum, "{part} of {actor}");
        }
        assert!(actor["longest_handler_s"].is_f64(), "{actor}");
    }
    assert!(number(&actors[1]["handled"]) > 0, "{listed}");
    world.wait_until_idle();
}

#[test]
fn the_router_of_replicas_is_listed_with_its_restarts() {
    let fault = "actor=router,kind=panic,message=RouteRequest,after=1";
    let world = World::with(|engine, _| {
        engine.dp_size = 2;
        engine.chaos = vec![fault.parse().expect("a valid spec")];
    });
    let listed = || {
        let listed = get(world.addr, "/debug/actors").ok();
        let actors = listed["actors"].as_array().expect("a list");
        let names: Vec<&Value> = actors.iter().map(|actor| &actor["actor"]).collect();
        assert_eq!(names, [&ACTORS[..], &["router"]].concat());
        let router = actors.last().expect("it is the last one");
        let facts = ["state", "generation", "restarts"];
        facts.map(|fact| router[fact].clone())
    };
    let deaths = |n: u32| {
        let series = format!("souffleur_actor_deaths_total{{actor=\"router\"}} {n}\n");
        get(world.addr, "/metrics").body.contains(&series)
    };
    assert_eq!(listed(), [json!("up"), json!(1), json!(0)]);
    assert!(deaths(0), "its deaths are counted from 0");
    let call = json!({"text": "a", "sampling_params": {"max_new_tokens": 2}});
    post(world.addr, "/generate", &call).ok();
    assert_eq!(listed(), [json!("up"), json!(2), json!(1)]);
    assert!(deaths(1), "no death was counted");
    world.wait_until_idle();
}

#[test]
fn the_engine_is_described_before_and_after_a_pause() {
    let world = World::new();
    let engine = || get(world.addr, "/debug/engine").ok();
    let before = engine();
    assert_eq!(before["generation"], 1);
    assert_eq!(before["is_up"], true);
    assert_eq!(before["failure"], Value::Null);
    let restarts = &before["restarts"];
    assert_eq!(restarts["left"], restarts["limit"]);
    for level in ["control", "tokenizer", "executor"] {
        assert_eq!(restarts[level], 0, "{level}");
    }
    assert_eq!(before["is_paused"], false);
    let pause = json!({"mode": "in_place"});
    post(world.addr, "/pause_generation", &pause).ok();
    wait_until("the pause is known", || engine()["is_paused"] == true);
    post(world.addr, "/continue_generation", &json!({})).ok();
    wait_until("its end is known", || engine()["is_paused"] == false);
}

/// An executor that panics once in a test, at its second step, and cannot be used afterwards.
struct PanicsOnce {
    inner: Box<dyn Executor>,
    n_steps: usize,
    is_lost: bool,
    is_due: Arc<AtomicBool>,
}

impl Executor for PanicsOnce {
    fn run(&mut self, plan: &StepPlan) -> Result<StepOutput, StepError> {
        self.n_steps += 1;
        if self.n_steps == 2 && self.is_due.swap(false, Ordering::SeqCst) {
            self.is_lost = true;
            panic!("the device is gone");
        }
        self.inner.run(plan)
    }

    fn reset(&mut self) -> Result<(), DeviceLost> {
        if self.is_lost {
            return Err(DeviceLost("the device is gone".to_owned()));
        }
        self.inner.reset()
    }
}

#[test]
fn a_death_is_seen_in_restarts_and_generations_and_loses_no_request() {
    let world = World::without_engine(ServerConfig::default());
    let model = long_model();
    let config = EngineConfig {
        model_path: model.path().to_owned(),
        max_total_tokens: Some(1024),
        threads: 1,
        ..EngineConfig::default()
    };
    let mut parts = EngineParts::from_model(&config, Progress::silent()).expect("parts");
    let (make, is_due) = (parts.executor.clone(), Arc::new(AtomicBool::new(true)));
    parts.executor = Arc::new(move || {
        let executor = PanicsOnce {
            inner: make()?,
            n_steps: 0,
            is_lost: false,
            is_due: is_due.clone(),
        };
        Ok(Box::new(executor) as Box<dyn Executor>)
    });
    souffleur::actors::panics::note_places();
    let engine = Engine::start_with(config, parts).expect("the engine starts");
    world.state.slot().fill(engine);
    let sampling = json!({"max_new_tokens": 8, "ignore_eos": true});
    let call = json!({"input_ids": [5, 6], "sampling_params": sampling});
    let answer = post(world.addr, "/generate", &call).ok();
    assert_eq!(answer["meta_info"]["completion_tokens"], 8);
    let after = get(world.addr, "/debug/engine").ok();
    assert_eq!(
        (&after["generation"], &after["is_up"]),
        (&json!(2), &json!(true))
    );
    let died = &after["last_death"];
    assert_eq!(died["actor"], "executor_thread");
    let cause = died["cause"].as_str().expect("it is known");
    assert!(cause.contains("server/debug.rs:"), "{cause}");
    assert!(after["last_outage_s"].as_f64() > Some(0.0), "{after}");
    let restarts = &after["restarts"];
    let counts = ["control", "executor", "tokenizer"].map(|level| number(&restarts[level]));
    assert_eq!((counts[0] + counts[1], counts[2]), (1, 0));
    assert_eq!(number(&restarts["left"]) + 1, number(&restarts["limit"]));
    assert!(number(&after["requests"]["resumed"]) > 0, "{after}");
    let listed = get(world.addr, "/debug/actors").ok();
    let scheduler = &listed["actors"][1];
    assert_eq!(
        (
            &scheduler["state"],
            &scheduler["generation"],
            &scheduler["restarts"]
        ),
        (&json!("up"), &json!(2), &json!(1))
    );
    let tokenizer = &listed["actors"][0];
    assert_eq!(
        (&tokenizer["generation"], &tokenizer["restarts"]),
        (&json!(1), &json!(0))
    );
    let page = get(world.addr, "/metrics").body;
    for series in [
        "souffleur_restarts_total{level=\"control\"}",
        "souffleur_restarts_total{level=\"tokenizer\"}",
        "souffleur_restarts_total{level=\"executor\"}",
        "souffleur_requests_resumed_total",
        "souffleur_requests_lost_total",
        "souffleur_resume_pause_seconds",
    ] {
        assert!(page.contains(series), "{series}");
    }
    world.wait_until_idle();
}

#[test]
fn a_failed_engine_says_why_and_has_lost_its_requests() {
    let (world, _model, fail) = world_with_dying_engine();
    let engine = || get(world.addr, "/debug/engine").ok();
    let states = || {
        let listed = get(world.addr, "/debug/actors").ok();
        let actors = listed["actors"].as_array().expect("a list").iter();
        let states = actors.map(|actor| actor["state"].as_str().expect("a text").to_owned());
        states.collect::<Vec<_>>()
    };
    let lost = number(&engine()["requests"]["lost"]);
    let waiting = kill(&world);
    assert_eq!(engine()["is_up"], false);
    assert_eq!(states()[..2], ["up", "restarting"]);
    fail.send(()).expect("a rebuild");
    let answer = waiting.join().expect("the client does not panic");
    assert_eq!(answer.status, 503, "{}", answer.body);
    let failed = engine();
    assert!(failed["failure"].is_string(), "{failed}");
    assert!(number(&failed["requests"]["lost"]) > lost, "{failed}");
    assert_eq!(states(), ["stopped"; 6]);
}

/// The control Arbiter hangs until the test lets it go on: only answers that need no actor can come.
#[test]
fn a_hang_of_the_control_actors_is_described_without_them() {
    let world = World::without_engine(ServerConfig::default());
    let model = long_model();
    let config = EngineConfig {
        model_path: model.path().to_owned(),
        max_total_tokens: Some(1024),
        threads: 1,
        ..EngineConfig::default()
    };
    let system = System::new();
    let (arbiter, engine) = system.block_on(async {
        let arbiter = Arbiter::new();
        let engine = Engine::start_in(&arbiter.handle(), config).await;
        (arbiter, engine.expect("the engine starts"))
    });
    world.state.slot().fill(engine);
    let (hang, hangs) = crossbeam_channel::bounded::<()>(0);
    let (go_on, held) = crossbeam_channel::bounded::<()>(0);
    arbiter.spawn_fn(move || {
        let _ = hang.send(());
        // Ends when the test drops the other end.
        let _ = held.recv();
    });
    hangs.recv().expect("the Arbiter hangs");
    let call = json!({"input_ids": [5, 6], "sampling_params": {"max_new_tokens": 3}});
    let waits = open(world.addr, "/generate", &call);
    let inside = || get(world.addr, "/debug/engine").ok()["requests"]["inside"].clone();
    wait_until("the request is inside", || inside() == 1);
    for path in ["/debug/requests", "/debug/requests/some"] {
        let unanswered = get(world.addr, path);
        assert_eq!(
            (unanswered.status, unanswered.header("retry-after")),
            (503, Some("1")),
            "{path}"
        );
        let answer = unanswered.json();
        assert_eq!(answer["error"]["code"], "no_answer", "{path}");
        assert_eq!(answer["engine"]["generation"], 1, "{path}");
        assert_eq!(answer["engine"]["requests"]["inside"], 1, "{path}");
    }
    let scheduler = || get(world.addr, "/debug/actors").ok()["actors"][1].take();
    wait_until("a message waits", || {
        let scheduler = scheduler();
        number(&scheduler["depth"]) > 0 && scheduler["waiting_s"].is_f64()
    });
    drop(go_on);
    read_response(waits).ok();
    assert!(get(world.addr, "/debug/requests").ok()["total"].is_u64());
    world.wait_until_idle();
    drop(world);
    arbiter.stop();
    drop(system);
}
