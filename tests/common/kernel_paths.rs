//! Runs the tests of this binary again on each other kernel path (instruction set) of the CPU.

use std::io::Write;
use std::process::Command;

use souffleur_kernels::cpu::{ISA_VARIABLE, Isa};

/// Set for the runs that [`run_on_each`] starts.
const REPEATED_VARIABLE: &str = "SOUFFLEUR_TEST_REPEATED";

/// Runs the tests of this binary whose names contain one of `filters` (all if there are none), except `skipped`, with
/// each instruction set of the machine except the default, which this run covers. Prints the instruction sets that the
/// machine lacks. Does nothing if an instruction set is forced.
pub fn run_on_each(skipped: &str, filters: &[&str]) {
    if std::env::var_os(ISA_VARIABLE).is_some() {
        return;
    }
    let available = Isa::available();
    let chosen = Isa::chosen().expect("no instruction set is forced");
    say(chosen, "in this run");
    for isa in Isa::ALL {
        if isa == chosen {
            continue;
        }
        if !available.contains(&isa) {
            say(isa, "not present on this machine");
            continue;
        }
        let run = Command::new(std::env::current_exe().expect("this binary has a path"))
            .args(["--skip", skipped])
            .args(filters)
            .env(ISA_VARIABLE, isa.name())
            .env(REPEATED_VARIABLE, "1")
            .output()
            .expect("this binary starts");
        let report = String::from_utf8_lossy(&run.stdout);
        assert!(
            run.status.success(),
            "kernel path {}:\n{report}",
            isa.name()
        );
        assert!(!report.contains("running 0 tests"), "{report}");
        say(isa, "ran");
    }
}

/// Whether [`run_on_each`] started this run, so that tests that do not depend on the kernel path can be omitted. A run
/// whose instruction set is forced by hand has all tests.
#[allow(dead_code, reason = "not every suite has such tests")]
pub fn is_repeated() -> bool {
    std::env::var_os(REPEATED_VARIABLE).is_some()
}

/// Whether this run forces an instruction set that shares the float kernels of another one, whose run covers them.
pub fn repeats_floats() -> bool {
    let forced = std::env::var_os(ISA_VARIABLE).map(|name| Isa::named(&name));
    forced.is_some_and(|isa| isa.is_ok_and(|isa| isa.of_floats() != isa))
}

/// Writes to the terminal: the test runner captures `eprintln` output of tests that pass.
pub fn say(isa: Isa, what: &str) {
    let line = format!("kernel path {}: {what}\n", isa.name());
    let written = std::io::stderr().write_all(line.as_bytes());
    written.expect("stderr is writable");
}
