//! Tests of random schemas, regular expressions and grammars at every endpoint, with numbers up to and beyond 64 bits:
//! each call is served or refused, and the process survives.

mod calls;

use std::net::SocketAddr;
use std::panic::catch_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

use self::calls::{Call, call};
use super::child::ChildServer;
use crate::http::post_text;

/// Sets the number of calls: `SOUFFLEUR_CONSTRAINTS=100000 cargo test --test server random_constraints`.
const CONSTRAINTS: &str = "SOUFFLEUR_CONSTRAINTS";
/// Sets the number of the first call. A call's number is the seed of its random content.
const FIRST: &str = "SOUFFLEUR_CONSTRAINTS_FIRST";
/// Takes about ten seconds alongside the other tests on two busy cores.
const USUAL_CONSTRAINTS: usize = 3_000;
const CLIENTS: usize = 3;

/// Internal words that no message to a client may contain.
const INTERNAL_WORDS: [&str; 6] = [
    "coerce_one_of",
    "feature",
    "in this build",
    "backtrace",
    "lexer_fuel",
    "x-guidance",
];

/// Sends a call; counts the served ones.
fn check(addr: SocketAddr, number: u64, served: &AtomicUsize) {
    let Call { path, body } = call(number);
    let shown = || body.chars().take(2_000).collect::<String>();
    let answer = catch_unwind(|| post_text(addr, path, &body));
    let answer =
        answer.unwrap_or_else(|_| panic!("call {number} ended the process: {path} {}", shown()));
    assert!(
        [200, 400].contains(&answer.status),
        "{number}: {} {path} {} {}",
        answer.status,
        shown(),
        answer.body
    );
    match answer.status {
        200 => drop(served.fetch_add(1, Ordering::Relaxed)),
        400 => {
            let message = answer.json()["error"]["message"].to_string();
            let found = INTERNAL_WORDS.iter().find(|word| message.contains(**word));
            assert_eq!(found, None, "{number}: {path} {}: {message}", shown());
        }
        _ => {}
    }
}

#[test]
fn random_constraints_are_served_or_refused() {
    let variable = |name: &str| {
        let variable = std::env::var(name).ok();
        variable.map(|variable| variable.parse::<usize>().expect("a number"))
    };
    let constraints = variable(CONSTRAINTS).unwrap_or(USUAL_CONSTRAINTS);
    let first = variable(FIRST).unwrap_or(0);
    let server = ChildServer::start(&["--tool-call-parser", "hermes"]);
    let addr = server.addr;
    let (next, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= constraints {
                        break;
                    }
                    check(addr, (first + number) as u64, &served);
                }
            });
        }
    });
    let served = served.into_inner();
    eprintln!("{constraints} constraints, {served} served");
    assert!(served * 10 > constraints, "at most a tenth was served");
    let log = server.log();
    for word in ["overflow", "panicked", "an actor died"] {
        let at = log.find(word);
        assert_eq!(
            at.map(|at| log[at..].chars().take(2_000).collect::<String>()),
            None
        );
    }
}
