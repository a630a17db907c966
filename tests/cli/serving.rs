//! Tests of `souffleur serve`: first lines, signals, logs and metrics, with tiny random models.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::{agents_model, souffleur, stderr, stdout, tiny_model};

pub(super) struct Server {
    child: Child,
    out: BufReader<ChildStdout>,
    pub(super) address: String,
    /// Path and body of the `curl` command that the server prints.
    suggested: (String, String),
}

impl Server {
    pub(super) fn start(args: &[&str]) -> Self {
        Self::start_with(&tiny_model(), args)
    }

    pub(super) fn start_with(model: &Path, args: &[&str]) -> Self {
        Self::start_command(souffleur(&["serve"]), model, args)
    }

    /// Runs a command that starts a server, and waits until the server is ready.
    fn start_command(mut command: Command, model: &Path, args: &[&str]) -> Self {
        command.args(["--port", "0", "--max-total-tokens", "2048"]);
        command.args(args).arg("--model-path").arg(model);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary runs");
        let mut out = BufReader::new(child.stdout.take().expect("piped"));
        let mut printed = String::new();
        let suggested = loop {
            let mut line = String::new();
            if out.read_line(&mut line).expect("stdout is UTF-8") == 0 {
                let mut log = String::new();
                let _ = child.stderr.take().expect("piped").read_to_string(&mut log);
                panic!("the server ended before it was ready:\n{printed}{log}");
            }
            printed.push_str(&line);
            if let Some((_, rest)) = line.split_once("curl -N http://") {
                break rest.trim_end().to_owned();
            }
        };
        let (address, rest) = suggested.split_once('/').expect("an address and a path");
        let (path, flags) = rest.split_once(' ').expect("a path and flags");
        let (_, body) = flags.split_once(" -d '").expect("a body");
        let body = body.strip_suffix('\'').expect("a quoted body");
        Self {
            child,
            out,
            address: address.to_owned(),
            suggested: (format!("/{path}"), body.to_owned()),
        }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect(&self.address).expect("the server listens")
    }

    pub(super) fn send(&self, method: &str, path: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .expect("the server reads");
        stream
    }

    /// The status, and the whole response as text.
    pub(super) fn ask(&self, method: &str, path: &str, body: &str) -> (u16, String) {
        let mut text = String::new();
        self.send(method, path, body)
            .read_to_string(&mut text)
            .expect("the server answers");
        let status = text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok());
        (
            status.unwrap_or_else(|| panic!("no status in {text:?}")),
            text,
        )
    }

    pub(super) fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = Command::new("kill")
            .args(["-s", name, &id])
            .status()
            .expect("kill runs");
        assert!(sent.success());
    }

    /// Reads the log up to the next line that contains `part`, and returns that line.
    fn log_until(&mut self, part: &str) -> String {
        let mut log = BufReader::new(self.child.stderr.take().expect("piped"));
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            let n = log.read_line(&mut line).expect("the log is UTF-8");
            assert!(n > 0, "the log ended without {part:?}");
        }
        self.child.stderr = Some(log.into_inner());
        line
    }

    /// Waits until the server exits; the test fails if that takes longer than `limit`.
    pub(super) fn wait(mut self, limit: Duration) -> (ExitStatus, String) {
        let began = Instant::now();
        let (done, ended) = std::sync::mpsc::channel::<()>();
        let id = self.child.id().to_string();
        let killer = std::thread::spawn(move || {
            if ended.recv_timeout(limit).is_err() {
                let _ = Command::new("kill").args(["-s", "KILL", &id]).status();
            }
        });
        let mut printed = String::new();
        let _ = self.out.read_to_string(&mut printed);
        let _ = self
            .child
            .stderr
            .take()
            .expect("piped")
            .read_to_string(&mut printed);
        let status = self.child.wait().expect("the server can be waited for");
        let _ = done.send(());
        killer.join().expect("the killer does not panic");
        assert!(began.elapsed() < limit, "no exit in time: {printed}");
        (status, printed)
    }
}

/// Ends the server of a test that failed.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) const LONG: &str = r#"{"input_ids": [1, 2, 3], "stream": true,
    "sampling_params": {"max_new_tokens": 200, "ignore_eos": true, "temperature": 0}}"#;

/// The server's first lines suggest a `curl` command that the model can answer.
#[test]
fn the_printed_curl_command_works() {
    let check = |model: &Path, args: &[&str], expect: &str| {
        let server = Server::start_with(model, args);
        let (path, body) = &server.suggested;
        assert_eq!(path, expect);
        let (status, answer) = server.ask("POST", path, body);
        assert_eq!(status, 200, "{answer}");
        assert!(answer.contains("data: "), "{answer}");
        server.signal("TERM");
        server.wait(Duration::from_secs(60));
    };
    check(&agents_model(), &[], "/v1/chat/completions");
    check(&tiny_model(), &[], "/v1/completions");
    check(&tiny_model(), &["--skip-tokenizer-init"], "/generate");
}

#[test]
fn sigterm_finishes_running_requests_and_exits_with_0() {
    let serving = Server::start(&[]);
    assert_eq!(serving.ask("GET", "/health", "").0, 200);
    let mut response = BufReader::new(serving.send("POST", "/generate", LONG));
    read_until_data(&mut response);
    serving.signal("TERM");
    let mut rest = String::new();
    response
        .read_to_string(&mut rest)
        .expect("the stream continues");
    assert!(
        rest.contains("\"length\""),
        "the request was not finished: {rest}"
    );
    let (status, log) = serving.wait(Duration::from_secs(60));
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn without_time_to_finish_the_exit_code_is_0_too() {
    let serving = Server::start(&["--shutdown-timeout-s", "0"]);
    let mut response = BufReader::new(serving.send("POST", "/generate", LONG));
    read_until_data(&mut response);
    serving.signal("INT");
    let (status, log) = serving.wait(Duration::from_secs(60));
    assert_eq!(status.code(), Some(0), "{log}");
}

#[test]
fn a_second_signal_exits_at_once() {
    let mut serving = Server::start(&["--shutdown-deadline-s", "3600"]);
    // 512 outputs of 200 tokens, about ten of which fit into the pool at once.
    let many = r#"{"input_ids": [[1], [2], [3], [4]], "stream": true,
        "sampling_params": {"max_new_tokens": 200, "ignore_eos": true, "n": 128}}"#;
    let mut response = BufReader::new(serving.send("POST", "/generate", many));
    read_until_data(&mut response);
    serving.signal("TERM");
    let mut log = BufReader::new(serving.child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("stopping") {
        line.clear();
        assert!(
            log.read_line(&mut line).expect("the log is UTF-8") > 0,
            "the log ended without a line about the stop"
        );
    }
    serving.signal("TERM");
    serving.child.stderr = Some(log.into_inner());
    let (status, log) = serving.wait(Duration::from_secs(60));
    assert_eq!(status.code(), Some(143), "{log}");
}

#[cfg(unix)]
#[test]
fn sighup_is_logged_and_ignored() {
    let mut serving = Server::start(&[]);
    let mut response = BufReader::new(serving.send("POST", "/generate", LONG));
    read_until_data(&mut response);
    serving.signal("HUP");
    let line = serving.log_until("SIGHUP");
    assert!(line.contains("ignoring SIGHUP"), "{line}");
    let mut rest = String::new();
    let read = response.read_to_string(&mut rest);
    read.expect("the stream continues");
    assert!(rest.contains("\"length\""), "{rest}");
    serving.signal("TERM");
    let (status, log) = serving.wait(Duration::from_secs(60));
    assert_eq!(status.code(), Some(0), "{log}");
}

/// The recording and the log reach the file size limit: their writers stop, and the server keeps running.
#[cfg(unix)]
#[test]
fn a_file_size_limit_stops_the_log_writers_and_not_the_server() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    // 8 KiB, which a few requests fill.
    let script = "ulimit -f 16; exec \"$0\" serve --log-level debug --record \"$FOLDER/record\" \"$@\" 2>\"$FOLDER/log\"";
    let server = souffleur(&[]);
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(server.get_program());
    command.env("FOLDER", folder.path());
    let serving = Server::start_command(command, &tiny_model(), &[]);
    let size = |name| std::fs::metadata(folder.path().join(name)).map_or(0, |file| file.len());
    let one = r#"{"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 100, "ignore_eos": true}}"#;
    let began = Instant::now();
    while size("record") < 8192 || size("log") < 8192 {
        assert_eq!(serving.ask("POST", "/generate", one).0, 200);
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "nothing is written"
        );
    }
    for _ in 0..5 {
        assert_eq!(serving.ask("POST", "/generate", one).0, 200);
    }
    let (_, page) = serving.ask("GET", "/metrics", "");
    let died = |line: &&str| line.starts_with("souffleur_actor_deaths") && !line.ends_with(" 0");
    assert_eq!(page.lines().find(died), None);
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(60)).0.code(), Some(0));
}

#[test]
fn a_request_that_runs_long_is_in_the_log() {
    let mut serving = Server::start(&["--log-long-requests-s", "0.001"]);
    let long = r#"{"input_ids": [1, 2, 3], "rid": "patient", "stream": true,
        "sampling_params": {"max_new_tokens": 2000, "ignore_eos": true, "temperature": 0}}"#;
    let _response = serving.send("POST", "/generate", long);
    let line = serving.log_until("long-running request");
    for part in [
        "patient",
        "prompt_tokens=3",
        "other_long_requests=0",
        "phase=",
    ] {
        assert!(line.contains(part), "{part:?} is not in {line}");
    }
    serving.signal("TERM");
    serving.signal("TERM");
    serving.wait(Duration::from_secs(60));
}

pub(super) fn read_until_data(response: &mut impl BufRead) {
    let mut line = String::new();
    while !line.starts_with("data:") {
        line.clear();
        let n = response.read_line(&mut line).expect("the response streams");
        assert!(n > 0, "the stream ended before its first event");
    }
}

#[test]
fn promtool_finds_only_listed_problems_in_the_metrics() {
    let serving = Server::start(&[]);
    let one = r#"{"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}}"#;
    let (status, text) = serving.ask("POST", "/generate", one);
    assert_eq!(status, 200, "{text}");
    let (_, page) = serving.ask("GET", "/metrics", "");
    let (_, page) = page.split_once("\r\n\r\n").expect("a response has a body");
    for part in [
        "sglang:prompt_tokens_total{",
        "souffleur_actor_mailbox_depth{",
        "_bucket{",
    ] {
        assert!(page.contains(part), "{part:?} is not in\n{page}");
    }
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/metrics_style.txt"
    );
    let listed = std::fs::read_to_string(file).expect("the list exists");
    for finding in promtool_findings(page) {
        assert!(
            listed.lines().any(|line| line == finding),
            "not listed: {finding}"
        );
    }
    serving.signal("TERM");
    assert_eq!(serving.wait(Duration::from_secs(60)).0.code(), Some(0));
}

/// The findings of `promtool check metrics`. Without promtool, there are none, except that the test fails in CI.
fn promtool_findings(page: &str) -> Vec<String> {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let mut child = match promtool
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
    {
        Ok(child) => child,
        Err(error) => {
            assert!(
                std::env::var_os("CI").is_none(),
                "CI needs promtool: {error}"
            );
            eprintln!("skipped: cannot run promtool ({error}): install Debian's prometheus");
            return Vec::new();
        }
    };
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(page.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool ends");
    let text = stdout(&output) + &stderr(&output);
    assert_ne!(
        output.status.code(),
        Some(1),
        "promtool cannot parse the page: {text}"
    );
    text.lines().map(str::to_owned).collect()
}
