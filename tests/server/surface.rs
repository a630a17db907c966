//! Tests of the endpoints for readiness, models, server information and metrics, and of the shutdown.

use std::net::TcpListener;
use std::sync::Arc;

use actix_web::web::{self, Data};
use actix_web::{App, HttpServer};
use serde_json::json;
use souffleur::server::{self, AppState, EngineSlot, ServerConfig};
use tokio::sync::oneshot;

use crate::dying_engine::{kill, world_with_dying_engine};
use crate::http::{get, post, send, stream};
use crate::world::{World, wait_until};

#[test]
fn a_server_without_its_engine_answers_that_it_is_loading() {
    let world = World::without_engine(ServerConfig::default());
    for path in [
        "/health",
        "/ready",
        "/health_generate",
        "/v1/models",
        "/model_info",
        "/v1/loads",
        "/get_load",
    ] {
        let response = get(world.addr, path);
        assert_eq!(
            (response.status, response.header("retry-after")),
            (503, Some("1")),
            "{path}"
        );
        assert_eq!(response.json()["error"]["code"], "loading", "{path}");
    }
    for path in ["/generate", "/v1/completions", "/v1/chat/completions"] {
        let response = post(world.addr, path, &json!({"text": "a"}));
        assert_eq!(
            (response.status, response.header("retry-after")),
            (503, Some("1")),
            "{path}"
        );
    }
    world.state.slot().fail("no such file");
    let error = get(world.addr, "/health").json();
    assert_eq!(
        error["error"]["message"],
        "the model could not be loaded: no such file"
    );
}

/// If the liveness probe failed during a rebuild, a supervisor would restart the process and so end the rebuild.
#[test]
fn a_rebuilding_server_is_alive_but_not_ready_and_a_failed_one_is_neither() {
    let (world, _model, fail) = world_with_dying_engine();
    assert_eq!(get(world.addr, "/health").ok()["status"], "ok");
    let waiting = kill(&world);
    assert_eq!(get(world.addr, "/health").ok()["status"], "rebuilding");
    fail.send(()).expect("a rebuild");
    wait_until("rebuild fails", || get(world.addr, "/health").status == 503);
    for path in ["/health", "/ready"] {
        let failed = get(world.addr, path);
        assert_eq!(failed.status, 503, "{path}");
        for part in ["will not be rebuilt", "there is no device"] {
            assert!(failed.body.contains(part), "{path}: {}", failed.body);
        }
    }
    let answer = waiting.join().expect("the client ends");
    assert_eq!(answer.status, 503, "{}", answer.body);
}

#[test]
fn a_loaded_server_describes_itself() {
    let world = World::new();
    assert_eq!(get(world.addr, "/health").status, 200);
    assert_eq!(get(world.addr, "/ready").status, 200);
    assert_eq!(get(world.addr, "/health_generate").status, 200);
    for path in ["/v1/models", "/v1/models/"] {
        let models = get(world.addr, path).ok();
        assert_eq!(models["data"][0]["id"], "tiny");
    }
    assert_eq!(get(world.addr, "/v1/models/tiny").ok()["object"], "model");
    let unknown = get(world.addr, "/v1/models/org/other");
    assert_eq!(
        (unknown.status, &unknown.json()["error"]["code"]),
        (404, &json!("model_not_found"))
    );
    for path in ["/model_info", "/get_model_info"] {
        let info = get(world.addr, path).ok();
        assert_eq!(info["is_generation"], true);
        assert_eq!(info["has_image_understanding"], false);
    }
    for path in ["/server_info", "/get_server_info"] {
        let info = get(world.addr, path).ok();
        assert_eq!(info["internal_states"][0]["integrity_failures"], 0);
        assert_eq!(info["max_running_requests"], 32);
        for ranks in ["tp_size", "pp_size", "dp_size"] {
            assert_eq!(info[ranks], 1, "{ranks}");
        }
        assert_eq!(info["max_total_tokens"], info["max_total_num_tokens"]);
        assert_eq!(info["is_embedding"], false);
        assert!(info.get("replica").is_none(), "{info}");
    }
    let engine = get(world.addr, "/debug/engine").ok();
    assert!(engine.get("replicas").is_none(), "{engine}");
    world.wait_until_idle();
}

#[test]
fn the_resources_of_each_of_several_replicas_are_listed() {
    let world = World::with(|engine, _| engine.dp_size = 2);
    let info = get(world.addr, "/server_info").ok();
    assert_eq!(info["dp_size"], 2);
    let tokens = &info["max_total_num_tokens"];
    let resources =
        json!({"max_total_num_tokens": tokens, "max_running_requests": 32, "threads": 1});
    assert_eq!(info["replica"], resources);
    assert_eq!(info["internal_states"][0]["total_rows"], 64, "a sum");
    let engine = get(world.addr, "/debug/engine").ok();
    let replica = json!({"generation": 1, "is_up": true});
    assert_eq!(engine["replicas"], json!([replica, replica]));
    world.wait_until_idle();
}

#[test]
fn the_metrics_page_counts_requests_by_route_and_never_by_path() {
    let world = World::without_engine(ServerConfig::default());
    get(world.addr, "/v1/models/some-name");
    get(world.addr, "/no/such/path");
    let page = get(world.addr, "/metrics");
    assert_eq!(
        page.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let has = |text: &str| page.body.lines().any(|line| line.starts_with(text));
    let route = r#"endpoint="/v1/models/{id}""#;
    let labels = format!(r#"sglang:http_requests_total{{{route},method="GET"}}"#);
    assert!(has(&labels), "{}", page.body);
    let labels =
        format!(r#"sglang:http_responses_total{{{route},status_code="503",method="GET"}}"#);
    assert!(has(&labels), "{}", page.body);
    assert!(!page.body.contains("some-name"), "{}", page.body);
    // All tests share one recorder, and other tests may be requesting a model.
    let labels = format!(r#"sglang:http_requests_active{{{route},method="GET"}} 0"#);
    wait_until("no client requests a model", || {
        let page = get(world.addr, "/metrics").body;
        page.lines().any(|line| line.starts_with(&labels))
    });
}

#[test]
fn a_stopping_server_is_not_ready_and_finishes_running_requests() {
    let mut world = World::with(|_, server| server.shutdown_deadline_s = 60);
    let sampling = json!({"max_new_tokens": 2000, "ignore_eos": true, "temperature": 0});
    let call = json!({"text": "a", "sampling_params": sampling, "stream": true});
    let mut events = stream(world.addr, "/generate", &call);
    events.next_json();
    world.stop();
    wait_until("the server drains", || world.state.is_draining());
    let ready = get(world.addr, "/ready");
    assert_eq!(
        (ready.status, &ready.json()["error"]["code"]),
        (503, &json!("shutting_down"))
    );
    assert_eq!(get(world.addr, "/health").status, 200);
    let refused = post(world.addr, "/generate", &json!({"text": "a"}));
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (503, Some("1"))
    );
    let last = events.rest().pop().expect("events");
    assert_eq!(last["meta_info"]["completion_tokens"], 2000);
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "length");
    world.join();
}

#[test]
fn requests_that_outlast_the_deadline_end_with_an_abort() {
    let mut world = World::with(|_, server| server.shutdown_deadline_s = 0);
    let sampling = json!({"max_new_tokens": 60000, "ignore_eos": true});
    let call = json!({"text": "a", "sampling_params": sampling, "stream": true});
    let mut events = stream(world.addr, "/generate", &call);
    events.next_json();
    world.stop();
    let last = events.rest().pop().expect("events");
    assert_eq!(last["meta_info"]["finish_reason"]["type"], "abort");
    world.join();
}

#[test]
fn a_host_mounts_two_servers_and_its_own_routes() {
    let state = |reason: &str| {
        let slot = EngineSlot::default();
        slot.fail(reason);
        let render = Arc::new(|| "page".to_owned());
        Data::new(AppState::new(ServerConfig::default(), slot, render))
    };
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let addr = listener.local_addr().expect("the socket is bound");
    let (stop, stopped) = oneshot::channel::<()>();
    let (one, two) = (state("one"), state("two"));
    let host = std::thread::spawn(move || {
        actix_web::rt::System::new().block_on(async move {
            let app = move || {
                let mount = |path: &str, state: &Data<AppState>| {
                    web::scope(path)
                        .app_data(state.clone())
                        .configure(server::routes)
                };
                let own = web::resource("/own").to(|| async { "own" });
                App::new()
                    .service(mount("/a", &one))
                    .service(mount("/b", &two))
                    .service(own)
            };
            let server = HttpServer::new(app)
                .workers(1)
                .disable_signals()
                .listen(listener);
            let server = server.expect("the socket is bound").run();
            let handle = server.handle();
            actix_web::rt::spawn(server);
            let _ = stopped.await;
            handle.stop(false).await;
        });
    });
    let message = |path: &str| get(addr, path).json()["error"]["message"].take();
    assert_eq!(message("/a/health"), "the model could not be loaded: one");
    assert_eq!(
        message("/b/v1/models"),
        "the model could not be loaded: two"
    );
    assert_eq!(get(addr, "/own").body, "own");
    assert_eq!(get(addr, "/a/").body, "Ollama is running");
    assert_eq!(get(addr, "/b/metrics").body, "page");
    assert_eq!(get(addr, "/elsewhere").status, 404);
    // The server guards the routes that it mounts, but not the host's routes.
    let foreign_request = |path: &str| {
        let lines = "Host: evil.example\r\nOrigin: http://evil.example\r\nConnection: close";
        send(addr, &format!("GET {path} HTTP/1.1\r\n{lines}\r\n\r\n")).status
    };
    assert_eq!(foreign_request("/a/health"), 403);
    assert_eq!(foreign_request("/own"), 200);
    drop(stop);
    host.join().expect("the host does not panic");
}
