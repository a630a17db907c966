//! The repository, from the tests of any of its packages.

use std::path::Path;

/// Its root.
pub fn repository() -> &'static Path {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let root = folders.find(|folder| folder.join("tests/fixtures").is_dir());
    root.expect("tests run in the repository")
}
