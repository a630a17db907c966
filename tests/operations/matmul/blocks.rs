//! Tests of matrix products with block-quantised weights.

use half::f16;

use super::values;
use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::cpu::Isa;
use souffleur_kernels::cpu::activations::PackedRows;
use souffleur_kernels::cpu::format::{Format, FormatRule};
use souffleur_kernels::cpu::matmul::{Product, Write, matmul};
use souffleur_kernels::cpu::memory::WeightArena;
use souffleur_kernels::cpu::row_source::Activations;
use souffleur_kernels::cpu::stack::Stack;
use souffleur_kernels::cpu::tensor::Scratch;
use souffleur_kernels::cpu::threads::ThreadPool;
use souffleur_kernels::dtype::{Dtype, MatrixRole};
use souffleur_kernels::tensor_view::{RowOrder, Stored, TensorView};

pub const TYPES: [BlockType; 13] = [
    BlockType::Affine4,
    BlockType::Q8_0,
    BlockType::Q4_0,
    BlockType::Q4_1,
    BlockType::Q5_0,
    BlockType::Iq4Nl,
    BlockType::Iq4Xs,
    BlockType::Mxfp4,
    BlockType::Q2K,
    BlockType::Q3K,
    BlockType::Q4K,
    BlockType::Q5K,
    BlockType::Q6K,
];

/// Rows of blocks with finite scales and otherwise pseudo-random bytes.
fn random_rows(block: BlockType, outputs: usize, inputs: usize, seed: u32) -> Vec<u8> {
    let mut bytes: Vec<u8> = (0..outputs * block.row_bytes(inputs))
        .map(|i| {
            let hash = (i as u32 ^ seed.wrapping_mul(77)).wrapping_mul(0x9e37_79b9);
            (hash ^ hash >> 15) as u8
        })
        .collect();
    let halves: &[usize] = match block {
        BlockType::Q4K | BlockType::Q5K | BlockType::Q4_1 => &[0, 2],
        BlockType::Q2K => &[80, 82],
        BlockType::Q3K => &[108],
        BlockType::Q6K => &[208],
        BlockType::Mxfp4 => &[],
        _ => &[0],
    };
    for (index, block) in bytes.chunks_exact_mut(block.bytes()).enumerate() {
        for (i, at) in halves.iter().enumerate() {
            let scale = ((index * 7 + i * 3) % 11) as f32 / 64.0 - 0.05;
            block[*at..at + 2].copy_from_slice(&f16::from_f32(scale).to_le_bytes());
        }
        if halves.is_empty() {
            block[0] = 120 + (index * 7 % 11) as u8;
        }
    }
    bytes
}

fn stack(isa: Isa, parts: &[(BlockType, usize)], inputs: usize) -> (Stack, Vec<Vec<f32>>) {
    seeded_stack((isa, 0), parts, inputs)
}

pub fn seeded_stack(
    (isa, seed): (Isa, u32),
    parts: &[(BlockType, usize)],
    inputs: usize,
) -> (Stack, Vec<Vec<f32>>) {
    stack_for(Dtype::BF16, (isa, seed), parts, inputs)
}

pub fn seeded_stack_on(
    threads: (&mut ThreadPool, Isa),
    seed: u32,
    parts: &[(BlockType, usize)],
    inputs: usize,
) -> (Stack, Vec<Vec<f32>>) {
    stack_on(threads, (Dtype::BF16, seed), parts, inputs)
}

fn stack_for(
    dtype: Dtype,
    (isa, seed): (Isa, u32),
    parts: &[(BlockType, usize)],
    inputs: usize,
) -> (Stack, Vec<Vec<f32>>) {
    let mut pool = ThreadPool::new(2).expect("threads start");
    stack_on((&mut pool, isa), (dtype, seed), parts, inputs)
}

fn stack_on(
    threads: (&mut ThreadPool, Isa),
    (dtype, seed): (Dtype, u32),
    parts: &[(BlockType, usize)],
    inputs: usize,
) -> (Stack, Vec<Vec<f32>>) {
    let rows: Vec<Vec<u8>> = parts
        .iter()
        .enumerate()
        .map(|(i, (block, outputs))| random_rows(*block, *outputs, inputs, seed + i as u32))
        .collect();
    let shapes: Vec<[usize; 2]> = parts.iter().map(|part| [part.1, inputs]).collect();
    let views: Vec<TensorView<'_>> = parts
        .iter()
        .zip(&rows)
        .zip(&shapes)
        .map(|((part, bytes), shape)| TensorView {
            stored: Stored::Blocks(part.0),
            shape,
            bytes,
            order: RowOrder::AsNumbered,
        })
        .collect();
    let rule = FormatRule::new(dtype, None);
    let stack = Stack::pack(
        threads,
        &mut WeightArena::default(),
        rule,
        (&views, &vec![MatrixRole::Inner; views.len()]),
    );
    (stack, views.iter().map(TensorView::to_f32).collect())
}

pub fn product(isa: Isa, threads: usize, x: &[f32], weight: &Stack) -> Vec<f32> {
    let mut pool = ThreadPool::new(threads).expect("threads start");
    product_on((&mut pool, isa), x, weight)
}

pub fn product_on((pool, isa): (&mut ThreadPool, Isa), x: &[f32], weight: &Stack) -> Vec<f32> {
    let mut out = vec![0.0; x.len() / weight.inputs * weight.outputs];
    let rows: Vec<PackedRows> = weight
        .encodings()
        .iter()
        .map(|encoding| {
            let source = Activations::plain(x, weight.inputs);
            PackedRows::pack((&mut *pool, isa), &Scratch::default(), *encoding, source)
        })
        .collect();
    let product = Product {
        x: &rows,
        weight,
        bias: None,
        out: &mut out,
        write: Write::Store,
    };
    matmul(pool, isa, product);
    out
}

fn quantised(x: &[f32], group: usize) -> Vec<f32> {
    const MAGIC: f32 = 12_582_912.0;
    x.chunks(group)
        .flat_map(|x| {
            let max = x.iter().fold(0f32, |max, x| max.max(x.abs()));
            let (scale, inverse) = (max / 127.0, if max > 0.0 { 127.0 / max } else { 0.0 });
            x.iter()
                .map(move |x| scale * ((x * inverse + MAGIC) - MAGIC))
        })
        .collect()
}

/// Products in f64, and the sums of the magnitudes of their terms.
fn naive(x: &[f32], inputs: usize, block: BlockType, weights: &[f32]) -> Vec<(f64, f64)> {
    let group = match Format::of_blocks(block) {
        Some(Format::KQuant(_)) => 256,
        _ => 32,
    };
    let mut out = Vec::new();
    for row in x.chunks_exact(inputs) {
        let row = quantised(row, group);
        for weights in weights.chunks_exact(inputs) {
            let products = row.iter().zip(weights);
            let products: Vec<f64> = products
                .map(|(x, w)| f64::from(*x) * f64::from(*w))
                .collect();
            let size: f64 = products.iter().map(|product| product.abs()).sum();
            out.push((products.iter().sum(), size));
        }
    }
    out
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn widths(block: BlockType) -> &'static [usize] {
    match block.inputs() {
        32 => &[32, 96, 512],
        _ => &[256, 768],
    }
}

#[test]
fn products_are_right_and_the_same_on_every_instruction_set_and_for_any_number_of_rows() {
    for block in TYPES {
        for &inputs in widths(block) {
            let x: Vec<f32> = values(3, 13 * inputs);
            let mut fused: Option<Vec<u32>> = None;
            for isa in Isa::available() {
                let (weight, stored) = stack(isa, &[(block, 37)], inputs);
                let got = product(isa, 2, &x, &weight);
                let expected = naive(&x, inputs, block, &stored[0]);
                for (got, (right, size)) in got.iter().zip(&expected) {
                    let off = (f64::from(*got) - right).abs();
                    assert!(
                        off <= 1e-6 * size + 1e-6,
                        "{isa:?} {block:?} {inputs}: {got} for {right}"
                    );
                }
                let got = bits(&got);
                for rows in [1, 2, 3, 5, 8] {
                    let some = product(isa, 1, &x[..rows * inputs], &weight);
                    assert_eq!(
                        bits(&some),
                        got[..rows * 37],
                        "{isa:?} {block:?} {rows} rows"
                    );
                }
                if isa != Isa::Portable {
                    let fused = fused.get_or_insert_with(|| got.clone());
                    assert_eq!(&got, fused, "{isa:?} {block:?}");
                }
            }
        }
    }
}

fn gaussian(seed: u64, len: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut one = || {
        let (radius, angle) = (1.0 - random.f64(), random.f64());
        ((-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()) as f32
    };
    (0..len).map(|_| one()).collect()
}

#[test]
fn products_with_gaussian_activations_are_within_bounds() {
    const INPUTS: usize = 1024;
    const OUTPUTS: usize = 48;
    let x = gaussian(11, 16 * INPUTS);
    for block in TYPES {
        let limit = match Format::of_blocks(block) {
            Some(Format::KQuant(_)) => 0.008,
            _ => 0.0065,
        };
        for isa in Isa::available() {
            let (weight, stored) = stack(isa, &[(block, OUTPUTS)], INPUTS);
            let got = product(isa, 2, &x, &weight);
            let rows = x.chunks_exact(INPUTS);
            let right = rows.flat_map(|row| {
                let weights = stored[0].chunks_exact(INPUTS);
                weights.map(move |weights| {
                    let products = row.iter().zip(weights);
                    products
                        .map(|(x, w)| f64::from(*x) * f64::from(*w))
                        .sum::<f64>()
                })
            });
            let (mut off, mut size) = (0.0, 0.0);
            for (got, right) in got.iter().zip(right) {
                off += (f64::from(*got) - right).powi(2);
                size += right.powi(2);
            }
            let error = (off / size).sqrt();
            // A smaller error would mean that nothing was rounded.
            assert!(
                (0.003..limit).contains(&error),
                "{isa:?} {block:?}: {error}"
            );
        }
    }
}

#[test]
fn all_types_that_are_multiplied_without_decoding_are_tested() {
    let native = BlockType::ALL
        .into_iter()
        .chain([BlockType::Affine4])
        .filter(|block| Format::of_blocks(*block).is_some());
    assert!(native.clone().all(|block| TYPES.contains(&block)));
    assert_eq!(native.count(), TYPES.len());
}

#[test]
fn rows_are_read_as_they_are_stored() {
    for block in TYPES {
        for &inputs in widths(block) {
            let (weight, stored) = stack(Isa::detect(), &[(block, 19)], inputs);
            let mut row = vec![0.0; inputs];
            for (output, expected) in stored[0].chunks_exact(inputs).enumerate() {
                weight.read_row(output, &mut row);
                assert_eq!(bits(&row), bits(expected), "{block:?} {output}");
            }
        }
    }
}

#[test]
fn blocks_computed_in_float32_give_the_bits_of_their_values() {
    for block in TYPES {
        for &inputs in widths(block) {
            let x: Vec<f32> = values(6, 9 * inputs);
            for isa in Isa::available() {
                let (weight, stored) = stack_for(Dtype::F32, (isa, 1), &[(block, 37)], inputs);
                let shape = [37, inputs];
                let bytes = bytemuck::cast_slice(&stored[0]);
                let view = TensorView::plain(Dtype::F32, &shape, bytes);
                let mut pool = ThreadPool::new(1).expect("threads start");
                let rule = FormatRule::new(Dtype::F32, None);
                let threads = (&mut pool, isa);
                let plain = Stack::pack(
                    threads,
                    &mut WeightArena::default(),
                    rule,
                    (&[view], &[MatrixRole::Inner]),
                );
                let [got, expected] = [&weight, &plain].map(|stack| product(isa, 2, &x, stack));
                assert_eq!(bits(&got), bits(&expected), "{isa:?} {block:?} {inputs}");
                let mut row = vec![0.0; inputs];
                weight.read_row(36, &mut row);
                assert_eq!(bits(&row), bits(&stored[0][36 * inputs..]), "{block:?}");
            }
        }
    }
}

#[test]
fn parts_of_a_stack_may_differ_in_their_blocks() {
    let parts = [
        (BlockType::Q4K, 40),
        (BlockType::Q4K, 24),
        (BlockType::Q6K, 24),
    ];
    for isa in Isa::available() {
        let x = values(4, 5 * 512);
        for parts in [
            parts,
            [parts[0], (BlockType::Q8_0, 24), parts[2]],
            [parts[0], (BlockType::Q5_1, 24), parts[2]],
        ] {
            let (weight, _) = stack(isa, &parts, 512);
            let got = product(isa, 2, &x, &weight);
            let mut first = 0;
            for (i, part) in parts.iter().enumerate() {
                // The seed of a part depends on its index in the stack.
                let alone: Vec<_> = (0..=i).map(|_| *part).collect();
                let (alone, _) = stack(isa, &alone, 512);
                let all = product(isa, 2, &x, &alone);
                for row in 0..5 {
                    let got = &got[row * 88 + first..][..part.1];
                    let alone = &all[row * alone.outputs + i * part.1..][..part.1];
                    assert_eq!(bits(got), bits(alone), "{isa:?} {part:?}");
                }
                first += part.1;
            }
        }
    }
}
