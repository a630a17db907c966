//! Chaos tests of the scheduler: thousands of requests share prefixes, stop, are cancelled, time out, are preempted and
//! retracted, while plans are open and steps are in flight, in pools too small for them.
//!
//! [`crate::scheduler_world`] asserts the invariants of every plan: the counters add up, and every request gets exactly
//! one end and its own tokens. Every 64 plans, and at the end, a full check follows: no page is lost or held twice,
//! the tree is consistent, the queue has the order that a naive model computes. [`crate::scheduler_waits`] bounds the
//! waits.
//!
//! `SOUFFLEUR_CHAOS_SCALE=20` makes every run twenty times as long; `SOUFFLEUR_CHAOS_SEED` selects other runs.

use crate::chaos_load::{Chaos, Seen};
use crate::chaos_table::{Factors, table};

/// Requests in each run of the table.
const N_REQUESTS: usize = 1_000;
/// Requests in the long run of each page size.
const N_REQUESTS_LONG: usize = 10_000;

fn from_environment(name: &str, default: usize) -> usize {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

#[allow(clippy::print_stdout)] // shows the setup of a failed run; with --nocapture, the counts of every run
fn run(factors: Factors, number: usize, n_requests: usize) -> Seen {
    let seed = from_environment("SOUFFLEUR_CHAOS_SEED", 0) << 16 | number;
    let n_requests = n_requests * from_environment("SOUFFLEUR_CHAOS_SCALE", 1);
    let mut chaos = Chaos::new(factors, seed as u64);
    println!("run {number} with seed {seed}: {:?}", chaos.world.setup);
    chaos.run(n_requests);
    assert_eq!(chaos.world.views.len(), n_requests);
    assert!(chaos.world.checked_orders() > 0);
    let (steps, waits) = (chaos.world.waits.steps(), chaos.world.waits.seen);
    println!("{steps} steps, {waits:?}; {:?}", chaos.seen);
    chaos.seen
}

/// Runs the rows of the table that have this page size; every situation must occur in them.
#[allow(clippy::print_stdout)]
fn run_table(page_size: u32) {
    let runs = table().into_iter().enumerate();
    let mut sums = Seen::default().all();
    for (number, factors) in runs.filter(|(_, factors)| factors.page_size == page_size) {
        let seen = run(factors, number, N_REQUESTS);
        assert!(seen.chunks == 0 || factors.chunk_tokens.is_some());
        for (sum, (_, n)) in sums.iter_mut().zip(seen.all()) {
            sum.1 += n;
        }
    }
    println!("{sums:?}");
    for (what, n) in sums {
        let least = if what == "retractions" { 10 } else { 1 };
        assert!(
            n >= least,
            "{n} {what} in the runs with pages of {page_size}, expected at least {least}"
        );
    }
}

fn run_long(factors: Factors) {
    let seen = run(factors, 1_000 + factors.page_size as usize, N_REQUESTS_LONG);
    assert!(seen.evicted_tokens > 0 && seen.drained > 10, "{seen:?}");
}

#[test]
fn chaos_table_keeps_every_guarantee_with_pages_of_1() {
    run_table(1);
}

#[test]
fn chaos_table_keeps_every_guarantee_with_pages_of_4() {
    run_table(4);
}

#[test]
fn chaos_table_keeps_every_guarantee_with_pages_of_16() {
    run_table(16);
}

#[test]
fn chaos_table_keeps_every_guarantee_with_pages_of_64() {
    run_table(64);
}

const LONG: Factors = Factors {
    policy: "fcfs",
    eviction: Some("lru"),
    page_size: 1,
    mixed_chunk: false,
    chunk_tokens: Some(256),
    priority: false,
    prefix_wait: true,
    decode_interval: 1,
};

#[test]
fn chaos_of_10_000_requests_keeps_every_guarantee_with_pages_of_1() {
    run_long(Factors {
        policy: "lpm",
        mixed_chunk: true,
        priority: true,
        ..LONG
    });
}

#[test]
fn chaos_of_10_000_requests_keeps_every_guarantee_with_pages_of_4() {
    run_long(Factors {
        page_size: 4,
        chunk_tokens: Some(32),
        ..LONG
    });
}

#[test]
fn chaos_of_10_000_requests_keeps_every_guarantee_with_pages_of_16() {
    run_long(Factors {
        page_size: 16,
        policy: "hrrn",
        eviction: Some("slru"),
        mixed_chunk: true,
        ..LONG
    });
}

#[test]
fn chaos_of_10_000_requests_keeps_every_guarantee_with_pages_of_64() {
    run_long(Factors {
        page_size: 64,
        policy: "dfs-weight",
        eviction: Some("tlru"),
        priority: true,
        ..LONG
    });
}
