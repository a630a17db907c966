//! Tests of loading models from GGUF files.

use std::fs;

use super::*;
use crate::gguf_writer::{File, Tensor, Value};

mod damaged;
mod experts;
mod families;
mod folders;
mod gemma;
mod keys;
mod models;

const NAME: &str = "m.gguf";

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary folder");
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).expect("writable");
    }
    dir
}

fn open(file: &File) -> Result<Gguf, LoadError> {
    let dir = folder(&[(NAME, &file.bytes())]);
    Gguf::open(&dir.path().join(NAME))
}

#[track_caller]
fn refused(result: Result<impl Sized, LoadError>, expected: &str) {
    let error = result.err().expect(expected).to_string();
    assert!(error.contains(expected), "{error}\nexpected {expected}");
}
