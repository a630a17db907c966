//! Tests of `souffleur chat` with a model in the process, with a souffleur server, and with a server of the test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::serving::Server;
use super::{agents_model, run, souffleur, stderr, stdout, tiny_model};

fn chat(args: &[&str]) -> Command {
    let mut command = souffleur(&["chat"]);
    command.args(args).env_remove("OPENAI_API_KEY");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

/// Runs the command with these lines on stdin, and waits for its end.
fn run_chat(command: &mut Command, lines: &str) -> std::process::Output {
    let mut child = command.spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(lines.as_bytes()).expect("writable");
    drop(stdin);
    child.wait_with_output().expect("the chat ends")
}

#[test]
fn a_model_in_the_process_answers_line_by_line_and_remembers() {
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let greedy = ["--temperature", "0", "--max-new-tokens", "24"];
    let answers = |lines: &str| {
        let mut command = chat(&greedy);
        let output = run_chat(command.env("SOUFFLEUR_CACHE_DIR", cache.path()), lines);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let alone = answers("Who are you?\n");
    let both = answers("Who are you?\n\n \nWho are you?\n");
    assert!(alone.len() > 3 && alone.ends_with('\n'), "{alone:?}");
    let second = both
        .strip_prefix(&alone)
        .expect("the first answer is the same");
    assert!(
        second.len() > 1,
        "the empty line is skipped and the last line answered"
    );
    assert_eq!(answers(""), "");
}

#[test]
fn a_model_that_cannot_chat_and_invalid_flags_are_refused() {
    let model = tiny_model().display().to_string();
    let output = run(&["chat", "--model-path", &model]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("no chat template"),
        "{}",
        stderr(&output)
    );
    for (args, part) in [
        (&["chat", "--url", "ftp://h"][..], "--url is \"ftp://h\""),
        (&["chat", "--skip-tokenizer-init"], "--skip-tokenizer-init"),
        (&["chat", "--api-key", "k"], "--url"),
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(part), "{}", stderr(&output));
    }
}

#[test]
fn a_souffleur_server_answers() {
    let serving = Server::start_with(&agents_model(), &["--api-key", "sk-1"]);
    let url = format!("http://{}", serving.address);
    let short = [
        "--url",
        &url,
        "--max-new-tokens",
        "4",
        "--sampling-seed",
        "1",
    ];
    let output = run_chat(chat(&short).env("OPENAI_API_KEY", "sk-1"), "Hello\nAgain\n");
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("raise --max-new-tokens"),
        "the answer ended before the token limit: {text}"
    );
    assert!(stdout(&output).lines().count() >= 2, "{output:?}");
    let refused = run_chat(&mut chat(&["--url", &url, "--model-path", "m"]), "Hello\n");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("401"), "{}", stderr(&refused));
    serving.signal("TERM");
    serving.wait(Duration::from_secs(60));
}

/// A server that passes each request with its connection to the test, which writes the response.
struct TestServer {
    url: String,
    requests: Receiver<(TcpStream, Value)>,
}

impl TestServer {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("an address");
        let (sender, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let body = read_body(&stream);
                if sender.send((stream, body)).is_err() {
                    return;
                }
            }
        });
        Self {
            url: format!("http://{address}/v1"),
            requests,
        }
    }

    /// The next request: its connection and its JSON body.
    fn next_request(&self) -> (TcpStream, Value) {
        self.requests.recv().expect("the server runs")
    }
}

fn read_body(stream: &TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a header");
        if line.trim().is_empty() {
            break;
        }
        let lower = line.to_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("the length is a number");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("a whole body");
    serde_json::from_slice(&body).unwrap_or_default()
}

fn write_head(stream: &mut TcpStream) {
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("writable");
}

fn write_event(stream: &mut TcpStream, choice: Value) {
    let event = format!("data: {}\n\n", json!({"choices": [choice]}));
    let sent = write!(stream, "{:x}\r\n{event}\r\n", event.len());
    sent.expect("writable");
}

fn read_exactly(child: &mut Child, text: &str) {
    let out = child.stdout.as_mut().expect("piped");
    let mut read = vec![0; text.len()];
    out.read_exact(&mut read).expect("the chat prints");
    assert_eq!(String::from_utf8_lossy(&read), text);
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_chat() {
    let server = TestServer::start();
    let flags = [
        "--url",
        &server.url,
        "--model-path",
        "m",
        "--system",
        "Be brief.",
    ];
    let more = ["--temperature", "0.5", "--top-k", "7"];
    let mut child = chat(&[&flags[..], &more].concat())
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"One\n").expect("writable");
    let (mut stream, request) = server.next_request();
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = json!({"role": "system", "content": "Be brief."});
    assert_eq!(request["messages"], json!([system, user("One")]));
    assert_eq!(request["model"], "m");
    assert_eq!(
        (&request["temperature"], &request["top_k"]),
        (&json!(0.5), &json!(7))
    );
    assert_eq!(request["stream"], json!(true));
    assert!(
        request.get("top_p").is_none(),
        "the server's default applies: {request}"
    );
    write_head(&mut stream);
    write_event(&mut stream, json!({"delta": {"reasoning_content": "hm"}}));
    write_event(&mut stream, json!({"delta": {"content": "First, "}}));
    read_exactly(&mut child, "First, ");
    let id = child.id().to_string();
    let killed = Command::new("kill").args(["-s", "INT", &id]).status();
    assert!(killed.expect("kill runs").success());
    read_exactly(&mut child, "\n");
    let is_over = !matches!(stream.read(&mut [0]), Ok(bytes) if bytes > 0);
    assert!(is_over, "the chat did not disconnect");
    stdin.write_all(b"Two\n").expect("writable");
    let (mut stream, request) = server.next_request();
    let kept = json!({"role": "assistant", "content": "First, "});
    let expected = json!([system, user("One"), kept, user("Two")]);
    assert_eq!(request["messages"], expected);
    write_head(&mut stream);
    write_event(
        &mut stream,
        json!({"delta": {"content": "Done."}, "finish_reason": "stop"}),
    );
    drop(stream);
    drop(stdin);
    let output = child.wait_with_output().expect("the chat ends");
    assert_eq!(stdout(&output), "Done.\n");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_failing_server_ends_a_chat_that_is_not_on_a_terminal() {
    let server = TestServer::start();
    let mut child = chat(&["--url", &server.url, "--model-path", "m"])
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("piped");
    stdin.write_all(b"One\nTwo\n").expect("writable");
    drop(stdin);
    let (mut stream, _) = server.next_request();
    write_head(&mut stream);
    write_event(&mut stream, json!({"delta": {"content": "Fir"}}));
    drop(stream);
    let output = child.wait_with_output().expect("the chat ends");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("the stream was interrupted"), "{text}");
}

#[test]
fn answers_that_end_with_their_connection_are_read() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let serving = std::thread::spawn(move || {
        let model = json!({"data": [{"id": "m"}]}).to_string();
        let chunk = json!({"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]});
        for body in [model, format!("data: {chunk}\n\ndata: [DONE]\n\n")] {
            let (mut stream, _) = listener.accept().expect("the chat connects");
            read_body(&stream);
            // Without a length or chunks, as some Python servers and proxies answer.
            let sent = write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}");
            sent.expect("writable");
        }
    });
    let output = run_chat(&mut chat(&["--url", &url]), "Well?\n");
    assert_eq!(stdout(&output), "Yes.\n", "{}", stderr(&output));
    assert!(output.status.success());
    serving.join().expect("the server thread ends");
}

#[cfg(target_os = "linux")]
mod on_a_terminal {
    use std::fs::File;

    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    /// A pseudo-terminal: the user's end, and the program's end.
    fn terminal() -> (File, File) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let user_end = openpt(flags).expect("a pseudo-terminal can be opened");
        grantpt(&user_end).expect("this process opened the terminal");
        unlockpt(&user_end).expect("this process opened the terminal");
        let name = ptsname(&user_end, Vec::new()).expect("the terminal has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let program_end = rustix::fs::open(name, flags, Mode::empty()).expect("the terminal opens");
        (user_end.into(), program_end.into())
    }

    #[test]
    fn a_signal_at_the_prompt_gives_the_terminal_back() {
        for (signal, code) in [("TERM", 143), ("HUP", 129)] {
            let (mut user_end, program_end) = terminal();
            let modes = || tcgetattr(&program_end).expect("a terminal").local_modes;
            let before = modes();
            assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
            let end = || Stdio::from(program_end.try_clone().expect("the handle is duplicated"));
            let mut command = chat(&["--url", "http://127.0.0.1:9", "--model-path", "m"]);
            command.stdin(end()).stdout(end()).stderr(Stdio::null());
            let mut child = command.env("TERM", "xterm").spawn().expect("chat runs");
            let mut shown = Vec::new();
            while !shown.ends_with(b"> ") {
                let mut byte = [0];
                user_end.read_exact(&mut byte).expect("a prompt");
                shown.extend(byte);
            }
            assert!(!modes().contains(LocalModes::ICANON), "not in raw mode");
            let id = child.id().to_string();
            let killed = Command::new("kill").args(["-s", signal, &id]).status();
            assert!(killed.expect("kill runs").success());
            let status = child.wait().expect("the chat ends");
            assert_eq!(status.code(), Some(code), "{signal}");
            assert_eq!(modes(), before, "{signal}");
        }
    }
}
