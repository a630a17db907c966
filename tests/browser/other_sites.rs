//! What pages of other sites can do: link to the console, and nothing else.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;

use serde_json::{Value, json};

use crate::cdp::browser;
use crate::page::{Page, View};
use crate::world::World;

/// Serves pages, by their paths, on a free port, until the process ends.
fn serve(pages: Vec<(&'static str, String)>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let port = listener.local_addr().expect("the socket is bound").port();
    let pages = Arc::new(pages);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let pages = Arc::clone(&pages);
            // Browsers open connections that they use later.
            std::thread::spawn(move || answer(stream, &pages));
        }
    });
    port
}

fn answer(mut stream: TcpStream, pages: &[(&str, String)]) -> std::io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(stream.try_clone()?);
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
    }
    let path = head.split(' ').nth(1).unwrap_or_default();
    let page = pages.iter().find(|(known, _)| *known == path);
    let (status, body) = page.map_or(("404 Not Found", ""), |(_, body)| ("200 OK", body));
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n{body}"
    )
}

/// Pages that use addresses of the server in the ways that a browser knows.
fn pages(server: &str) -> Vec<(&'static str, String)> {
    let completion = "/v1/chat/completions";
    vec![
        ("/link", format!("<a href='{server}/'>console</a>")),
        ("/link-to-data", format!("<a href='{server}/server_info'>data</a>")),
        ("/link-to-stream", format!("<a href='{server}/console/live'>stream</a>")),
        ("/link-to-file", format!("<a href='{server}/console/console.js'>file</a>")),
        ("/script", format!("<script src='{server}/console/console.js'></script>")),
        ("/module", format!("<script type=module src='{server}/console/marked.js'></script>")),
        ("/style", format!("<link rel=stylesheet href='{server}/console/style.css'>")),
        ("/image", format!("<img src='{server}/console/icon.svg'>")),
        ("/frame", format!("<iframe src='{server}/'></iframe>")),
        ("/object", format!("<object data='{server}/'></object>")),
        ("/fetch", format!("<script>fetch('{server}/console/live', {{mode: 'no-cors'}})</script>")),
        ("/read", format!("<script>fetch('{server}/server_info')</script>")),
        (
            "/form",
            format!(
                "<form method=post enctype='text/plain' action='{server}{completion}'>
                    <input name='{{\"messages\": [], \"a' value='\": 1}}'><button>send</button></form>"
            ),
        ),
    ]
}

/// The status of the answer to the first request of an address that starts so.
fn status_of(page: &Page, start: &str) -> Value {
    let what = format!("an answer from {start}");
    page.events().wait(&what, |events| {
        let of = |method: &'static str| {
            let found = events.iter().filter(move |event| event["method"] == method);
            found.map(|event| &event["params"])
        };
        let sent = of("Network.requestWillBeSent").find(|sent| {
            let address = sent["request"]["url"].as_str();
            address.is_some_and(|address| address.starts_with(start))
        })?;
        // A browser may hide the answer from its page, but not this event.
        let mut answers = of("Network.responseReceivedExtraInfo");
        let answer = answers.find(|answer| answer["requestId"] == sent["requestId"])?;
        Some(answer["statusCode"].clone())
    })
}

fn world() -> World {
    World::scripted(&[("", "Nothing.")])
}

#[track_caller]
fn check(host: &str) {
    let Some(browser) = browser() else { return };
    let world = world();
    let server = format!("http://{}", world.addr);
    let steps = world.stats().steps;
    let pages = pages(&server);
    let paths: Vec<&str> = pages.iter().map(|(path, _)| *path).collect();
    let port = serve(pages);
    for path in paths {
        let page = Page::new(browser, server.clone(), View::default());
        page.visit(&format!("http://{host}:{port}{path}"));
        if path.starts_with("/link") || path == "/form" {
            page.until("document.querySelector('a, button')");
            page.click("a, button");
        }
        let expected = if path == "/link" { 200 } else { 403 };
        assert_eq!(status_of(&page, &server), json!(expected), "{host} {path}");
        if path == "/link" {
            page.until("globalThis.souffleur.server.phase === 'ready' && souffleur.live.frame");
            let address = page.text("location.href");
            assert_eq!(address, format!("{server}/"));
        }
    }
    world.wait_until_idle();
    assert_eq!(world.stats().steps, steps, "a page reached the model");
}

#[test]
fn another_site_can_link_to_the_console_and_do_nothing_else() {
    check("localhost");
}

#[test]
fn another_port_of_the_same_host_is_another_site() {
    check("127.0.0.1");
}

/// A name that leads to this machine, and is not one of the server's: such as that of a page after DNS rebinding.
#[test]
fn a_foreign_name_gets_a_page_that_explains_the_refusal() {
    let Some(browser) = browser() else { return };
    let world = world();
    let origin = format!("http://rebound.test:{}", world.addr.port());
    let page = Page::new(browser, origin.clone(), View::default());
    page.visit(&format!("{origin}/"));
    assert_eq!(status_of(&page, &origin), json!(403));
    page.until("document.querySelector('h1')");
    let shown = page.text("document.body.innerText");
    assert!(shown.contains("rebound.test"), "{shown}");
    assert!(shown.contains("--allowed-hosts"), "{shown}");
    let asked = page.eval("fetch('/server_info').then((answer) => answer.status)");
    assert_eq!(asked, json!(403));
}
