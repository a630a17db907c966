//! A GGUF file of f32 gives the logits of the safetensors that it was made from; one of blocks those of their values.

use std::path::{Path, PathBuf};

use souffleur::executor::cpu::{CpuOptions, describe, widening_bytes};
use souffleur::kernels::dtype::Dtype;
use souffleur::model::loader::{Checkpoint, LoadFormat};

use crate::common::{fixture, load_from, options};
use crate::gguf_files::of_folder;
use crate::gguf_files::writer::Tensor;

/// Longer than the fixtures' original contexts.
fn prompt() -> Vec<u32> {
    (0..100_u32).map(|n| (n * 37 + 11) % 288).collect()
}

fn logits(path: &Path) -> Vec<Vec<f32>> {
    logits_in(path, Dtype::F32, 64)
}

fn logits_in(path: &Path, dtype: Dtype, chunk: usize) -> Vec<Vec<f32>> {
    let options = CpuOptions {
        dtype: Some(dtype),
        ..options()
    };
    let mut seen = Vec::new();
    load_from(path, &options)
        .score(&prompt(), chunk, &mut |_, logits| {
            seen.push(logits.to_vec())
        })
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
        "mixtral",
        "qwen2",
        "qwen3",
        "qwen3-moe",
        "qwen3-moe-sparse",
        "glm4-moe-lite",
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

/// A matrix in Q8_0 as far as its rows are whole blocks, and the f32 matrix with the same values.
fn in_blocks(tensor: Tensor) -> (Tensor, Tensor) {
    let whole = tensor.sizes.len() == 2 && tensor.sizes[0].is_multiple_of(32);
    if !whole {
        return (tensor.clone(), tensor);
    }
    let (mut blocks, mut values) = (Vec::new(), Vec::new());
    for block in tensor.data.chunks_exact(4 * 32) {
        let block: Vec<f32> = block
            .chunks_exact(4)
            .map(|x| f32::from_le_bytes(x.try_into().unwrap()))
            .collect();
        let max = block.iter().fold(0f32, |max, x| max.max(x.abs()));
        let scale = half::f16::from_f32(max / 127.0);
        blocks.extend(scale.to_le_bytes());
        for x in block {
            let code = (x / scale.to_f32().max(1e-9)).round().clamp(-127.0, 127.0) as i8;
            blocks.push(code as u8);
            values.extend((scale.to_f32() * f32::from(code)).to_le_bytes());
        }
    }
    let stored = Tensor {
        type_id: 8,
        data: blocks,
        ..tensor.clone()
    };
    let plain = Tensor {
        data: values,
        ..tensor
    };
    (stored, plain)
}

#[test]
fn blocks_have_the_logits_of_their_values_in_any_chunks() {
    for name in ["llama", "qwen2", "qwen3"] {
        let dir = folder(name);
        let (mut stored, mut plain) = (of_folder(dir.path()), of_folder(dir.path()));
        let tensors = std::mem::take(&mut stored.tensors).into_iter();
        (stored.tensors, plain.tensors) = tensors.map(in_blocks).unzip();
        let paths = ["stored", "plain"].map(|name| dir.path().join(format!("{name}.gguf")));
        std::fs::write(&paths[0], stored.bytes()).unwrap();
        std::fs::write(&paths[1], plain.bytes()).unwrap();
        let expected = logits(&paths[1]);
        assert_eq!(logits(&paths[0]), expected, "{name} in f32 is exact");
        let rounded = |chunk| logits_in(&paths[0], Dtype::BF16, chunk);
        let got = rounded(64);
        let square = |x: f32| f64::from(x).powi(2);
        let pairs = || got.iter().flatten().zip(expected.iter().flatten());
        let off: f64 = pairs().map(|(got, right)| square(got - right)).sum();
        let size: f64 = pairs().map(|(_, right)| square(*right)).sum();
        let error = (off / size).sqrt();
        assert!(error > 0.0 && error < 0.03, "{name}: {error}");
        for chunk in [1, 7] {
            assert_eq!(rounded(chunk), got, "{name} by {chunk}");
        }
    }
}

#[test]
fn float32_makes_blocks_wider_and_says_by_how_much() {
    let dir = folder("qwen3");
    let file = dir.path().join("tiny.gguf");
    let mut stored = of_folder(dir.path());
    let tensors = std::mem::take(&mut stored.tensors).into_iter();
    stored.tensors = tensors.map(|tensor| in_blocks(tensor).0).collect();
    std::fs::write(&file, stored.bytes()).unwrap();
    let of = |dtype| {
        let opened = Checkpoint::open(&file, Some(dtype), LoadFormat::Auto).unwrap();
        let described = describe(&file, Some(dtype), None, LoadFormat::Auto).unwrap();
        (described.weights_bytes, widening_bytes(&opened, None))
    };
    let ((kept, none), (wide, more)) = (of(Dtype::BF16), of(Dtype::F32));
    assert_eq!(none, 0);
    assert!(more > 0 && wide > kept);
    let folder = describe(dir.path(), Some(Dtype::F32), None, LoadFormat::Auto).unwrap();
    assert_eq!(wide, folder.weights_bytes);
}
