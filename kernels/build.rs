//! Embeds the kernels' sources, and the pack of compiled kernels if there is one.
//!
//! A file that is new here is seen once this or one of the others changes: cargo could watch the folder only with all
//! that is below.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let kernels = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let mut list = String::new();
    for (doc, constant, extension) in [
        (
            "The files of kernels, with their text, by name.",
            "UNITS",
            "cu",
        ),
        ("The files that they include, likewise.", "HEADERS", "cuh"),
    ] {
        writeln!(list, "/// {doc}").expect("memory");
        writeln!(list, "pub const {constant}: &[(&str, &str)] = &[").expect("memory");
        for file in files(&kernels, extension) {
            let name = file.file_name().expect("it is a file").to_string_lossy();
            writeln!(list, "    ({name:?}, include_str!({file:?})),").expect("memory");
            println!("cargo::rerun-if-changed={}", file.display());
        }
        writeln!(list, "];").expect("memory");
    }
    let pack = kernels.join("kernels.pack");
    let bytes = if pack.is_file() {
        format!("include_bytes!({pack:?})")
    } else {
        "&[]".to_owned()
    };
    writeln!(list, "/// The pack; empty where it was not made.").expect("memory");
    writeln!(list, "pub const PACK: &[u8] = {bytes};").expect("memory");
    if pack.is_file() {
        println!("cargo::rerun-if-changed={}", pack.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("kernels.rs"), list).expect("the folder is cargo's for this");
}

/// In the order of their names.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the sources are in the folder");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}
