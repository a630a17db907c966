//! Tests of the web console's files, and of the ways in which browsers may come to its page.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use souffleur::server::{ApiKey, ServerConfig};

use crate::http::{Response, get, send};
use crate::repository::repository;
use crate::world::World;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'";
/// What a browser accepts when it opens a page.
const BROWSER: &str = "Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
const MAX_WIRE_BYTES: usize = 100_000;
/// The absolute addresses in the files; the page requests none of them. The third is the prefix of links without one.
const ADDRESSES: [&str; 3] = [
    "http://",
    "http://www.w3.org/2000/svg",
    "https://github.com/markedjs/marked",
];

/// The rows of the table of files in the protocol's document: address, file and type.
fn files() -> Vec<[String; 3]> {
    let document = read("docs/console-protocol.md");
    let (_, section) = document.split_once("\n## The files\n").expect("a section");
    let rows = section.lines().filter(|line| line.starts_with("| `/"));
    let cells = |row: &str| {
        let mut quoted = row.split('`').skip(1).step_by(2).map(str::to_owned);
        [(); 3].map(|()| quoted.next().expect("a cell"))
    };
    let files: Vec<[String; 3]> = rows.map(cells).collect();
    assert_eq!(files.len(), 5, "{files:?}");
    files
}

fn read(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Sends a request with these header lines.
fn ask(addr: SocketAddr, start: &str, lines: &[&str]) -> Response {
    let mut head = format!("{start} HTTP/1.1\r\nConnection: close\r\n");
    if !lines.iter().any(|line| line.starts_with("Host:")) {
        head.push_str(&format!("Host: {addr}\r\n"));
    }
    for line in lines {
        head.push_str(&format!("{line}\r\n"));
    }
    send(addr, &format!("{head}\r\n"))
}

fn console() -> World {
    World::without_engine(ServerConfig::default())
}

#[track_caller]
fn check_code(response: &Response, status: u16, code: &str, what: &str) {
    assert_eq!(response.status, status, "{what}: {}", response.body);
    assert_eq!(response.json()["error"]["code"], code, "{what}");
}

#[track_caller]
fn check_guarded(response: &Response, what: &str) {
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
    ] {
        assert_eq!(response.header(name), Some(value), "{what}: {name}");
    }
}

#[test]
fn browsers_get_the_page_and_other_clients_a_text() {
    let world = console();
    let page = read("src/server/console/page.html");
    for (accept, is_page) in [
        (Some("text/html"), true),
        (Some("TEXT/HTML;q=0.1"), true),
        (Some("application/json, text/html; charset=utf-8"), true),
        (BROWSER.strip_prefix("Accept: "), true),
        (Some("text/html;q=0"), false),
        (Some("application/xhtml+xml"), false),
        (Some("text/*"), false),
        (Some("text/htmlx"), false),
        (Some("*/*"), false),
        (Some("application/json"), false),
        (Some(""), false),
        (None, false),
    ] {
        let line = accept.map(|accept| format!("Accept: {accept}"));
        let lines: Vec<&str> = line.iter().map(String::as_str).collect();
        let answer = ask(world.addr, "GET /", &lines);
        let (kind, body) = if is_page {
            ("text/html; charset=utf-8", page.as_str())
        } else {
            ("text/plain; charset=utf-8", "Ollama is running")
        };
        assert_eq!(answer.status, 200, "{accept:?}");
        assert_eq!(answer.header("content-type"), Some(kind), "{accept:?}");
        assert_eq!(answer.body, body, "{accept:?}");
        let vary = answer.header("vary").unwrap_or_default();
        let mut varies = vary.split(',').map(str::trim);
        assert!(varies.any(|name| name == "accept"), "{vary}");
        let head = ask(world.addr, "HEAD /", &lines);
        let length = body.len().to_string();
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{accept:?}");
        assert_eq!(head.header("content-length"), Some(length.as_str()));
        assert_eq!(head.header("content-type"), Some(kind), "{accept:?}");
    }
    check_code(
        &ask(world.addr, "POST /", &[]),
        405,
        "method_not_allowed",
        "POST",
    );
}

#[test]
fn files_have_the_types_and_the_policy_of_the_protocol() {
    let document = read("docs/console-protocol.md");
    let in_one_line = document.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(in_one_line.contains(&format!("```text {POLICY} ```")));
    let world = console();
    for [path, file, kind] in files() {
        let answer = ask(world.addr, &format!("GET {path}"), &[BROWSER]);
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.header("content-type"), Some(kind.as_str()), "{path}");
        assert_eq!(answer.header("cache-control"), Some("no-cache"), "{path}");
        assert_eq!(answer.header("content-encoding"), None, "{path}");
        check_guarded(&answer, &path);
        if !file.contains('*') {
            let text = read(Path::new("src/server/console").join(&file));
            assert_eq!(answer.body, text, "{path}");
        }
    }
    let missing = get(world.addr, "/console/other.js");
    check_code(&missing, 404, "not_found", "a file that does not exist");
}

#[test]
fn the_script_has_every_part_once() {
    let script = get(console().addr, "/console/console.js").body;
    let folder = repository().join("src/server/console/script");
    let mut bytes = 0;
    for entry in fs::read_dir(folder).expect("the folder exists") {
        let path = entry.expect("the folder can be read").path();
        let part = read(&path) + "\n";
        assert!(script.contains(&part), "{} is not listed", path.display());
        bytes += part.len();
    }
    assert_eq!(script.len(), bytes, "a part is listed twice");
}

#[test]
fn known_files_are_not_sent_again() {
    let world = console();
    for [path, ..] in files() {
        let start = format!("GET {path}");
        let tag = ask(world.addr, &start, &[BROWSER]);
        let tag = tag.header("etag").expect("a header").to_owned();
        for (known, is_known) in [
            (tag.clone(), true),
            (format!("\"other\", {tag}"), true),
            (tag.trim_start_matches("W/").to_owned(), true),
            ("*".to_owned(), true),
            ("W/\"other\"".to_owned(), false),
            (String::new(), false),
        ] {
            let line = format!("If-None-Match: {known}");
            let packed = "Accept-Encoding: gzip";
            for lines in [vec![BROWSER, &line], vec![BROWSER, &line, packed]] {
                if !is_known && lines.contains(&packed) {
                    continue;
                }
                let answer = ask(world.addr, &start, &lines);
                let status = if is_known { 304 } else { 200 };
                assert_eq!(answer.status, status, "{path}: {known}");
                assert_eq!(answer.body.is_empty(), is_known, "{path}: {known}");
                assert_eq!(answer.header("etag"), Some(tag.as_str()), "{path}");
                check_guarded(&answer, &path);
            }
        }
    }
    let text = ask(world.addr, "GET /", &["If-None-Match: *"]);
    assert_eq!((text.status, text.header("etag")), (200, None));
}

#[test]
fn all_files_together_have_at_most_100_kb_on_the_wire() {
    let world = console();
    let mut sum = 0;
    for [path, ..] in files() {
        let lines = [BROWSER, "Accept-Encoding: br, gzip"];
        let head = ask(world.addr, &format!("HEAD {path}"), &lines);
        assert_eq!(head.header("content-encoding"), Some("gzip"), "{path}");
        let vary = head.header("vary").unwrap_or_default();
        assert!(vary.contains("accept-encoding"), "{path}: {vary}");
        let length = head.header("content-length").expect("a header");
        sum += length.parse::<usize>().expect("a number");
        let refused = [BROWSER, "Accept-Encoding: gzip;q=0"];
        let plain = ask(world.addr, &format!("HEAD {path}"), &refused);
        assert_eq!(plain.header("content-encoding"), None, "{path}");
    }
    assert!(sum <= MAX_WIRE_BYTES, "{sum} bytes");
}

/// The values of this attribute in a page.
fn attributes<'a>(page: &'a str, name: &str) -> Vec<&'a str> {
    let opening = format!(" {name}=\"");
    let values = page.split(opening.as_str()).skip(1);
    let values = values.map(|rest| rest.split('"').next().expect("a quote"));
    values.collect()
}

#[test]
fn the_page_refers_to_files_of_this_server_only() {
    let world = console();
    let page = ask(world.addr, "GET /", &[BROWSER]).body;
    let mut referred: BTreeSet<String> = BTreeSet::new();
    for name in ["href", "src"] {
        let relative = attributes(&page, name).into_iter();
        let relative = relative.filter(|address| !address.starts_with('#'));
        referred.extend(relative.map(|address| format!("/{address}")));
    }
    for address in &referred {
        assert_eq!(get(world.addr, address).status, 200, "{address}");
    }
    // The script imports this one.
    referred.insert("/console/marked.js".to_owned());
    let script = get(world.addr, "/console/console.js").body;
    assert!(script.contains("from \"./marked.js\""));
    for [path, ..] in files().iter().filter(|[path, ..]| path != "/") {
        assert!(referred.contains(path), "{path}: {referred:?}");
    }
    // The policy forbids scripts and styles in the page, and browsers report them.
    for (text, name) in [
        (&page, "page.html"),
        (&read("src/server/console/refused.html"), "refused.html"),
    ] {
        assert_eq!(
            text.matches("<script").count(),
            attributes(text, "src")
                .iter()
                .filter(|file| file.ends_with(".js"))
                .count(),
            "{name}"
        );
        assert!(
            !text.contains("<style") && !text.contains(" style="),
            "{name}"
        );
        let mut names = text.split(" on").skip(1);
        let is_handler = |rest: &str| {
            rest.trim_start_matches(char::is_alphabetic)
                .starts_with('=')
        };
        assert!(!names.any(is_handler), "{name}");
    }
}

/// Every absolute address in a text, up to a character that ends it.
fn addresses(text: &str) -> BTreeSet<String> {
    let is_inside = |c: char| c.is_ascii_alphanumeric() || "-._~/:?#@%=&".contains(c);
    let starts = ["http://", "https://", "ws://", "wss://"];
    let places = starts.iter().flat_map(|start| text.match_indices(*start));
    let found = places.map(|(at, _)| {
        let end = text[at..].find(|c: char| !is_inside(c));
        text[at..]
            .get(..end.unwrap_or(text.len() - at))
            .unwrap_or_default()
    });
    found
        .map(|address| address.trim_end_matches('.').to_owned())
        .collect()
}

#[test]
fn absolute_addresses_in_the_files_are_known() {
    let world = console();
    let mut found = BTreeSet::new();
    for [path, ..] in files() {
        let body = ask(world.addr, &format!("GET {path}"), &[BROWSER]).body;
        assert!(path != "/" || addresses(&body).is_empty(), "{path}");
        assert!(
            !body.contains("@import") && !body.contains("sourceMappingURL"),
            "{path}"
        );
        found.extend(addresses(&body));
    }
    found.extend(addresses(&read("src/server/console/refused.html")));
    assert_eq!(found, BTreeSet::from(ADDRESSES.map(str::to_owned)));
}

#[test]
fn a_link_of_another_site_opens_a_page_and_all_else_is_refused() {
    const CROSS: &str = "Sec-Fetch-Site: cross-site";
    const NAVIGATE: &str = "Sec-Fetch-Mode: navigate";
    const DOCUMENT: &str = "Sec-Fetch-Dest: document";
    const EVIL: &str = "Origin: http://evil.example";
    let plain = console();
    let keyed = World::without_engine(ServerConfig {
        api_key: Some(ApiKey::new("sk-1").expect("a valid key")),
        ..ServerConfig::default()
    });
    let opened: [&[&str]; 2] = [
        &[CROSS, NAVIGATE, DOCUMENT],
        &["Sec-Fetch-Site: same-site", NAVIGATE, DOCUMENT],
    ];
    let refused: [(&str, &[&str]); 15] = [
        ("GET", &[CROSS, NAVIGATE, "Sec-Fetch-Dest: iframe"]),
        ("GET", &[CROSS, NAVIGATE, "Sec-Fetch-Dest: frame"]),
        ("GET", &[CROSS, NAVIGATE, "Sec-Fetch-Dest: embed"]),
        ("GET", &[CROSS, NAVIGATE, "Sec-Fetch-Dest: object"]),
        (
            "GET",
            &[CROSS, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: script"],
        ),
        (
            "GET",
            &[CROSS, "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"],
        ),
        ("GET", &[CROSS, "Sec-Fetch-Mode: no-cors", DOCUMENT]),
        (
            "GET",
            &[CROSS, "Sec-Fetch-Mode: cors", "Sec-Fetch-Dest: empty", EVIL],
        ),
        ("GET", &[CROSS, NAVIGATE]),
        ("GET", &[CROSS, DOCUMENT]),
        (
            "GET",
            &[CROSS, NAVIGATE, DOCUMENT, "Sec-Fetch-Dest: iframe"],
        ),
        ("GET", &[CROSS, NAVIGATE, DOCUMENT, EVIL]),
        ("GET", &[CROSS, NAVIGATE, DOCUMENT, "Origin: null"]),
        ("POST", &[CROSS, NAVIGATE, DOCUMENT]),
        ("POST", &[CROSS, NAVIGATE, DOCUMENT, EVIL]),
    ];
    for world in [&plain, &keyed] {
        for path in ["/", "/docs"] {
            for lines in opened {
                let lines: Vec<&str> = lines.iter().copied().chain([BROWSER]).collect();
                let answer = ask(world.addr, &format!("GET {path}"), &lines);
                assert_eq!(answer.status, 200, "{path} {lines:?}");
                assert!(answer.body.starts_with("<!"), "{path} {lines:?}");
                let origin = answer.header("access-control-allow-origin");
                assert_eq!(origin, None, "{path} {lines:?}");
            }
            for (method, lines) in refused {
                let lines: Vec<&str> = lines.iter().copied().chain([BROWSER]).collect();
                let answer = ask(world.addr, &format!("{method} {path}"), &lines);
                let what = format!("{method} {path} {lines:?}");
                check_code(&answer, 403, "origin_not_allowed", &what);
            }
        }
        for [path, ..] in files().iter().filter(|[path, ..]| path != "/") {
            let answer = ask(world.addr, &format!("GET {path}"), opened[0]);
            check_code(&answer, 403, "origin_not_allowed", path);
        }
    }
}

#[test]
fn a_browser_at_an_unknown_host_gets_a_page_that_says_so() {
    let world = console();
    let host = "Host: <b>'&.example";
    for path in ["/", "/docs"] {
        for lines in [
            &[host, BROWSER][..],
            &[host, BROWSER, "Sec-Fetch-Site: same-origin"],
        ] {
            let answer = ask(world.addr, &format!("GET {path}"), lines);
            let kind = answer.header("content-type");
            assert_eq!(
                (answer.status, kind),
                (403, Some("text/html; charset=utf-8"))
            );
            check_guarded(&answer, path);
            assert_eq!(answer.header("cache-control"), Some("no-store"));
            let shown = "&lt;b&gt;&#39;&amp;.example";
            assert!(answer.body.contains(shown), "{}", answer.body);
            assert!(answer.body.contains("--allowed-hosts"), "{}", answer.body);
            assert!(!answer.body.contains("{{"), "{}", answer.body);
            let start = format!("HEAD {path}");
            assert_eq!(ask(world.addr, &start, lines).status, 403);
        }
        let others = ask(world.addr, &format!("GET {path}"), &[host]);
        check_code(&others, 403, "host_not_allowed", path);
    }
    for path in ["/console/style.css", "/health", "/nothing"] {
        let answer = ask(world.addr, &format!("GET {path}"), &[host, BROWSER]);
        check_code(&answer, 403, "host_not_allowed", path);
    }
}

#[test]
fn the_console_can_be_turned_off() {
    let off = World::without_engine(ServerConfig {
        console: false,
        ..ServerConfig::default()
    });
    for [path, ..] in files() {
        for lines in [&[BROWSER][..], &[]] {
            let answer = ask(off.addr, &format!("GET {path}"), lines);
            match path.as_str() {
                "/" => assert_eq!(answer.body, "Ollama is running"),
                _ => check_code(&answer, 404, "not_found", &path),
            }
        }
    }
    let live = ask(off.addr, "GET /console/live", &[]);
    check_code(&live, 404, "not_found", "/console/live");
    let link = [
        BROWSER,
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Mode: navigate",
        "Sec-Fetch-Dest: document",
    ];
    check_code(
        &ask(off.addr, "GET /", &link),
        403,
        "origin_not_allowed",
        "a link",
    );
    assert_eq!(ask(off.addr, "GET /docs", &link).status, 200);
    let host = ["Host: evil.example", BROWSER];
    check_code(
        &ask(off.addr, "GET /", &host),
        403,
        "host_not_allowed",
        "a host",
    );
}
