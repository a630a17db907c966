//! A server with a key.

use serde_json::json;
use souffleur::server::{ApiKey, ServerConfig};

use crate::http::{Response, delete, get, post, send};
use crate::world::World;

const KEY: &str = "sk-of-this-test";
const METHODS: [(&str, &str); 32] = [
    ("POST", "/generate"),
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/messages"),
    ("POST", "/v1/messages/count_tokens"),
    ("POST", "/tokenize"),
    ("POST", "/v1/tokenize"),
    ("POST", "/detokenize"),
    ("POST", "/v1/detokenize"),
    ("POST", "/v1/responses"),
    ("POST", "/responses"),
    ("POST", "/v1/responses/input_tokens"),
    ("POST", "/v1/responses/resp_some/cancel"),
    ("GET", "/v1/responses"),
    ("GET", "/v1/responses/resp_some"),
    ("GET", "/v1/responses/resp_some/input_items"),
    ("DELETE", "/v1/responses/resp_some"),
    ("POST", "/abort_request"),
    ("POST", "/pause_generation"),
    ("POST", "/continue_generation"),
    ("POST", "/set_policy"),
    ("POST", "/flush_cache"),
    ("GET", "/v1/ws/generate"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/debug/prefix/some"),
    ("GET", "/model_info"),
    ("GET", "/server_info"),
    ("GET", "/v1/loads"),
    ("GET", "/loads"),
    ("GET", "/get_load"),
    // Not even its methods are revealed.
    ("GET", "/generate"),
];

fn keyed(config: &mut ServerConfig) {
    config.api_key = Some(ApiKey::new(KEY).expect("it is printable"));
}

/// Requests with an authorization header, and an empty object if there is to be a body.
fn ask(world: &World, (method, path): (&str, &str), authorization: &str) -> Response {
    let addr = world.addr;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n\
         Authorization: {authorization}\r\nContent-Type: application/json\r\n\
         Content-Length: 2\r\n\r\n{{}}"
    );
    send(addr, &request)
}

#[track_caller]
fn check_refused(response: &Response, what: &str) {
    assert_eq!(
        (response.status, response.header("www-authenticate")),
        (401, Some("Bearer")),
        "{what}: {}",
        response.body
    );
    let error = &response.json()["error"];
    assert_eq!(error["code"], "invalid_api_key", "{what}");
    let kinds = ["invalid_request_error", "authentication_error"];
    let kind = kinds[usize::from(what.contains("/v1/messages"))];
    assert_eq!(error["type"], kind, "{what}");
    assert!(!response.body.contains(KEY), "{what}");
}

#[test]
fn nothing_but_probes_and_metrics_is_answered_without_the_key() {
    let world = World::with(|_, server| keyed(server));
    for route in METHODS {
        let what = format!("{route:?}");
        match route {
            ("GET", path) => check_refused(&get(world.addr, path), &what),
            ("DELETE", path) => check_refused(&delete(world.addr, path), &what),
            (_, path) => check_refused(&post(world.addr, path, &json!({})), &what),
        }
        let longer = format!("Bearer {KEY}0");
        let basic = format!("Basic {KEY}");
        for wrong in ["Bearer", "Bearer sk-of-another", KEY, &longer, &basic] {
            check_refused(&ask(&world, route, wrong), &what);
        }
        let plain = |key: &str| ask(&world, route, &format!("none\r\nx-api-key: {key}"));
        for wrong in [
            "",
            "sk-of-another",
            &format!("Bearer {KEY}"),
            &format!("{KEY}0"),
        ] {
            check_refused(&plain(wrong), &what);
        }
        for let_in in [plain(KEY), ask(&world, route, &format!("Bearer {KEY}"))] {
            assert_ne!(let_in.status, 401, "{what}");
        }
    }
    for path in [
        "/health",
        "/health_generate",
        "/ready",
        "/metrics",
        "/openapi.json",
        "/docs",
        "/docs/page.js",
    ] {
        assert_eq!(get(world.addr, path).status, 200, "{path}");
    }
    world.wait_until_whole();
}

#[test]
fn whoever_shows_the_key_is_served_and_the_key_is_never_told() {
    let world = World::with(|_, server| keyed(server));
    let bearer = format!("Bearer {KEY}");
    let models = ask(&world, ("GET", "/v1/models"), &bearer).ok();
    assert_eq!(models["data"][0]["id"], "tiny");
    let info = ask(&world, ("GET", "/server_info"), &bearer);
    assert_eq!(info.ok()["server"]["api_key"], "hidden");
    assert!(!info.body.contains(KEY), "{}", info.body);
    let metrics = get(world.addr, "/metrics").body;
    assert!(!metrics.contains(KEY), "{metrics}");
    assert!(!format!("{:?}", world.state.config()).contains(KEY));
}
