//! Conversations: answers in every view, the stop, export and import.

use std::net::SocketAddr;

use serde_json::{Value, json};
use souffleur::state::step::PIPELINE_DEPTH;
use tempfile::TempDir;

use crate::binary::Binary;
use crate::cdp::browser;
use crate::console::NO_KEY;
use crate::http::{get, send};
use crate::page::{Page, VIEWS, View};
use crate::stage::staged;
use crate::world::{World, wait_until};

const KEY: &str = "sk-of-a-user";
const QUESTION: &str = "Who are you?";

/// The text that the server gives without the console for the same request.
fn text_without_console(url: &str, key: Option<&str>, seed: &Value) -> String {
    let host = url.strip_prefix("http://").expect("an address");
    let addr: SocketAddr = host.parse().expect("an address");
    let body = json!({
        "messages": [{"role": "user", "content": QUESTION}], "seed": seed, "model": "souffleur-tiny",
    })
    .to_string();
    let key = key.map_or(String::new(), |key| {
        format!("Authorization: Bearer {key}\r\n")
    });
    let length = body.len();
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{key}\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    let answer = send(addr, &request).ok();
    let text = answer["choices"][0]["message"]["content"].as_str();
    text.expect("a text").to_owned()
}

/// Checks colours and width, and that the engine is shown.
fn check_look(page: &Page, view: View) {
    let shade = |name: &str| {
        let expression = format!(
            "getComputedStyle(document.body).{name}.match(/\\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0)"
        );
        page.eval(&expression).as_f64().expect("a number")
    };
    let is_dark = shade("backgroundColor") < shade("color");
    assert_eq!(is_dark, view.is_dark, "{view:?}");
    let wide = page.eval("document.documentElement.scrollWidth <= innerWidth");
    assert_eq!(wide, json!(true), "{view:?} is wider than the screen");
    if view.is_phone {
        page.click("#tabs [data-tab=engine]");
    }
    page.until(
        "souffleur.live.frame && document.querySelector('#engine canvas').offsetWidth > 100",
    );
    if view.is_phone {
        page.click("#tabs [data-tab=talk]");
    }
}

/// Enters the key in the dialog that the page has opened.
fn enter_key(page: &Page) {
    page.until("document.activeElement.id === 'key-field'");
    page.write(KEY);
    page.press("Enter");
    page.until("souffleur.server.phase === 'ready'");
}

fn check_all_views(args: &[&str], key: Option<&str>) {
    let Some(browser) = browser() else { return };
    let server = Binary::start(args);
    for view in VIEWS {
        let page = Page::new(browser, server.url.clone(), view);
        page.visit_console();
        if key.is_some() {
            enter_key(&page);
        }
        page.until("souffleur.server.phase === 'ready'");
        check_look(&page, view);
        page.eval("souffleur.chats.current.params.seed = 52");
        page.ask(QUESTION);
        let answer = page.answer();
        let run = &answer["run"];
        assert_eq!(run["finish"], "stop", "{view:?}: {answer}");
        let expected = text_without_console(&server.url, key, &run["seed"]);
        assert_eq!(answer["content"], json!(expected), "{view:?}");
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(&page.shown_answer()), words(&expected), "{view:?}");
        let chunks = run["chunks"].as_u64().expect("a number");
        assert!(chunks > 1, "{view:?}: no stream: {answer}");
        page.check_quiet(if key.is_some() { &[NO_KEY] } else { &[] });
    }
    server.stop();
}

#[test]
fn every_view_shows_an_answer_as_it_is_streamed() {
    check_all_views(&[], None);
}

#[test]
fn every_view_shows_an_answer_after_the_key_was_entered() {
    check_all_views(&["--api-key", KEY], Some(KEY));
}

fn info(addr: SocketAddr) -> Value {
    get(addr, "/server_info").ok()["internal_states"][0].take()
}

/// At the stop one step runs, and the next ones of the pipeline may be planned. No other step follows.
#[test]
fn stop_ends_an_answer_within_a_step_and_returns_its_pages() {
    const STEPS: u64 = 16;
    let Some(browser) = browser() else { return };
    let long = "All the world is a stage. ".repeat(1000);
    let (world, stage) = staged(&[("", &long)], |_, _| ());
    let origin = format!("http://{}", world.addr);
    let page = Page::console(browser, origin, View::default());
    let whole = info(world.addr)["free_tokens"].clone();
    stage.hold_after(STEPS);
    page.ask("Begin.");
    page.until("document.querySelector('.message.running .prose')?.innerText.length > 5");
    wait_until("a step is held", || stage.is_held());
    assert_ne!(info(world.addr)["free_tokens"], whole);
    page.press("Escape");
    page.until("souffleur.running.size === 0 && !document.querySelector('.message.running')");
    let facts = page.text("document.querySelector('.message.assistant .numbers').innerText");
    assert!(facts.contains("ended by you"), "{facts}");
    let engine = world.engine();
    wait_until("the engine knows of it", || engine.requests_inside() == 0);
    let in_flight = stage.begun() + PIPELINE_DEPTH as u64 - 1;
    stage.release();
    world.wait_until_idle();
    let begun = stage.begun();
    assert!(begun <= in_flight, "{begun} steps, {in_flight} at the stop");
    let after = info(world.addr);
    let cached = after["evictable_tokens"].as_u64();
    let free = after["free_tokens"].as_u64();
    assert_eq!(
        free.zip(cached).map(|(free, cached)| free + cached),
        whole.as_u64()
    );
    page.check_quiet(&[]);
}

fn export(page: &Page, folder: &TempDir) -> String {
    page.download(folder.path(), |page| {
        page.push("[aria-label='Export all chats']")
    })
}

#[test]
fn chats_that_are_exported_and_imported_are_the_same() {
    let Some(browser) = browser() else { return };
    let lines = [
        ("first", "One *line*.\n\n- and\n- a list\n"),
        ("second", "Zwei \u{1f3ad} \"Zeilen\"."),
    ];
    let world = World::scripted(&lines);
    let origin = format!("http://{}", world.addr);
    let folder = TempDir::new().expect("a folder can be made");
    let page = Page::console(browser, origin.clone(), View::default());
    page.ask("The first one");
    page.answer();
    page.push("[aria-label='Another answer']");
    page.until("document.querySelector('.branches')?.innerText.includes('2 / 2')");
    page.answer();
    page.new_chat();
    page.eval("souffleur.chats.current.logprobs = true");
    page.ask("The second one");
    let answer = page.answer();
    assert!(
        answer["run"]["tokens"]
            .as_array()
            .is_some_and(|tokens| tokens.len() > 3)
    );
    let exported = export(&page, &folder);
    assert!(exported.contains("\\\"Zeilen\\\""), "{exported}");

    let other = Page::console(browser, origin, View::default());
    let file = folder.path().join("chats.json");
    std::fs::write(&file, &exported).expect("the folder can be written");
    for imported in ["2 chats imported", "0 chats imported"] {
        other.choose_file("#import-file", &file);
        other.until(&format!(
            "document.getElementById('notice-import')?.innerText.includes('{imported}')"
        ));
        assert_eq!(export(&other, &folder), exported);
    }
    // The chats outlast the page.
    other.visit_console();
    other.until("document.querySelectorAll('#chat-list li[data-id]').length === 2");
    assert_eq!(export(&other, &folder), exported);
    for page in [page, other] {
        page.check_quiet(&[]);
    }
}
