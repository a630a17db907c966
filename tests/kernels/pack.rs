//! Compiles all kernels with NVIDIA's compiler: no spills, registers within budget, and the committed pack matches.

use std::process::Command;

use crate::environment;
use crate::program::{kernels, text_of};

#[test]
fn the_pack_matches_the_sources() {
    let Some(python) = environment::python("kernels/requirements.txt") else {
        return;
    };
    let mut command = Command::new(python);
    command
        .arg("-B")
        .arg(kernels().join("pack.py"))
        .arg("--check");
    let output = command.output().expect("the interpreter runs");
    assert!(output.status.success(), "{}", text_of(&output));
}
