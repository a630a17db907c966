//! Experts and latent attention in quantised checkpoints.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype as Element;
use souffleur::kernels::dtype::Dtype;

use super::{folders_of, logits, refused};
use crate::quantised::{bf16s, gptq, kinds, stored};
use crate::random_models::{Stored, edit_config, random_folder, random_tensors, write_tensors};

const EXPERTS: &[(&str, usize)] = &[
    ("hidden_size", 128),
    ("intermediate_size", 256),
    ("moe_intermediate_size", 64),
    ("head_dim", 32),
];
const LATENT: &[(&str, usize)] = &[
    ("hidden_size", 128),
    ("intermediate_size", 256),
    ("moe_intermediate_size", 64),
    ("kv_lora_rank", 64),
    ("q_lora_rank", 64),
    ("qk_nope_head_dim", 32),
    ("qk_rope_head_dim", 32),
    ("v_head_dim", 32),
];

#[test]
fn experts_and_latent_attention_have_the_logits_of_their_values() {
    for (kind, config, quantise) in kinds() {
        if !["fp8, blocks", "int8, rows", "gptq", "awq", "packed"].contains(&kind) {
            continue;
        }
        for model in [("qwen3-moe", EXPERTS), ("deepseek-v3", LATENT)] {
            let folders = folders_of(model, &config, quantise, |tensor, values| {
                tensor.data = bf16s(values);
            });
            // Codes of 8 bits become bf16; blocks are multiplied exactly in f32 only.
            let dtype = if kind.contains('8') {
                Dtype::BF16
            } else {
                Dtype::F32
            };
            let expected = logits(folders.plain.path(), dtype, None);
            assert!(expected.iter().flatten().all(|x| x.is_finite()), "{kind}");
            let got = logits(folders.quantised.path(), dtype, None);
            assert_eq!(got, expected, "{kind}, {}", model.0);
        }
    }
}

/// A model with the experts of each layer in stacks, of which `part` makes the tensors.
fn stacks(
    config: serde_json::Value,
    part: fn(&str, [usize; 3]) -> Vec<(String, Stored)>,
) -> String {
    let dir = random_folder("qwen3-moe", EXPERTS);
    edit_config(dir.path(), |json| {
        json["quantization_config"] = config.clone()
    });
    write_tensors(dir.path(), &stacked(dir.path(), part));
    refused(dir.path())
}

fn stacked(
    dir: &Path,
    part: fn(&str, [usize; 3]) -> Vec<(String, Stored)>,
) -> BTreeMap<String, Stored> {
    let mut all = BTreeMap::new();
    let tensors = random_tensors(dir);
    let is_of = |name: &str, part: &str| name.ends_with(&format!("{part}.weight"));
    for (name, tensor) in &tensors {
        let Some((module, rest)) = name.split_once(".experts.") else {
            all.insert(name.clone(), tensor.clone());
            continue;
        };
        let same = |other: &&String| other.starts_with(module) && is_of(other, "down_proj");
        let count = tensors.keys().filter(same).count();
        let (stack, rows) = match is_of(rest, "down_proj") {
            true => ("down_proj", tensor.shape[0]),
            false => ("gate_up_proj", 2 * tensor.shape[0]),
        };
        let shape = [count, rows, tensor.shape[1]];
        all.extend(part(&format!("{module}.experts.{stack}"), shape));
    }
    all
}

#[test]
fn stacks_of_experts_in_codes_are_refused_by_name() {
    let fp8 = serde_json::json!({"quant_method": "fp8", "weight_block_size": [32, 32]});
    let error = stacks(fp8, |name, [experts, outputs, inputs]| {
        let codes = vec![0x38; experts * outputs * inputs];
        let scales = [experts, outputs / 32, inputs / 32];
        let scale = vec![0; scales.iter().product::<usize>() * 4];
        vec![
            (
                name.to_owned(),
                stored(Element::F8_E4M3, &[experts, outputs, inputs], codes),
            ),
            (
                format!("{name}_scale_inv"),
                stored(Element::F32, &scales, scale),
            ),
        ]
    });
    let config = gptq(serde_json::json!({}));
    let in_words = stacks(config, |name, [experts, outputs, inputs]| {
        let codes = vec![0; experts * outputs * inputs / 2];
        let shape = [experts, inputs / 8, outputs];
        vec![(
            format!("{name}.qweight"),
            stored(Element::I32, &shape, codes),
        )]
    });
    let name = "model.layers.0.mlp.experts.gate_up_proj";
    for (error, name) in [
        (error, format!("tensor {name} ")),
        (in_words, format!("tensor {name}.qweight ")),
    ] {
        for text in [name.as_str(), "one by one"] {
            assert!(error.contains(text), "{text}: {error}");
        }
    }
}
