//! Tests of engines that cannot continue: all streams end with an error, and the server exits with code 70.

use std::io::{BufReader, Read};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use super::serving::{LONG, Server, read_until_data};

const N_STREAMS: usize = 4;
/// All streams have begun many steps before the faults.
const SLOW: &str = "actor=executor_thread,kind=delay,message=launch,phase=entry,for=10ms";
/// The server should end within two seconds.
const END_LIMIT: Duration = Duration::from_secs(10);
const READ_LIMIT: Duration = Duration::from_secs(60);

/// Threads that hang, and the reason that the server states.
const HANGS: [(&str, &str); 3] = [
    (
        "actor=executor_thread,message=launch",
        "the executor has finished no layer for 1 s",
    ),
    (
        "actor=scheduler,message=StepDone",
        "the thread of the scheduler has handled no message for 1 s",
    ),
    (
        "actor=tokenizer,message=TokensReady",
        "the thread of the tokenizer has handled no message for 1 s",
    ),
];

/// Streams of a server, each after its first event.
fn open(server: &Server) -> Vec<BufReader<TcpStream>> {
    let sent = (0..N_STREAMS).map(|_| server.send("POST", "/generate", LONG));
    let mut streams: Vec<_> = sent.map(BufReader::new).collect();
    for stream in &mut streams {
        let limited = stream.get_ref().set_read_timeout(Some(READ_LIMIT));
        limited.expect("the limit is not zero");
        read_until_data(stream);
    }
    streams
}

/// Starts a server with these faults, and checks how it and its streams end.
fn check(faults: &[String], args: &[&str], reason: &str) {
    let mut all = vec!["--log-level", "error"];
    all.extend(args);
    // Only the first spec that fires counts a passage.
    for fault in faults.iter().map(String::as_str).chain([SLOW]) {
        all.extend(["--chaos", fault]);
    }
    let server = Server::start(&all);
    for mut stream in open(&server) {
        let mut rest = String::new();
        let read = stream.read_to_string(&mut rest);
        read.expect("the server ends the stream");
        for part in ["\"engine_down\"", "data: [DONE]"] {
            assert!(rest.contains(part), "{part} is not in {rest}");
        }
        assert!(rest.ends_with("0\r\n\r\n"), "no last chunk in {rest}");
    }
    let (status, log) = server.wait(END_LIMIT);
    assert_eq!(status.code(), Some(70), "{log}");
    assert!(log.contains(reason), "{reason:?} is not in {log}");
}

#[test]
fn one_death_more_than_allowed_ends_all_streams_and_the_server() {
    let die =
        |at: u64| format!("actor=scheduler,kind=panic,message=StepDone,phase=entry,after={at}");
    let reason = "scheduler died after 2 restarts within 60 s";
    check(&[20, 12, 6].map(die), &["--max-restarts", "2/60s"], reason);
}

#[test]
fn a_thread_that_hangs_ends_all_streams_and_the_server() {
    thread::scope(|scope| {
        for (place, reason) in HANGS {
            scope.spawn(move || {
                let hang = format!("{place},kind=hang_hard,phase=entry,after=20");
                check(&[hang], &["--watchdog-timeout-s", "1"], reason);
            });
        }
    });
}
