//! Tests of safetensors files: valid and broken ones.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use safetensors::tensor::TensorView as Stored;

use super::folder::INDEX;
use super::*;
use crate::config::{Architecture, ModelConfig};
use souffleur_base::error::LoadError;
use souffleur_kernels::dtype::Dtype;

const FILE: &str = "model.safetensors";

fn fixtures() -> Vec<PathBuf> {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/models");
    let dirs = fs::read_dir(models).expect("fixtures are committed");
    dirs.map(|dir| dir.expect("readable").path()).collect()
}

/// Two tensors `a: [2, 2]` and `b: [3]` of a dtype.
fn bytes_of(dtype: safetensors::Dtype, element: &[u8]) -> Vec<u8> {
    let (a, b) = (element.repeat(4), element.repeat(3));
    let a = Stored::new(dtype, vec![2, 2], &a).expect("fits");
    let b = Stored::new(dtype, vec![3], &b).expect("fits");
    safetensors::serialize([("a", a), ("b", b)], None).expect("serializable")
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temporary folder");
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).expect("writable");
    }
    dir
}

#[track_caller]
fn refused(result: Result<impl Sized, LoadError>, expected: &str) {
    let error = result.err().expect(expected).to_string();
    assert!(error.contains(expected), "{error}");
}

#[test]
fn every_fixture_has_the_tensors_of_its_configuration() {
    let mut families = HashSet::new();
    for dir in fixtures() {
        let config = ModelConfig::read(&dir).expect("supported");
        families.insert(config.architecture.name());
        let mut weights = Weights::open(&dir).expect("valid");
        weights.rename_tensors(&config).expect("parts that fit");
        if let Some(experts) = &config.experts {
            let named = weights.name_experts(experts, config.hidden_size);
            named.expect("stacks that fit");
        }
        weights.check(&config.tensors()).expect("complete");
        let stored = weights.dtype("model.norm.weight").expect("stored");
        assert_eq!(config.dtype, Some(stored), "{}", dir.display());
        // Sizes differ where router corrections are f32, files lack layers, or weights are in blocks.
        let in_blocks = weights.types().iter().any(|count| count.name == "U8");
        if config.latent.is_none() && !in_blocks {
            let bytes = config.parameters() * stored.bytes() as u64;
            assert_eq!(weights.stored_bytes(), bytes);
        }
        if config.experts.is_some() || config.recurrent.is_some() {
            continue;
        }
        let width = config.intermediate_size;
        let wider = ModelConfig {
            intermediate_size: width + 1,
            ..config
        };
        refused(
            weights.check(&wider.tensors()),
            &format!(
                "mlp.gate_proj.weight has shape [{width}, 64], the configuration expects [{}, 64]",
                width + 1
            ),
        );
    }
    for known in Architecture::all() {
        let name = known.name();
        assert!(families.contains(name), "{name} has no fixture");
    }
}

#[test]
fn elements_are_read_in_every_dtype() {
    let stored = [
        (
            safetensors::Dtype::F32,
            Dtype::F32,
            (-1.5_f32).to_le_bytes().to_vec(),
        ),
        (
            safetensors::Dtype::F16,
            Dtype::F16,
            f16::from_f32(-1.5).to_le_bytes().to_vec(),
        ),
        (
            safetensors::Dtype::BF16,
            Dtype::BF16,
            bf16::from_f32(-1.5).to_le_bytes().to_vec(),
        ),
    ];
    for (dtype, ours, element) in stored {
        let dir = folder(&[(FILE, &bytes_of(dtype, &element))]);
        let weights = Weights::open(dir.path()).expect("valid");
        let tensor = weights.tensor("a", &[2, 2]).expect("found");
        assert_eq!(
            (tensor.plain_dtype(), tensor.shape, tensor.elements()),
            (Some(ours), [2, 2].as_slice(), 4)
        );
        assert_eq!(tensor.to_f32(), [-1.5; 4]);
    }
}

#[test]
fn a_wrong_tensor_is_named_with_its_file() {
    let dir = folder(&[(FILE, &bytes_of(safetensors::Dtype::I32, &[0; 4]))]);
    let weights = Weights::open(dir.path()).expect("valid");
    refused(
        weights.tensor("a", &[4]),
        "model.safetensors: tensor a has shape [2, 2], the configuration expects [4]",
    );
    refused(
        weights.tensor("c", &[4, 2]),
        "model.safetensors: tensor c is missing, expected shape [4, 2]",
    );
    refused(
        weights.tensor("b", &[3]),
        "tensor b has dtype I32, supported: F32, F16 and BF16",
    );
}

#[test]
fn a_truncated_file_is_refused_at_every_length() {
    let whole = bytes_of(safetensors::Dtype::F32, &[0; 4]);
    for length in 0..whole.len() {
        let dir = folder(&[(FILE, &whole[..length])]);
        let error = Weights::open(dir.path()).err().expect("truncated");
        assert!(
            matches!(error, LoadError::Format { .. } | LoadError::Io { .. }),
            "{length}: {error}"
        );
    }
}

#[test]
fn a_corrupt_header_never_panics() {
    let whole = bytes_of(safetensors::Dtype::F32, &[0; 4]);
    let header_end = whole.len() - 7 * 4;
    for at in 0..header_end {
        for damage in [0x00, 0xff, b'9', b'"', b'}'] {
            let mut bytes = whole.clone();
            bytes[at] = damage;
            let dir = folder(&[(FILE, &bytes)]);
            let Ok(weights) = Weights::open(dir.path()) else {
                continue;
            };
            for name in ["a", "b"] {
                if let Ok(tensor) = weights.tensor(name, &[3]) {
                    assert_eq!(tensor.to_f32().len(), 3);
                }
            }
        }
    }
}

#[test]
fn an_index_must_name_existing_plain_files() {
    let shard = bytes_of(safetensors::Dtype::F32, &[0; 4]);
    let open = |map: &str| {
        let index = format!(r#"{{"weight_map": {map}}}"#);
        let dir = folder(&[("x.safetensors", &shard), (INDEX, index.as_bytes())]);
        Weights::open(dir.path()).map(|weights| (dir, weights))
    };
    for escape in [
        "../x.safetensors",
        "/etc/passwd",
        "a/b",
        "..",
        ".",
        "",
        "./x.safetensors",
        "a\\\\b",
    ] {
        refused(
            open(&format!(r#"{{"a": "{escape}"}}"#)),
            "the name of a file in the same folder",
        );
    }
    refused(open(r#"{"a": 3}"#), "weight_map.a is 3");
    refused(
        open(r#"{"a": "y.safetensors"}"#),
        "names y.safetensors, which is missing",
    );

    let (_dir, weights) = open(r#"{"a": "x.safetensors", "c": "x.safetensors"}"#).expect("valid");
    assert!(weights.tensor("a", &[2, 2]).is_ok());
    refused(weights.tensor("c", &[1]), "tensor c is missing");
    refused(weights.tensor("b", &[3]), "tensor b is missing");
}

#[test]
fn a_folder_without_weights_is_an_error_that_names_the_files() {
    let dir = folder(&[("pytorch_model.bin", b"x")]);
    refused(
        Weights::open(dir.path()),
        "holds neither model.safetensors nor model.safetensors.index.json",
    );
    fs::create_dir(dir.path().join(FILE)).expect("writable");
    refused(Weights::open(dir.path()), "is not a regular file");
}
