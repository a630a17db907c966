//! Tests of the waiting and running timeouts of requests, in virtual time.

use proptest::prelude::*;
use souffleur_base::error::RequestError;
use souffleur_executor::fake::expected_output;
use souffleur_request::RequestTimeouts;

use crate::deterministic_runner;
use crate::scheduler_world::{Ask, EOS, Setup, VOCAB, World};

/// More output tokens than the steps that run before any timeout here.
const FOREVER: usize = 200;

fn one_row() -> World {
    World::new(Setup {
        n_rows: 1,
        n_pages: 600,
        ..Setup::default()
    })
}

fn limited(prompt: Vec<u32>, waiting_s: Option<f64>, running_s: Option<f64>) -> Ask {
    Ask {
        timeouts: RequestTimeouts {
            waiting_s,
            running_s,
        },
        ..Ask::exactly(prompt, FOREVER)
    }
}

#[track_caller]
fn assert_timeout(world: &World, number: usize, expected: &RequestError, text: &str) {
    let failure = world.views[number].failure();
    assert_eq!(failure, Some(expected));
    let failure = failure.expect("the request must have failed");
    assert!(failure.to_string().contains(text), "{failure}");
    assert_eq!((failure.code(), failure.status()), ("timeout", 503));
}

#[test]
fn a_request_waits_no_longer_than_it_may() {
    let mut world = one_row();
    world.submit(Ask::exactly(vec![1; 10], FOREVER));
    world.turn();
    world.submit(limited(vec![2; 10], Some(1.5), None));
    world.turn();
    world.pass_time(1.4);
    assert_eq!(world.views[1].end, None);
    world.pass_time(0.2);
    let error = RequestError::waiting_timeout(1.5);
    assert_timeout(
        &world,
        1,
        &error,
        "waited for 1500 ms, which is its limit (waiting_timeout",
    );
    world.assert_clean();
}

#[test]
fn a_request_runs_no_longer_than_it_may_and_gives_everything_back() {
    let mut world = one_row();
    world.submit(limited(vec![1; 10], Some(1.0), Some(3.0)));
    world.turn();
    // The running time begins here; the waiting limit no longer applies.
    world.pass_time(5.0);
    world.turn();
    world.pass_time(2.9);
    assert_eq!(world.views[0].end, None);
    world.turn();
    world.pass_time(0.2);
    let error = RequestError::running_timeout(3.0);
    assert_timeout(
        &world,
        0,
        &error,
        "ran for 3000 ms, which is its limit (running_timeout",
    );
    assert!(!world.views[0].delivered.is_empty());
    world.assert_clean();
}

#[test]
fn a_prefill_in_chunks_can_run_out_of_time() {
    let mut world = World::new(Setup {
        chunk_tokens: Some(8),
        ..Setup::default()
    });
    world.submit(limited((0..90).collect(), None, Some(1.0)));
    world.turn();
    world.pass_time(0.0);
    world.turn();
    world.pass_time(1.0);
    assert_timeout(&world, 0, &RequestError::running_timeout(1.0), "ran");
    assert!(world.views[0].delivered.is_empty());
    world.assert_clean();
}

#[test]
fn a_retracted_request_is_running_and_not_waiting() {
    let mut world = World::new(Setup {
        n_pages: 60,
        conservativeness: 0.001,
        ..Setup::default()
    });
    // Outputs that EOS may end early are not reserved in full, so both are admitted, although they do not fit together.
    for number in 0..2u64 {
        let prompts = (0..200u32).map(|first| vec![first + 50 * number as u32 % 200; 10]);
        let is_long =
            |prompt: &Vec<u32>| !expected_output(prompt, number, 30, VOCAB).contains(&EOS);
        let mut prompts = prompts.filter(is_long);
        world.submit(Ask {
            max_new_tokens: 30,
            ignore_eos: false,
            ..limited(prompts.next().expect("a prompt"), Some(1.0), Some(50.0))
        });
    }
    for _ in 0..4 {
        world.turn();
    }
    world.pass_time(0.5);
    while !(0..2).any(|number| world.is_retracted(number)) {
        assert!(world.turn(), "no request was retracted");
    }
    world.pass_time(10.0);
    let retracted = (0..2).find(|number| world.is_retracted(*number));
    let retracted = retracted.expect("the retracted request must still wait for memory");
    world.pass_time(40.0);
    assert_timeout(
        &world,
        retracted,
        &RequestError::running_timeout(50.0),
        "ran",
    );
    world.assert_clean();
}

#[test]
fn the_shorter_limit_counts() {
    let limits = |waiting_s, running_s| RequestTimeouts {
        waiting_s,
        running_s,
    };
    let server = limits(Some(2.0), None);
    assert_eq!(
        server.tightened(limits(Some(1.0), Some(9.0))),
        limits(Some(1.0), Some(9.0))
    );
    assert_eq!(server.tightened(limits(Some(3.0), None)), server);
    assert!(!limits(None, None).any() && server.any());
}

#[derive(Clone, Debug)]
enum Op {
    Submit(u32, usize, Option<u8>, Option<u8>),
    Turn,
    Advance,
    Pass(u8),
}

fn op() -> impl Strategy<Value = Op> {
    let limit = || prop::option::of(1..20u8);
    prop_oneof![
        3 => (0..6u32, 1..40usize, limit(), limit())
            .prop_map(|(family, len, waiting, running)| Op::Submit(family, len, waiting, running)),
        4 => Just(Op::Turn),
        4 => Just(Op::Advance),
        2 => (1..5u8).prop_map(Op::Pass),
    ]
}

#[test]
fn requests_that_expire_at_any_moment_end_once_and_leak_nothing() {
    let ops = prop::collection::vec(op(), 1..80);
    for (page_size, chunk_tokens) in [(1, None), (4, Some(8))] {
        let run = |ops: Vec<Op>| {
            let mut world = World::new(Setup {
                page_size,
                n_pages: 96 / page_size,
                n_rows: 3,
                chunk_tokens,
                conservativeness: 0.05,
                ..Setup::default()
            });
            for op in ops {
                match op {
                    Op::Submit(family, len, waiting, running) => {
                        let prompt = (0..len as u32).map(|at| family + at % 5).collect();
                        world.submit(Ask {
                            max_new_tokens: 3 * len,
                            ..limited(prompt, waiting.map(f64::from), running.map(f64::from))
                        });
                    }
                    Op::Turn => {
                        world.turn();
                    }
                    Op::Advance => {
                        world.advance();
                    }
                    Op::Pass(seconds) => world.pass_time(f64::from(seconds)),
                }
            }
            world.assert_clean();
            Ok(())
        };
        deterministic_runner(200)
            .run(&ops, run)
            .unwrap_or_else(|error| panic!("pages of {page_size}: {error}"));
    }
}
