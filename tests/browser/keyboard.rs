//! The page without a mouse.

use serde_json::{Value, json};

use crate::cdp::browser;
use crate::page::{Page, View};
use crate::stage::staged;
use crate::world::{World, wait_until};

/// More stops than the page has.
const MAX_STOPS: usize = 120;

/// The stops of the key Tab, by numbers that each element keeps; 0 stands for the end of the page.
fn walk(page: &Page) -> Vec<u64> {
    page.eval(
        "globalThis.numbers ??= new Map(),
        globalThis.numberOf = (node) => {
            if (node === document.body) return 0;
            if (!numbers.has(node)) numbers.set(node, numbers.size + 1);
            return numbers.get(node);
        }, null",
    );
    let mut stops = Vec::new();
    for _ in 0..MAX_STOPS {
        page.press("Tab");
        let stop = page.eval(
            "(() => {
                const node = document.activeElement;
                // The cursor shows a field of text.
                const isSeen = node === document.body || node.matches('input, textarea') || \
                    getComputedStyle(node).outlineStyle !== 'none';
                return [numberOf(node), isSeen, node.outerHTML.slice(0, 200)];
            })()",
        );
        assert_eq!(stop[1], json!(true), "no ring: {}", stop[2]);
        let number = stop[0].as_u64().expect("a number");
        if stops.contains(&number) {
            return stops;
        }
        stops.push(number);
    }
    panic!("the walk does not end");
}

/// Everything that can be used, in the order of the page.
fn usable(page: &Page) -> Value {
    page.eval(
        "[...document.querySelectorAll('button, a[href], input, textarea, select, summary, [tabindex=\"0\"]')]
            .filter((node) => !node.disabled && node.checkVisibility({ visibilityProperty: true }))
            .map((node) => numberOf(node))",
    )
}

fn check_walk(page: &Page) {
    let stops = walk(page);
    let end = stops.iter().position(|&stop| stop == 0);
    let end = end.expect("the walk leaves the page and comes back");
    let mut in_order = stops[end + 1..].to_vec();
    in_order.extend(&stops[..end]);
    assert_eq!(usable(page), json!(in_order));
}

#[test]
fn the_tab_key_visits_all_that_can_be_used_and_shows_where_it_is() {
    let Some(browser) = browser() else { return };
    let world = World::scripted(&[("", "A line.")]);
    let page = Page::console(browser, format!("http://{}", world.addr), View::default());
    check_walk(&page);
    page.ask("A question");
    page.answer();
    page.eval("document.activeElement.blur()");
    check_walk(&page);
    page.check_quiet(&[]);
}

fn focused(page: &Page) -> String {
    page.text("document.activeElement.id")
}

#[test]
fn a_conversation_needs_no_mouse() {
    let Some(browser) = browser() else { return };
    let long = "All the world is a stage. ".repeat(1000);
    let (world, stage) = staged(&[("short", "A line."), ("long", &long)], |_, _| ());
    let page = Page::console(browser, format!("http://{}", world.addr), View::default());
    page.press("/");
    assert_eq!(focused(&page), "composer");
    for character in "a short one".chars() {
        page.press(&character.to_string());
    }
    page.press("Enter");
    let written = page.text("document.getElementById('composer').value");
    assert_eq!(written, "a short one\n", "Enter begins a new line");
    page.press("Ctrl+Enter");
    assert_eq!(page.answer()["content"], "A line.");

    page.eval("document.activeElement.blur()");
    page.press("n");
    page.until("document.querySelectorAll('.message').length === 0");
    assert_eq!(focused(&page), "composer");
    page.write("a long one");
    stage.hold_after(8);
    page.press("Ctrl+Enter");
    page.until("document.querySelector('.message.running .prose')?.innerText.length > 5");
    wait_until("a step is held", || stage.is_held());
    page.press("Escape");
    page.until("souffleur.running.size === 0");
    stage.release();

    page.eval("document.activeElement.blur()");
    page.press("?");
    page.until("document.querySelector('dialog[open]')");
    page.press("Escape");
    page.until("!document.querySelector('dialog')");
    page.press("s");
    page.until(
        "!document.getElementById('settings').hidden && document.activeElement.matches('textarea')",
    );
    page.eval("document.activeElement.blur()");
    page.press("s");
    page.until("document.getElementById('settings').hidden");
    page.press("e");
    page.until("document.getElementById('engine').offsetWidth === 0 && !souffleur.live.stopper");
    page.press("e");
    page.until("document.getElementById('engine').offsetWidth > 0 && souffleur.live.frame");
    for (key, id) in [("1", "new-chat"), ("2", "messages"), ("3", "engine")] {
        page.eval("document.activeElement.blur()");
        page.press(key);
        assert_eq!(focused(&page), id);
    }
    page.check_quiet(&[]);
    world.wait_until_idle();
}
