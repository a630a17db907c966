//! The accessibility of the page, as axe-core sees it.

use std::fs;

use serde_json::{Value, json};

use crate::cdp::browser;
use crate::npm;
use crate::page::{Page, VIEWS, View};
use crate::world::World;

const PACKAGE: &str = "axe-core@4.14.1";
const FILE: &str = "axe-core/axe.min.js";

/// What axe finds in a part of the page as it is, as texts.
fn violations(page: &Page, part: &str) -> Value {
    page.eval(&format!(
        "axe.run({part}, {{ resultTypes: ['violations'] }}).then(({{ violations }}) => violations.flatMap(
            ({{ id, nodes }}) => nodes.map(({{ target, any }}) => `${{id}}: ${{target}} ${{any[0]?.message ?? ''}}`)))"
    ))
}

struct Checked<'a> {
    page: &'a Page,
    view: View,
}

impl Checked<'_> {
    #[track_caller]
    fn check(&self, part: &str, state: &str) {
        // Colours are measured after their transitions.
        self.page.eval(
            "Promise.all(document.getAnimations().filter((animation) => \
                animation.effect.getComputedTiming().endTime < Infinity).map((animation) => \
                animation.finished.catch(() => {})))",
        );
        let found = violations(self.page, part);
        assert_eq!(found, json!([]), "{:?}, {state}", self.view);
    }

    /// Checks a dialog that a button opens, and closes it.
    #[track_caller]
    fn check_dialog(&self, button: &str) {
        self.page.push(&format!("[aria-label='{button}']"));
        self.page.until("document.querySelector('dialog[open]')");
        self.check("document.querySelector('dialog[open]')", button);
        self.page
            .eval("document.querySelector('dialog[open]').close()");
    }
}

/// Opens all that can be opened after an answer.
fn open_all(page: &Page) {
    page.ask("Who are you?");
    page.answer();
    page.eval(
        "[...document.querySelectorAll('.acts button')].find((node) => \
            node.textContent === 'Log probabilities').click()",
    );
    page.until("document.querySelector('.token')");
    page.answer();
    page.push(".token:nth-child(3)");
    page.until("document.querySelector('.alternatives button')");
    page.push("#settings-button");
    page.until("document.querySelector('#settings textarea')");
    page.eval(
        "document.querySelectorAll('#settings details, #engine .data').forEach((part) => (part.open = true))",
    );
    page.eval("document.querySelector('.menu').open = true");
}

fn check_states(page: &Page, view: View) {
    let checked = Checked { page, view };
    checked.check("document", "empty");
    open_all(page);
    checked.check("document", "all open");
    if view.is_phone {
        page.click("#tabs [data-tab=engine]");
        page.until("souffleur.live.frame && document.querySelector('#engine tbody tr')");
        checked.check("document.getElementById('engine')", "the engine");
        page.click("#tabs [data-tab=chats]");
        page.eval("document.querySelector('.menu').open = true");
        checked.check("document.getElementById('chats')", "the chats");
    }
    checked.check_dialog("Keyboard (?)");
    checked.check_dialog("Keys of the server");
    checked.check_dialog("As curl, Python, JavaScript");
}

/// Checks the engine before its first frame.
fn check_idle(page: &Page, axe: &str, view: View) {
    page.hold("*/console/live*");
    page.visit_console();
    page.until("souffleur.server.phase === 'ready'");
    if view.is_phone {
        page.click("#tabs [data-tab=engine]");
    }
    page.until("document.getElementById('engine').dataset.idle !== undefined");
    page.eval(&format!("{axe};null"));
    Checked { page, view }.check("document", "without a frame");
}

/// An image without a text, a button without a name: axe must find them.
fn check_that_faults_are_found(page: &Page) {
    page.eval(
        "(() => {
            const image = document.createElement('img');
            image.src = 'console/icon.svg';
            document.getElementById('talk').append(image, document.createElement('button'));
        })()",
    );
    let found = violations(page, "document").to_string();
    assert!(found.contains("image-alt:"), "{found}");
    assert!(found.contains("button-name:"), "{found}");
}

#[test]
fn axe_finds_nothing_in_any_view_and_state() {
    let Some(browser) = browser() else { return };
    let Some(modules) = npm::modules(PACKAGE, FILE) else {
        return;
    };
    let axe = fs::read_to_string(modules.join(FILE)).expect("the package is whole");
    let world = World::scripted(&[("", "A line, and *another*.")]);
    for view in VIEWS {
        let page = Page::console(browser, format!("http://{}", world.addr), view);
        page.eval(&format!("{axe};null"));
        check_states(&page, view);
        page.check_quiet(&[]);
        check_idle(&Page::new(browser, page.origin.clone(), view), &axe, view);
        if !view.is_phone && !view.is_dark {
            let page = Page::console(browser, page.origin.clone(), view);
            page.eval(&format!("{axe};null"));
            check_that_faults_are_found(&page);
        }
    }
}
