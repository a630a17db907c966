//! Generates Rust code from the gRPC proto files, if the feature `grpc` is on.

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

    pub fn compile_protos() {
        let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("set by cargo"));
        let folder = root.join("grpc");
        let protos = files(&folder, "proto");
        for proto in &protos {
            println!("cargo::rerun-if-changed={}", proto.display());
        }
        let files = protox::compile(&protos, [folder])
            .unwrap_or_else(|error| panic!("cannot compile the protos: {error}"));
        let made = tonic_prost_build::configure().compile_fds(files);
        made.unwrap_or_else(|error| panic!("cannot generate Rust: {error}"));
    }

    /// Returns the files with an extension, sorted by name.
    fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
        let entries = fs::read_dir(dir).expect("the folder of proto files can be read");
        let mut files: Vec<_> = entries
            .map(|entry| entry.expect("the folder's entries can be read").path())
            .filter(|path| path.extension().is_some_and(|found| found == extension))
            .collect();
        files.sort();
        files
    }
}
