//! Tests that pages of other sites, wrong host names and clients without a key get no access and see no prompts.

use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};
use souffleur::server::{ApiKey, ServerConfig};

use super::child::ChildServer;
use crate::http::{Response, connect, get, open, post, read_response, send, stream};
use crate::routes;
use crate::world::{World, wait_until};

const KEY: &str = "sk-of-a-client";
const ADMIN_KEY: &str = "sk-of-the-admin";
const NO_ROUTE: &str = "GET /nothing";
/// The pages to which other sites may link.
const PAGES: [&str; 2] = ["GET /", "GET /docs"];
/// The headers of a browser that follows a link of another site.
const LINK: [&str; 4] = [
    "Sec-Fetch-Site: cross-site",
    "Sec-Fetch-Mode: navigate",
    "Sec-Fetch-Dest: document",
    JSON,
];
const EVIL: &str = "Origin: http://evil.example";
const CHAT: &str = "Origin: https://chat.example";
const JSON: &str = "Content-Type: application/json";

/// Sends an HTTP/1.1 request with these header lines.
fn ask(addr: SocketAddr, start: &str, lines: &[&str], body: &str) -> Response {
    let mut head = format!("{start} HTTP/1.1\r\nConnection: close\r\n");
    if !lines.iter().any(|line| line.starts_with("Host:")) {
        head.push_str(&format!("Host: {addr}\r\n"));
    }
    for line in lines {
        head.push_str(&format!("{line}\r\n"));
    }
    if !body.is_empty() {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    send(addr, &format!("{head}\r\n{body}"))
}

#[track_caller]
fn check(response: &Response, status: u16, code: &str, what: &str) {
    assert_eq!(response.status, status, "{what}: {}", response.body);
    let error = &response.json()["error"];
    match error.as_str() {
        // An error of Ollama's endpoints is only a text.
        Some(text) => assert!(text.contains(words(code)), "{what}: {text}"),
        None => assert_eq!(error["code"], code, "{what}"),
    }
}

/// A part of the message of errors with this code.
fn words(code: &str) -> &'static str {
    match code {
        "unsupported_media_type" => "content-type is ",
        "invalid_request" => "body is not valid JSON",
        "origin_not_allowed" => "--allowed-origins",
        "host_not_allowed" => "--allowed-hosts",
        other => panic!("no words of {other} here"),
    }
}

/// The lines of a request that a browser sends to Ollama's endpoints: other clients need not declare a body as JSON there.
fn from_a_page(path: &str) -> Vec<&'static str> {
    if path.starts_with("/api/") {
        vec!["Sec-Fetch-Site: same-origin"]
    } else {
        Vec::new()
    }
}

fn key(text: &str) -> Option<ApiKey> {
    Some(ApiKey::new(text).expect("a valid key"))
}

fn bearer(key: &str) -> String {
    format!("Authorization: Bearer {key}")
}

/// The method and path of every route, and of a path that has no route.
fn request_lines(addr: SocketAddr) -> impl Iterator<Item = String> {
    let routes = routes::all(addr).into_iter();
    routes
        .map(|route| route.start())
        .chain([NO_ROUTE.to_owned()])
}

#[test]
fn a_body_that_is_not_declared_as_json_is_refused_on_every_post_route() {
    let world = World::new();
    let body = json!({"text": "a", "abort_all": true, "schedule_policy": "lpm"}).to_string();
    for route in routes::with_method(world.addr, "POST") {
        let (start, path) = (route.start(), route.path.as_str());
        let page = from_a_page(path);
        for kind in [
            "text/plain",
            "text/plain;charset=UTF-8",
            "text/plain; application/json",
            "application/x-www-form-urlencoded",
            "multipart/form-data; boundary=x",
            "application/jsonp",
        ] {
            let line = format!("Content-Type: {kind}");
            let lines = page.iter().copied().chain([line.as_str()]);
            let lines: Vec<&str> = lines.collect();
            let response = ask(world.addr, &start, &lines, &body);
            check(&response, 415, "unsupported_media_type", path);
            assert!(response.body.contains("application/json"), "{path}");
        }
        let undeclared = ask(world.addr, &start, &page, &body);
        check(&undeclared, 415, "unsupported_media_type", path);
        let chunked = "2\r\n{}\r\n0\r\n\r\n";
        let chunked = format!(
            "{start} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n{}Transfer-Encoding: chunked\r\n\r\n{chunked}",
            world.addr,
            page.iter()
                .map(|line| format!("{line}\r\n"))
                .collect::<String>(),
        );
        check(
            &send(world.addr, &chunked),
            415,
            "unsupported_media_type",
            path,
        );
        if !route.takes_body {
            continue;
        }
        for kind in [
            "application/json; charset=utf-8",
            "application/problem+json",
        ] {
            let line = format!("Content-Type: {kind}");
            let response = ask(world.addr, &start, &[&line], "{");
            check(&response, 400, "invalid_request", path);
        }
        check(
            &ask(world.addr, &start, &[], ""),
            400,
            "invalid_request",
            path,
        );
    }
    assert_eq!(
        get(world.addr, "/server_info").ok()["schedule_policy"],
        "fcfs"
    );
    world.wait_until_idle();
}

#[test]
fn pages_of_other_sites_are_refused_on_every_route() {
    let world = World::with(|_, server| {
        server.allowed_origins = vec!["https://chat.example".to_owned()];
    });
    let cross_site: [&[&str]; 8] = [
        &[EVIL],
        &["Origin: null"],
        &["Origin: http://127.0.0.1:1"],
        &["Origin: https://chat.example.evil.example"],
        &[CHAT, EVIL],
        &["Sec-Fetch-Site: cross-site"],
        &["Sec-Fetch-Site: same-site"],
        &[EVIL, "Sec-Fetch-Site: same-origin"],
    ];
    let swap = json!({"schedule_policy": "lpm", "abort_all": true, "text": "a"}).to_string();
    for route in request_lines(world.addr) {
        let body = if route.starts_with("POST") {
            swap.as_str()
        } else {
            ""
        };
        for lines in cross_site {
            let lines: Vec<&str> = lines.iter().copied().chain([JSON]).collect();
            let what = format!("{route} {lines:?}");
            let response = ask(world.addr, &route, &lines, body);
            check(&response, 403, "origin_not_allowed", &what);
            assert_eq!(
                response.header("access-control-allow-origin"),
                None,
                "{what}"
            );
        }
        let followed = ask(world.addr, &route, &LINK, body);
        if PAGES.contains(&route.as_str()) {
            assert_eq!(followed.status, 200, "{route}: {}", followed.body);
        } else {
            check(&followed, 403, "origin_not_allowed", &route);
        }
        let path = route.split_once(' ').expect("a method and a path").1;
        let preflight = [EVIL, "Access-Control-Request-Method: POST"];
        let response = ask(world.addr, &format!("OPTIONS {path}"), &preflight, "");
        check(&response, 403, "origin_not_allowed", path);
    }
    assert_eq!(
        get(world.addr, "/server_info").ok()["schedule_policy"],
        "fcfs"
    );
    for lines in [
        &["Sec-Fetch-Site: none"][..],
        &["Sec-Fetch-Site: same-origin"],
        &[
            &format!("Origin: http://{}", world.addr),
            "Sec-Fetch-Site: same-origin",
        ],
        &[CHAT, "Sec-Fetch-Site: cross-site"],
    ] {
        assert_eq!(
            ask(world.addr, "GET /health", lines, "").status,
            200,
            "{lines:?}"
        );
    }
    let long = format!("Origin: http://{}", "\"x".repeat(2000));
    let refused = ask(world.addr, "GET /health", &[&long], "");
    check(&refused, 403, "origin_not_allowed", "a long origin");
    assert!(refused.body.len() < 500, "{}", refused.body);
}

#[test]
fn pages_of_allowed_origins_pass_preflights_and_read_everything() {
    let world = World::with(|_, server| {
        server.api_key = key(KEY);
        server.allowed_origins = vec!["https://chat.example".to_owned()];
    });
    #[track_caller]
    fn check_readable(response: &Response, status: u16) {
        assert_eq!(response.status, status, "{}", response.body);
        let origin = response.header("access-control-allow-origin");
        assert_eq!(origin, Some("https://chat.example"));
        let vary = response.header("vary").unwrap_or_default().to_lowercase();
        assert!(vary.contains("origin"), "{vary}");
    }
    for route in request_lines(world.addr).filter(|route| route != NO_ROUTE) {
        let (method, path) = route.split_once(' ').expect("a method and a path");
        let lines = [
            CHAT,
            &format!("Access-Control-Request-Method: {method}"),
            "Access-Control-Request-Headers: authorization,content-type,x-stainless-os",
        ];
        let preflight = ask(world.addr, &format!("OPTIONS {path}"), &lines, "");
        check_readable(&preflight, 200);
        let allowed = |name: &str| preflight.header(name).unwrap_or_default().to_lowercase();
        let methods = allowed("access-control-allow-methods");
        assert!(
            methods.contains(&method.to_lowercase()),
            "{route}: {methods}"
        );
        let headers = allowed("access-control-allow-headers");
        for name in ["authorization", "content-type", "x-stainless-os"] {
            assert!(headers.contains(name), "{route}: {headers}");
        }
    }
    let bearer = bearer(KEY);
    let cross = "Sec-Fetch-Site: cross-site";
    let call = |lines: &[&str], body: Value| {
        let lines: Vec<&str> = lines.iter().copied().chain([CHAT, cross]).collect();
        ask(world.addr, "POST /generate", &lines, &body.to_string())
    };
    let generate = json!({"text": "The cat", "sampling_params": {"max_new_tokens": 4}});
    check_readable(&call(&[JSON], generate.clone()), 401);
    check_readable(&call(&[JSON, &bearer], json!({"text": 5})), 400);
    check_readable(
        &call(&["Content-Type: text/plain", &bearer], generate.clone()),
        415,
    );
    check_readable(&call(&[JSON, &bearer], generate.clone()), 200);
    let mut streamed = generate;
    streamed["stream"] = true.into();
    let events = call(&[JSON, &bearer], streamed);
    check_readable(&events, 200);
    assert!(events.body.contains("data: [DONE]"), "{}", events.body);
    for path in ["/health", "/metrics", "/ready"] {
        check_readable(
            &ask(world.addr, &format!("GET {path}"), &[CHAT, cross], ""),
            200,
        );
    }
    check_readable(&ask(world.addr, "GET /generate", &[CHAT, &bearer], ""), 405);
    world.wait_until_idle();
}

#[test]
fn without_a_key_only_the_servers_own_host_names_are_answered() {
    let world = World::with(|_, server| {
        server.allowed_hosts = vec!["souffleur.internal".to_owned(), "proxy:8443".to_owned()];
    });
    let health = |line: &str| ask(world.addr, "GET /health", &[line], "");
    for host in [
        "127.0.0.1",
        "127.0.0.1:30000",
        "10.0.0.7:80",
        "[::1]:30000",
        "localhost",
        "LOCALHOST:9",
        "Souffleur.internal:30000",
        "proxy:8443",
    ] {
        assert_eq!(health(&format!("Host: {host}")).status, 200, "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:30000",
        "localhost.evil.example",
        "127.0.0.1.evil.example:30000",
        "127.0.0.1@evil.example",
        "evil.example@127.0.0.1",
        "proxy:8080",
        "a\"b",
        "",
    ] {
        check(
            &health(&format!("Host: {host}")),
            403,
            "host_not_allowed",
            host,
        );
    }
    for route in request_lines(world.addr) {
        let lines = ["Host: evil.example", "Sec-Fetch-Site: same-origin", JSON];
        let refused = ask(world.addr, &route, &lines, "{}");
        check(&refused, 403, "host_not_allowed", &route);
        let message = refused.json()["error"].to_string();
        assert!(message.contains("evil.example"), "{message}");
        assert!(message.contains("--allowed-hosts"), "{message}");
    }
    let long = health(&format!("Host: {}", "x".repeat(4000)));
    check(&long, 403, "host_not_allowed", "a long host");
    assert!(long.body.len() < 500, "{}", long.body);
    let absolute = |host: &str| ask(world.addr, &format!("GET http://{host}/health"), &[], "");
    check(
        &absolute("evil.example"),
        403,
        "host_not_allowed",
        "absolute form",
    );
    assert_eq!(absolute("localhost:30000").status, 200);
    let two = ["Host: 127.0.0.1", "Host: evil.example"];
    let answer = ask(world.addr, "GET /health", &two, "");
    assert!([400, 403].contains(&answer.status), "{}", answer.body);
    let without_host = send(world.addr, "GET /health HTTP/1.0\r\n\r\n");
    assert_eq!(without_host.status, 200, "{}", without_host.body);
    let rebound = ["Host: evil.example", "Origin: http://evil.example"];
    let refused = ask(world.addr, "GET /v1/ws/generate", &rebound, "");
    check(&refused, 403, "host_not_allowed", "a rebound page");
}

#[test]
fn with_a_key_any_host_name_is_answered_but_no_origin_is_trusted() {
    let world = World::with(|_, server| server.api_key = key(KEY));
    let bearer = bearer(KEY);
    let host = "Host: rebound.example:30000";
    let models = ask(world.addr, "GET /v1/models", &[host, &bearer], "");
    assert_eq!(models.ok()["data"][0]["id"], "tiny");
    let same_host = "Origin: http://rebound.example:30000";
    for route in request_lines(world.addr) {
        let refused = ask(world.addr, &route, &[host, same_host, &bearer, JSON], "{}");
        check(&refused, 403, "origin_not_allowed", &route);
    }
}

#[test]
fn the_binary_accepts_the_hosts_and_origins_of_its_flags() {
    let child = ChildServer::start(&[
        "--allowed-hosts",
        "souffleur,other:1",
        "--allowed-origins",
        "https://chat.example,http://localhost:5173",
    ]);
    let health = |lines: &[&str]| ask(child.addr, "GET /health", lines, "").status;
    for host in ["Host: souffleur:30000", "Host: other:1", "Host: localhost"] {
        assert_eq!(health(&[host]), 200, "{host}");
    }
    assert_eq!(health(&["Host: evil.example"]), 403);
    assert_eq!(health(&[CHAT]), 200);
    assert_eq!(health(&["Origin: http://localhost:5173"]), 200);
    assert_eq!(health(&[EVIL]), 403);
    let abort = ["Content-Type: text/plain", EVIL];
    let abort = ask(
        child.addr,
        "POST /abort_request",
        &abort,
        r#"{"abort_all":true}"#,
    );
    assert_eq!(abort.status, 403, "{}", abort.body);
}

/// Runs a prompt, so that it is cached in the namespace.
fn run(world: &World, rid: &str, tokens: &[u32], namespace: Value) {
    let mut call = json!({
        "rid": rid, "input_ids": tokens, "sampling_params": {"max_new_tokens": 0},
    });
    for (name, value) in namespace.as_object().expect("a namespace has fields") {
        call[name] = value.clone();
    }
    let lines = [JSON, &bearer(ADMIN_KEY)];
    ask(world.addr, "POST /generate", &lines, &call.to_string()).ok();
}

/// The prefix report of a request, without the request's id.
fn report(world: &World, rid: &str, authorization: &str) -> Value {
    let path = format!("GET /debug/prefix/{rid}");
    let mut report = ask(world.addr, &path, &[authorization], "").ok();
    let fields = report.as_object_mut().expect("a report is an object");
    assert_eq!(fields.shift_remove("rid"), Some(json!(rid)));
    report
}

#[test]
fn a_report_does_not_confirm_a_guess_of_a_salted_prompt() {
    let world = World::with(|_, server| server.admin_api_key = key(ADMIN_KEY));
    let prompt: Vec<u32> = (10..60).collect();
    let wrong: Vec<u32> = (100..150).collect();
    run(
        &world,
        "victim",
        &prompt,
        json!({"cache_salt": "s", "extra_key": "secret-name"}),
    );
    let mut n_guesses = 0;
    let mut reported = |guess: &[u32], guesser: &Value| {
        let rid = format!("guess-{n_guesses}");
        n_guesses += 1;
        run(&world, &rid, guess, guesser.clone());
        let full = report(&world, &rid, &bearer(ADMIN_KEY));
        (report(&world, &rid, "Accept: */*"), full)
    };
    let nothing = json!({"cause": "never_cached", "position": 0});
    for guesser in [
        json!({"cache_salt": "guess"}),
        json!({"cache_salt": "guess", "extra_key": "secret-name"}),
        json!({}),
        json!({"cache_salt": "another"}),
    ] {
        for guess in [&wrong, &prompt] {
            let (outline, full) = reported(guess, &guesser);
            assert_eq!(outline, nothing, "{guesser}");
            assert_eq!(full["elsewhere"], Value::Null, "{full}");
        }
    }
    // Both prompts are now also cached without a salt, so the reports may mention them.
    for guess in [&wrong, &prompt] {
        let (outline, full) = reported(guess, &json!({"extra_key": "secret-name"}));
        let expected = json!({"cause": "different_namespace", "position": 0});
        assert_eq!(outline, expected);
        assert_eq!(
            full["elsewhere"],
            json!({"extra_key": null, "cached_tokens": 49})
        );
    }
    world.wait_until_idle();
}

#[test]
fn a_report_hides_where_another_prompt_diverges_inside_a_page() {
    let world = World::with(|engine, server| {
        engine.page_size = 16;
        server.admin_api_key = key(ADMIN_KEY);
    });
    let secret: Vec<u32> = (10..60).collect();
    run(&world, "victim", &secret, json!({}));
    let guess = |n_right: usize| -> Vec<u32> {
        let tail = secret.iter().map(|token| token + 100).skip(n_right);
        secret.iter().copied().take(n_right).chain(tail).collect()
    };
    let reported = |rid: &str, n_right: usize| {
        run(&world, rid, &guess(n_right), json!({}));
        report(&world, rid, "Accept: */*")
    };
    // The guess matches 2, 10 or 0 tokens of the second page. The report is the same each time.
    for (rid, n_right) in [("two", 18), ("ten", 26), ("none", 16)] {
        let expected = json!({"cause": "divergence", "position": 16});
        assert_eq!(reported(rid, n_right), expected, "{rid}");
    }
    // A match shorter than a page is reported like no match.
    let expected = json!({"cause": "never_cached", "position": 0});
    assert_eq!(reported("one", 1), expected);
    let full = report(&world, "two", &bearer(ADMIN_KEY));
    assert_eq!(
        (&full["position"], &full["cached_tokens"]),
        (&json!(18), &json!(16))
    );
    world.wait_until_idle();
}

#[test]
fn excerpts_of_prompts_are_shown_to_the_admin_alone() {
    let prompts = [
        "The password of the cellar is swordfish.",
        "The password of the attic is.",
    ];
    let ask_for =
        |world: &World, lines: &[&str]| ask(world.addr, "GET /debug/prefix/curious", lines, "");
    let check_outline = |response: &Response| {
        let reported = response.ok();
        let names: Vec<&String> = reported.as_object().expect("a report").keys().collect();
        assert_eq!(names, ["rid", "cause", "position"], "{reported}");
        assert!(!response.body.contains("sword"), "{reported}");
    };
    for (api_key, admin_key) in [
        (None, None),
        (None, key(ADMIN_KEY)),
        (key(KEY), key(ADMIN_KEY)),
    ] {
        let (is_keyed, has_admin) = (api_key.is_some(), admin_key.is_some());
        let world = World::with(|_, server: &mut ServerConfig| {
            (server.api_key, server.admin_api_key) = (api_key, admin_key);
        });
        for (rid, text) in ["victim", "curious"].into_iter().zip(prompts) {
            let call = json!({
                "rid": rid, "text": text, "extra_key": "tenant-7",
                "sampling_params": {"max_new_tokens": 0},
            });
            let lines = [JSON, &bearer(KEY)];
            ask(world.addr, "POST /generate", &lines, &call.to_string()).ok();
        }
        check_outline(&ask_for(&world, &[&bearer(KEY)]));
        let wrong = ask_for(&world, &[&bearer("sk-of-nobody")]);
        let without_key = ask_for(&world, &[]);
        if is_keyed {
            check(&wrong, 401, "invalid_api_key", "a wrong key");
            check(&without_key, 401, "invalid_api_key", "no key");
        } else {
            check_outline(&wrong);
            check_outline(&without_key);
        }
        let admin = ask_for(&world, &[&bearer(ADMIN_KEY)]);
        match (is_keyed, has_admin) {
            (_, true) => {
                let full = admin.ok();
                assert_eq!(full["extra_key"], "tenant-7", "{full}");
                let branch = full["text"]["branch"].as_str().expect("the other prompt");
                assert!(branch.contains("cellar"), "{full}");
            }
            (_, false) => check_outline(&admin),
        }
        world.wait_until_idle();
    }
}

#[test]
fn calls_that_affect_all_clients_need_the_admin_key_if_there_is_one() {
    let world = World::with(|_, server| {
        server.api_key = key(KEY);
        server.admin_api_key = key(ADMIN_KEY);
    });
    let (client, admin) = (bearer(KEY), bearer(ADMIN_KEY));
    let post = |path: &str, key: &str, body: Value| {
        ask(
            world.addr,
            &format!("POST {path}"),
            &[JSON, key],
            &body.to_string(),
        )
    };
    let swap = json!({"schedule_policy": "lpm"});
    check(
        &post("/set_policy", &client, swap.clone()),
        401,
        "admin_key_required",
        "a client",
    );
    check(
        &post("/set_policy", &bearer("x"), swap.clone()),
        401,
        "invalid_api_key",
        "a wrong key",
    );
    post("/set_policy", &admin, swap).ok();
    let all = json!({"abort_all": true});
    check(
        &post("/abort_request", &client, all.clone()),
        401,
        "admin_key_required",
        "a client",
    );
    assert_eq!(post("/abort_request", &admin, all).ok()["aborted"], 0);
    post("/abort_request", &client, json!({"rid": "of-mine"})).ok();
    let info = ask(world.addr, "GET /server_info", &[&admin], "");
    assert_eq!(info.ok()["schedule_policy"], "lpm");
    assert!(!info.body.contains(ADMIN_KEY), "{}", info.body);
    assert!(!get(world.addr, "/metrics").body.contains(ADMIN_KEY));
    assert!(!format!("{:?}", world.state.config()).contains(ADMIN_KEY));
}

/// The number of `/health_generate` requests that wait for an answer, in all servers of this process.
fn waiting_health_checks(addr: SocketAddr) -> usize {
    let page = get(addr, "/metrics").body;
    let name = "sglang:http_requests_active{endpoint=\"/health_generate\",method=\"GET\"} ";
    let value = page.lines().find_map(|line| line.strip_prefix(name));
    value.map_or(0, |value| value.parse().expect("a gauge is a number"))
}

fn call(rid: &str, max_new_tokens: usize) -> Value {
    let sampling = json!({"max_new_tokens": max_new_tokens, "ignore_eos": true});
    json!({"rid": rid, "input_ids": [5, 6, 7], "sampling_params": sampling})
}

#[test]
fn two_hundred_health_checks_share_few_probes_and_take_no_queue_slot() {
    const CHECKS: usize = 200;
    let world = World::with(|engine, server| {
        engine.max_queued_requests = 2;
        engine.max_running_requests = Some(1);
        server.health_generate_timeout_s = 600;
    });
    let addr = world.addr;
    let began = Instant::now();
    let mut long = call("long", 60_000);
    long["stream"] = true.into();
    let mut running = stream(addr, "/generate", &long);
    running.next_json();
    let probe = "GET /health_generate HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let begin = || {
        let mut socket = connect(addr);
        std::io::Write::write_all(&mut socket, probe.as_bytes()).expect("the server reads");
        socket
    };
    // Health checks of disconnected clients leave no requests: at most one probe waits.
    for _ in 0..20 {
        let gone = begin();
        wait_until("a health check waits", || waiting_health_checks(addr) > 0);
        drop(gone);
        assert!(world.stats().waiting_requests <= 1);
    }
    let askers: Vec<_> = (0..CHECKS).map(|_| begin()).collect();
    wait_until("all checks wait", || waiting_health_checks(addr) >= CHECKS);
    world.wait_until("the probe waits", |stats| stats.waiting_requests == 1);
    assert_eq!(
        world.engine().requests_inside(),
        1,
        "a probe is not counted as a client's request"
    );
    let other = open(addr, "/generate", &call("other", 1));
    wait_until("the other client is admitted", || {
        world.engine().requests_inside() == 2
    });
    assert_eq!(
        post(addr, "/generate", &call("third", 1)).status,
        503,
        "the queue is full"
    );
    // A full queue does not refuse probes either.
    let late = begin();
    let aborted = post(addr, "/abort_request", &json!({"rid": "long"})).ok();
    assert_eq!(aborted["aborted"], 1);
    assert_eq!(read_response(other).status, 200);
    for asker in askers.into_iter().chain([late]) {
        let answer = read_response(asker);
        assert_eq!(answer.status, 200, "{}", answer.body);
    }
    world.wait_until_idle();
    // Prompts of probes have one token, those of `long` and `other` three. A probe's result is reused for one second.
    let probes = world.stats().prompt_tokens - 6;
    let bound = 1 + began.elapsed().as_secs();
    assert!(
        (1..=bound).contains(&probes),
        "{probes} probes in {bound} s"
    );
}

#[test]
fn a_probe_is_admitted_regardless_of_priorities() {
    let world = World::with(|engine, server| {
        engine.enable_priority_scheduling = true;
        engine.max_queued_requests = 2;
        engine.max_running_requests = Some(1);
        server.health_generate_timeout_s = 600;
    });
    let addr = world.addr;
    let with = |rid: &str, max_new_tokens: usize, priority: i64| {
        let mut call = call(rid, max_new_tokens);
        call["priority"] = priority.into();
        call
    };
    let mut long = with("long", 60_000, 5);
    long["stream"] = true.into();
    let mut running = stream(addr, "/generate", &long);
    running.next_json();
    let asker = std::thread::spawn(move || get(addr, "/health_generate"));
    world.wait_until("the probe waits", |stats| stats.waiting_requests == 1);
    let worse = open(addr, "/generate", &with("worse", 1, 1));
    world.wait_until("a client waits with the probe", |stats| {
        stats.waiting_requests == 2
    });
    let better = open(addr, "/generate", &with("better", 1, 2));
    assert_eq!(
        read_response(worse).status,
        503,
        "the request of worst priority is refused"
    );
    assert_eq!(post(addr, "/generate", &with("late", 1, 2)).status, 503);
    post(addr, "/abort_request", &json!({"rid": "long"})).ok();
    assert_eq!(read_response(better).status, 200);
    let answer = asker.join().expect("an answer");
    assert_eq!(answer.status, 200, "{}", answer.body);
    world.wait_until_idle();
}
