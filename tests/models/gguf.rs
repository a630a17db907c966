//! Tests that GGUF files give the logits of the safetensors from which they were made, or of their decoded blocks.

use std::path::{Path, PathBuf};

use safetensors::{Dtype as Element, SafeTensors};
use serde_json::{Value, json};
use souffleur_executor::cpu::{CpuOptions, LoadedMatrix, describe, widening_bytes};
use souffleur_kernels::cpu::WeightProduct;
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_model::loader::{Checkpoint, LoadFormat};

use crate::common::{fixture, load_from, options};
use crate::gguf_files::writer::Tensor;
use crate::gguf_files::{Latents, of_folder, of_folder_with, widened};
use crate::random_models::{Stored, write_tensors};

/// A prompt longer than the fixtures' original contexts.
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

/// Replaces values of a configuration that a GGUF file of its family cannot express.
fn replace_values_without_gguf_form(config: &mut Value) {
    let inner = config.get_mut("text_config").is_some();
    let config = if inner {
        &mut config["text_config"]
    } else {
        config
    };
    let is = |family: &str| {
        config["model_type"]
            .as_str()
            .unwrap_or("")
            .starts_with(family)
    };
    let mut edits: Vec<(&str, Value)> = Vec::new();
    if is("gemma") {
        // GGUF files have no keys for the attention scale, which follows from other sizes, and the local RoPE base.
        edits.push(("query_pre_attn_scalar", config["head_dim"].clone()));
        if !config["rope_local_base_freq"].is_null() {
            edits.push(("rope_local_base_freq", json!(10000.0)));
        }
        if is("gemma2") {
            let kinds = ["sliding_attention", "full_attention"];
            edits.push(("layer_types", json!(kinds)));
        }
    } else if is("gpt_oss") {
        edits.push(("swiglu_limit", json!(7.0)));
        let kinds = ["sliding_attention", "full_attention"];
        edits.push(("layer_types", json!(kinds)));
    } else if !is("phi3") {
        edits.push(("sliding_window", Value::Null));
    }
    if is("granite") && config["attention_multiplier"].is_null() {
        edits.push(("attention_multiplier", json!(1.0)));
    }
    if is("phi3")
        && let Some(rope) = config["rope_scaling"].as_object()
    {
        let mut rope = rope.clone();
        rope.remove("attention_factor");
        edits.push(("rope_scaling", rope.into()));
    }
    if is("lfm2_moe") {
        edits.push(("routed_scaling_factor", json!(1.0)));
    }
    if is("qwen3_next") {
        edits.push(("norm_topk_prob", json!(true)));
    }
    if is("deepseek") || is("qwen3_5") {
        edits.push(("attention_bias", json!(false)));
        edits.push(("mlp_bias", json!(false)));
    }
    for (key, value) in edits {
        config[key] = value;
    }
    // GGUF files have only one number for YaRN's `mscale` and `mscale_all_dim`.
    if let Some(all) = config["rope_scaling"].get("mscale_all_dim").cloned() {
        config["rope_scaling"]["mscale"] = all;
    }
}

/// A copy of a fixture that a GGUF file can express in full.
fn folder(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = std::fs::read(fixture(name).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_slice(&config).unwrap();
    replace_values_without_gguf_form(&mut config);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
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
        "qwen3-vl",
        "glm4-moe-lite",
    ] {
        let dir = folder(name);
        let expected = logits(dir.path());
        let file = output_folder(dir.path()).join(format!("{name}.gguf"));
        std::fs::write(&file, of_folder(dir.path()).bytes()).unwrap();
        assert!(logits(&file) == expected, "{name}");
    }
}

/// A copy of a fixture whose tensors have a type of 16 bits, and the file that a converter makes of the copy, with
/// vectors and routers in f32.
fn of_16_bits(name: &str, dtype: Dtype) -> (tempfile::TempDir, PathBuf) {
    let dir = folder(name);
    let weights = dir.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let stored = tensors.iter().map(|(name, view)| {
        let shape = view.shape().to_vec();
        let values = widened(view.dtype(), view.data());
        let (dtype, data) = narrow(dtype, &values);
        (name.to_owned(), Stored { dtype, shape, data })
    });
    write_tensors(dir.path(), &stored.collect());
    let mut file = of_folder(dir.path());
    for tensor in &mut file.tensors {
        let is_router = tensor.name.ends_with(b"ffn_gate_inp.weight");
        if tensor.sizes.len() > 1 && tensor.type_id == 0 && !is_router {
            let values = widened(Element::F32, &tensor.data);
            tensor.data = narrow(dtype, &values).1;
            tensor.type_id = if dtype == Dtype::F16 { 1 } else { 30 };
        }
    }
    let path = dir.path().join("tiny.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    (dir, path)
}

fn narrow(dtype: Dtype, values: &[f32]) -> (Element, Vec<u8>) {
    let values = values.iter();
    match dtype {
        Dtype::F16 => {
            let narrow = values.flat_map(|x| half::f16::from_f32(*x).to_le_bytes());
            (Element::F16, narrow.collect())
        }
        _ => {
            let narrow = values.flat_map(|x| half::bf16::from_f32(*x).to_le_bytes());
            (Element::BF16, narrow.collect())
        }
    }
}

#[test]
fn files_of_16_bits_have_the_logits_of_their_safetensors() {
    for name in ["llama", "qwen2", "qwen3", "mixtral", "lfm2", "gpt-oss"] {
        for dtype in [Dtype::F16, Dtype::BF16] {
            let (dir, file) = of_16_bits(name, dtype);
            for path in [dir.path(), &file] {
                let described = describe(path, None, None, LoadFormat::Auto).unwrap();
                assert_eq!(described.dtype, dtype, "{name}");
            }
            for run in [dtype, Dtype::F32] {
                let paths = [dir.path(), &file];
                let [expected, got] = paths.map(|path| logits_in(path, run, 64));
                assert!(got == expected, "{name} of {dtype:?} in {run:?}");
            }
        }
    }
}

#[test]
fn files_of_every_family_have_the_logits_of_their_safetensors() {
    let forms = [Latents::Absorbed, Latents::Whole];
    for (name, forms, exact) in [
        ("lfm2", &forms[..1], true),
        ("lfm2-moe", &forms[..1], true),
        // Value heads are in another order, so that sums over them round differently.
        ("qwen3-5", &forms[..1], false),
        ("qwen3-5-interval", &forms[..1], false),
        ("qwen3-5-moe", &forms[..1], false),
        ("qwen3-next", &forms[..1], true),
        // GGUF files have the attention scale in f32.
        ("deepseek-v2", &forms[..], false),
        ("deepseek-v2-grouped", &forms[..], true),
        ("deepseek-v3", &forms[..], false),
        ("glm4-moe-lite", &forms[..], true),
        ("gpt-oss", &forms[..1], true),
        ("gpt-oss-mxfp4", &forms[..1], true),
        ("gemma2", &forms[..1], true),
        ("gemma3", &forms[..1], true),
        ("gemma3-wrapped", &forms[..1], true),
        // GGUF files rotate the unrotated pairs by very small angles.
        ("gemma4", &forms[..1], false),
        ("gemma4-experts", &forms[..1], false),
        ("granite", &forms[..1], true),
        ("granite-bias", &forms[..1], true),
        ("olmo2", &forms[..1], true),
        ("olmo2-bias", &forms[..1], true),
        // GGUF files have no key for the window, or for the layers without RoPE.
        ("smollm3-window", &forms[..1], true),
        ("phi3", &forms[..1], true),
        ("phi3-partial", &forms[..1], true),
        ("phi3-longrope", &forms[..1], true),
        ("phi3-longrope-su", &forms[..1], true),
        // GGUF files have YaRN's `mscale` in f32.
        ("ministral3", &forms[..1], false),
        ("mistral3", &forms[..1], false),
    ] {
        let dir = folder(name);
        let expected = logits(dir.path());
        for form in forms {
            let file = output_folder(dir.path()).join(format!("{name}.gguf"));
            std::fs::write(&file, of_folder_with(dir.path(), *form).bytes()).unwrap();
            let got = logits(&file);
            let pairs = got.iter().flatten().zip(expected.iter().flatten());
            let off =
                |(got, right): (&f32, &f32)| (got - right).abs() / (1e-4 + 1e-4 * right.abs());
            let worst = pairs.map(off).fold(0.0, f32::max);
            eprintln!("{name}: {worst} times the tolerance");
            assert!(
                worst <= if exact { 0.0 } else { 0.2 },
                "{name}: {worst} times the tolerance"
            );
        }
    }
}

#[test]
fn files_have_the_rotations_of_short_and_of_long_sequences() {
    let dir = folder("phi3-longrope");
    let file = dir.path().join("tiny.gguf");
    std::fs::write(&file, of_folder(dir.path()).bytes()).unwrap();
    let options = CpuOptions {
        dtype: Some(Dtype::F32),
        ..options()
    };
    let logits = |path: &Path, n_tokens: usize| {
        let mut seen = Vec::new();
        let mut executor = load_from(path, &options);
        executor
            .score(&prompt()[..n_tokens], 64, &mut |_, logits| {
                seen.push(logits.to_vec());
            })
            .unwrap();
        seen
    };
    let [short, long] = [32, 33].map(|n_tokens| {
        let seen = logits(&file, n_tokens);
        assert!(seen == logits(dir.path(), n_tokens), "{n_tokens} tokens");
        seen
    });
    assert_ne!(short[31], long[31], "same rotation");
}

/// The folder for a test's files: `SOUFFLEUR_TEST_GGUF_DIR`, which tools/gguf/check.py reads, or `default`.
fn output_folder(default: &Path) -> PathBuf {
    std::env::var_os("SOUFFLEUR_TEST_GGUF_DIR").map_or_else(|| default.to_owned(), PathBuf::from)
}

#[test]
fn a_file_and_its_folder_have_the_same_description() {
    let dir = folder("qwen3");
    let file = dir.path().join("tiny.gguf");
    std::fs::write(&file, of_folder(dir.path()).bytes()).unwrap();
    let of = |path: &Path| describe(path, Some(Dtype::BF16), None, LoadFormat::Auto).unwrap();
    let (folder, gguf) = (of(dir.path()), of(&file));
    assert_eq!(gguf.weights_bytes, folder.weights_bytes);
    assert_eq!(gguf.config.tensors(), folder.config.tensors());
    assert_eq!(gguf.config.rope, folder.config.rope);
    let described = describe(&file, None, None, LoadFormat::Auto).unwrap();
    assert_eq!(described.dtype, Dtype::F32);
    let dummy = describe(&file, None, None, LoadFormat::Dummy).unwrap();
    assert_eq!(dummy.weights_bytes, described.weights_bytes);
}

/// A matrix in Q8_0, if its rows are whole blocks, and the f32 matrix with the same values.
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
fn float32_widens_blocks_and_reports_the_added_bytes() {
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
    let ((packed, no_bytes), (widened, added)) = (of(Dtype::BF16), of(Dtype::F32));
    assert_eq!(no_bytes, 0);
    assert!(added > 0 && widened > packed);
    let folder = describe(dir.path(), Some(Dtype::F32), None, LoadFormat::Auto).unwrap();
    assert_eq!(widened, folder.weights_bytes);
}

#[test]
fn matrices_are_described_with_their_bytes_and_kinds_of_product() {
    let dir = folder("qwen3");
    let file = dir.path().join("tiny.gguf");
    let mut stored = of_folder(dir.path());
    let tensors = std::mem::take(&mut stored.tensors).into_iter();
    stored.tensors = tensors.map(|tensor| in_blocks(tensor).0).collect();
    let in_file: u64 = {
        let matrices = stored.tensors.iter().filter(|tensor| tensor.type_id == 8);
        matrices.map(|tensor| tensor.data.len() as u64).sum()
    };
    std::fs::write(&file, stored.bytes()).unwrap();
    let of = |dtype, quantization| {
        describe(&file, Some(dtype), quantization, LoadFormat::Auto)
            .unwrap()
            .matrices
    };
    let sums = |matrices: &[LoadedMatrix], product: WeightProduct| {
        let matrices = matrices.iter().filter(|matrix| matrix.product == product);
        matrices.fold((0, 0), |(elements, bytes), matrix| {
            (elements + matrix.elements, bytes + matrix.bytes)
        })
    };
    let kept = of(Dtype::BF16, None);
    let (elements, bytes) = sums(&kept, WeightProduct::Blocks);
    assert_eq!(bytes, in_file);
    // A scale of two bytes for 32 codes.
    assert_eq!(bytes, elements / 32 * 34);
    let others = kept
        .iter()
        .filter(|matrix| matrix.product != WeightProduct::Blocks);
    assert!(
        others
            .clone()
            .all(|matrix| matrix.bytes == 2 * matrix.elements)
    );
    // A device without kernels for blocks has all matrices in bf16.
    let decoded = |matrix: &LoadedMatrix| matrix.decoded_bytes == 2 * matrix.elements;
    assert!(kept.iter().all(decoded));
    let exact = of(Dtype::F32, None);
    let (all, wide) = sums(&exact, WeightProduct::F32);
    assert_eq!(wide, 4 * all);
    assert_eq!(sums(&exact, WeightProduct::Blocks), (0, 0));
    let int8 = of(Dtype::BF16, Some(Quantization::Int8));
    let product = |matrix: &LoadedMatrix| matrix.product == WeightProduct::Int8;
    assert!(int8.iter().all(product));
}
