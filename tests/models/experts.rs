//! Tests of MoE checkpoints: names and layouts of the experts' tensors, errors, and memory.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::SafeTensors;
use souffleur_base::error::LoadError;
use souffleur_executor::cpu::describe;
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_model::loader::LoadFormat;

use crate::common::{fixture, load_from, options};
use crate::random_models::{Stored, write_tensors};

type Tensors = BTreeMap<String, Stored>;

fn tensors_of(name: &str) -> Tensors {
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
    stored.collect()
}

/// A folder with the configuration of a fixture and these tensors.
fn folder(name: &str, tensors: &Tensors) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let config = "config.json";
    std::fs::copy(fixture(name).join(config), dir.path().join(config)).unwrap();
    write_tensors(dir.path(), tensors);
    dir
}

fn logits(dir: &Path) -> Vec<Vec<f32>> {
    let prompt: Vec<u32> = (0..40_u32).map(|n| (n * 37 + 11) % 288).collect();
    let mut seen = Vec::new();
    load_from(dir, &options())
        .score(&prompt, 16, &mut |_, logits| seen.push(logits.to_vec()))
        .unwrap();
    seen
}

fn renamed(tensors: &Tensors, pairs: &[(&str, &str)]) -> Tensors {
    let rename = |name: &String| {
        let pairs = pairs.iter();
        pairs.fold(name.clone(), |name, (from, to)| name.replace(from, to))
    };
    let renamed = tensors
        .iter()
        .map(|(name, stored)| (rename(name), stored.clone()));
    renamed.collect()
}

const QWEN_TO_MIXTRAL: [(&str, &str); 5] = [
    (".mlp.gate.", ".block_sparse_moe.gate."),
    (".mlp.experts.", ".block_sparse_moe.experts."),
    (".gate_proj.", ".w1."),
    (".up_proj.", ".w3."),
    (".down_proj.", ".w2."),
];

/// Stacks the experts of each layer into two tensors.
fn stacked(tensors: &Tensors) -> Tensors {
    let mut result = Tensors::new();
    for (name, stored) in tensors {
        let Some((module, rest)) = name.split_once(".experts.") else {
            result.insert(name.clone(), stored.clone());
            continue;
        };
        let (_, projection) = rest.split_once('.').unwrap();
        let stack = match projection {
            "down_proj.weight" => "down_proj",
            _ => "gate_up_proj",
        };
        let experts = tensors
            .keys()
            .filter(|name| name.starts_with(&format!("{module}.experts.")))
            .count()
            / 3;
        let parts: &[&str] = match stack {
            "down_proj" => &["down_proj"],
            _ => &["gate_proj", "up_proj"],
        };
        let data = (0..experts).flat_map(|expert| {
            parts.iter().flat_map(move |part| {
                let name = format!("{module}.experts.{expert}.{part}.weight");
                tensors[&name].data.clone()
            })
        });
        let shape = vec![experts, parts.len() * stored.shape[0], stored.shape[1]];
        let whole = Stored {
            dtype: stored.dtype,
            shape,
            data: data.collect(),
        };
        result.insert(format!("{module}.experts.{stack}"), whole);
    }
    result
}

#[test]
fn experts_may_be_named_and_stacked_as_any_family_does() {
    let original = tensors_of("qwen3-moe");
    let expected = logits(&fixture("qwen3-moe"));
    let in_stacks = stacked(&original);
    assert!(in_stacks.len() < original.len() / 2);
    for (what, tensors) in [
        ("stacked", in_stacks.clone()),
        ("as Mixtral's", renamed(&original, &QWEN_TO_MIXTRAL)),
        (
            "stacked as Mixtral's",
            renamed(&in_stacks, &QWEN_TO_MIXTRAL),
        ),
    ] {
        let dir = folder("qwen3-moe", &tensors);
        assert_eq!(logits(dir.path()), expected, "{what}");
    }
    let back = QWEN_TO_MIXTRAL.map(|(from, to)| (to, from));
    let mixtral = renamed(&tensors_of("mixtral"), &back);
    assert!(mixtral.contains_key("model.layers.0.mlp.experts.0.gate_proj.weight"));
    let dir = folder("mixtral", &mixtral);
    assert_eq!(logits(dir.path()), logits(&fixture("mixtral")));
}

/// Splits the two stacks of each layer into separate tensors.
fn one_by_one(tensors: &Tensors) -> Tensors {
    let mut result = Tensors::new();
    for (name, stored) in tensors {
        let parts: &[&str] = match name.rsplit_once(".experts.") {
            Some((_, "gate_up_proj")) => &["gate_proj", "up_proj"],
            Some((_, "down_proj")) => &["down_proj"],
            _ => {
                result.insert(name.clone(), stored.clone());
                continue;
            }
        };
        let (module, _) = name.rsplit_once('.').unwrap();
        let matrices = stored.shape[0] * parts.len();
        let matrices = stored.data.chunks_exact(stored.data.len() / matrices);
        for (n, data) in matrices.enumerate() {
            let (expert, part) = (n / parts.len(), parts[n % parts.len()]);
            let one = Stored {
                dtype: stored.dtype,
                shape: vec![stored.shape[1] / parts.len(), stored.shape[2]],
                data: data.to_vec(),
            };
            result.insert(format!("{module}.{expert}.{part}.weight"), one);
        }
    }
    result
}

#[test]
fn tensors_of_vision_models_may_have_any_prefix_and_unstacked_experts() {
    for name in ["qwen3-5", "qwen3-5-tied", "qwen3-5-moe"] {
        let original = tensors_of(name);
        let expected = logits(&fixture(name));
        let outer = ("model.language_model.", "language_model.model.");
        let head = ("lm_head.", "language_model.lm_head.");
        let plain = ("model.language_model.", "model.");
        let mut with_vision = original.clone();
        for other in ["model.visual.norm.weight", "mtp.norm.weight"] {
            let norm = original["model.language_model.norm.weight"].clone();
            with_vision.insert(other.to_owned(), norm);
        }
        for (what, tensors) in [
            ("other prefix", renamed(&original, &[outer, head])),
            ("no prefix", renamed(&original, &[plain])),
            ("other parts", with_vision),
            ("experts one by one", one_by_one(&original)),
        ] {
            let dir = folder(name, &tensors);
            assert_eq!(logits(dir.path()), expected, "{name}, {what}");
        }
    }
    let original = tensors_of("qwen3-5-moe");
    assert!(one_by_one(&original).len() > original.len());
}

#[test]
fn errors_name_broken_tensors_of_experts() {
    let original = tensors_of("qwen3-moe");
    let refused = |tensors: &Tensors| {
        let dir = folder("qwen3-moe", tensors);
        describe(dir.path(), None, None, LoadFormat::Auto)
            .err()
            .unwrap()
    };
    let mut missing = original.clone();
    missing.remove("model.layers.1.mlp.experts.7.up_proj.weight");
    match refused(&missing) {
        LoadError::MissingTensor {
            tensor, expected, ..
        } => {
            assert_eq!(tensor, "model.layers.1.mlp.experts.7.up_proj.weight");
            assert_eq!(expected, [40, 64]);
        }
        other => panic!("{other}"),
    }
    let mut transposed = stacked(&original);
    let stack = "model.layers.0.mlp.experts.gate_up_proj";
    transposed.get_mut(stack).unwrap().shape = vec![11, 64, 80];
    match refused(&transposed) {
        LoadError::WrongShape {
            tensor,
            expected,
            got,
            ..
        } => {
            assert_eq!(tensor, stack);
            assert_eq!((expected, got), (vec![11, 80, 64], vec![11, 64, 80]));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn experts_count_in_the_size_of_the_weights_and_routers_stay_in_f32() {
    let of = |dtype, quantization| {
        let described = describe(
            &fixture("qwen3-moe"),
            Some(dtype),
            quantization,
            LoadFormat::Auto,
        );
        let described = described.unwrap();
        (described.weights_bytes, described.config)
    };
    let (f32_bytes, config) = of(Dtype::F32, None);
    assert_eq!(f32_bytes, 4 * config.parameters());
    let in_f32: u64 = config
        .tensors()
        .iter()
        .filter(|tensor| tensor.shape.len() == 1 || tensor.name.ends_with("mlp.gate.weight"))
        .map(|tensor| tensor.elements())
        .sum();
    assert_eq!(
        of(Dtype::BF16, None).0,
        2 * config.parameters() + 2 * in_f32
    );
    // Two layers of eleven experts; each row has a byte per element and a scale in f32.
    let experts = 2 * 11 * (2 * 40 * (64 + 4) + 64 * (40 + 4));
    let int8 = of(Dtype::BF16, Some(Quantization::Int8)).0;
    assert!(
        int8 > experts + 4 * in_f32 && int8 < config.parameters() * 5 / 4,
        "{int8}"
    );
}

/// The values of MXFP4's codes below 8; the other codes have the negated values.
const E2M1: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// A stack of gpt-oss as blocks of pseudo-random codes and scales, and the same values in bf16.
fn in_blocks(name: &str, plain: &Stored) -> ([(String, Stored); 2], Stored) {
    let &[experts, inputs, outputs] = plain.shape.as_slice() else {
        panic!("{name} is not a stack");
    };
    let n = inputs / 32;
    let hash = |i: usize| (i as u32 + name.len() as u32).wrapping_mul(2_654_435_761) >> 11;
    let codes: Vec<u8> = (0..experts * outputs * n * 16)
        .map(|i| hash(i) as u8)
        .collect();
    let scales: Vec<u8> = (0..experts * outputs * n)
        .map(|i| [121, 122, 123, 124, 122, 0][hash(i) as usize % 6])
        .collect();
    let mut data = vec![0; plain.data.len()];
    for (block, codes) in codes.chunks_exact(16).enumerate() {
        let (row, first) = (block / n, block % n * 32);
        let (expert, output) = (row / outputs, row % outputs);
        let scale = (f32::from(scales[block]) - 127.0).exp2();
        for i in 0..32 {
            let code = usize::from(codes[i / 2] >> (4 * (i % 2)) & 15);
            let value = E2M1[code & 7] * scale * if code > 7 { -1.0 } else { 1.0 };
            let at = (expert * inputs + first + i) * outputs + output;
            data[2 * at..][..2].copy_from_slice(&half::bf16::from_f32(value).to_le_bytes());
        }
    }
    let stored = |shape: &[usize], data| Stored {
        dtype: safetensors::Dtype::U8,
        shape: shape.to_vec(),
        data,
    };
    let blocks = [
        (
            format!("{name}_blocks"),
            stored(&[experts, outputs, n, 16], codes),
        ),
        (
            format!("{name}_scales"),
            stored(&[experts, outputs, n], scales),
        ),
    ];
    let plain = Stored {
        data,
        ..plain.clone()
    };
    (blocks, plain)
}

#[test]
fn experts_of_gpt_oss_may_be_in_blocks() {
    let original = tensors_of("gpt-oss");
    let (mut blocks, mut plain) = (original.clone(), original.clone());
    for (name, stored) in &original {
        if name.ends_with("_proj") {
            let (parts, values) = in_blocks(name, stored);
            blocks.remove(name);
            blocks.extend(parts);
            plain.insert(name.clone(), values);
        }
    }
    let expected = logits(folder("gpt-oss", &plain).path());
    let got = logits(folder("gpt-oss", &blocks).path());
    assert_ne!(expected, logits(&fixture("gpt-oss")));
    let pairs = || expected.iter().flatten().zip(got.iter().flatten());
    let error: f32 = pairs().map(|(a, b)| (a - b).powi(2)).sum();
    let size: f32 = pairs().map(|(a, _)| a.powi(2)).sum();
    // Blocks are multiplied with activations of eight bits.
    let relative = (error / size).sqrt();
    assert!(relative < 0.08, "{relative}");

    let name = "model.layers.0.mlp.experts.down_proj";
    let mut without = blocks.clone();
    without.remove(&format!("{name}_scales"));
    let mut wrong = blocks;
    let scales = wrong.get_mut(&format!("{name}_scales")).unwrap();
    scales.shape.push(1);
    for (tensors, problem) in [(&without, "down_proj_scales"), (&wrong, "down_proj_scales")] {
        let dir = folder("gpt-oss", tensors);
        let error = describe(dir.path(), None, None, LoadFormat::Auto)
            .err()
            .unwrap();
        assert!(error.to_string().contains(problem), "{error}");
    }
}
