//! Tests that `--quantization int4` gives the results of a GGUF file with the same superblocks.

use std::path::Path;

use souffleur_executor::cpu::{CpuOptions, describe};
use souffleur_kernels::blocks::encode::encode;
use souffleur_kernels::cpu::Isa;
use souffleur_kernels::dtype::{Dtype, MatrixRole, Quantization};
use souffleur_model::loader::LoadFormat;

use crate::common::{load_from, options};
use crate::gguf_files::of_folder;
use crate::gguf_files::writer::{File, Tensor};
use crate::random_models::random_folder;

fn prompt() -> Vec<u32> {
    (0..40_u32).map(|n| (n * 37 + 11) % 288).collect()
}

fn logits(path: &Path, options: &CpuOptions) -> Vec<Vec<f32>> {
    let mut seen = Vec::new();
    load_from(path, options)
        .score(&prompt(), 16, &mut |_, logits| seen.push(logits.to_vec()))
        .unwrap();
    seen
}

fn with(quantization: Option<Quantization>) -> CpuOptions {
    CpuOptions {
        dtype: Some(Dtype::BF16),
        quantization,
        ..options()
    }
}

const INT4: Option<Quantization> = Some(Quantization::Int4);
/// Sizes whose matrices have rows of whole superblocks.
const WIDE: &[(&str, usize)] = &[
    ("hidden_size", 256),
    ("intermediate_size", 512),
    ("moe_intermediate_size", 256),
    ("head_dim", 64),
];

/// Encodes the f32 matrices of a file as the superblocks of `--quantization int4`.
fn in_superblocks(mut file: File) -> File {
    let tied = !file
        .tensors
        .iter()
        .any(|tensor| tensor.name == b"output.weight");
    let logits: &[u8] = if tied {
        b"token_embd.weight"
    } else {
        b"output.weight"
    };
    let encoded = |tensor: Tensor| {
        // Routers stay in f32.
        if tensor.sizes.len() < 2 || tensor.name.ends_with(b"ffn_gate_inp.weight") {
            return tensor;
        }
        let role = if tensor.name == logits {
            MatrixRole::Logits
        } else {
            MatrixRole::Inner
        };
        let block = Quantization::superblocks(role);
        let values: Vec<f32> = tensor
            .data
            .chunks_exact(4)
            .map(|x| f32::from_le_bytes(x.try_into().unwrap()))
            .collect();
        let mut data = vec![0; values.len() / 256 * block.bytes()];
        let superblocks = values.as_chunks::<256>().0.iter();
        for (values, out) in superblocks.zip(data.chunks_exact_mut(block.bytes())) {
            encode(block, values, out);
        }
        Tensor {
            type_id: block.gguf_id().unwrap(),
            data,
            ..tensor
        }
    };
    file.tensors = file.tensors.into_iter().map(encoded).collect();
    file
}

#[test]
fn folders_and_files_have_the_logits_of_their_superblocks() {
    for name in ["llama", "qwen2", "qwen3", "qwen3-moe"] {
        let dir = random_folder(name, WIDE);
        let plain = dir.path().join("plain.gguf");
        let superblocks = dir.path().join("superblocks.gguf");
        std::fs::write(&plain, of_folder(dir.path()).bytes()).unwrap();
        let file = in_superblocks(of_folder(dir.path()));
        std::fs::write(&superblocks, file.bytes()).unwrap();
        let expected = logits(&superblocks, &with(None));
        assert_eq!(logits(dir.path(), &with(INT4)), expected, "{name}: folder");
        assert_eq!(logits(&plain, &with(INT4)), expected, "{name}: f32 file");
        // Superblocks of the file are kept.
        assert_eq!(logits(&superblocks, &with(INT4)), expected, "{name}");
        let of = |path: &Path, quantization| {
            let described = describe(path, Some(Dtype::BF16), quantization, LoadFormat::Auto);
            described.unwrap().weights_bytes
        };
        let sizes = [of(dir.path(), INT4), of(&plain, INT4)];
        assert_eq!(sizes, [of(&superblocks, INT4); 2], "{name}");
        let (int4, bf16) = (sizes[0] as f64, of(dir.path(), None) as f64);
        assert!(int4 < 0.36 * bf16, "{name}: {int4} of {bf16}");
    }
}

#[test]
fn rows_of_any_width_are_padded() {
    // 96 inputs fill a part of one superblock, 300 inputs one superblock and a part of a second.
    let dir = random_folder("qwen3", &[("hidden_size", 96), ("intermediate_size", 300)]);
    let (int4, bf16) = (
        logits(dir.path(), &with(INT4)),
        logits(dir.path(), &with(None)),
    );
    let square = |x: f32| f64::from(x).powi(2);
    let pairs = || int4.iter().flatten().zip(bf16.iter().flatten());
    let off: f64 = pairs().map(|(got, right)| square(got - right)).sum();
    let size: f64 = pairs().map(|(_, right)| square(*right)).sum();
    let error = (off / size).sqrt();
    assert!(error > 0.01 && error < 0.4, "{error}");
}

#[test]
fn instruction_sets_with_fma_encode_alike() {
    let dir = random_folder("llama", &[("hidden_size", 96), ("intermediate_size", 300)]);
    let of = |isa| {
        let isa = Some(isa);
        logits(dir.path(), &CpuOptions { isa, ..with(INT4) })
    };
    // The portable path has no fused multiply-add and rounds twice.
    let with_fma: Vec<_> = Isa::available().into_iter().skip(1).map(of).collect();
    assert!(with_fma.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn dummy_weights_are_quantised_too() {
    let dir = random_folder("qwen3", WIDE);
    let dummy = CpuOptions {
        load_format: LoadFormat::Dummy,
        ..with(INT4)
    };
    assert_eq!(logits(dir.path(), &dummy), logits(dir.path(), &with(INT4)));
}
