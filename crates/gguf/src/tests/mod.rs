//! Tests of the GGUF reader, with files made by `writer`.

use std::fs;
use std::path::Path;

use souffleur_base::error::LoadError;

use super::file::Header;
use super::*;
use writer::{File, Tensor, Value};

mod broken;
mod parts;
mod values;
mod writer;

const NAME: &str = "m.gguf";

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("cannot create a temporary folder");
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).expect("the folder is writable");
    }
    dir
}

fn open(file: &File) -> Result<Gguf, LoadError> {
    let dir = folder(&[(NAME, &file.bytes())]);
    Gguf::open(&dir.path().join(NAME))
}

fn parse(bytes: &[u8]) -> Result<Header, LoadError> {
    Header::parse(Path::new(NAME), bytes)
}

/// Checks that the result is an error whose message contains `expected`.
#[track_caller]
fn refused(result: Result<impl Sized, LoadError>, expected: &str) {
    let error = result.err().expect(expected).to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
}
