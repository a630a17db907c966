//! Tests against Pillow and transformers, and with hostile files.

mod cases;
mod files;
mod hostile;
mod jpeg;
mod lfm2;
mod limits;
mod memory;
mod mmproj;
mod names;
mod png_writer;
mod prefix_codes;
mod samples;
mod settings;

use std::fs;

use sha2::{Digest, Sha256};

/// Reads a file of `tests/fixtures/images`.
fn fixture(name: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images");
    fs::read_to_string(format!("{folder}/{name}")).expect("tests run in the repository")
}

/// The first 16 digits of the SHA-256 of all parts.
fn digits(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    let hash: [u8; 32] = hash.finalize().into();
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
