//! Tests of the commands of a first hour: `run`, a model without a flag, `completions`, manual pages, the version.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::Stdio;

use super::{run, souffleur, stderr, stdout, tiny_model};

fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    )
    .expect("the server reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn run_serves_and_chats_until_its_input_ends() {
    let cache = tempfile::tempdir().expect("temporary folder");
    let mut command = souffleur(&["run", "--port", "0", "--temperature", "0"]);
    command.env("SOUFFLEUR_CACHE_DIR", cache.path());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut log = BufReader::new(child.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("until the chat ends") {
        line.clear();
        let n = log.read_line(&mut line).expect("the log is UTF-8");
        assert!(n > 0, "the command ended");
    }
    let address = line
        .split_once("http://")
        .and_then(|(_, rest)| rest.split('/').next())
        .unwrap_or_else(|| panic!("no address in {line:?}"));
    assert!(get(address, "/v1/models").contains("souffleur-tiny"));
    let mut input = child.stdin.take().expect("piped");
    input.write_all(b"Who are you?\n").expect("writable");
    let mut answer = String::new();
    out.read_line(&mut answer).expect("stdout is UTF-8");
    assert!(answer.len() > 3, "{answer:?}");
    assert!(get(address, "/ready").starts_with("HTTP/1.1 200"));
    drop(input);
    let ended = child.wait_with_output().expect("the command ends");
    assert!(ended.status.success(), "{}", stderr(&ended));
}

#[test]
fn the_version_names_commit_and_features() {
    let version = stdout(&run(&["--version"]));
    let (name, details) = version.trim_end().split_once(" (").expect("details");
    assert_eq!(name, format!("souffleur {}", env!("CARGO_PKG_VERSION")));
    let details = details.strip_suffix(')').expect("a bracket");
    let mut details = details.split(", ");
    let commit = details.next().expect("a commit");
    let hash = commit.split(' ').next().expect("a hash");
    let is_hash = hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown commit", "{commit}");
    let features: Vec<&str> = details.collect();
    assert_eq!(features.contains(&"cuda"), cfg!(feature = "cuda"));
    assert!(features.contains(&"hub"), "{features:?}");
    assert_eq!(stdout(&run(&["-V"])), version);
}

#[test]
fn server_info_and_metrics_name_the_same_build() {
    let serving = super::serving::Server::start(&[]);
    let info = get(&serving.address, "/server_info");
    let (_, body) = info.split_once("\r\n\r\n").expect("a body");
    let info: serde_json::Value = serde_json::from_str(body).expect("JSON");
    let commit = info["commit"].as_str().unwrap_or("unknown");
    let features: Vec<&str> = info["features"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|feature| feature.as_str())
        .collect();
    let version = stdout(&run(&["--version"]));
    assert!(version.contains(commit), "{version}");
    assert!(version.contains(&features.join(", ")), "{version}");
    // The first scrape has every family.
    let metrics = get(&serving.address, "/metrics");
    for family in souffleur::metrics::families() {
        let typed = format!("# TYPE {} ", family.name);
        assert!(metrics.contains(&typed), "{} is absent", family.name);
    }
    let gauge = format!(
        "souffleur_build_info{{version=\"{}\",commit=\"{commit}\",features=\"{}\"}} 1",
        env!("CARGO_PKG_VERSION"),
        features.join(",")
    );
    assert!(metrics.contains(&gauge), "{gauge} is not in\n{metrics}");
}

#[test]
fn completions_and_manual_pages_name_the_commands() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&run(&["completions", shell]));
        assert!(
            script.contains("doctor") && script.contains("page-size"),
            "{shell}"
        );
    }
    let folder = tempfile::tempdir().expect("temporary folder");
    let output = run(&["man", &folder.path().to_string_lossy()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = |name: &str| std::fs::read_to_string(folder.path().join(name)).expect("a page");
    assert!(page("souffleur.1").contains("doctor"));
    assert!(page("souffleur-serve.1").contains("page"));
}

#[test]
fn a_model_can_be_named_without_a_flag() {
    let model = tiny_model();
    let output = run(&["plan", &model.to_string_lossy()]);
    assert!(
        stdout(&output).contains("model                 qwen3 ("),
        "{}",
        stderr(&output)
    );
    let short = stdout(&run(&["-h"]));
    assert!(short.lines().count() <= 20, "{short}");
}

/// The hub of this test never answers, so the model is never loaded.
#[test]
fn a_server_that_loads_says_that_it_listens() {
    let hub = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let endpoint = format!("http://{}", hub.local_addr().expect("an address"));
    let home = tempfile::tempdir().expect("temporary folder");
    let mut command = souffleur(&["owner/model", "--port", "0"]);
    command
        .env("HF_HOME", home.path())
        .env("HF_ENDPOINT", endpoint);
    for name in [
        "HF_HUB_OFFLINE",
        "TRANSFORMERS_OFFLINE",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
    ] {
        command.env_remove(name);
    }
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    let mut line = String::new();
    out.read_line(&mut line).expect("stdout is UTF-8");
    assert!(line.starts_with("listening on http://127.0.0.1:"), "{line}");
    let address = line.split(['/', ',']).nth(2).expect("an address");
    assert!(get(address, "/health").contains("503"), "{address}");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn a_json_log_is_json_line_by_line_under_hostile_input() {
    let model = tiny_model();
    let flags = [
        "--port",
        "0",
        "--log-format",
        "json",
        "--log-level",
        "debug",
    ];
    let mut command = souffleur(&flags);
    command
        .arg(&model)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("the binary runs");
    let mut log = BufReader::new(child.stderr.take().expect("piped")).lines();
    let mut message = || -> Option<serde_json::Value> {
        let line = log.next()?.expect("the log is UTF-8");
        let fields: serde_json::Value =
            serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let is_text = |key: &str| fields[key].is_string();
        assert!(
            is_text("timestamp") && is_text("level") && is_text("target"),
            "{line}"
        );
        Some(fields)
    };
    let address = loop {
        let fields = message().expect("the server starts");
        if fields["message"] == "serving" {
            break fields["address"].as_str().expect("an address").to_owned();
        }
    };
    let bodies = [
        "{\"messages\": [{\"role\": \"\\\"}\\n\", \"content\": \"\\u001b[31m\\u0000\"}]}",
        "{\"model\": \"\\u0000\\n{\\\"\", \"prompt\": \"\\u2028\\ud83d\\ude00\", \"max_tokens\": 1}",
        "\u{1}\"}\n",
    ];
    for (path, body) in [
        ("/v1/chat/completions?a=%00%0a%22", bodies[0]),
        ("/v1/completions", bodies[1]),
        ("/generate", bodies[2]),
        ("/\"}{\u{1b}[31m", ""),
    ] {
        let mut stream = TcpStream::connect(&address).expect("the server listens");
        let _ = write!(
            stream,
            "POST {path} HTTP/1.1\r\nhost: localhost\r\nuser-agent: {{\"\t\\\r\nx-request-id: a\"\\b\r\n\
             content-type: application/json\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        let _ = stream.read_to_string(&mut String::new());
    }
    let id = child.id().to_string();
    let sent = std::process::Command::new("kill")
        .args(["-s", "TERM", &id])
        .status();
    assert!(sent.expect("kill runs").success());
    let mut lines = 0;
    while message().is_some() {
        lines += 1;
    }
    assert!(lines > 2, "{lines} lines");
    let ended = child.wait_with_output().expect("the server ends");
    assert!(ended.status.success());
    assert_eq!(stdout(&ended), "");
}
