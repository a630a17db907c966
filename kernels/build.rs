//! Embeds the kernels' sources, and the pack of compiled kernels if there is one.
//!
//! Cargo notices a new source file only when a listed one changes: watching the folder would include its subfolders.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const STRING: &str = "writing to a String does not fail";

fn main() {
    let kernels =
        PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let mut list = String::new();
    for (doc, constant, extension) in [
        (
            "The CUDA source files, sorted by name: name and text.",
            "UNITS",
            "cu",
        ),
        (
            "The header files, sorted by name: name and text.",
            "HEADERS",
            "cuh",
        ),
    ] {
        writeln!(list, "/// {doc}").expect(STRING);
        writeln!(list, "pub const {constant}: &[(&str, &str)] = &[").expect(STRING);
        for file in files(&kernels, extension) {
            let name = file.file_name().expect("a file has a name");
            let name = name.to_string_lossy();
            writeln!(list, "    ({name:?}, include_str!({file:?})),").expect(STRING);
            println!("cargo::rerun-if-changed={}", file.display());
        }
        writeln!(list, "];").expect(STRING);
    }
    let pack = kernels.join("kernels.pack");
    let bytes = if pack.is_file() {
        format!("include_bytes!({pack:?})")
    } else {
        "&[]".to_owned()
    };
    writeln!(list, "/// The kernel pack; empty without `kernels.pack`.").expect(STRING);
    writeln!(list, "pub const PACK: &[u8] = {bytes};").expect(STRING);
    if pack.is_file() {
        println!("cargo::rerun-if-changed={}", pack.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("kernels.rs"), list).expect("OUT_DIR is writable");
}

/// The files in `dir` with this extension, sorted by name.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the kernels' folder is readable");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("the kernels' folder is readable").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}
