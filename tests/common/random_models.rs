//! Models of the fixtures' families in other sizes, with the weights that `--load-format dummy` makes.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::TensorView;
use serde_json::{Value, json};
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::random::RandomTensor;
use souffleur_model::config::ModelConfig;
use souffleur_model::random::random_vector;

/// Writes a model of the fixture's family with these sizes and random bf16 weights.
pub fn random_folder(name: &str, sizes: &[(&str, usize)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let fixture =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("tests/fixtures/models");
    let config = std::fs::read(fixture.join(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    for (key, size) in sizes {
        config[*key] = json!(size);
    }
    config["dtype"] = json!("bfloat16");
    let file = dir.path().join("config.json");
    std::fs::write(file, config.to_string()).unwrap();
    let tensors = random_tensors(dir.path());
    write_tensors(dir.path(), &tensors);
    dir
}

pub fn edit_config(dir: &Path, edit: impl Fn(&mut Value)) {
    let file = dir.join("config.json");
    let mut json: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    edit(&mut json);
    std::fs::write(file, json.to_string()).unwrap();
}

#[derive(Clone, Debug)]
pub struct Stored {
    pub dtype: safetensors::Dtype,
    /// Shape, outermost dimension first.
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

/// Random weights for the configuration in a folder.
pub fn random_tensors(dir: &Path) -> BTreeMap<String, Stored> {
    let config = ModelConfig::read(dir).unwrap();
    let tensors = config.tensors().into_iter().map(|spec| {
        let data = match spec.shape.len() {
            1 => random_vector(&spec.name, spec.shape[0])
                .into_iter()
                .flat_map(|x| half::bf16::from_f32(x).to_le_bytes())
                .collect(),
            _ => RandomTensor::new(&spec.name, &spec.shape, Dtype::BF16).bytes(),
        };
        let stored = Stored {
            dtype: safetensors::Dtype::BF16,
            shape: spec.shape,
            data,
        };
        (spec.name, stored)
    });
    tensors.collect()
}

pub fn write_tensors(dir: &Path, tensors: &BTreeMap<String, Stored>) {
    let views = tensors.iter().map(|(name, stored)| {
        let view = TensorView::new(stored.dtype, stored.shape.clone(), &stored.data);
        (name.clone(), view.unwrap())
    });
    let views: Vec<_> = views.collect();
    safetensors::serialize_to_file(views, None, &dir.join("model.safetensors")).unwrap();
}
