//! Steps of the tests: open the console, ask, and read its answers.

use serde_json::{Value, json};

use crate::cdp::Browser;
use crate::page::{Page, View};

/// The errors that Chromium logs when the server asks for a key.
pub const NO_KEY: &str = "status of 401";

impl Page {
    /// The console of the server at this origin, once it shows the engine.
    #[track_caller]
    pub fn console(browser: &'static Browser, origin: impl Into<String>, view: View) -> Self {
        let page = Self::new(browser, origin, view);
        page.visit_console();
        page.until("souffleur.server.phase === 'ready'");
        if !view.is_phone {
            page.until("souffleur.live.frame && souffleur.live.treeTotals");
        }
        page
    }

    /// Has the page find these keys as if its user had entered them.
    pub fn with_keys(&self, api_key: &str, admin_key: &str) {
        self.begin_with(&format!(
            "if (location.origin === {}) {{
                sessionStorage.setItem('souffleur-key', {});
                sessionStorage.setItem('souffleur-admin-key', {});
            }}",
            json!(self.origin),
            json!(api_key),
            json!(admin_key)
        ));
    }

    #[track_caller]
    pub fn visit_console(&self) {
        self.visit(&format!("{}/", self.origin));
        self.until("document.getElementById('composer') && globalThis.souffleur.server.phase !== 'connecting'");
    }

    /// Sends a message in the current chat.
    #[track_caller]
    pub fn ask(&self, text: &str) {
        self.eval("document.getElementById('composer').focus()");
        self.write(text);
        self.press("Ctrl+Enter");
    }

    /// Waits for the end of the current chat's answer, and returns it.
    #[track_caller]
    pub fn ended_answer(&self) -> Value {
        self.until(
            "souffleur.chats.current.nodes[souffleur.chats.current.leaf].run.total_ms !== undefined && \
                souffleur.running.size === 0 && !document.querySelector('.message.running')",
        );
        self.eval("souffleur.chats.current.nodes[souffleur.chats.current.leaf]")
    }

    /// Like [`Self::ended_answer`], with the sentence about the answer's miss.
    #[track_caller]
    pub fn answer(&self) -> Value {
        self.ended_answer();
        self.until(
            "[...document.querySelectorAll('.message.assistant')].at(-1).querySelector('.miss')",
        );
        self.ended_answer()
    }

    /// The text of the last answer, as it is shown.
    #[track_caller]
    pub fn shown_answer(&self) -> String {
        self.text("[...document.querySelectorAll('.message.assistant .prose')].at(-1).innerText")
    }

    #[track_caller]
    pub fn new_chat(&self) {
        self.eval("document.getElementById('new-chat').click()");
    }

    /// Clicks a button, which may be on a pane that is not shown.
    #[track_caller]
    pub fn push(&self, selector: &str) {
        self.eval(&format!(
            "document.querySelector({}).click()",
            json!(selector)
        ));
    }
}
