//! Debian's Chromium, driven by its DevTools protocol over a pipe. Chromium ends when the pipe does, so that no browser
//! is left after the tests, however they end.

use std::collections::HashMap;
use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Timeout of one call or event. It is longer than that of [`Page::until`](crate::page::Page::until), whose errors say
/// more.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Chromium reads commands from file 3, and writes replies and events to file 4. Its profile, which is its home too, is
/// removed afterwards. It finds no host but this
/// one, which it also knows as rebound.test.
const START: &str = r#"
folder=$(mktemp -d) || exit 1
HOME="$folder" chromium --headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run \
  --disable-background-networking --disable-component-update --disable-extensions --disable-sync \
  --host-resolver-rules="MAP rebound.test 127.0.0.1, MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1" \
  --remote-debugging-pipe --user-data-dir="$folder" about:blank 3<&0 4>&1 </dev/null >/dev/null
rm -rf "$folder"
"#;

type Reply = Result<Value, String>;

/// The browser of all tests of this process. Without Chromium, prints the reason and returns `None`, so that tests are
/// skipped; panics if `CI` is set.
pub fn browser() -> Option<&'static Browser> {
    static BROWSER: OnceLock<Result<Browser, String>> = OnceLock::new();
    match BROWSER.get_or_init(Browser::start) {
        Ok(browser) => Some(browser),
        Err(reason) if env::var_os("CI").is_some() => panic!("CI needs Chromium: {reason}"),
        Err(reason) => {
            eprintln!("skipped: {reason}");
            None
        }
    }
}

pub struct Browser {
    input: Mutex<ChildStdin>,
    next_id: AtomicU64,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    calls: Mutex<HashMap<u64, Sender<Reply>>>,
    /// The events of each session; those of the browser itself have the empty name.
    sessions: Mutex<HashMap<String, Arc<Events>>>,
}

/// All events of a session, in order.
#[derive(Default)]
pub struct Events {
    list: Mutex<Vec<Value>>,
    added: Condvar,
}

impl Browser {
    fn start() -> Result<Self, String> {
        let found = Command::new("sh")
            .args(["-c", "command -v chromium"])
            .output();
        if !found.is_ok_and(|found| found.status.success()) {
            return Err("there is no chromium in PATH".to_owned());
        }
        let mut child = Command::new("sh")
            .args(["-c", START])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| error.to_string())?;
        let input = child.stdin.take().expect("piped");
        let output = child.stdout.take().expect("piped");
        let shared = Arc::new(Shared::default());
        let reader = Arc::clone(&shared);
        std::thread::spawn(move || reader.read(child, output));
        let browser = Self {
            input: Mutex::new(input),
            next_id: AtomicU64::new(1),
            shared,
        };
        browser.events("");
        let version = browser.try_call("", "Browser.getVersion", &json!({}));
        version.map_err(|reason| format!("chromium does not start: {reason}"))?;
        Ok(browser)
    }

    /// The events of a session, which are kept from now on.
    pub fn events(&self, session: &str) -> Arc<Events> {
        let mut sessions = lock(&self.shared.sessions);
        Arc::clone(sessions.entry(session.to_owned()).or_default())
    }

    pub fn forget(&self, session: &str) {
        lock(&self.shared.sessions).remove(session);
    }

    #[track_caller]
    pub fn call(&self, session: &str, method: &str, params: &Value) -> Value {
        let reply = self.try_call(session, method, params);
        reply.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    pub fn try_call(&self, session: &str, method: &str, params: &Value) -> Reply {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let mut call = json!({"id": id, "method": method, "params": params});
        if !session.is_empty() {
            call["sessionId"] = session.into();
        }
        let (sender, reply) = mpsc::channel();
        lock(&self.shared.calls).insert(id, sender);
        let mut text = call.to_string().into_bytes();
        text.push(0);
        let written = lock(&self.input).write_all(&text);
        written.map_err(|error| error.to_string())?;
        match reply.recv_timeout(TIMEOUT) {
            Ok(reply) => reply,
            Err(mpsc::RecvTimeoutError::Timeout) => Err("no reply in time".to_owned()),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err("it has ended".to_owned()),
        }
    }
}

impl Shared {
    fn read(&self, mut child: Child, output: ChildStdout) {
        for message in BufReader::new(output).split(0).map_while(Result::ok) {
            let message = serde_json::from_slice(&message).expect("messages are JSON");
            self.take(message);
        }
        lock(&self.calls).clear();
        let _ = child.wait();
    }

    fn take(&self, mut message: Value) {
        if let Some(id) = message["id"].as_u64() {
            let reply = match message.get("error") {
                Some(error) => Err(error.to_string()),
                None => Ok(message["result"].take()),
            };
            if let Some(call) = lock(&self.calls).remove(&id) {
                let _ = call.send(reply);
            }
            return;
        }
        let session = message["sessionId"].as_str().unwrap_or_default();
        if let Some(events) = lock(&self.sessions).get(session) {
            lock(&events.list).push(message);
            events.added.notify_all();
        }
    }
}

impl Events {
    pub fn all(&self) -> Vec<Value> {
        lock(&self.list).clone()
    }

    /// Waits until `pick` finds something in the events so far.
    #[track_caller]
    pub fn wait<T>(&self, what: &str, pick: impl Fn(&[Value]) -> Option<T>) -> T {
        let end = Instant::now() + TIMEOUT;
        let mut list = lock(&self.list);
        loop {
            if let Some(picked) = pick(&list) {
                return picked;
            }
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "timed out before {what}");
            let waited = self.added.wait_timeout(list, left);
            list = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// A test that fails while it holds a lock leaves nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
