//! Fixtures, and how the executor that is tested is made.

use std::path::{Path, PathBuf};

use souffleur::executor::cpu::{CpuExecutor, CpuOptions};
use souffleur::model::loader::LoadFormat;

pub use crate::plans::*;

/// The folder of a tiny model.
pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures/models")
        .join(name)
}

/// All tiny models, by name.
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
        "one model of each family at least, found {names:?}"
    );
    names
}

/// Options for a few short sequences.
pub fn options() -> CpuOptions {
    CpuOptions {
        dtype: None,
        quantization: None,
        load_format: LoadFormat::Auto,
        n_pages: 4096,
        page_size: 1,
        threads: 1,
        pin_threads: false,
        max_rows: 32,
        isa: None,
        shared_prefix: true,
    }
}

/// Loads a tiny model.
pub fn load(name: &str, options: &CpuOptions) -> CpuExecutor {
    load_from(&fixture(name), options)
}

/// Loads the model in a folder.
pub fn load_from(dir: &Path, options: &CpuOptions) -> CpuExecutor {
    CpuExecutor::load(dir, options, &mut |_, _| {}).unwrap()
}
