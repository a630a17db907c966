//! Tests that quantised safetensors give the logits of the same model with dequantised weights in bf16.

mod experts;
mod fused;
mod scales;

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::Dtype as Element;
use serde_json::{Value, json};
use souffleur_base::error::LoadError;
use souffleur_executor::cpu::{CpuExecutor, CpuOptions, describe};
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_model::loader::{Checkpoint, LoadFormat};

use crate::common::{load_from, options};
use crate::invariance::{PROMPT_TOKENS, alone, alone_read_from, among_others, assert_same};
use crate::quantised::{Quantise, bf16s, gptq, kinds, quantise_linear, stored};
use crate::random_models::{Stored, edit_config, random_folder, random_tensors, write_tensors};

const SIZES: &[(&str, usize)] = &[
    ("hidden_size", 128),
    ("intermediate_size", 256),
    ("head_dim", 32),
];

struct Folders {
    quantised: tempfile::TempDir,
    /// The same model with dequantised weights in bf16.
    plain: tempfile::TempDir,
}

/// A model whose linear modules, except one, are quantised in one folder and dequantised in the other.
fn folders(name: &str, config: &Value, quantise: Quantise) -> Folders {
    folders_of((name, SIZES), config, quantise, |tensor, values| {
        tensor.data = bf16s(values);
    })
}

/// Like [`folders`], with other sizes; `write` stores the dequantised values in the plain model.
fn folders_of(
    (name, sizes): (&str, &[(&str, usize)]),
    config: &Value,
    quantise: Quantise,
    write: impl Fn(&mut Stored, &[f32]),
) -> Folders {
    let [quantised, plain] = [(); 2].map(|()| random_folder(name, sizes));
    let mut tensors = random_tensors(plain.path());
    let coded = quantise_linear(&mut tensors, quantise, write);
    write_tensors(plain.path(), &tensors);
    write_tensors(quantised.path(), &coded);
    edit_config(quantised.path(), |json| {
        json["quantization_config"] = config.clone()
    });
    Folders { quantised, plain }
}

fn logits(path: &Path, dtype: Dtype, quantization: Option<Quantization>) -> Vec<Vec<f32>> {
    let options = CpuOptions {
        dtype: Some(dtype),
        quantization,
        ..options()
    };
    let prompt: Vec<u32> = (0..30_u32).map(|n| (n * 37 + 11) % 288).collect();
    let mut seen = Vec::new();
    load_from(path, &options)
        .score(&prompt, 16, &mut |_, logits| seen.push(logits.to_vec()))
        .unwrap();
    seen
}

fn relative_error(got: &[Vec<f32>], right: &[Vec<f32>]) -> f64 {
    let square = |x: f32| f64::from(x).powi(2);
    let pairs = || got.iter().flatten().zip(right.iter().flatten());
    let off: f64 = pairs().map(|(got, right)| square(got - right)).sum();
    let size: f64 = pairs().map(|(_, right)| square(*right)).sum();
    (off / size).sqrt()
}

#[test]
fn every_kind_has_the_logits_of_its_dequantised_values() {
    for (kind, config, quantise) in kinds() {
        for name in ["llama", "qwen3"] {
            let folders = folders(name, &config, quantise);
            let (quantised, plain) = (folders.quantised.path(), folders.plain.path());
            let expected = logits(plain, Dtype::BF16, None);
            assert!(expected.iter().flatten().all(|x| x.is_finite()), "{kind}");
            let error = relative_error(&logits(quantised, Dtype::BF16, None), &expected);
            // Blocks may be multiplied without decoding, with activations of eight bits.
            let limit = if kind.contains("8") { 0.0 } else { 0.03 };
            assert!(error <= limit, "{kind}, {name}: {error}");
            let checkpoint = Checkpoint::open(quantised, None, LoadFormat::Auto).unwrap();
            assert_eq!(checkpoint.dtype, Dtype::BF16);
            assert!(checkpoint.scheme().is_some());
        }
    }
}

/// Checks one kind of 4-bit codes for each packing; 8-bit codes are loaded as bf16.
#[test]
fn kinds_loaded_as_blocks_are_invariant() {
    for (kind, config, quantise) in kinds() {
        if !["gptq", "awq", "packed, zeros"].contains(&kind) {
            continue;
        }
        let folders = folders("qwen3", &config, quantise);
        let load = || load_from(folders.quantised.path(), &options());
        let expected = alone(&mut load(), 1, PROMPT_TOKENS);
        for chunk in [1, 7] {
            let got = alone(&mut load(), 1, chunk);
            assert_same(&got, &expected, &format!("{kind}, chunks of {chunk}"));
        }
        let got = among_others(&mut load());
        assert_same(&got, &expected, &format!("{kind}, among others"));
        let got = alone_read_from(&mut load(), 1, 20, 70);
        assert_same(&got, &expected, &format!("{kind}, read from 70"));
    }
}

#[test]
fn quantised_checkpoints_may_be_quantised_again_to_int8() {
    for (kind, config, quantise) in kinds() {
        let folders = folders("qwen3", &config, quantise);
        let (quantised, plain) = (folders.quantised.path(), folders.plain.path());
        let int8 = Some(Quantization::Int8);
        let expected = logits(plain, Dtype::BF16, int8);
        let got = logits(quantised, Dtype::BF16, int8);
        // Unlike the plain weights, blocks are not rounded to bf16 first.
        let error = relative_error(&got, &expected);
        assert!(error < 0.01, "{kind}: {error}");
    }
}

#[test]
fn sizes_are_known_before_anything_is_loaded() {
    for (kind, config, quantise) in kinds() {
        let folders = folders("qwen3", &config, quantise);
        let of = |dir: &Path| describe(dir, None, None, LoadFormat::Auto).unwrap();
        let (quantised, plain) = (of(folders.quantised.path()), of(folders.plain.path()));
        assert_eq!(
            quantised.decoded_weights_bytes, plain.decoded_weights_bytes,
            "{kind}"
        );
        assert!(quantised.weights_bytes <= plain.weights_bytes, "{kind}");
    }
}

fn refused(dir: &Path) -> String {
    let described = describe(dir, None, None, LoadFormat::Auto).expect_err("describe fails");
    let loaded = CpuExecutor::load(dir, &options(), &mut |_, _| {});
    let loaded: LoadError = loaded.err().expect("load fails");
    assert_eq!(described.to_string(), loaded.to_string());
    loaded.to_string()
}

/// Changes a tensor of a quantised model's module, and returns the error.
fn broken(kind: &str, part: &str, change: fn(&mut Option<Stored>)) -> String {
    let (_, config, quantise) = kinds()
        .into_iter()
        .find(|(name, ..)| *name == kind)
        .unwrap();
    let folders = folders("llama", &config, quantise);
    let dir = folders.quantised.path();
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let tensors = file.tensors().into_iter().map(|(name, view)| {
        let tensor = stored(view.dtype(), view.shape(), view.data().to_vec());
        (name, tensor)
    });
    let mut tensors: BTreeMap<String, Stored> = tensors.collect();
    let name = format!("model.layers.0.mlp.down_proj.{part}");
    let mut tensor = tensors.remove(&name);
    change(&mut tensor);
    tensors.extend(tensor.map(|tensor| (name, tensor)));
    write_tensors(dir, &tensors);
    refused(dir)
}

fn reshaped(tensor: &mut Option<Stored>) {
    let tensor = tensor.as_mut().unwrap();
    tensor.shape.push(1);
}

fn as_integers(tensor: &mut Option<Stored>) {
    let tensor = tensor.as_mut().unwrap();
    let size = tensor.data.len() / tensor.shape.iter().product::<usize>();
    tensor.dtype = match size {
        1 => Element::U8,
        2 => Element::I16,
        _ => Element::U32,
    };
}

#[test]
fn broken_tensors_are_named_before_anything_is_loaded() {
    let parts = [
        ("fp8, blocks", "weight", "weight_scale_inv"),
        ("fp8, rows", "weight", "weight_scale"),
        ("int8, rows", "weight", "weight_scale"),
        ("gptq", "qweight", "scales"),
        ("awq", "qweight", "qzeros"),
        ("packed", "weight_packed", "weight_scale"),
        ("packed, zeros", "weight_packed", "weight_zero_point"),
    ];
    for (kind, codes, other) in parts {
        let name = |part| format!("model.layers.0.mlp.down_proj.{part}");
        // The scales of fp8 have one of two names, so the error may name the other one.
        let missing = broken(kind, other, |tensor| *tensor = None);
        assert!(missing.contains("down_proj"), "{kind}: {missing}");
        for part in [codes, other] {
            for change in [reshaped, as_integers] {
                let error = broken(kind, part, change);
                assert!(error.contains(&name(part)), "{kind}, {part}: {error}");
            }
        }
        let error = broken(kind, codes, |tensor| *tensor = None);
        assert!(error.contains(&name("weight")), "{kind}: {error}");
    }
}

#[test]
fn reordered_inputs_and_a_wrong_weight_shape_are_refused() {
    let error = broken("gptq", "g_idx", |tensor| {
        tensor.as_mut().unwrap().data[..4].copy_from_slice(&3_u32.to_le_bytes());
    });
    for text in ["down_proj.g_idx", "input 0", "group 3", "desc_act"] {
        assert!(error.contains(text), "{text}: {error}");
    }
    let error = broken("packed", "weight_shape", |tensor| {
        tensor.as_mut().unwrap().data[0] ^= 1;
    });
    assert!(error.contains("down_proj.weight_shape"), "{error}");
}

#[test]
fn groups_that_do_not_divide_the_inputs_and_three_bits_are_refused() {
    let (_, _, quantise) = kinds().remove(4); // GPTQ
    let folders = folders("llama", &gptq(json!({"group_size": 96})), quantise);
    let error = refused(folders.quantised.path());
    for text in ["qweight", "128 inputs in groups of 96"] {
        assert!(error.contains(text), "{text}: {error}");
    }
    edit_config(folders.quantised.path(), |json| {
        json["quantization_config"]["bits"] = json!(3);
    });
    let error = refused(folders.quantised.path());
    assert!(error.contains("quantization_config.bits is 3"), "{error}");
}
