//! Generates Rust code from the gRPC proto files, with the feature `grpc`.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "grpc")]
    grpc::compile_protos();
}

#[cfg(feature = "grpc")]
mod grpc {
    use std::env;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Makes messages and services of gRPC, as Rust.
    pub fn compile_protos() {
        let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
        let folder = root.join("grpc");
        let protos = files(&folder, "proto");
        for proto in &protos {
            println!("cargo::rerun-if-changed={}", proto.display());
        }
        let files = protox::compile(&protos, [folder]).unwrap_or_else(|error| panic!("{error}"));
        let made = tonic_prost_build::configure().compile_fds(files);
        made.unwrap_or_else(|error| panic!("{error}"));
    }

    /// In the order of their names.
    fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).expect("the sources are there");
        let mut files: Vec<_> = entries
            .map(|entry| entry.expect("the folder can be read").path())
            .filter(|path| path.extension().is_some_and(|found| found == extension))
            .collect();
        files.sort();
        files
    }
}
