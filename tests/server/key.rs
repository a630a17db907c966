//! Tests of the API key: which routes need it, and that no answer shows it.

use souffleur::server::{ApiKey, ServerConfig};

use crate::http::{Response, get, send};
use crate::routes::{self, Route};
use crate::world::World;

const KEY: &str = "sk-of-this-test";
/// The paths that need no key, each by GET.
const OPEN: [&str; 12] = [
    "/",
    "/console/console.js",
    "/console/icon.svg",
    "/console/marked.js",
    "/console/style.css",
    "/docs",
    "/docs/page.js",
    "/health",
    "/health_generate",
    "/metrics",
    "/openapi.json",
    "/ready",
];

fn keyed(config: &mut ServerConfig) {
    config.api_key = Some(ApiKey::new(KEY).expect("a valid key"));
}

/// Sends a request with these headers, and an empty object as the body.
fn ask(world: &World, start: &str, headers: &str) -> Response {
    let addr = world.addr;
    let request = format!(
        "{start} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{headers}\
         Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{{}}"
    );
    send(addr, &request)
}

fn authorization(value: &str) -> String {
    format!("Authorization: {value}\r\n")
}

#[track_caller]
fn check_refused(response: &Response, what: &str) {
    assert_eq!(
        (response.status, response.header("www-authenticate")),
        (401, Some("Bearer")),
        "{what}: {}",
        response.body
    );
    assert!(!response.body.contains(KEY), "{what}");
    let error = &response.json()["error"];
    if what.contains(" /api/") {
        let text = error.as_str().expect("Ollama's errors are texts");
        assert!(text.starts_with("the API key is "), "{what}: {text}");
        return;
    }
    assert_eq!(error["code"], "invalid_api_key", "{what}");
    let kinds = ["invalid_request_error", "authentication_error"];
    let kind = kinds[usize::from(what.contains("/v1/messages"))];
    assert_eq!(error["type"], kind, "{what}");
}

#[test]
fn only_open_routes_are_served_without_the_key() {
    let world = World::with(|_, server| keyed(server));
    let routes = routes::all(world.addr);
    let (open, closed): (Vec<&Route>, Vec<&Route>) = routes.iter().partition(|route| route.is_open);
    let mut starts: Vec<String> = open.iter().map(|route| route.start()).collect();
    starts.sort_unstable();
    assert_eq!(starts, OPEN.map(|path| format!("GET {path}")));
    for path in OPEN {
        assert_eq!(get(world.addr, path).status, 200, "{path}");
    }
    // Without the key, the methods of a path are hidden as well.
    let hidden = "GET /generate".to_owned();
    for what in closed.into_iter().map(Route::start).chain([hidden]) {
        let bearers = [
            "Bearer",
            "Bearer sk-of-another",
            KEY,
            &format!("Bearer {KEY}0"),
            &format!("Basic {KEY}"),
        ];
        let keys = [
            "",
            "sk-of-another",
            &format!("Bearer {KEY}"),
            &format!("{KEY}0"),
        ];
        let both_headers = |key: &str| authorization("none") + &format!("x-api-key: {key}\r\n");
        let wrong = bearers
            .map(authorization)
            .into_iter()
            .chain(keys.map(both_headers));
        for headers in wrong.chain([String::new()]) {
            check_refused(&ask(&world, &what, &headers), &what);
        }
        for headers in [both_headers(KEY), authorization(&format!("Bearer {KEY}"))] {
            assert_ne!(ask(&world, &what, &headers).status, 401, "{what}");
        }
    }
    world.wait_until_idle();
}

#[test]
fn the_key_gives_access_to_routes_and_is_never_shown() {
    let world = World::with(|_, server| keyed(server));
    let bearer = authorization(&format!("Bearer {KEY}"));
    let read = |path: &str| ask(&world, &format!("GET {path}"), &bearer);
    let models = read("/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "tiny");
    let info = read("/server_info");
    assert_eq!(info.ok()["server"]["api_key"], "hidden");
    assert!(!info.body.contains(KEY), "{}", info.body);
    let metrics = get(world.addr, "/metrics").body;
    assert!(!metrics.contains(KEY), "{metrics}");
    assert!(!format!("{:?}", world.state.config()).contains(KEY));
}
