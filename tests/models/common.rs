//! Fixtures, and constructors of the executor under test.

use std::path::{Path, PathBuf};

use souffleur_base::ids::StateSlot;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions};
use souffleur_state::step::{StateStart, StepPlan};

pub use crate::plans::{cpu_options as options, *};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
        .join("tests/fixtures/models")
        .join(name)
}

pub fn fixtures() -> Vec<String> {
    let entries = std::fs::read_dir(fixture("")).unwrap();
    let folders = entries
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().join("config.json").exists());
    let mut names: Vec<String> = folders
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert!(
        names.len() >= 4,
        "expected at least four models, found {names:?}"
    );
    names
}

/// Adds a state to each started row that has none, in the slot with the row's number, if the model keeps states.
pub fn with_states(executor: &CpuExecutor, plan: &StepPlan) -> StepPlan {
    let mut plan = plan.clone();
    if executor.keeps_states() {
        for start in &mut plan.starts {
            let live = StateSlot::new(start.row.index() as u32);
            start.state.get_or_insert(StateStart { live, from: None });
        }
    }
    plan
}

pub fn load(name: &str, options: &CpuOptions) -> CpuExecutor {
    load_from(&fixture(name), options)
}

pub fn load_from(dir: &Path, options: &CpuOptions) -> CpuExecutor {
    CpuExecutor::load(dir, options, &mut |_, _| {}).unwrap()
}
