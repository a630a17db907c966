//! The pictures of docs/console.md: the bundled model under load. With `SOUFFLEUR_WRITE_PICTURES=1` they are written.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::json;

use crate::binary::Binary;
use crate::cdp::browser;
use crate::http::post;
use crate::page::{Page, View};
use crate::repository::repository;

const DOCUMENT: &str = "docs/console.md";
/// Requests that run at once.
const CLIENTS: u64 = 10;
/// Few enough for evictions.
const POOL_TOKENS: &str = "12000";

/// Canvases that are shown and have fewer colours than a picture has.
const BLANK: &str = "[...document.querySelectorAll('canvas')].filter((canvas) => {
    if (canvas.offsetWidth === 0) return false;
    const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
    return new Set(new Uint32Array(data.buffer)).size < 4;
}).map((canvas) => canvas.ariaLabel)";

/// Cards that are wider than the pane with their tables open.
const WIDE: &str = "(() => {
    document.querySelectorAll('#engine .data').forEach((table) => (table.open = true));
    const { right } = document.getElementById('engine').getBoundingClientRect();
    return [...document.querySelectorAll('#engine .card')]
        .filter((card) => card.getBoundingClientRect().right > right + 1 || card.scrollWidth > card.clientWidth + 1)
        .map((card) => card.innerText.slice(0, 20));
})()";

struct Picture {
    name: &'static str,
    view: View,
    /// A script that shows another part of the page.
    open: &'static str,
}

const PICTURES: [Picture; 4] = [
    Picture {
        name: "console-light.webp",
        view: View::new(false, false),
        open: "",
    },
    Picture {
        name: "console-dark.webp",
        view: View::new(false, true),
        open: "document.querySelector('#engine .lanes').scrollIntoView({ block: 'center' })",
    },
    Picture {
        name: "console-phone.webp",
        view: View::new(true, false),
        open: "",
    },
    Picture {
        name: "console-phone-engine.webp",
        view: View::new(true, true),
        open: "document.querySelector('#tabs [data-tab=engine]').click()",
    },
];

/// Clients that send requests until it is dropped.
struct Load {
    is_over: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    fn start(addr: SocketAddr) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let clients = (0..CLIENTS).map(|seed| {
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || send(addr, seed, &is_over))
        });
        Self {
            clients: clients.collect(),
            is_over,
        }
    }

    fn end(mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for client in self.clients.drain(..) {
            client.join().expect("requests succeed");
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Sends prompts that begin as others do, one after the other.
fn send(addr: SocketAddr, seed: u64, is_over: &AtomicBool) {
    let mut random = fastrand::Rng::with_seed(seed);
    while !is_over.load(Ordering::Relaxed) {
        let mut start = fastrand::Rng::with_seed(random.u64(..12));
        let length = start.u32(60..500);
        let mut tokens: Vec<u32> = (0..length).map(|_| start.u32(5..900)).collect();
        tokens.extend((0..random.u32(10..200)).map(|_| random.u32(5..900)));
        let sampling = json!({"max_new_tokens": random.u32(20..160), "ignore_eos": true});
        let call = json!({"input_ids": tokens, "sampling_params": sampling});
        post(addr, "/generate", &call).ok();
    }
}

/// Asks, shows the probabilities of the answer's tokens, and checks that every picture is drawn.
fn check_drawn(page: &Page, picture: &Picture) {
    page.eval("souffleur.chats.current.params.seed = 52");
    page.eval("souffleur.chats.current.logprobs = true");
    page.ask("Who are you?");
    page.answer();
    page.eval(picture.open);
    page.until(
        "document.getElementById('engine').offsetWidth === 0 || souffleur.live.frame && \
            souffleur.live.nodes.size > 50 && souffleur.live.frame.requests.length > 3",
    );
    page.until(&format!("{BLANK}.length === 0"));
}

fn write(page: &Page, name: &str) {
    let folder = repository().join("docs");
    let picture = page.screenshot("webp").expect("the page can be drawn");
    fs::write(folder.join(name), picture).expect("the folder is writable");
}

fn check_document() {
    let text = fs::read_to_string(repository().join(DOCUMENT)).expect("the document is there");
    let shown: BTreeSet<&str> = text
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .filter(|target| target.ends_with(".webp"))
        .collect();
    assert_eq!(shown, PICTURES.iter().map(|picture| picture.name).collect());
}

#[test]
fn every_picture_is_drawn_under_load() {
    let Some(browser) = browser() else { return };
    check_document();
    let server = Binary::start(&["--max-total-tokens", POOL_TOKENS]);
    let host = server.url.strip_prefix("http://").expect("an address");
    let addr: SocketAddr = host.parse().expect("an address");
    let load = Load::start(addr);
    for picture in &PICTURES {
        let page = Page::new(browser, server.url.clone(), picture.view);
        page.visit_console();
        page.until("souffleur.server.phase === 'ready'");
        check_drawn(&page, picture);
        if env::var_os("SOUFFLEUR_WRITE_PICTURES").is_some() {
            write(&page, picture.name);
        }
        assert_eq!(page.eval(WIDE), json!([]), "{}", picture.name);
        page.check_quiet(&[]);
    }
    load.end();
    server.stop();
}
