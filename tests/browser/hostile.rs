//! Hostile output runs nothing, and the page stays usable.

use serde_json::{Value, json};

use crate::cdp::browser;
use crate::page::{Page, View};
use crate::world::World;

const MARKUP: &str = "<script>globalThis.ran = 1</script><img src=x onerror=\"globalThis.ran = 1\">\n\
    <iframe srcdoc='<script>parent.ran = 1</script>'></iframe><style>* { display: none }</style>\n\n\
    [a](javascript:globalThis.ran=1) [b](data:text/html,<script>1</script>) [c](JaVaScRiPt:ran=1)\n\
    <javascript:globalThis.ran=1> ![i](http://localhost:9/x.png) [ok](https://example.org/a)\n\n\
    \u{202e}abc\u{202c} \u{2066}def\u{2069} \0";

/// Chunks of a completion with this text.
fn stream(text: &str) -> String {
    const CHUNK: usize = 20_000;
    let characters: Vec<char> = text.chars().collect();
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"model": "x", "choices": [choice]}))
    };
    let mut events: String = characters
        .chunks(CHUNK)
        .map(|part| {
            let content: String = part.iter().collect();
            chunk(json!({"content": content}), Value::Null)
        })
        .collect();
    events.push_str(&chunk(json!({}), json!("stop")));
    events.push_str("data: [DONE]\n\n");
    events
}

/// Asks in a new chat, and answers with a text in place of the server.
fn tell(page: &Page, text: &str) {
    page.new_chat();
    page.answer_instead(
        "*/v1/chat/completions",
        "text/event-stream",
        &stream(text),
        || {
            page.ask("A question");
        },
    );
    page.ended_answer();
    page.until("document.querySelector('.message.assistant .prose').textContent.length > 0");
}

/// Checks that nothing of the output ran, and that links lead only where links may.
fn check_harmless(page: &Page) {
    let seen = page.eval(
        "[globalThis.ran ?? null, document.title, document.querySelectorAll(
            '.message :is(script, img, iframe, style, object, embed, form, base, link, meta)').length]",
    );
    assert_eq!(seen, json!([null, "Souffleur", 0]));
    let links = page.eval(
        "[...document.querySelectorAll('.message a')].map((link) => [link.protocol, link.rel])",
    );
    for link in links.as_array().expect("a list") {
        let protocol = link[0].as_str().unwrap_or_default();
        assert!(["http:", "https:", "mailto:"].contains(&protocol), "{link}");
        let rel = link[1].as_str().unwrap_or_default();
        assert!(
            rel.contains("noopener") || rel.contains("noreferrer"),
            "{link}"
        );
    }
}

/// Checks that the page still takes a message and shows the server's answer.
fn check_usable(page: &Page) {
    page.new_chat();
    page.ask("Are you there?");
    assert_eq!(page.ended_answer()["content"], "Yes.");
    assert_eq!(page.shown_answer().trim(), "Yes.");
}

#[test]
fn markup_scripts_links_and_directions_in_an_output_stay_text() {
    let Some(browser) = browser() else { return };
    let world = World::scripted(&[("there", "Yes.")]);
    let page = Page::console(browser, format!("http://{}", world.addr), View::default());
    tell(&page, MARKUP);
    check_harmless(&page);
    let shown = page.shown_answer();
    for part in ["<script>globalThis.ran = 1</script>", "onerror=", "<style>"] {
        assert!(shown.contains(part), "{shown}");
    }
    for (character, name) in [
        ("\u{202e}", "202E"),
        ("\u{202c}", "202C"),
        ("\u{2066}", "2066"),
    ] {
        assert!(
            !shown.contains(character) && shown.contains(name),
            "{shown}"
        );
    }
    let ok = page.eval("[...document.querySelectorAll('.message a')].map((link) => link.href)");
    assert!(ok.to_string().contains("https://example.org/a"), "{ok}");
    // The text is kept as it came, also by the reload.
    page.visit_console();
    page.until("document.querySelector('.message.assistant')");
    check_harmless(&page);
    check_usable(&page);
    page.check_quiet(&[NO_REPORT]);
}

/// Requests that the test answered have no report of a miss.
const NO_REPORT: &str = "/debug/prefix/";

#[test]
fn large_and_deep_outputs_leave_the_page_usable() {
    let Some(browser) = browser() else { return };
    let world = World::scripted(&[("there", "Yes.")]);
    let page = Page::console(browser, format!("http://{}", world.addr), View::default());
    let outputs = [
        ("a line of 10 MB", "x".repeat(10_000_000)),
        ("100,000 items", "- item\n".repeat(100_000)),
        ("quotes in quotes", "> ".repeat(50_000)),
        (
            "lists in lists",
            (0..200)
                .map(|depth| format!("{}- x\n", "  ".repeat(depth)))
                .collect(),
        ),
        ("backticks", "`".repeat(200_000)),
        ("emphases", "*a _b ".repeat(50_000)),
        ("brackets", "[a](".repeat(50_000)),
        (
            "a table",
            format!("|a|b|\n|-|-|\n{}", "|c|d|\n".repeat(20_000)),
        ),
    ];
    for (what, output) in outputs {
        eprintln!("output: {what}");
        tell(&page, &output);
        check_harmless(&page);
        let nodes = page.eval("document.querySelectorAll('.message *').length");
        assert!(
            nodes.as_u64().is_some_and(|nodes| nodes < 50_000),
            "{what}: {nodes}"
        );
        let kept =
            page.eval("souffleur.chats.current.nodes[souffleur.chats.current.leaf].content.length");
        assert_eq!(kept, json!(output.len()), "{what}");
        check_usable(&page);
    }
    page.check_quiet(&[NO_REPORT]);
}

#[test]
fn hostile_reasoning_calls_and_errors_stay_text() {
    let Some(browser) = browser() else { return };
    let world = World::scripted(&[("there", "Yes.")]);
    let page = Page::console(browser, format!("http://{}", world.addr), View::default());
    let call = json!({"index": 0, "id": MARKUP, "function": {"name": MARKUP, "arguments": MARKUP}});
    let delta = json!({"reasoning_content": MARKUP, "content": "x", "tool_calls": [call]});
    let choice = json!({"index": 0, "delta": delta, "finish_reason": null});
    let error = json!({"error": {"message": MARKUP}});
    let events = format!(
        "data: {}\n\ndata: {error}\n\n",
        json!({"model": MARKUP, "choices": [choice]})
    );
    page.answer_instead(
        "*/v1/chat/completions",
        "text/event-stream",
        &events,
        || {
            page.ask("A question");
        },
    );
    page.until(
        "document.querySelector('.message.assistant .error') && souffleur.running.size === 0",
    );
    page.eval("document.querySelector('.reasoning').open = true");
    page.until("document.querySelector('.call')");
    check_harmless(&page);
    check_usable(&page);
    page.check_quiet(&[NO_REPORT]);
}
