//! Finds the root of the repository, for the tests of any package in the workspace.

use std::path::Path;

pub fn repository() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = folders.find(|folder| folder.join("tests/fixtures").is_dir());
    root.expect("tests run in the repository")
}
