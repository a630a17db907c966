//! Tests that no request is lost when an actor dies, under seeded schedules of messages and deaths.
//!
//! Each schedule checks: every request gets exactly one terminal event; its tokens are those of an undisturbed run; the
//! docket never loses a told token; free, held and cached pages are all pages; restarts are bounded; a message of an
//! older generation changes nothing; no request starves. Planted faults show that the checks find what they must.
//!
//! `SOUFFLEUR_SCHEDULES` sets the number of schedules, `SOUFFLEUR_RECOVERY_SEED` the first seed.

mod deaths;
mod parts;
mod resume;
mod scenario;
mod tokenizer;
mod unit;
mod watchdog;
mod world;

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use parts::{Fault, Seen};
use scenario::Scenario;
use world::World;

const N_SCHEDULES: u64 = 200_000;
/// The schedules in which each planted fault must be found.
const N_WITH_FAULT: u64 = 20_000;
const N_THREADS: u64 = 2;
/// Orders in which a smaller schedule is tried.
const N_ORDERS: u64 = 12;
/// Failed schedules after which a thread stops.
const MAX_FAILURES: usize = 3;

fn from_environment(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |value| value.parse().expect("a number"))
}

fn outcome(scenario: &Scenario, fault: Option<Fault>) -> Result<Seen, String> {
    let setup = parts::setup(scenario);
    let run = || World::new(scenario, &setup, fault).run();
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err("a state panicked".to_owned()))
}

/// A schedule that fails, with fewer parts and smaller numbers. Less work needs another order to fail, so each is tried
/// in several orders.
fn shrunk(scenario: Scenario, fault: Option<Fault>) -> Scenario {
    let mut scenario = scenario;
    let in_failing_order = |smaller: Scenario| {
        let orders = std::iter::once(smaller.order).chain(0..N_ORDERS);
        let mut reordered = orders.map(|order| Scenario {
            order,
            ..smaller.clone()
        });
        reordered.find(|scenario| outcome(scenario, fault).is_err())
    };
    loop {
        let smaller = scenario.smaller().into_iter();
        let Some(next) = smaller
            .filter_map(in_failing_order)
            .find(|next| next.size() < scenario.size())
        else {
            return scenario;
        };
        scenario = next;
    }
}

fn add(sum: &mut Seen, seen: Seen) {
    sum.moves += seen.moves;
    sum.deaths += seen.deaths;
    sum.resumed += seen.resumed;
    sum.convicted += seen.convicted;
    sum.gave_up += seen.gave_up;
    sum.stale_messages += seen.stale_messages;
    sum.retractions += seen.retractions;
    sum.with_retractions += seen.with_retractions;
    sum.resumed_retracted += seen.resumed_retracted;
    sum.dead_letters += seen.dead_letters;
    sum.handed_over += seen.handed_over;
    sum.weights_loaded += seen.weights_loaded;
}

/// Runs schedules. Returns their counts and the seeds of failed ones.
fn run(seeds: Range<u64>) -> (Seen, Vec<u64>) {
    let (mut sum, mut failed) = (Seen::default(), Vec::new());
    for seed in seeds {
        match outcome(&Scenario::from_seed(seed), None) {
            Ok(seen) => add(&mut sum, seen),
            Err(_) => failed.push(seed),
        }
        if failed.len() == MAX_FAILURES {
            break;
        }
    }
    (sum, failed)
}

fn describe(seed: u64) -> String {
    let scenario = shrunk(Scenario::from_seed(seed), None);
    let violation = outcome(&scenario, None).err();
    let violation = violation.unwrap_or_default();
    format!("seed {seed}: {violation} in {scenario:?}")
}

#[test]
#[allow(clippy::print_stdout)] // the counts, with --nocapture
fn no_schedule_of_messages_and_deaths_loses_a_request() {
    let first = from_environment("SOUFFLEUR_RECOVERY_SEED", 0);
    let n = from_environment("SOUFFLEUR_SCHEDULES", N_SCHEDULES);
    let part = n.div_ceil(N_THREADS);
    let began = std::time::Instant::now();
    let parts = (0..N_THREADS).map(|index| {
        let start = first + index * part;
        start..(start + part).min(first + n)
    });
    let results: Vec<(Seen, Vec<u64>)> = std::thread::scope(|scope| {
        let threads: Vec<_> = parts.map(|seeds| scope.spawn(move || run(seeds))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined
            .map(|result| result.expect("panics are caught"))
            .collect()
    });
    let (mut sum, mut failed) = (Seen::default(), Vec::new());
    for (seen, seeds) in results {
        add(&mut sum, seen);
        failed.extend(seeds.into_iter().map(describe));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    println!(
        "{n} schedules in {:.1} s: {sum:?}",
        began.elapsed().as_secs_f64()
    );
    let counts = [
        sum.deaths,
        sum.resumed,
        sum.convicted,
        sum.gave_up,
        sum.stale_messages,
        sum.resumed_retracted,
        sum.dead_letters,
        sum.handed_over,
    ];
    assert!(counts.iter().all(|count| *count > 0), "{sum:?}");
    assert!(
        sum.with_retractions > n / 20,
        "few schedules retract: {sum:?}"
    );
    assert!(sum.weights_loaded > n, "no restart loaded weights: {sum:?}");
}

/// The first schedule in which a fault is found, shrunk, and the violated promise.
#[allow(clippy::print_stdout)]
fn found(fault: Fault) -> (Scenario, String) {
    let fails = |seed: &u64| outcome(&Scenario::from_seed(*seed), Some(fault)).is_err();
    let seed = (0..N_WITH_FAULT).find(fails);
    let seed = seed.unwrap_or_else(|| panic!("{fault:?} is not found in {N_WITH_FAULT} schedules"));
    let scenario = shrunk(Scenario::from_seed(seed), Some(fault));
    let violation = outcome(&scenario, Some(fault)).err();
    let violation = violation.expect("a shrunk schedule fails");
    println!("{fault:?}, seed {seed}: {violation} in {scenario:?}");
    assert!(
        outcome(&scenario, None).is_ok(),
        "without the fault {scenario:?} fails too"
    );
    (scenario, violation)
}

/// Asserts that a fault violates a promise, in a schedule with few deaths after it was shrunk.
#[track_caller]
fn check_found(fault: Fault, max_deaths: usize, expected: &str) {
    let (scenario, violation) = found(fault);
    assert!(violation.contains(expected), "{violation}");
    assert!(scenario.asks.len() <= 2, "{scenario:?}");
    assert!(scenario.deaths.len() <= max_deaths, "{scenario:?}");
}

#[test]
fn told_tokens_off_by_one_are_found() {
    check_found(Fault::ToldOffByOne, 1, "token");
}

#[test]
fn an_entry_resumed_twice_is_found() {
    check_found(Fault::EntryTwice, 1, "ended with [Failed]");
}

#[test]
fn a_stale_result_of_a_step_is_found() {
    check_found(Fault::StaleStepDone, 1, "did not plan");
}

#[test]
fn a_reused_id_is_found() {
    check_found(Fault::IdReused, 1, "after step");
}

#[test]
fn a_dropped_dead_letter_is_found() {
    check_found(Fault::DeadLetterDropped, 1, "ended with []");
}

#[test]
fn one_restart_too_many_is_found() {
    check_found(Fault::IntensityOffByOne, 8, "a restart after 5 others");
}

#[test]
fn a_forgotten_trial_of_suspects_is_found() {
    check_found(Fault::SoloForgotten, 0, "killed");
}

#[test]
fn a_forgotten_pause_is_found() {
    check_found(Fault::PauseForgotten, 1, "although it is paused");
}
