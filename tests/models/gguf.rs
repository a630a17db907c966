//! A GGUF file of f32 gives the logits of the safetensors that it was made from.

use std::path::{Path, PathBuf};

use souffleur::executor::cpu::{CpuOptions, describe};
use souffleur::kernels::dtype::Dtype;
use souffleur::model::loader::LoadFormat;

use crate::common::{fixture, load_from, options};
use crate::gguf_files::of_folder;

/// Longer than the fixtures' original contexts.
fn prompt() -> Vec<u32> {
    (0..100_u32).map(|n| (n * 37 + 11) % 288).collect()
}

fn logits(path: &Path) -> Vec<Vec<f32>> {
    let options = CpuOptions {
        dtype: Some(Dtype::F32),
        ..options()
    };
    let mut seen = Vec::new();
    load_from(path, &options)
        .score(&prompt(), 64, &mut |_, logits| seen.push(logits.to_vec()))
        .unwrap();
    seen
}

/// A copy of a fixture without sliding windows, which GGUF files of Mistral do not have.
fn folder(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
    let config = config.replace("\"sliding_window\": 24", "\"sliding_window\": null");
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let weights = "model.safetensors";
    std::fs::copy(fixture(name).join(weights), dir.path().join(weights)).unwrap();
    dir
}

#[test]
fn f32_files_have_the_logits_of_their_safetensors() {
    for name in [
        "llama",
        "llama-rope-linear",
        "llama-rope-llama3",
        "llama-rope-yarn",
        "mistral",
        "qwen2",
        "qwen3",
    ] {
        let dir = folder(name);
        let expected = logits(dir.path());
        let file = kept(dir.path()).join(format!("{name}.gguf"));
        std::fs::write(&file, of_folder(dir.path()).bytes()).unwrap();
        assert_eq!(logits(&file), expected, "{name}");
    }
}

/// Where the files of a test are written: a folder that tools/gguf/check.py looks into, else the test's own.
fn kept(own: &Path) -> PathBuf {
    std::env::var_os("SOUFFLEUR_TEST_GGUF_DIR").map_or_else(|| own.to_owned(), PathBuf::from)
}

#[test]
fn a_file_is_described_as_its_folder_is() {
    let dir = folder("qwen3");
    let file = dir.path().join("tiny.gguf");
    std::fs::write(&file, of_folder(dir.path()).bytes()).unwrap();
    let of = |path: &Path| describe(path, Some(Dtype::BF16), None, LoadFormat::Auto).unwrap();
    let (folder, gguf) = (of(dir.path()), of(&file));
    assert_eq!(gguf.weights_bytes, folder.weights_bytes);
    assert_eq!(gguf.config.tensors(), folder.config.tensors());
    assert_eq!(gguf.config.rope, folder.config.rope);
    let own = describe(&file, None, None, LoadFormat::Auto).unwrap();
    assert_eq!(own.dtype, Dtype::F32);
    let made = describe(&file, None, None, LoadFormat::Dummy).unwrap();
    assert_eq!(made.weights_bytes, own.weights_bytes);
}
