//! Lists the CUDA kernels' sources, and their pack if there is one, for `src/kernels/cuda/pack`; with the feature `grpc`,
//! makes Rust of its proto files.
//!
//! A file that is new in `kernels/` is seen once this or one of the others changes: cargo could watch the folder only
//! with all that is below.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let kernels = root.join("kernels");
    let mut list = String::new();
    for (constant, extension) in [("UNITS", "cu"), ("HEADERS", "cuh")] {
        let files = files(&kernels, extension);
        writeln!(
            list,
            "const {constant}: [(&str, &str); {}] = [",
            files.len()
        )
        .expect("memory");
        for file in files {
            let name = file.file_name().expect("it is a file").to_string_lossy();
            writeln!(list, "    ({name:?}, include_str!({file:?})),").expect("memory");
            println!("cargo::rerun-if-changed={}", file.display());
        }
        writeln!(list, "];").expect("memory");
    }
    let pack = kernels.join("kernels.pack");
    let bytes = match pack.is_file() {
        true => format!("include_bytes!({pack:?})"),
        false => "&[]".to_owned(),
    };
    writeln!(list, "const PACK: &[u8] = {bytes};").expect("memory");
    if pack.is_file() {
        println!("cargo::rerun-if-changed={}", pack.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("kernels.rs"), list).expect("the folder is cargo's for this");
    #[cfg(feature = "grpc")]
    compile_protos(&root.join("src/server/grpc"));
}

/// Makes messages and services of gRPC, as Rust.
#[cfg(feature = "grpc")]
fn compile_protos(folder: &Path) {
    let protos = files(folder, "proto");
    for proto in &protos {
        println!("cargo::rerun-if-changed={}", proto.display());
    }
    let files = protox::compile(&protos, [folder]).unwrap_or_else(|error| panic!("{error}"));
    let made = tonic_prost_build::configure().compile_fds(files);
    made.unwrap_or_else(|error| panic!("{error}"));
}

/// In the order of their names.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).expect("the sources are beside this");
    let mut files: Vec<_> = entries
        .map(|entry| entry.expect("the folder can be read").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    files.sort();
    files
}
