//! Benchmarks of the whole control plane: admission of one request, and whole steps.

use crate::actors::decode_us;
use crate::clock::Times;
use crate::engine::{Engine, PoolSizes, request};
use crate::prompts::{SHARED_TOKENS, prompt};
use crate::report::{Operation, Row};
use souffleur::state::scheduler::submission::Submission;

/// A value is the mean time of `STEPS` steps. A row is the median of `VALUES` values, or of `ADMISSIONS` admissions.
const STEPS: usize = 20;
const VALUES: usize = 51;
const ADMISSIONS: usize = 201;
/// Leaves of the tree while admissions are timed.
const LEAVES: u64 = 100_000;
/// Steps of each request in [`churn`], where a new request replaces each ended one.
const REQUEST_STEPS: u32 = 64;

const BATCH_SIZES: [u32; 4] = [1, 64, 256, 1024];

pub fn all() -> Vec<Row> {
    let mut rows = vec![admission(0), admission(255)];
    for (page_size, operation) in [(1, Operation::Step), (16, Operation::StepPaged)] {
        rows.extend(BATCH_SIZES.map(|batch| decode(operation, batch, page_size)));
    }
    rows.extend(BATCH_SIZES.map(actors));
    rows.extend(BATCH_SIZES.map(churn));
    rows
}

fn row(operation: Operation, size: &str, times: Vec<f64>) -> Row {
    Row::new(operation, size, [Some(Times::new(times)), None])
}

fn batch_size(batch: u32) -> String {
    format!("batch {batch}")
}

/// Times a request from its arrival to the plan of the step that computes its 64 new tokens, while `running` others
/// decode. If there are others, the request first waits for the end of their step in flight.
fn admission(running: u32) -> Row {
    let n_pages = (LEAVES as u32 + 8_192) * 64 + running * 8_192;
    let mut engine = Engine::new(PoolSizes {
        page_size: 1,
        n_pages,
        n_rows: 1_024,
    });
    let mut number = 0;
    let mut next = |max_new_tokens| {
        number += 1;
        request(number, &prompt(number), max_new_tokens)
    };
    // Leaves of the tree: prompts that were prefilled and generated nothing.
    for _ in 0..LEAVES {
        engine.submit(next(0));
        while engine.end_step() {}
    }
    for _ in 0..running {
        engine.submit(next(4_096));
        engine.end_step();
    }
    engine.n_ended = 0;
    let mut times = Vec::new();
    for _ in 0..ADMISSIONS {
        let request = next(1);
        times.push(match running {
            0 => admit_alone(&mut engine, request),
            _ => admit_while_decoding(&mut engine, request, running as usize),
        });
    }
    let size = match running {
        0 => "idle, 1e5 leaves".to_owned(),
        _ => format!("{running} running, 1e5 leaves"),
    };
    row(Operation::Admission, &size, times)
}

fn admit_alone(engine: &mut Engine, request: Submission) -> f64 {
    engine.take_elapsed_us();
    engine.submit(request);
    let us = engine.take_elapsed_us();
    while engine.end_step() {}
    us
}

/// The time includes the end of the others' decode in flight, and the plan of the step that admits the request.
fn admit_while_decoding(engine: &mut Engine, request: Submission, running: usize) -> f64 {
    engine.take_elapsed_us();
    engine.submit(request);
    engine.end_step();
    assert!(engine.steps_in_flight() > 0);
    let us = engine.take_elapsed_us();
    while engine.states.scheduler.stats().running_requests != running || engine.n_ended == 0 {
        engine.end_step();
    }
    engine.n_ended = 0;
    for _ in 0..4 {
        engine.end_step();
    }
    us
}

/// An engine in which `batch` requests decode.
fn decoding(batch: u32, page_size: u32, max_new_tokens: u32) -> Engine {
    let tokens = SHARED_TOKENS as u32 + batch * (1_024 + 2 * max_new_tokens);
    let mut engine = Engine::new(PoolSizes {
        page_size,
        n_pages: 2 * tokens.div_ceil(page_size),
        n_rows: batch,
    });
    for number in 0..u64::from(batch) {
        engine.submit(request(number, &prompt(number), max_new_tokens));
    }
    while engine.states.scheduler.stats().running_requests < batch as usize {
        assert!(engine.end_step());
    }
    for _ in 0..8 {
        engine.end_step();
    }
    engine
}

fn decode(operation: Operation, batch: u32, page_size: u32) -> Row {
    let n_steps = (VALUES + 1) * STEPS;
    let mut engine = decoding(batch, page_size, 2 * n_steps as u32);
    let times = (0..VALUES).map(|_| {
        engine.take_elapsed_us();
        for _ in 0..STEPS {
            engine.end_step();
        }
        engine.take_elapsed_us() / STEPS as f64
    });
    let times = times.collect();
    let stats = engine.states.scheduler.stats();
    assert_eq!(stats.running_requests, batch as usize);
    assert_eq!(stats.integrity_failures, 0);
    row(operation, &batch_size(batch), times)
}

/// Times steps while requests of 64 tokens end and new ones replace them: prefills, checkpoints, ends, evictions.
fn churn(batch: u32) -> Row {
    let mut engine = decoding(batch, 1, REQUEST_STEPS);
    let mut number = u64::from(batch);
    let mut times = Vec::new();
    for _ in 0..VALUES {
        engine.take_elapsed_us();
        for _ in 0..STEPS {
            for _ in 0..std::mem::take(&mut engine.n_ended) {
                engine.submit(request(number, &prompt(number), REQUEST_STEPS));
                number += 1;
            }
            engine.end_step();
        }
        times.push(engine.take_elapsed_us() / STEPS as f64);
    }
    assert_eq!(engine.states.scheduler.stats().integrity_failures, 0);
    row(Operation::StepChurn, &batch_size(batch), times)
}

fn actors(batch: u32) -> Row {
    let times = decode_us(batch, STEPS, VALUES);
    row(Operation::StepActors, &batch_size(batch), times)
}
