//! Tests that broken models give an error that names the fault, before memory is allocated.

use std::path::Path;

use souffleur_base::error::LoadError;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions, describe};
use souffleur_kernels::dtype::Dtype;
use souffleur_model::config::Architecture;
use souffleur_model::loader::LoadFormat;

use crate::common::{fixture, options};

/// A copy of the tiny Llama, which tests damage.
fn copy() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(fixture("llama").join(name), dir.path().join(name)).unwrap();
    }
    dir
}

fn replace_in_config(dir: &Path, from: &str, to: &str) {
    let file = dir.join("config.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(from), "{from:?} in {text}");
    std::fs::write(file, text.replace(from, to)).unwrap();
}

fn load_error(dir: &Path) -> LoadError {
    let described = describe(dir, None, None, LoadFormat::Auto).expect_err("describe fails");
    let loaded = CpuExecutor::load(dir, &options(), &mut |_, _| {})
        .err()
        .expect("load fails");
    assert_eq!(described.to_string(), loaded.to_string());
    loaded
}

#[test]
fn wrong_shape_names_file_tensor_expected_and_got() {
    let dir = copy();
    replace_in_config(
        dir.path(),
        "\"intermediate_size\": 112",
        "\"intermediate_size\": 128",
    );
    match load_error(dir.path()) {
        LoadError::WrongShape {
            file,
            tensor,
            expected,
            got,
        } => {
            assert_eq!(file, dir.path().join("model.safetensors"));
            assert_eq!(tensor, "model.layers.0.mlp.gate_proj.weight");
            assert_eq!((expected, got), (vec![128, 64], vec![112, 64]));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn missing_layer_names_its_first_tensor() {
    let dir = copy();
    replace_in_config(
        dir.path(),
        "\"num_hidden_layers\": 2",
        "\"num_hidden_layers\": 3",
    );
    match load_error(dir.path()) {
        LoadError::MissingTensor {
            tensor, expected, ..
        } => {
            assert_eq!(tensor, "model.layers.2.input_layernorm.weight");
            assert_eq!(expected, [64]);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn unknown_architecture_lists_the_known_ones() {
    let dir = copy();
    replace_in_config(dir.path(), "LlamaForCausalLM", "MambaForCausalLM");
    match load_error(dir.path()) {
        LoadError::UnknownArchitecture {
            found, supported, ..
        } => {
            assert_eq!(found, "MambaForCausalLM");
            for known in Architecture::all().map(Architecture::name) {
                assert!(supported.contains(known), "{supported}");
            }
        }
        other => panic!("{other}"),
    }
}

#[test]
fn truncated_file_is_named() {
    for kept in [0, 4, 100, 400_000] {
        let dir = copy();
        let file = dir.path().join("model.safetensors");
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..kept]).unwrap();
        let error = load_error(dir.path()).to_string();
        assert!(error.contains("model.safetensors"), "{kept} bytes: {error}");
    }
}

#[test]
fn empty_pool_and_pool_beyond_page_ids_are_refused() {
    for (n_pages, page_size) in [(0, 1), (1, 0), (1 << 40, 1), (1 << 31, 64), (usize::MAX, 2)] {
        let options = CpuOptions {
            n_pages,
            page_size,
            ..options()
        };
        let error = CpuExecutor::load(&fixture("llama"), &options, &mut |_, _| {})
            .err()
            .expect("load fails");
        assert!(
            matches!(error, LoadError::Memory(_)),
            "{n_pages} pages of {page_size}: {error}"
        );
    }
}

#[test]
fn description_and_progress_agree_with_the_file() {
    let described = describe(&fixture("llama"), Some(Dtype::BF16), None, LoadFormat::Auto).unwrap();
    let in_bf16 = described.kv_layout.bytes_per_token();
    let in_f32 = describe(&fixture("llama"), Some(Dtype::F32), None, LoadFormat::Auto).unwrap();
    assert_eq!(2 * in_bf16, in_f32.kv_layout.bytes_per_token());
    assert_eq!(described.config.vocab_size, 288);
    let mut seen = Vec::new();
    CpuExecutor::load(&fixture("llama"), &options(), &mut |done, total| {
        seen.push((done, total))
    })
    .unwrap();
    assert!(
        seen.windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 == pair[1].1)
    );
    let (done, total) = *seen.last().unwrap();
    assert_eq!(done, total);
    assert_eq!(total, in_f32.weights_bytes);
}
