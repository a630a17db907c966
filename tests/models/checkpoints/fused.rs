//! Tests of quantised checkpoints with fused matrices or stacks of experts, and of those with other tensor names.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::{Dtype as Element, SafeTensors};
use serde_json::{Value, json};

use souffleur_kernels::dtype::Dtype;

use super::{logits, refused, relative_error};
use crate::common::{fixture, load_from, options};
use crate::quantised::{Quantise, bf16s, fp8_blocks_of, gptq, kinds};
use crate::random_models::{Stored, edit_config, write_tensors};

type Tensors = BTreeMap<String, Stored>;

/// A copy of a fixture with changed tensors.
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

fn refuses(name: &str, config: Option<Value>, change: impl FnOnce(&mut Tensors), words: &[&str]) {
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

/// Replaces a module's matrix: in `coded` by its quantised tensors, in `plain` by their dequantised values.
fn quantise_module(quantise: Quantise, module: &str, plain: &mut Tensors, coded: &mut Tensors) {
    let name = format!("{module}.weight");
    let weight = plain.get_mut(&name).unwrap();
    let (parts, values) = quantise([weight.shape[0], weight.shape[1]]);
    weight.data = bf16s(&values);
    coded.remove(&name);
    coded.extend(
        parts
            .into_iter()
            .map(|(part, tensor)| (format!("{module}.{part}"), tensor)),
    );
}

/// Checks that a quantised model has the logits of the same model with dequantised weights. Both run in a dtype that
/// represents the values exactly.
fn check_coded(
    (name, kind, config): (&str, &str, &Value),
    change: impl FnOnce(&mut Tensors, &mut Tensors),
) {
    let mut coded = Tensors::new();
    let plain = folder(name, |plain| {
        coded = plain.clone();
        change(plain, &mut coded);
    });
    let quantised = folder(name, |tensors| *tensors = coded);
    edit_config(quantised.path(), |json| {
        json["quantization_config"] = config.clone()
    });
    let dtype = if kind.contains('8') {
        Dtype::BF16
    } else {
        Dtype::F32
    };
    let expected = logits(plain.path(), dtype, None);
    assert!(expected.iter().flatten().all(|x| x.is_finite()));
    let error = relative_error(&logits(quantised.path(), dtype, None), &expected);
    assert!(error < 1e-6, "{name}, {kind}: {error}");
}

#[test]
fn quantised_fused_matrices_have_the_logits_of_their_dequantised_weights() {
    let table = [
        ("qwen3-5", "model.language_model.layers.0.self_attn.q_proj"),
        ("qwen3-next", "model.layers.1.self_attn.q_proj"),
        ("qwen3-next", "model.layers.0.linear_attn.in_proj_qkvz"),
        ("qwen3-next", "model.layers.2.linear_attn.in_proj_ba"),
        ("phi3", "model.layers.0.self_attn.qkv_proj"),
        ("phi3", "model.layers.1.mlp.gate_up_proj"),
    ];
    for (kind, config, quantise) in kinds() {
        // Groups of 128 inputs do not divide the fixtures' widths.
        if kind == "packed, zeros" {
            continue;
        }
        for (name, module) in table {
            // Twelve outputs do not fill whole packed words.
            if module.ends_with("in_proj_ba") && (kind.contains("gptq") || kind == "awq") {
                continue;
            }
            check_coded((name, kind, &config), |plain, coded| {
                quantise_module(quantise, module, plain, coded);
            });
        }
    }
}

#[test]
fn errors_name_broken_parts_of_fused_matrices() {
    let (_, config, quantise) = kinds().remove(4); // GPTQ
    let module = "model.layers.0.linear_attn.in_proj_qkvz";
    let coded = |tensors: &mut Tensors| {
        let mut plain = tensors.clone();
        quantise_module(quantise, module, &mut plain, tensors);
    };
    for part in ["qweight", "qzeros", "scales"] {
        let name = format!("{module}.{part}");
        let change = |tensors: &mut Tensors| {
            coded(tensors);
            tensors.get_mut(&name).unwrap().shape.push(1);
        };
        refuses("qwen3-next", Some(config.clone()), change, &[&name]);
    }
    let change = |tensors: &mut Tensors| {
        coded(tensors);
        tensors.remove(&format!("{module}.qweight"));
    };
    let words = [&format!("{module}.weight "), "[336, 64]"];
    refuses("qwen3-next", Some(config), change, &words);
}

/// Quantises a stack of the experts' matrices as one matrix that has all their rows.
fn quantise_stack(
    (stack, quantise): (&str, Quantise),
    scale_shape: &[usize],
    plain: &mut Tensors,
    coded: &mut Tensors,
) {
    let values = plain.get_mut(stack).unwrap();
    let shape = values.shape.clone();
    let (parts, quantised) = quantise([shape[0] * shape[1], shape[2]]);
    values.data = bf16s(&quantised);
    for (part, mut tensor) in parts {
        tensor.shape = match part {
            "weight" => shape.clone(),
            _ => scale_shape.to_vec(),
        };
        let name = part.replacen("weight", stack, 1);
        coded.insert(name, tensor);
    }
}

#[test]
fn stacks_of_experts_in_fp8_or_int8_are_split() {
    let module = "model.language_model.layers.1.mlp.experts";
    let (up, down) = (
        format!("{module}.gate_up_proj"),
        format!("{module}.down_proj"),
    );
    for (kind, config, quantise) in kinds() {
        let scales: [&[usize]; 2] = match kind {
            "fp8, rows" | "int8, rows" => [&[5, 48, 1], &[5, 64]],
            _ => continue,
        };
        check_coded(("qwen3-5-moe", kind, &config), |plain, coded| {
            for (stack, shape) in [&up, &down].into_iter().zip(scales) {
                quantise_stack((stack, quantise), shape, plain, coded);
            }
        });
    }
    let (_, mut config, _) = kinds().remove(0); // FP8 with blocks
    config["weight_block_size"] = json!([8, 40]);
    let blocks: Quantise = |shape| fp8_blocks_of([8, 40], shape);
    check_coded(("qwen3-5-moe", "fp8, blocks", &config), |plain, coded| {
        quantise_stack((&up, blocks), &[5, 6, 2], plain, coded);
        quantise_stack((&down, blocks), &[5, 8, 1], plain, coded);
    });
    let blocks: Quantise = |shape| fp8_blocks_of([16, 40], shape);
    config["weight_block_size"] = json!([16, 40]);
    let straddles = |tensors: &mut Tensors| {
        let mut plain = tensors.clone();
        quantise_stack((&up, blocks), &[15, 2], &mut plain, tensors);
    };
    let words = [up.as_str(), "block size, 16", "24"];
    refuses("qwen3-5-moe", Some(config), straddles, &words);
}

#[test]
fn expert_stacks_without_scales_or_in_packed_int4_are_refused_by_name() {
    let stack = "model.language_model.layers.0.mlp.experts.gate_up_proj";
    let as_fp8 = |tensors: &mut Tensors| {
        let stack = tensors.get_mut(stack).unwrap();
        stack.dtype = Element::F8_E4M3;
        stack.data.truncate(stack.data.len() / 2);
    };
    let fp8 = json!({"quant_method": "fp8", "fmt": "e4m3"});
    let words = [stack, "F8_E4M3", "all experts"];
    refuses("qwen3-5-moe", None, as_fp8, &words);
    let scales = format!("{stack}_scale_inv");
    refuses("qwen3-5-moe", Some(fp8), as_fp8, &[&scales, "[5, 48, 1]"]);
    for codes in ["_packed", ".qweight"] {
        let name = format!("{stack}{codes}");
        let as_words = |tensors: &mut Tensors| {
            let mut stack = tensors.remove(stack).unwrap();
            stack.dtype = Element::I32;
            stack.shape[2] /= 2;
            tensors.insert(name.clone(), stack);
        };
        let gptq = gptq(json!({}));
        refuses("qwen3-5-moe", Some(gptq), as_words, &[&name, "I32"]);
    }
}

#[test]
fn the_text_config_may_have_the_quantization_config() {
    let (_, config, quantise) = kinds().remove(0); // FP8 with blocks
    let module = "model.language_model.layers.0.self_attn.q_proj";
    let dir = folder("qwen3-5", |tensors| {
        let mut plain = tensors.clone();
        quantise_module(quantise, module, &mut plain, tensors);
    });
    edit_config(dir.path(), |json| {
        json["text_config"]["quantization_config"] = config.clone();
    });
    load_from(dir.path(), &options());
}

#[test]
fn hybrids_may_exclude_fused_matrices_from_quantisation() {
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
    let unchanged = relative_error(&of(&fixture("qwen3-5")), &expected);
    assert!(unchanged > 0.1, "quantisation hardly matters: {unchanged}");
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
        ("phi3", "model.layers.1.self_attn.qkv_proj.weight"),
        ("phi3", "model.layers.0.mlp.gate_up_proj.weight"),
        ("mistral3", "language_model.model.norm.weight"),
        ("mistral3", "language_model.lm_head.weight"),
    ] {
        let remove = |tensors: &mut Tensors| assert!(tensors.remove(missing).is_some());
        refuses(name, None, remove, &[&format!("{missing} ")]);
    }
    let shape = "model.layers.1.self_attn.q_layernorm.weight";
    let widen = |tensors: &mut Tensors| {
        let tensor = tensors.get_mut(shape).unwrap();
        tensor.shape = vec![1, tensor.shape[0]];
    };
    refuses("lfm2", None, widen, &[shape]);
}

/// Sets `tie_word_embeddings` of the whole model and of its decoder.
fn set_tying(dir: &Path, (outer, inner): (bool, bool)) {
    edit_config(dir, |json| {
        json["tie_word_embeddings"] = json!(outer);
        json["text_config"]["tie_word_embeddings"] = json!(inner);
    });
}

#[test]
fn tensors_decide_where_keys_contradict_them() {
    const EMBEDDING: &str = "model.language_model.embed_tokens.weight";
    const OUTPUT: &str = "lm_head.weight";
    let of = |dir: &Path| logits(dir, Dtype::F32, None);
    // No output projection.
    let tied = of(&fixture("qwen3-5-tied"));
    let without = folder("qwen3-5-tied", |tensors| {
        assert!(!tensors.contains_key(OUTPUT));
    });
    for keys in [(false, true), (true, false), (true, true)] {
        set_tying(without.path(), keys);
        assert_eq!(of(without.path()), tied, "{keys:?}");
    }
    set_tying(without.path(), (false, false));
    let error = refused(without.path());
    assert!(error.contains(OUTPUT), "{error}");
    // An output projection that is the embedding.
    let copied = folder("qwen3-5-tied", |tensors| {
        let output = tensors[EMBEDDING].clone();
        tensors.insert(OUTPUT.to_owned(), output);
    });
    for keys in [(false, true), (true, false)] {
        set_tying(copied.path(), keys);
        assert_eq!(of(copied.path()), tied, "{keys:?}");
    }
    // Another one.
    let untied = of(&fixture("qwen3-5"));
    let with = folder("qwen3-5", |_| {});
    for keys in [(false, true), (true, false), (true, true)] {
        set_tying(with.path(), keys);
        assert_eq!(of(with.path()), untied, "{keys:?}");
    }
}
