//! Tests of `GET /debug/prefix/{rid}`, which reports why a prompt was not cached.

use serde_json::{Value, json};
use souffleur::config::EngineConfig;
use souffleur::server::{ApiKey, ServerConfig};

use crate::http::{get, post, send};
use crate::world::World;

const ADMIN_KEY: &str = "sk-of-the-admin";

fn with_admin(_: &mut EngineConfig, server: &mut ServerConfig) {
    server.admin_api_key = ApiKey::new(ADMIN_KEY).ok();
}

fn run(world: &World, rid: &str, text: &str) {
    let sampling = json!({"max_new_tokens": 0});
    let call = json!({"rid": rid, "text": text, "sampling_params": sampling});
    post(world.addr, "/generate", &call).ok();
}

fn run_tokens(world: &World, rid: &str, token: u32, salt: Option<&str>) {
    let call = json!({
        "rid": rid, "input_ids": vec![token; 100], "cache_salt": salt,
        "sampling_params": {"max_new_tokens": 0},
    });
    post(world.addr, "/generate", &call).ok();
}

fn report(world: &World, rid: &str) -> Value {
    let addr = world.addr;
    let request = format!(
        "GET /debug/prefix/{rid} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Authorization: Bearer {ADMIN_KEY}\r\n\r\n"
    );
    send(addr, &request).ok()
}

#[test]
fn a_divergence_is_shown_as_text_on_both_sides() {
    let world = World::with(with_admin);
    let system = "You are a patient assistant who answers questions about the sea. ";
    run(
        &world,
        "monday",
        &format!("{system}Today is Monday, and so on."),
    );
    run(
        &world,
        "friday",
        &format!("{system}Today is Friday, and so on."),
    );
    let first = report(&world, "monday");
    assert_eq!(first["cause"], "never_cached");
    assert_eq!(
        (&first["position"], &first["rid"]),
        (&json!(0), &json!("monday"))
    );
    let second = report(&world, "friday");
    assert_eq!(second["cause"], "divergence", "{second}");
    let text = |key: &str| second["text"][key].as_str().expect("a text").to_owned();
    let before = text("before");
    assert!(before.trim_end().ends_with("Today is"), "{second}");
    assert!(system.contains(&before[..4]), "{second}");
    assert!(
        text("after").trim_start().starts_with("Friday, and"),
        "{second}"
    );
    assert!(
        text("branch").trim_start().starts_with("Monday, and"),
        "{second}"
    );
    assert_eq!(second["cached_tokens"], second["position"]);
    assert_eq!(second["branch"]["n_branches"], 1);
    let page = get(world.addr, "/metrics").body;
    for cause in ["never_cached", "divergence", "evicted", "match_limit"] {
        let series = format!("souffleur_prefix_misses_total{{cause=\"{cause}\"}}");
        assert!(page.contains(&series), "{cause}");
    }
    world.wait_until_idle();
}

#[test]
fn evicted_and_salted_prompts_are_reported_over_http() {
    let world = World::with(|engine, server| {
        engine.max_total_tokens = Some(200);
        with_admin(engine, server);
    });
    run_tokens(&world, "first", 10, None);
    run_tokens(&world, "salted", 10, Some("secret"));
    let salted = report(&world, "salted");
    // The same prompt is cached without a salt, but a salted request searches another namespace.
    assert_eq!(salted["cause"], "never_cached", "{salted}");
    assert_eq!(salted["elsewhere"], Value::Null, "{salted}");
    assert!(!salted.to_string().contains("secret"), "{salted}");
    for index in 0..3 {
        run_tokens(&world, &format!("filler/{index}"), 11 + index, None);
    }
    run_tokens(&world, "again", 10, None);
    let again = report(&world, "again");
    assert_eq!(again["cause"], "evicted", "{again}");
    assert!(again["evicted"]["seconds_before"].is_f64(), "{again}");
    assert!(
        again["evicted"]["steps_before"]
            .as_u64()
            .is_some_and(|steps| steps > 0)
    );
    // Request ids may contain slashes.
    assert_eq!(report(&world, "filler/1")["cause"], "never_cached");
    world.wait_until_idle();
}

#[test]
fn without_diagnostics_every_report_is_404() {
    let world = World::with(|engine, _| engine.prefix_diagnostics = false);
    run(&world, "mine", "some text");
    for rid in ["mine", "nobody"] {
        let response = get(world.addr, &format!("/debug/prefix/{rid}"));
        let error = &response.json()["error"];
        assert_eq!(
            (response.status, &error["code"]),
            (404, &json!("unknown_request"))
        );
    }
    world.wait_until_idle();
}
