//! Tests of the CPU executor after a panic in a step: a reset lets it run again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};

use souffleur_base::error::StepError;
use souffleur_executor::Executor;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use souffleur_state::sampling::TokenMask;
use souffleur_state::step::StepPlan;

use crate::common::{greedy, load, options};
use crate::masks::{Row, plans};

const THREADS: usize = 3;
const STEPS: u64 = 8;
const BROKEN_STEP: usize = 4;

/// A grammar that allows everything. While `is_due`, it panics on each compute thread except the executor's.
#[derive(Clone, Debug)]
struct Planted {
    is_due: Arc<AtomicBool>,
    /// No thread ends a row's mask before each thread has one.
    threads: Arc<Barrier>,
}

impl Grammar for Planted {
    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(self.clone())
    }
}

impl GrammarState for Planted {
    fn mask(&mut self, _: &mut TokenMask) -> Result<Allowed, GrammarFailure> {
        if self.is_due.load(Ordering::SeqCst) {
            self.threads.wait();
            let thread = std::thread::current();
            let is_worker = thread
                .name()
                .is_some_and(|name| name.starts_with("souffleur-cpu-"));
            assert!(!is_worker, "planted");
        }
        Ok(Allowed::All)
    }

    fn commit(&mut self, _: u32) -> Result<GrammarProgress, GrammarFailure> {
        Ok(GrammarProgress::Open)
    }
}

/// As many rows as threads.
fn rows(grammar: &Planted) -> Vec<Row> {
    let row = |row| Row {
        row,
        grammar: Some(Arc::new(grammar.clone())),
        sampling: greedy(),
    };
    (1..=THREADS as u32).map(row).collect()
}

fn executor() -> CpuExecutor {
    let options = CpuOptions {
        threads: THREADS,
        ..options()
    };
    load("llama", &options)
}

fn sampled(executor: &mut CpuExecutor, plans: &[StepPlan]) -> Vec<Vec<u32>> {
    let tokens = |plan| {
        let output = executor.run(plan).unwrap();
        let rows = output.rows.iter();
        rows.flat_map(|row| row.tokens.iter().copied()).collect()
    };
    plans.iter().map(tokens).collect()
}

/// Lets `break_step` panic in a step, and checks all steps after a reset.
fn check(break_step: impl Fn(&mut CpuExecutor, &StepPlan, &AtomicBool)) {
    let grammar = Planted {
        is_due: Arc::default(),
        threads: Arc::new(Barrier::new(THREADS)),
    };
    let plans = plans(&rows(&grammar), STEPS);
    let expected = sampled(&mut executor(), &plans);
    let mut executor = executor();
    // The executor is reset more than once.
    for _ in 0..2 {
        sampled(&mut executor, &plans[..BROKEN_STEP]);
        let broken = AssertUnwindSafe(|| {
            break_step(&mut executor, &plans[BROKEN_STEP], &grammar.is_due);
        });
        assert!(catch_unwind(broken).is_err(), "the step panics");
        grammar.is_due.store(false, Ordering::SeqCst);
        executor.reset().unwrap();
        let error = executor.run(&plans[BROKEN_STEP + 1]).unwrap_err();
        assert!(matches!(&error, StepError::Lost(_)), "{error}");
        assert_eq!(sampled(&mut executor, &plans), expected);
    }
}

#[test]
fn a_panic_on_a_compute_thread_ends_one_step_only() {
    check(|executor, plan, is_due| {
        is_due.store(true, Ordering::SeqCst);
        let _ = executor.run(plan);
    });
}

#[test]
fn a_panic_on_the_executors_thread_ends_one_step_only() {
    check(|executor, plan, _| {
        let _ = executor.run_observed(plan, &mut |_, _, _| panic!("planted"));
    });
}
