//! A server with a key.

use souffleur::server::{ApiKey, ServerConfig};

use crate::http::{Response, get, send};
use crate::world::World;

const KEY: &str = "sk-of-this-test";
/// The paths that everyone may read.
const OPEN: [&str; 7] = [
    "/health",
    "/health_generate",
    "/ready",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/docs/page.js",
];

/// A method and a path.
type Route = (String, String);

/// All routes that the server mounts, from the document that is made of their table.
fn routes(world: &World) -> Vec<Route> {
    let document = get(world.addr, "/openapi.json").ok();
    let paths = document["paths"].as_object().expect("paths").iter();
    let routes = paths.flat_map(|(path, item)| {
        let path = filled(path);
        let methods = item.as_object().expect("methods").keys();
        methods.map(move |method| (method.to_uppercase(), path.clone()))
    });
    routes.collect()
}

/// The path with a value for each of its parameters.
fn filled(path: &str) -> String {
    let parts = path.split('/').map(|part| match part {
        "{file}" => "page.js",
        part if part.starts_with('{') => "some",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

fn keyed(config: &mut ServerConfig) {
    config.api_key = Some(ApiKey::new(KEY).expect("it is printable"));
}

/// Asks with these headers, and an empty object as the body.
fn ask(world: &World, (method, path): &Route, headers: &str) -> Response {
    let addr = world.addr;
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\n{headers}\
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
    let error = &response.json()["error"];
    assert_eq!(error["code"], "invalid_api_key", "{what}");
    let kinds = ["invalid_request_error", "authentication_error"];
    let kind = kinds[usize::from(what.contains("/v1/messages"))];
    assert_eq!(error["type"], kind, "{what}");
    assert!(!response.body.contains(KEY), "{what}");
}

#[test]
fn only_open_routes_are_served_without_the_key() {
    let world = World::with(|_, server| keyed(server));
    let routes = routes(&world);
    for path in OPEN {
        let open = ("GET".to_owned(), path.to_owned());
        assert!(routes.contains(&open), "{path}");
        assert_eq!(get(world.addr, path).status, 200, "{path}");
    }
    let closed = routes
        .iter()
        .filter(|(_, path)| !OPEN.contains(&path.as_str()));
    // A path's methods are hidden as well.
    let hidden = ("GET".to_owned(), "/generate".to_owned());
    for route in closed.chain([&hidden]) {
        let what = format!("{route:?}");
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
        let both = |key: &str| authorization("none") + &format!("x-api-key: {key}\r\n");
        let wrong = bearers.map(authorization).into_iter().chain(keys.map(both));
        for headers in wrong.chain([String::new()]) {
            check_refused(&ask(&world, route, &headers), &what);
        }
        for headers in [both(KEY), authorization(&format!("Bearer {KEY}"))] {
            assert_ne!(ask(&world, route, &headers).status, 401, "{what}");
        }
    }
    world.wait_until_whole();
}

#[test]
fn the_key_opens_routes_and_is_never_shown() {
    let world = World::with(|_, server| keyed(server));
    let bearer = authorization(&format!("Bearer {KEY}"));
    let read = |path: &str| ask(&world, &("GET".to_owned(), path.to_owned()), &bearer);
    let models = read("/v1/models").ok();
    assert_eq!(models["data"][0]["id"], "tiny");
    let info = read("/server_info");
    assert_eq!(info.ok()["server"]["api_key"], "hidden");
    assert!(!info.body.contains(KEY), "{}", info.body);
    let metrics = get(world.addr, "/metrics").body;
    assert!(!metrics.contains(KEY), "{metrics}");
    assert!(!format!("{:?}", world.state.config()).contains(KEY));
}
