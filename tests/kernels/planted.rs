//! Checks that the tests of kernels find faults that are planted in the kernels. `emulated.rs` asserts that the same
//! programs pass without a fault.

use std::fs;

use crate::program::{Build, compile, kernels, run, text_of};

const SCHEDULES: [&str; 3] = ["0", "1", "2"];

/// Whether a test, restricted to some cases by variables, finds a fault under any schedule.
fn is_found(test: &str, cases: &[(&str, &str)], fault: (&str, &str)) -> bool {
    let program = compile(&kernels().join("cusim/tests").join(test), Build::Plain);
    SCHEDULES.iter().any(|schedule| {
        let variables = [cases, &[fault, ("CUSIM_ORDER", schedule)]].concat();
        !run(&program, &variables).status.success()
    })
}

/// Skips each barrier of a kernel file in turn: the file's test must fail, except for `n_unneeded` barriers.
#[track_caller]
fn check_barriers(file: &str, (test, cases): (&str, &[(&str, &str)]), n_unneeded: usize) {
    let source = fs::read_to_string(kernels().join(file)).unwrap();
    let lines = source
        .lines()
        .zip(1..)
        .filter(|(line, _)| line.contains("__syncthreads();"));
    let sites: Vec<_> = lines
        .map(|(_, number)| format!("{file}:{number}"))
        .collect();
    assert!(!sites.is_empty(), "{file} has no barrier");
    let missed: Vec<_> = sites
        .iter()
        .filter(|site| !is_found(test, cases, ("CUSIM_SKIP_BARRIER", site)))
        .collect();
    assert_eq!(
        missed.len(),
        n_unneeded,
        "{test} passes although {missed:?} of {sites:?} are skipped"
    );
}

#[test]
fn a_missing_barrier_of_a_norm_is_found() {
    check_barriers("norm.cu", ("pointwise.cpp", &[]), 0);
}

#[test]
fn a_missing_barrier_of_a_product_is_found() {
    check_barriers("gemm.cu", ("gemm.cpp", &[]), 1);
}

#[test]
fn a_missing_barrier_of_a_decode_is_found() {
    let cases = [("ATTENTION_CASES", "decode")];
    check_barriers("attention_decode.cu", ("attention.cpp", &cases), 0);
}

#[test]
fn a_missing_barrier_of_a_prefill_is_found() {
    let cases = [("ATTENTION_CASES", "prefill")];
    check_barriers("attention_prefill.cu", ("attention.cpp", &cases), 0);
}

#[test]
fn waiting_for_one_copy_too_few_is_found() {
    for test in ["gemm.cpp", "attention.cpp"] {
        assert!(
            is_found(test, &[], ("CUSIM_WEAK_WAIT", "1")),
            "{test} passes although a copy is missing"
        );
    }
}

/// Runs attention over a page table with a page outside the pool, and over a valid one.
#[test]
fn a_page_outside_the_pool_is_found() {
    let program = compile(
        &kernels().join("cusim/tests/planted/page_index.cpp"),
        Build::Sanitized,
    );
    let sound = run(&program, &[]);
    assert!(sound.status.success(), "{}", text_of(&sound));
    let planted = run(&program, &[("PLANT_PAGE_INDEX", "1")]);
    assert!(!planted.status.success(), "{}", text_of(&planted));
    let report = text_of(&planted);
    assert!(
        report.contains("AddressSanitizer: heap-buffer-overflow"),
        "{report}"
    );
    assert!(
        report.contains("attention"),
        "the report does not name the kernel: {report}"
    );
}
