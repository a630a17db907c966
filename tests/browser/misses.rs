//! The sentence about a miss says what `/debug/prefix` reports.

use std::net::SocketAddr;

use serde_json::{Value, json};
use souffleur::server::ApiKey;

use crate::cdp::browser;
use crate::http::send;
use crate::page::{Page, View};
use crate::world::World;

const ADMIN_KEY: &str = "sk-of-the-admin";

fn as_admin(addr: SocketAddr, start: &str) -> Value {
    let request = format!(
        "{start} HTTP/1.1\r\nHost: {addr}\r\nConnection: close\r\nContent-Length: 0\r\n\
         Authorization: Bearer {ADMIN_KEY}\r\n\r\n"
    );
    send(addr, &request).ok()
}

/// The sentence for a report.
fn sentence(report: &Value) -> String {
    let place = match report["prompt_tokens"].as_u64() {
        Some(all) => format!("token {} of {all}", report["position"]),
        None => format!("token {}", report["position"]),
    };
    let cause = report["cause"].as_str().expect("a text");
    let why = match cause {
        "never_cached" => "No request had the next tokens before.".to_owned(),
        "match_limit" => {
            "Everything that can be cached was: only tokens that must be computed were left."
                .to_owned()
        }
        "flushed" => "The next tokens were cached until the cache was flushed.".to_owned(),
        "divergence" => match report["branch"]["n_branches"].as_u64() {
            Some(branches) if branches > 1 => {
                format!("There the cache continues with other tokens, in {branches} branches.")
            }
            _ => "There the cache continues with other tokens.".to_owned(),
        },
        other => panic!("the test expects no {other}: {report}"),
    };
    format!("{cause} Matched up to {place}. {why}")
}

/// The texts on both sides of the miss, as the page shows them.
fn texts(report: &Value) -> Vec<[String; 2]> {
    let text = |name: &str| {
        let text = report["text"][name].as_str().unwrap_or_default();
        text.replace('\n', "⏎")
    };
    let mut rows = Vec::new();
    if report["cause"] == "match_limit" {
        return rows;
    }
    let mut add = |label: &str, text: String| rows.push([label.to_owned(), text]);
    if !text("before").is_empty() {
        add("cached", format!("…{}", text("before")));
    }
    if !text("after").is_empty() {
        add("this prompt", format!("{}…", text("after")));
    }
    if report["cause"] == "divergence" && !text("branch").is_empty() {
        add("the cache", format!("{}…", text("branch")));
    }
    rows
}

/// Asks in a new chat, and compares the page with the report. Returns the cause.
fn check(page: &Page, world: &World, question: &str) -> String {
    page.new_chat();
    page.ask(question);
    let answer = page.answer();
    let rid = answer["run"]["rid"].as_str().expect("a text");
    let report = as_admin(world.addr, &format!("GET /debug/prefix/{rid}"));
    assert_eq!(answer["run"]["miss"], report);
    let shown =
        page.text("[...document.querySelectorAll('.miss > p:first-child')].at(-1).innerText");
    assert_eq!(shown, sentence(&report), "{question}");
    let shown = page
        .eval("[...document.querySelectorAll('.miss')].at(-1).querySelector('.hint')?.innerText");
    let hint = report["hint"].as_str();
    assert_eq!(shown, json!(hint.map(|hint| format!("Hint: {hint}"))));
    let shown = page.eval(
        "[...[...document.querySelectorAll('.miss')].at(-1).querySelectorAll('dt')].map((term) => \
            [term.textContent, term.nextElementSibling.textContent])",
    );
    assert_eq!(shown, json!(texts(&report)), "{question}");
    let bar = page.text(
        "[...document.querySelectorAll('.prompt-bar .bar')].at(-1).getAttribute('aria-label')",
    );
    let (all, cached) = (
        &answer["run"]["prompt_tokens"],
        &answer["run"]["cached_tokens"],
    );
    let cached_too = format!("Prompt: {all} tokens, {cached} cached");
    assert!(bar.starts_with(&cached_too), "{bar}");
    assert_eq!(*cached, report["position"], "{report}");
    report["cause"].as_str().expect("a text").to_owned()
}

#[test]
fn the_sentence_and_the_texts_are_those_of_the_report() {
    let Some(browser) = browser() else { return };
    let world = World::scripted_with(&[("", "A line.")], |_, server| {
        server.admin_api_key = ApiKey::new(ADMIN_KEY).ok();
    });
    let page = Page::new(browser, format!("http://{}", world.addr), View::default());
    page.with_keys("", ADMIN_KEY);
    page.visit_console();
    let monday = "Tell me of the play that is given on Monday.";
    let friday = "Tell me of the play that is given on Friday.";
    let sunday = "Tell me of the play that is given on Sunday.";
    assert_eq!(check(&page, &world, monday), "never_cached");
    assert_eq!(check(&page, &world, friday), "divergence");
    assert_eq!(check(&page, &world, sunday), "divergence");
    assert_eq!(check(&page, &world, friday), "match_limit");
    as_admin(world.addr, "POST /flush_cache");
    assert_eq!(check(&page, &world, friday), "flushed");
    page.check_quiet(&[]);
}
