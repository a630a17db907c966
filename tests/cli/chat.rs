//! `souffleur chat` with lines on stdin: a model in the process, and a server whose responses the test scripts.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use super::serving::Serving;
use super::{agents_model, run, souffleur, stderr, stdout, tiny_model};

fn chat(args: &[&str]) -> Command {
    let mut command = souffleur(&["chat"]);
    command.args(args).env_remove("OPENAI_API_KEY");
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command.stderr(Stdio::piped());
    command
}

/// The output for these lines, and the exit status.
fn say(command: &mut Command, lines: &str) -> std::process::Output {
    let mut child = command.spawn().expect("the binary runs");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(lines.as_bytes()).expect("it reads");
    drop(stdin);
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_model_in_the_process_answers_line_by_line_and_remembers() {
    let cache = tempfile::tempdir().expect("a temporary folder can be made");
    let greedy = ["--temperature", "0", "--max-new-tokens", "24"];
    let said = |lines: &str| {
        let mut command = chat(&greedy);
        let output = say(command.env("SOUFFLEUR_CACHE_DIR", cache.path()), lines);
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let alone = said("Who are you?\n");
    let both = said("Who are you?\n\n \nWho are you?\n");
    assert!(alone.len() > 3 && alone.ends_with('\n'), "{alone:?}");
    let second = both
        .strip_prefix(&alone)
        .expect("the first answer is the same");
    assert!(
        second.len() > 1,
        "an empty line is no message, the last one is"
    );
    assert_eq!(said(""), "");
}

#[test]
fn a_model_that_cannot_chat_is_refused() {
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
fn a_server_of_ours_answers() {
    let serving = Serving::start_with(&agents_model(), &["--api-key", "sk-1"]);
    let url = format!("http://{}", serving.address);
    let short = [
        "--url",
        &url,
        "--max-new-tokens",
        "4",
        "--sampling-seed",
        "1",
    ];
    let output = say(chat(&short).env("OPENAI_API_KEY", "sk-1"), "Hello\nAgain\n");
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(
        text.contains("raise --max-new-tokens"),
        "random weights do not end: {text}"
    );
    assert!(stdout(&output).lines().count() >= 2, "{output:?}");
    let refused = say(&mut chat(&["--url", &url, "--model-path", "m"]), "Hello\n");
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("401"), "{}", stderr(&refused));
    serving.signal("TERM");
    serving.wait(Duration::from_secs(60));
}

/// A server that passes each request to the test and sends the response that the test returns.
struct Scripted {
    url: String,
    requests: Receiver<(TcpStream, Value)>,
}

impl Scripted {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it is bound");
        let (seen, requests) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let body = read_body(&stream);
                if seen.send((stream, body)).is_err() {
                    return;
                }
            }
        });
        Self {
            url: format!("http://{address}/v1"),
            requests,
        }
    }

    /// The conversation that the next request continues.
    fn asked(&self) -> (TcpStream, Value) {
        self.requests.recv().expect("the server runs")
    }
}

fn read_body(stream: &TcpStream) -> Value {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("it sends");
        if line.trim().is_empty() {
            break;
        }
        let lower = line.to_lowercase();
        if let Some(value) = lower.strip_prefix("content-length:") {
            length = value.trim().parse().expect("it is a number");
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("it sends its body");
    serde_json::from_slice(&body).unwrap_or_default()
}

fn begin(stream: &mut TcpStream) {
    let head =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("it reads");
}

fn event(stream: &mut TcpStream, choice: Value) {
    let event = format!("data: {}\n\n", json!({"choices": [choice]}));
    let sent = write!(stream, "{:x}\r\n{event}\r\n", event.len());
    sent.expect("it reads");
}

fn read_exactly(child: &mut Child, text: &str) {
    let out = child.stdout.as_mut().expect("it is piped");
    let mut read = vec![0; text.len()];
    out.read_exact(&mut read).expect("it prints");
    assert_eq!(String::from_utf8_lossy(&read), text);
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_chat() {
    let server = Scripted::start();
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
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(b"One\n").expect("it reads");
    let (mut stream, asked) = server.asked();
    let user = |text: &str| json!({"role": "user", "content": text});
    let system = json!({"role": "system", "content": "Be brief."});
    assert_eq!(asked["messages"], json!([system, user("One")]));
    assert_eq!(asked["model"], "m");
    assert_eq!(
        (&asked["temperature"], &asked["top_k"]),
        (&json!(0.5), &json!(7))
    );
    assert_eq!(asked["stream"], json!(true));
    assert!(
        asked.get("top_p").is_none(),
        "the server's default applies: {asked}"
    );
    begin(&mut stream);
    event(&mut stream, json!({"delta": {"reasoning_content": "hm"}}));
    event(&mut stream, json!({"delta": {"content": "First, "}}));
    read_exactly(&mut child, "First, ");
    let id = child.id().to_string();
    let killed = Command::new("kill").args(["-s", "INT", &id]).status();
    assert!(killed.expect("there is a kill").success());
    read_exactly(&mut child, "\n");
    let is_over = !matches!(stream.read(&mut [0]), Ok(bytes) if bytes > 0);
    assert!(is_over, "the server sees that the client disconnected");
    stdin.write_all(b"Two\n").expect("it reads");
    let (mut stream, asked) = server.asked();
    let kept = json!({"role": "assistant", "content": "First, "});
    let expected = json!([system, user("One"), kept, user("Two")]);
    assert_eq!(asked["messages"], expected);
    begin(&mut stream);
    event(
        &mut stream,
        json!({"delta": {"content": "Done."}, "finish_reason": "stop"}),
    );
    drop(stream);
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(stdout(&output), "Done.\n");
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
}

#[test]
fn a_server_that_fails_ends_a_chat_without_a_person() {
    let server = Scripted::start();
    let mut child = chat(&["--url", &server.url, "--model-path", "m"])
        .spawn()
        .expect("the binary runs");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(b"One\nTwo\n").expect("it reads");
    drop(stdin);
    let (mut stream, _) = server.asked();
    begin(&mut stream);
    event(&mut stream, json!({"delta": {"content": "Fir"}}));
    drop(stream);
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("the stream was interrupted"), "{text}");
}

#[test]
fn answers_that_end_with_their_connection_are_read() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    let serving = std::thread::spawn(move || {
        let model = json!({"data": [{"id": "m"}]}).to_string();
        let said = json!({"choices": [{"delta": {"content": "Yes."}, "finish_reason": "stop"}]});
        for body in [model, format!("data: {said}\n\ndata: [DONE]\n\n")] {
            let (mut stream, _) = listener.accept().expect("somebody asks");
            read_body(&stream);
            // Neither a length nor chunks, as some Python servers and proxies do.
            let sent = write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{body}");
            sent.expect("it reads");
        }
    });
    let output = say(&mut chat(&["--url", &url]), "Well?\n");
    assert_eq!(stdout(&output), "Yes.\n", "{}", stderr(&output));
    assert!(output.status.success());
    serving.join().expect("it ends");
}

#[cfg(target_os = "linux")]
mod on_a_terminal {
    use std::fs::File;

    use rustix::fs::{Mode, OFlags};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    /// A terminal: the user's end, and the programs' end.
    fn terminal() -> (File, File) {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let person = openpt(flags).expect("there are terminals");
        grantpt(&person).expect("it is ours");
        unlockpt(&person).expect("it is ours");
        let name = ptsname(&person, Vec::new()).expect("it has a name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let program = rustix::fs::open(name, flags, Mode::empty()).expect("it opens");
        (person.into(), program.into())
    }

    #[test]
    fn a_signal_at_the_prompt_gives_the_terminal_back() {
        for (signal, code) in [("TERM", 143), ("HUP", 129)] {
            let (mut person, program) = terminal();
            let modes = || tcgetattr(&program).expect("a terminal").local_modes;
            let before = modes();
            assert!(before.contains(LocalModes::ICANON | LocalModes::ECHO));
            let end = || Stdio::from(program.try_clone().expect("it can be shared"));
            let mut command = chat(&["--url", "http://127.0.0.1:9", "--model-path", "m"]);
            command.stdin(end()).stdout(end()).stderr(Stdio::null());
            let mut child = command.env("TERM", "xterm").spawn().expect("it runs");
            let mut shown = Vec::new();
            while !shown.ends_with(b"> ") {
                let mut byte = [0];
                person.read_exact(&mut byte).expect("it prompts");
                shown.extend(byte);
            }
            assert!(!modes().contains(LocalModes::ICANON), "a line is edited");
            let id = child.id().to_string();
            let killed = Command::new("kill").args(["-s", signal, &id]).status();
            assert!(killed.expect("there is a kill").success());
            let status = child.wait().expect("it ends");
            assert_eq!(status.code(), Some(code), "{signal}");
            assert_eq!(modes(), before, "{signal}");
        }
    }
}
