//! Makes quantised linear modules in each checkpoint format, together with their dequantised values.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use half::{bf16, f16};
use safetensors::Dtype as Element;
use serde_json::{Value, json};

use crate::random_models::Stored;

/// Tensor names without the module's prefix, and the tensors.
pub type Parts = Vec<(&'static str, Stored)>;
/// Makes the tensors of a module `[outputs, inputs]`, and its dequantised values.
pub type Quantise = fn([usize; 2]) -> (Parts, Vec<f32>);

/// Quantises a model's linear modules, except the down projection of layer 1. `write` gets each original tensor and its
/// dequantised values.
pub fn quantise_linear(
    tensors: &mut BTreeMap<String, Stored>,
    quantise: Quantise,
    write: impl Fn(&mut Stored, &[f32]),
) -> BTreeMap<String, Stored> {
    let mut quantised = BTreeMap::new();
    for (name, tensor) in tensors {
        let is_linear = name.contains("_proj.weight") && !name.contains("layers.1.mlp.down");
        if !is_linear {
            quantised.insert(name.clone(), tensor.clone());
            continue;
        }
        let (parts, values) = quantise([tensor.shape[0], tensor.shape[1]]);
        let module = name.strip_suffix("weight").unwrap();
        let parts = parts.into_iter();
        quantised.extend(parts.map(|(part, content)| (format!("{module}{part}"), content)));
        write(tensor, &values);
    }
    quantised
}

pub fn stored(dtype: Element, shape: &[usize], data: Vec<u8>) -> Stored {
    Stored {
        dtype,
        shape: shape.to_vec(),
        data,
    }
}

fn hash(x: usize) -> usize {
    let x = (x as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (x ^ x >> 29) as usize >> 7
}

pub fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

pub fn bf16s(values: &[f32]) -> Vec<u8> {
    let values = values.iter().map(|x| bf16::from_f32(*x));
    values.flat_map(bf16::to_le_bytes).collect()
}

fn f16s(values: &[f32]) -> Vec<u8> {
    let values = values.iter().map(|x| f16::from_f32(*x));
    values.flat_map(f16::to_le_bytes).collect()
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// How scales are stored.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scales {
    /// In the type that the format's tools write, with values that f16 and bf16 represent exactly.
    Usual,
    /// In f32, with values that no narrower type represents exactly.
    Fine,
}

/// A scale that f16 and bf16 represent exactly.
fn scale(index: usize) -> f32 {
    (1 + hash(index) % 7) as f32 / 4096.0
}

fn scales(n: usize) -> Vec<f32> {
    (0..n).map(scale).collect()
}

/// Decodes an E4M3 byte via f16, whose exponent has one more bit.
fn e4m3(code: u8) -> f32 {
    let bits = u16::from(code & 128) << 8 | u16::from(code & 127) << 7;
    f16::from_bits(bits).to_f32() * 256.0
}

fn bytes(n: usize, magnitudes: usize) -> Vec<u8> {
    // Codes of both signs, without NaN.
    let byte = |i| (hash(i) % magnitudes) as u8 | (hash(i + n) as u8 & 128);
    (0..n).map(byte).collect()
}

const BLOCK_HEIGHT: usize = 48;
const BLOCK_WIDTH: usize = 40;

fn fp8_blocks(shape: [usize; 2]) -> (Parts, Vec<f32>) {
    fp8_blocks_of([BLOCK_HEIGHT, BLOCK_WIDTH], shape)
}

/// FP8 with a scale for each block of `[high, wide]`.
pub fn fp8_blocks_of([high, wide]: [usize; 2], [outputs, inputs]: [usize; 2]) -> (Parts, Vec<f32>) {
    let codes = bytes(outputs * inputs, 0x48);
    let shape = [outputs.div_ceil(high), inputs.div_ceil(wide)];
    let scales: Vec<f32> = scales(shape[0] * shape[1])
        .iter()
        .map(|s| s * 1.37)
        .collect();
    let value = |i: usize| {
        let (row, column) = (i / inputs, i % inputs);
        e4m3(codes[i]) * scales[row / high * shape[1] + column / wide]
    };
    let values = (0..codes.len()).map(value).collect();
    let parts = vec![
        (
            "weight",
            stored(Element::F8_E4M3, &[outputs, inputs], codes),
        ),
        (
            "weight_scale_inv",
            stored(Element::F32, &shape, f32s(&scales)),
        ),
    ];
    (parts, values)
}

fn fp8_rows([outputs, inputs]: [usize; 2]) -> (Parts, Vec<f32>) {
    let codes = bytes(outputs * inputs, 0x48);
    let scales = scales(outputs);
    let value = |i: usize| e4m3(codes[i]) * scales[i / inputs];
    let values = (0..codes.len()).map(value).collect();
    let parts = vec![
        (
            "weight",
            stored(Element::F8_E4M3, &[outputs, inputs], codes),
        ),
        (
            "weight_scale",
            stored(Element::BF16, &[outputs, 1], bf16s(&scales)),
        ),
    ];
    (parts, values)
}

fn fp8_tensor([outputs, inputs]: [usize; 2]) -> (Parts, Vec<f32>) {
    let codes = bytes(outputs * inputs, 0x48);
    let values = codes.iter().map(|code| e4m3(*code) * 0.01).collect();
    let parts = vec![
        (
            "weight",
            stored(Element::F8_E4M3, &[outputs, inputs], codes),
        ),
        ("weight_scale", stored(Element::F32, &[1], f32s(&[0.01]))),
    ];
    (parts, values)
}

fn int8_rows([outputs, inputs]: [usize; 2]) -> (Parts, Vec<f32>) {
    let codes = bytes(outputs * inputs, 128);
    let scales: Vec<f32> = scales(outputs).iter().map(|s| s / 16.0).collect();
    let value = |i: usize| f32::from(codes[i] as i8) * scales[i / inputs];
    let values = (0..codes.len()).map(value).collect();
    let parts = vec![
        ("weight", stored(Element::I8, &[outputs, inputs], codes)),
        (
            "weight_scale",
            stored(Element::BF16, &[outputs, 1], bf16s(&scales)),
        ),
    ];
    (parts, values)
}

/// A module of 4-bit codes before packing.
struct FourBits {
    outputs: usize,
    inputs: usize,
    groups: usize,
    scales: Scales,
}

impl FourBits {
    fn new([outputs, inputs]: [usize; 2], group: usize) -> Self {
        Self {
            outputs,
            inputs,
            groups: inputs / group,
            scales: Scales::Usual,
        }
    }

    fn fine(shape: [usize; 2], group: usize) -> Self {
        Self {
            scales: Scales::Fine,
            ..Self::new(shape, group)
        }
    }

    fn code(&self, output: usize, input: usize) -> u32 {
        (hash(output * self.inputs + input) % 16) as u32
    }

    fn zero(&self, output: usize, group: usize) -> u32 {
        (hash(output * 31 + group * 7) % 16) as u32
    }

    fn scale(&self, output: usize, group: usize) -> f32 {
        let index = output * self.groups + group;
        match self.scales {
            Scales::Usual => scale(index),
            Scales::Fine => scale(index) * (1.0 + (1 + hash(index + 5) % 4096) as f32 / 8e6),
        }
    }

    /// The stored scales, in type `usual` or in f32.
    fn stored_scales(&self, usual: Element, shape: [usize; 2], scales: &[f32]) -> Stored {
        match (self.scales, usual) {
            (Scales::Fine, _) => stored(Element::F32, &shape, f32s(scales)),
            (Scales::Usual, Element::BF16) => stored(usual, &shape, bf16s(scales)),
            (Scales::Usual, _) => stored(usual, &shape, f16s(scales)),
        }
    }

    fn values(&self, zero: impl Fn(usize, usize) -> u32) -> Vec<f32> {
        let indices = 0..self.outputs * self.inputs;
        let value = |i: usize| {
            let (output, input) = (i / self.inputs, i % self.inputs);
            let group = input * self.groups / self.inputs;
            let code = self.code(output, input) as f32 - zero(output, group) as f32;
            self.scale(output, group) * code
        };
        indices.map(value).collect()
    }

    /// Words `[rows, columns]`, of eight nibbles each.
    fn packed(rows: usize, columns: usize, nibble: impl Fn(usize, usize, usize) -> u32) -> Stored {
        let word = |i: usize| {
            let nibbles = (0..8).map(|k| nibble(i / columns, i % columns, k) << (4 * k));
            nibbles.fold(0, |word, nibble| word | nibble)
        };
        let all: Vec<u32> = (0..rows * columns).map(word).collect();
        stored(Element::I32, &[rows, columns], words(&all))
    }

    fn scales_by_group(&self) -> Stored {
        let scales =
            (0..self.groups * self.outputs).map(|i| self.scale(i % self.outputs, i / self.outputs));
        let scales: Vec<f32> = scales.collect();
        self.stored_scales(Element::F16, [self.groups, self.outputs], &scales)
    }

    fn gptq(&self, zero_offset: u32) -> (Parts, Vec<f32>) {
        let zeros = Self::packed(self.groups, self.outputs / 8, |g, c, k| {
            self.zero(8 * c + k, g)
        });
        let g_idx: Vec<u32> = (0..self.inputs)
            .map(|input| (input * self.groups / self.inputs) as u32)
            .collect();
        let codes = Self::packed(self.inputs / 8, self.outputs, |r, o, k| {
            self.code(o, 8 * r + k)
        });
        let parts = vec![
            ("qweight", codes),
            ("qzeros", zeros),
            ("scales", self.scales_by_group()),
            ("g_idx", stored(Element::I32, &[self.inputs], words(&g_idx))),
        ];
        (
            parts,
            self.values(|output, group| self.zero(output, group) + zero_offset),
        )
    }

    fn awq(&self) -> (Parts, Vec<f32>) {
        const ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
        let zeros = Self::packed(self.groups, self.outputs / 8, |g, c, k| {
            self.zero(8 * c + ORDER[k], g)
        });
        let codes = Self::packed(self.inputs, self.outputs / 8, |i, c, k| {
            self.code(8 * c + ORDER[k], i)
        });
        let parts = vec![
            ("qweight", codes),
            ("qzeros", zeros),
            ("scales", self.scales_by_group()),
        ];
        (parts, self.values(|output, group| self.zero(output, group)))
    }

    fn compressed(&self, has_zeros: bool) -> (Parts, Vec<f32>) {
        let codes = Self::packed(self.outputs, self.inputs / 8, |o, c, k| {
            self.code(o, 8 * c + k)
        });
        let scales =
            (0..self.groups * self.outputs).map(|i| self.scale(i / self.groups, i % self.groups));
        let scales: Vec<f32> = scales.collect();
        let shape = [self.outputs as i64, self.inputs as i64];
        let shape = shape.iter().flat_map(|size| size.to_le_bytes()).collect();
        let mut parts = vec![
            ("weight_packed", codes),
            (
                "weight_scale",
                self.stored_scales(Element::BF16, [self.outputs, self.groups], &scales),
            ),
            ("weight_shape", stored(Element::I64, &[2], shape)),
        ];
        if !has_zeros {
            return (parts, self.values(|_, _| 8));
        }
        let zeros = Self::packed(self.outputs.div_ceil(8), self.groups, |c, g, k| {
            self.zero(8 * c + k, g)
        });
        parts.push(("weight_zero_point", zeros));
        (parts, self.values(|output, group| self.zero(output, group)))
    }
}

fn compressed(format: &str, weights: Value) -> Value {
    json!({
        "quant_method": "compressed-tensors", "format": format, "ignore": ["lm_head"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    })
}

/// The configuration of GPTQ, with additional keys.
pub fn gptq(more: Value) -> Value {
    let mut config =
        json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": false});
    let more = more.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(more);
    config
}

fn awq() -> Value {
    json!({"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm", "zero_point": true})
}

/// The 4-bit formats with scales that f16 cannot represent, by name.
pub fn fine_kinds() -> Vec<(&'static str, Value, Quantise)> {
    let weights = json!({"num_bits": 4, "type": "int", "symmetric": false, "strategy": "group", "group_size": 128});
    vec![
        ("gptq", gptq(json!({})), |shape| {
            FourBits::fine(shape, 32).gptq(1)
        }),
        ("awq", awq(), |shape| FourBits::fine(shape, 64).awq()),
        ("packed", compressed("pack-quantized", weights), |shape| {
            FourBits::fine(shape, 128).compressed(true)
        }),
    ]
}

/// Names of formats, their `quantization_config`, and the functions that quantise a module.
pub fn kinds() -> Vec<(&'static str, Value, Quantise)> {
    let int4 = |symmetric: bool, group: usize| json!({"num_bits": 4, "type": "int", "symmetric": symmetric, "strategy": "group", "group_size": group});
    let bits8 = |kind: &str, strategy: &str| json!({"num_bits": 8, "type": kind, "symmetric": true, "strategy": strategy});
    vec![
        (
            "fp8, blocks",
            json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK_HEIGHT, BLOCK_WIDTH]}),
            fp8_blocks,
        ),
        ("fp8, tensor", json!({"quant_method": "fp8"}), fp8_tensor),
        (
            "fp8, rows",
            compressed("float-quantized", bits8("float", "channel")),
            fp8_rows,
        ),
        (
            "int8, rows",
            compressed("int-quantized", bits8("int", "channel")),
            int8_rows,
        ),
        ("gptq", gptq(json!({})), |shape| {
            FourBits::new(shape, 32).gptq(1)
        }),
        (
            "gptq_v2",
            gptq(json!({"checkpoint_format": "gptq_v2", "group_size": 64})),
            |shape| FourBits::new(shape, 64).gptq(0),
        ),
        ("gptq, rows", gptq(json!({"group_size": -1})), |shape| {
            FourBits::new(shape, shape[1]).gptq(1)
        }),
        ("awq", awq(), |shape| FourBits::new(shape, 64).awq()),
        (
            "packed",
            compressed("pack-quantized", int4(true, 32)),
            |shape| FourBits::new(shape, 32).compressed(false),
        ),
        (
            "packed, zeros",
            compressed("pack-quantized", int4(false, 128)),
            |shape| FourBits::new(shape, 128).compressed(true),
        ),
    ]
}
