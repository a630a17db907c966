//! Families that hold several matrices in one, and names of their own.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype as Element, SafeTensors};
use serde_json::{Value, json};

use souffleur::kernels::dtype::Dtype;

use super::kinds::{bf16s, kinds};
use super::{edit_config, logits, refused, relative_error};
use crate::common::fixture;
use crate::random_models::{Stored, write_tensors};

type Tensors = BTreeMap<String, Stored>;

/// A copy of a fixture with other tensors.
fn folder(name: &str, change: impl FnOnce(&mut Tensors)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = "config.json";
    std::fs::copy(fixture(name).join(config), dir.path().join(config)).unwrap();
    let bytes = std::fs::read(fixture(name).join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let stored = tensors.iter().map(|(name, view)| {
        let stored = Stored {
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        };
        (name.to_owned(), stored)
    });
    let mut stored = stored.collect();
    change(&mut stored);
    write_tensors(dir.path(), &stored);
    dir
}

fn says(name: &str, config: Option<Value>, change: impl FnOnce(&mut Tensors), words: &[&str]) {
    let dir = folder(name, change);
    if let Some(config) = config {
        edit_config(dir.path(), |json| {
            json["quantization_config"] = config.clone()
        });
    }
    let error = refused(dir.path());
    for word in words {
        assert!(error.contains(word), "{error} for {word}");
    }
}

fn in_words(tensors: &mut Tensors, module: &str) {
    let old = tensors.remove(&format!("{module}.weight")).unwrap();
    let stored = Stored {
        dtype: Element::I32,
        shape: vec![old.shape[1] / 8, old.shape[0]],
        data: vec![0; old.shape[0] * old.shape[1] / 2],
    };
    tensors.insert(format!("{module}.qweight"), stored);
}

#[test]
fn matrices_that_hold_several_are_refused_in_codes() {
    let gptq = json!({"quant_method": "gptq", "bits": 4, "group_size": 32});
    let module = "model.language_model.layers.0.self_attn.q_proj";
    let change = |tensors: &mut Tensors| in_words(tensors, module);
    let words = [
        &format!("{module}.qweight"),
        "not taken apart",
        "modules_to_not_convert",
    ];
    says("qwen3-5", Some(gptq.clone()), change, &words);
    for part in ["in_proj_qkvz", "in_proj_ba"] {
        let module = format!("model.layers.0.linear_attn.{part}");
        let change = |tensors: &mut Tensors| in_words(tensors, &module);
        let name = format!("{module}.qweight");
        says("qwen3-next", Some(gptq.clone()), change, &[&name]);
    }
    let module = "model.layers.1.self_attn.q_proj";
    let change = |tensors: &mut Tensors| {
        let weight = tensors.get_mut(&format!("{module}.weight")).unwrap();
        weight.dtype = Element::F8_E4M3;
        weight.data.truncate(weight.data.len() / 2);
    };
    let fp8 = json!({"quant_method": "fp8", "fmt": "e4m3"});
    says("qwen3-next", Some(fp8), change, &[module, "ignore"]);
}

#[test]
fn hybrids_load_whose_fused_matrices_are_not_converted() {
    let mut kinds = kinds().into_iter();
    let (_, mut config, quantise) = kinds.find(|kind| kind.0 == "gptq").unwrap();
    config["modules_to_not_convert"] = json!(["self_attn", "linear_attn", "down_proj"]);
    let coded = |tensors: &Tensors| -> Vec<String> {
        let ends = ["gate_proj.weight", "up_proj.weight"];
        let names = tensors.keys();
        let names = names.filter(|name| ends.iter().any(|end| name.ends_with(end)));
        names.cloned().collect()
    };
    let shape = |tensor: &Stored| [tensor.shape[0], tensor.shape[1]];
    let plain = folder("qwen3-5", |tensors| {
        for name in coded(tensors) {
            let tensor = tensors.get_mut(&name).unwrap();
            tensor.data = bf16s(&quantise(shape(tensor)).1);
        }
    });
    let quantised = folder("qwen3-5", |tensors| {
        let names = coded(tensors);
        assert_eq!(names.len(), 8);
        for name in names {
            let tensor = tensors.remove(&name).unwrap();
            let module = name.strip_suffix("weight").unwrap();
            let (parts, _) = quantise(shape(&tensor));
            let parts = parts.into_iter();
            tensors.extend(parts.map(|(part, stored)| (format!("{module}{part}"), stored)));
        }
    });
    edit_config(quantised.path(), |json| {
        json["quantization_config"] = config.clone()
    });
    let of = |dir: &Path| logits(dir, Dtype::BF16, None);
    let expected = of(plain.path());
    let error = relative_error(&of(quantised.path()), &expected);
    assert!(error <= 0.03, "{error}");
    let others = relative_error(&of(&fixture("qwen3-5")), &expected);
    assert!(others > 0.1, "the codes hardly matter: {others}");
}

#[test]
fn errors_name_the_tensors_of_the_files() {
    for (name, missing) in [
        ("lfm2", "model.layers.1.self_attn.out_proj.weight"),
        ("lfm2", "model.layers.0.feed_forward.w3.weight"),
        ("lfm2", "model.layers.0.operator_norm.weight"),
        ("lfm2", "model.embedding_norm.weight"),
        (
            "lfm2-moe",
            "model.layers.1.feed_forward.experts.2.w2.weight",
        ),
        ("lfm2-moe", "model.layers.2.feed_forward.expert_bias"),
        ("lfm2-moe", "model.layers.2.feed_forward.gate.weight"),
        ("qwen3-5", "model.language_model.norm.weight"),
        ("qwen3-5", "lm_head.weight"),
    ] {
        let remove = |tensors: &mut Tensors| assert!(tensors.remove(missing).is_some());
        says(name, None, remove, &[&format!("{missing} ")]);
    }
    let shape = "model.layers.1.self_attn.q_layernorm.weight";
    let widen = |tensors: &mut Tensors| {
        let tensor = tensors.get_mut(shape).unwrap();
        tensor.shape = vec![1, tensor.shape[0]];
    };
    says("lfm2", None, widen, &[shape]);
}
