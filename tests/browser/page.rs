//! A page in the browser, in a new profile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::cdp::{Browser, Events};

/// Timeout of a condition in a page. Most hold within a second.
const UNTIL_MS: u32 = 30_000;
const MAX_DOCUMENTS: usize = 100;

/// The screen of a user, and the colours that they prefer.
#[derive(Clone, Copy, Debug, Default)]
pub struct View {
    pub is_phone: bool,
    pub is_dark: bool,
}

pub const VIEWS: [View; 4] = [
    View::new(false, false),
    View::new(false, true),
    View::new(true, false),
    View::new(true, true),
];

impl View {
    pub const fn new(is_phone: bool, is_dark: bool) -> Self {
        Self { is_phone, is_dark }
    }
}

pub struct Page {
    browser: &'static Browser,
    context: String,
    session: String,
    events: Arc<Events>,
    /// The server's origin.
    pub origin: String,
}

impl Page {
    /// An empty page for the server at this origin, such as `http://127.0.0.1:3000`.
    #[track_caller]
    pub fn new(browser: &'static Browser, origin: impl Into<String>, view: View) -> Self {
        let context = browser.call("", "Target.createBrowserContext", &json!({}));
        let page = Self::in_context(browser, &text(&context, "browserContextId"), origin.into());
        page.show_as(view);
        page
    }

    /// Another tab of the same profile.
    #[track_caller]
    pub fn sibling(&self) -> Self {
        Self::in_context(self.browser, &self.context, self.origin.clone())
    }

    #[track_caller]
    fn in_context(browser: &'static Browser, context: &str, origin: String) -> Self {
        let page = json!({"url": "about:blank", "browserContextId": context});
        let target = text(&browser.call("", "Target.createTarget", &page), "targetId");
        let attach = json!({"targetId": target, "flatten": true});
        let session = text(
            &browser.call("", "Target.attachToTarget", &attach),
            "sessionId",
        );
        let page = Self {
            events: browser.events(&session),
            browser,
            context: context.to_owned(),
            session,
            origin,
        };
        for domain in ["Runtime", "Log", "Page", "DOM", "Network"] {
            page.call(&format!("{domain}.enable"), json!({}));
        }
        // Several pages have the focus at once.
        page.call(
            "Emulation.setFocusEmulationEnabled",
            json!({"enabled": true}),
        );
        page
    }

    fn show_as(&self, view: View) {
        let (width, height, scale) = if view.is_phone {
            (390, 844, 2)
        } else {
            (1440, 900, 1)
        };
        let size = json!({
            "width": width, "height": height, "deviceScaleFactor": scale, "mobile": view.is_phone,
        });
        self.call("Emulation.setDeviceMetricsOverride", size);
        let touch = json!({"enabled": view.is_phone});
        self.call("Emulation.setTouchEmulationEnabled", touch);
        let scheme = if view.is_dark { "dark" } else { "light" };
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features}));
    }

    #[track_caller]
    pub fn call(&self, method: &str, params: Value) -> Value {
        self.browser.call(&self.session, method, &params)
    }

    /// The value of a JavaScript expression; that of a promise is awaited.
    #[track_caller]
    pub fn eval(&self, expression: &str) -> Value {
        let reply = self.try_eval(expression);
        value_of(
            reply.unwrap_or_else(|error| panic!("{error}: {expression}")),
            expression,
        )
    }

    fn try_eval(&self, expression: &str) -> Result<Value, String> {
        let params = json!({
            "expression": expression, "awaitPromise": true, "returnByValue": true, "userGesture": true,
            // The page's policy holds here too.
            "allowUnsafeEvalBlockedByCSP": false,
        });
        self.browser
            .try_call(&self.session, "Runtime.evaluate", &params)
    }

    #[track_caller]
    pub fn text(&self, expression: &str) -> String {
        let value = self.eval(expression);
        let text = value.as_str().map(str::to_owned);
        text.unwrap_or_else(|| panic!("{value} is no text: {expression}"))
    }

    /// Waits until a JavaScript condition holds. A condition that throws does not hold yet.
    #[track_caller]
    pub fn until(&self, condition: &str) {
        let expression = format!(
            "new Promise((done, fail) => {{
                let thrown = '';
                const limit = setTimeout(() => fail(new Error(`timed out ${{thrown}}`)), {UNTIL_MS});
                const look = () => {{
                    try {{
                        thrown = '';
                        if ({condition}) {{ clearTimeout(limit); done(); return; }}
                    }} catch (error) {{ thrown = error; }}
                    requestAnimationFrame(look);
                }};
                look();
            }})"
        );
        // A navigation ends the evaluation: wait again, in the next document.
        for _ in 0..MAX_DOCUMENTS {
            match self.try_eval(&expression) {
                Err(error) if error.contains("navigated") || error.contains("context") => {}
                Err(error) => panic!("{error}: {condition}"),
                Ok(reply) => {
                    value_of(reply, condition);
                    return;
                }
            }
        }
        panic!("the page is left again and again before {condition}");
    }

    #[track_caller]
    pub fn visit(&self, address: &str) {
        let loaded = self.call("Page.navigate", json!({"url": address}));
        assert_eq!(loaded["errorText"], Value::Null, "{address}");
    }

    /// Has each document that this page loads begin with a script.
    pub fn begin_with(&self, script: &str) {
        self.call(
            "Page.addScriptToEvaluateOnNewDocument",
            json!({"source": script}),
        );
    }

    #[track_caller]
    pub fn click(&self, selector: &str) {
        let place = self.eval(&format!(
            "(() => {{
                const node = document.querySelector({});
                node.scrollIntoView({{block: 'center', behavior: 'instant'}});
                const {{left, top, width, height}} = node.getBoundingClientRect();
                return [left + width / 2, top + height / 2];
            }})()",
            json!(selector)
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({
                "type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1,
            });
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Writes a text at the cursor.
    #[track_caller]
    pub fn write(&self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Presses and releases a key: a character, or a name such as `Escape`, `Shift+Tab` or `Ctrl+Enter`.
    #[track_caller]
    pub fn press(&self, combination: &str) {
        let (modifiers, name) = match combination.split_once('+') {
            Some(("Ctrl", name)) => (2, name),
            Some(("Shift", name)) => (8, name),
            _ => (0, combination),
        };
        let (code, text) = match name {
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "Tab" => (9, ""),
            character => (0, character),
        };
        let text = if modifiers == 2 { "" } else { text };
        let kind = if text.is_empty() {
            "rawKeyDown"
        } else {
            "keyDown"
        };
        let mut event = json!({
            "type": kind, "key": name, "code": name, "windowsVirtualKeyCode": code, "modifiers": modifiers,
        });
        if !text.is_empty() {
            event["text"] = text.into();
        }
        self.call("Input.dispatchKeyEvent", event.clone());
        event["type"] = "keyUp".into();
        self.call("Input.dispatchKeyEvent", event);
    }

    /// Chooses a file in an `input` of files.
    #[track_caller]
    pub fn choose_file(&self, selector: &str, file: &Path) {
        let document = self.call("DOM.getDocument", json!({"depth": 0}));
        let params = json!({"nodeId": document["root"]["nodeId"], "selector": selector});
        let node = self.call("DOM.querySelector", params);
        let params = json!({"nodeId": node["nodeId"], "files": [file]});
        self.call("DOM.setFileInputFiles", params);
    }

    /// Does something that downloads a file into a folder, and returns the file's text.
    #[track_caller]
    pub fn download(&self, folder: &Path, begin: impl FnOnce(&Self)) -> String {
        let behaviour = json!({
            "behavior": "allowAndName", "browserContextId": self.context, "downloadPath": folder,
            "eventsEnabled": true,
        });
        self.browser
            .call("", "Browser.setDownloadBehavior", &behaviour);
        let events = self.browser.events("");
        let completed = |events: &[Value]| -> Vec<String> {
            let ends = events.iter().filter(|event| {
                event["method"] == "Browser.downloadProgress"
                    && event["params"]["state"] == "completed"
            });
            let files = ends.filter_map(|event| event["params"]["guid"].as_str());
            files
                .filter(|file| folder.join(file).exists())
                .map(str::to_owned)
                .collect()
        };
        let before = completed(&events.all()).len();
        begin(self);
        let file = events.wait("a download", |events| {
            completed(events).into_iter().nth(before)
        });
        std::fs::read_to_string(folder.join(file)).expect("the file is text")
    }

    /// Keeps requests of addresses with this pattern from the server, for as long as the page lives.
    pub fn hold(&self, pattern: &str) {
        let patterns = json!({"patterns": [{"urlPattern": pattern}]});
        self.call("Fetch.enable", patterns);
    }

    /// Does something that sends a request of an address with this pattern, and answers it in place of the server.
    #[track_caller]
    pub fn answer_instead(
        &self,
        pattern: &str,
        content_type: &str,
        body: &str,
        begin: impl FnOnce(),
    ) {
        let before = self.all("Fetch.requestPaused").len();
        let patterns = json!({"patterns": [{"urlPattern": pattern}]});
        self.call("Fetch.enable", patterns);
        begin();
        let paused = self.events.wait("a request", |events| {
            let is_paused = |event: &&Value| event["method"] == "Fetch.requestPaused";
            let event = events.iter().filter(is_paused).nth(before)?;
            Some(event["params"]["requestId"].clone())
        });
        let headers = json!([{"name": "content-type", "value": content_type}]);
        let response = json!({
            "requestId": paused, "responseCode": 200, "responseHeaders": headers,
            "body": STANDARD.encode(body),
        });
        self.call("Fetch.fulfillRequest", response);
        self.call("Fetch.disable", json!({}));
    }

    pub fn events(&self) -> &Events {
        &self.events
    }

    /// The parameters of all events of a method so far.
    pub fn all(&self, method: &str) -> Vec<Value> {
        let events = self.events.all().into_iter();
        events
            .filter(|event| event["method"] == method)
            .map(|mut event| event["params"].take())
            .collect()
    }

    /// The addresses that the page has requested, by the ids of the requests.
    pub fn requests(&self) -> BTreeMap<String, String> {
        let sent = self.all("Network.requestWillBeSent").into_iter();
        sent.map(|sent| (text(&sent, "requestId"), text(&sent["request"], "url")))
            .collect()
    }

    /// Errors, warnings and exceptions so far, also those of the network and of the policy.
    pub fn problems(&self) -> Vec<String> {
        let is_bad = |kind: &Value| ["error", "warning", "assert"].iter().any(|bad| kind == bad);
        let logged = self.all("Log.entryAdded").into_iter();
        let logged = logged
            .map(|mut entry| entry["entry"].take())
            .filter(|entry| is_bad(&entry["level"]))
            .map(|entry| format!("{}: {} {}", entry["source"], entry["text"], entry["url"]));
        let printed = self.all("Runtime.consoleAPICalled").into_iter();
        let printed = printed
            .filter(|call| is_bad(&call["type"]))
            .map(|call| format!("console: {}", call["args"]));
        let thrown = self.all("Runtime.exceptionThrown").into_iter();
        let thrown = thrown.map(|thrown| format!("exception: {}", thrown["exceptionDetails"]));
        logged.chain(printed).chain(thrown).collect()
    }

    /// Checks that the page asked only its server, and that there was no error but those with one of these texts.
    #[track_caller]
    pub fn check_quiet(&self, expected: &[&str]) {
        // Events of the past precede the answer to this.
        self.eval("new Promise((done) => requestAnimationFrame(done))");
        let mut problems = self.problems();
        problems.retain(|problem| !expected.iter().any(|text| problem.contains(text)));
        assert!(problems.is_empty(), "{problems:#?}");
        let own = [
            format!("{}/", self.origin),
            format!("blob:{}/", self.origin),
        ];
        let requests = self.requests().into_values();
        let foreign: Vec<String> = requests
            .filter(|address| !own.iter().any(|start| address.starts_with(start)))
            .collect();
        assert!(foreign.is_empty(), "{foreign:#?}");
    }

    /// The page as a picture in a format such as `png`.
    pub fn screenshot(&self, format: &str) -> Option<Vec<u8>> {
        let params = json!({"format": format, "quality": 85});
        let reply = self
            .browser
            .try_call(&self.session, "Page.captureScreenshot", &params);
        STANDARD.decode(reply.ok()?["data"].as_str()?).ok()
    }

    /// Saves a picture of the page, and returns its path.
    fn picture(&self) -> Option<String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let picture = self.screenshot("webp")?;
        let name = format!("browser-{}.webp", COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::write(&path, picture).ok()?;
        Some(path.display().to_string())
    }
}

/// The value in the reply to an evaluation.
#[track_caller]
fn value_of(mut reply: Value, expression: &str) -> Value {
    if let Some(thrown) = reply.get("exceptionDetails") {
        let error = thrown["exception"]["description"].as_str();
        panic!("{}: {expression}", error.unwrap_or("an exception"));
    }
    reply["result"]["value"].take()
}

#[track_caller]
fn text(object: &Value, name: &str) -> String {
    object[name].as_str().expect("a text").to_owned()
}

impl Drop for Page {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let picture = self.picture().unwrap_or("none".to_owned());
            eprintln!(
                "the page's problems: {:#?}; its picture: {picture}",
                self.problems()
            );
        }
        let params = json!({"browserContextId": self.context});
        let _ = self
            .browser
            .try_call("", "Target.disposeBrowserContext", &params);
        self.browser.forget(&self.session);
    }
}
