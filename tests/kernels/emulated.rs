//! Runs the C++ tests of the kernels, which compare kernels with plain references on random inputs.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::program::{Build, compile, files, kernels, run, text_of};

/// Compiles every test as `build`, and runs it under each of the given schedules of the emulator; two tests at a time.
fn check(build: Build, schedules: &[&str]) {
    let sources = files(&kernels().join("cusim/tests"), "cpp");
    assert!(!sources.is_empty(), "there are no tests");
    let (next, sources) = (AtomicUsize::new(0), &sources);
    let take = || sources.get(next.fetch_add(1, Ordering::Relaxed));
    let work = || {
        while let Some(source) = take() {
            check_test(source, build, schedules);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
}

fn check_test(source: &Path, build: Build, schedules: &[&str]) {
    let program = compile(source, build);
    for schedule in schedules {
        let output = run(&program, &[("CUSIM_ORDER", schedule)]);
        let place = format!("{}, {build:?}, schedule {schedule}", source.display());
        assert!(
            output.status.success(),
            "{place}: {}\n{}",
            output.status,
            text_of(&output)
        );
    }
}

#[test]
fn kernels_agree_with_their_references_under_every_schedule() {
    check(Build::Plain, &["0", "1", "2"]);
}

#[test]
fn kernels_stay_inside_their_memory() {
    check(Build::Sanitized, &["2"]);
}
