//! Tests that matrix products match plain arithmetic, and that no bit depends on the other rows.

pub mod blocks;
mod nodes;

use half::{bf16, f16};

use souffleur_kernels::cpu::Isa;
use souffleur_kernels::cpu::activations::PackedRows;
use souffleur_kernels::cpu::format::{Encoding, Format, FormatRule};
use souffleur_kernels::cpu::matmul::{Product, Write, matmul};
use souffleur_kernels::cpu::memory::WeightArena;
use souffleur_kernels::cpu::panel::{INT8_GROUP, INT8_STEPS};
use souffleur_kernels::cpu::quantise::quantise;
use souffleur_kernels::cpu::row_source::Activations;
use souffleur_kernels::cpu::simd::{Kernel, LANES, Lanes, dispatch};
use souffleur_kernels::cpu::stack::Stack;
use souffleur_kernels::cpu::tensor::Scratch;
use souffleur_kernels::cpu::threads::ThreadPool;
use souffleur_kernels::dtype::{Dtype, MatrixRole};
use souffleur_kernels::tensor_view::TensorView;

pub const FORMATS: [Format; 4] = [Format::F32, Format::F16, Format::Bf16, Format::Int8];

pub fn values(seed: u32, len: usize) -> Vec<f32> {
    let hash = |i: usize| (i as u32 ^ seed).wrapping_mul(0x9e37_79b9) >> 20;
    (0..len).map(|i| hash(i) as f32 / 2048.0 - 1.0).collect()
}

fn weight(isa: Isa, format: Format, parts: &[usize], inputs: usize) -> Stack {
    let mut pool = ThreadPool::new(2).expect("threads start");
    let all = parts.iter().map(|n| values(5, n * inputs));
    packed_weight((&mut pool, isa), format, all.collect(), inputs)
}

pub fn seeded_weight(isa: Isa, format: Format, seed: u32, parts: &[usize], inputs: usize) -> Stack {
    let mut pool = ThreadPool::new(2).expect("threads start");
    seeded_weight_on((&mut pool, isa), format, seed, parts, inputs)
}

pub fn seeded_weight_on(
    threads: (&mut ThreadPool, Isa),
    format: Format,
    seed: u32,
    parts: &[usize],
    inputs: usize,
) -> Stack {
    let all = values(seed, parts.iter().sum::<usize>() * inputs);
    let mut rest = all.as_slice();
    let cut = parts.iter().map(|n| {
        let (part, others) = rest.split_at(n * inputs);
        rest = others;
        part.to_vec()
    });
    packed_weight(threads, format, cut.collect(), inputs)
}

fn packed_weight(
    threads: (&mut ThreadPool, Isa),
    format: Format,
    parts: Vec<Vec<f32>>,
    inputs: usize,
) -> Stack {
    let shapes = parts.iter().map(|part| [part.len() / inputs, inputs]);
    let shapes: Vec<_> = shapes.collect();
    let views = parts
        .iter()
        .zip(&shapes)
        .map(|(values, shape)| TensorView::plain(Dtype::F32, shape, bytemuck::cast_slice(values)));
    let views: Vec<_> = views.collect();
    let rule = FormatRule::all(format);
    let roles = vec![MatrixRole::Inner; views.len()];
    Stack::pack(threads, &mut WeightArena::default(), rule, (&views, &roles))
}

fn product(isa: Isa, threads: usize, x: &[f32], weight: &Stack, write: Write) -> Vec<f32> {
    let mut pool = ThreadPool::new(threads).expect("threads start");
    product_on((&mut pool, isa), x, weight, write)
}

fn product_on(
    (pool, isa): (&mut ThreadPool, Isa),
    x: &[f32],
    weight: &Stack,
    write: Write,
) -> Vec<f32> {
    // Rows of packed words have zeros as padding.
    let before = if write == Write::GatedRows { 0.0 } else { 1.0 };
    let mut out = vec![before; x.len() / weight.inputs * write.columns(weight.outputs)];
    let bias = values(9, weight.outputs);
    let x = packed(
        isa,
        pool.n_threads(),
        Activations::plain(x, weight.inputs),
        format_of(weight),
    );
    let product = Product {
        x: std::slice::from_ref(&x),
        weight,
        bias: Some(&bias),
        out: &mut out,
        write,
    };
    matmul(pool, isa, product);
    out
}

fn packed(isa: Isa, threads: usize, source: Activations<'_>, format: Format) -> PackedRows {
    let mut pool = ThreadPool::new(threads).expect("threads start");
    PackedRows::pack(
        (&mut pool, isa),
        &Scratch::default(),
        format.encoding(isa),
        source,
    )
}

fn format_of(weight: &Stack) -> Format {
    weight.sections()[0].format
}

struct Quantise<'a>(&'a [f32; INT8_GROUP]);

impl Kernel for Quantise<'_> {
    type Output = (f32, [u32; INT8_STEPS]);

    #[inline(always)]
    fn run<S: Lanes>(self) -> Self::Output {
        let mut words = [0; INT8_STEPS];
        // SAFETY: both arrays cover the reads and writes; `dispatch` detected the instruction set.
        unsafe {
            let load = |i| S::load(self.0[i * LANES..].as_ptr());
            let (scale, quads) = quantise::<S, { INT8_GROUP / LANES }, { INT8_STEPS / LANES }>(
                std::array::from_fn(load),
            );
            for (words, quads) in words.chunks_exact_mut(LANES).zip(quads) {
                S::store_words(words.as_mut_ptr(), quads);
            }
            (scale, words)
        }
    }
}

fn as_packed(format: Format, x: &[f32]) -> Vec<f32> {
    match format {
        Format::F32 | Format::F16 | Format::ExactBf16 => x.to_vec(),
        Format::Bf16 => x.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
        Format::Int8 => x
            .chunks(INT8_GROUP)
            .flat_map(|chunk| {
                let mut padded = [0.0; INT8_GROUP];
                padded[..chunk.len()].copy_from_slice(chunk);
                let (scale, words) = dispatch(Isa::Portable, Quantise(&padded));
                let bytes = words.into_iter().flat_map(u32::to_le_bytes);
                bytes
                    .take(chunk.len())
                    .map(move |q| scale * f32::from(q as i8))
            })
            .collect(),
        Format::Block32(_) | Format::Nibbles(_) | Format::KQuant(_) => unreachable!("see `blocks`"),
    }
}

/// `x weight^T + bias` in f64, for a matrix of one part.
fn naive(x: &[f32], weight: &Stack) -> Vec<f64> {
    let bias = values(9, weight.outputs);
    let mut out = Vec::new();
    let mut column = vec![0.0; weight.inputs];
    for row in x.chunks_exact(weight.inputs) {
        let row = as_packed(format_of(weight), row);
        for (output, bias) in bias.iter().enumerate() {
            weight.read_row(output, &mut column);
            let products = row.iter().zip(&column);
            let dot: f64 = products.map(|(x, w)| f64::from(*x) * f64::from(*w)).sum();
            out.push(f64::from(*bias) + dot);
        }
    }
    out
}

#[test]
fn rows_alone_and_together_give_the_same_bits_and_the_right_values() {
    for (isa, format) in isas_and_formats() {
        for (rows, outputs, inputs) in [
            (1, 1, 1),
            (13, 37, 50),
            (6, 8, 64),
            (11, 130, 15),
            (70, 9, 1500),
            (300, 33, 40),
            // Shapes for strips of 256-bit registers: partial inputs, leftover panels, and more rows than one block.
            (13, 400, 203),
            (16, 400, 203),
            (259, 410, 96),
        ] {
            let weight = weight(isa, format, &[outputs], inputs);
            let x = values(3, rows * inputs);
            let together = product(isa, 3, &x, &weight, Write::Add);
            let alone: Vec<f32> = x
                .chunks_exact(inputs)
                .flat_map(|row| product(isa, 1, row, &weight, Write::Add))
                .collect();
            let case = format!("{isa:?} {format:?} {rows}x{outputs}x{inputs}");
            assert_eq!(together, alone, "{case}");
            for (got, expected) in together.iter().zip(naive(&x, &weight)) {
                let error = (f64::from(*got) - 1.0 - expected).abs();
                let bound = 1e-6 * inputs as f64 + 1e-6;
                assert!(error < bound, "{case}: {got} for {expected}");
            }
        }
    }
}

#[test]
fn gated_products_equal_products_that_are_gated_afterwards() {
    for (isa, format) in isas_and_formats() {
        for (rows, width, inputs) in [(1, 5, 7), (9, 70, 130), (19, 400, 130)] {
            let weight = weight(isa, format, &[width, width], inputs);
            let x = values(3, rows * inputs);
            let both = product(isa, 2, &x, &weight, Write::Store);
            let gated = product(isa, 2, &x, &weight, Write::GatedSilu);
            for (row, gated) in both.chunks_exact(2 * width).zip(gated.chunks_exact(width)) {
                let (gates, ups) = row.split_at(width);
                for ((gate, up), got) in gates.iter().zip(ups).zip(gated) {
                    let expected = gate / (1.0 + (-gate).exp()) * up;
                    let error = (got - expected).abs();
                    assert!(
                        error <= 1e-6 * (1.0 + expected.abs()),
                        "{isa:?} {format:?}: {got} for {expected}"
                    );
                }
            }
        }
    }
}

#[test]
fn gated_rows_equal_packed_gated_values() {
    for isa in Isa::available() {
        for (rows, width, inputs) in [(1, 5, 7), (9, 70, 130), (20, 33, 64)] {
            let weight = weight(isa, Format::Bf16, &[width, width], inputs);
            let x = values(3, rows * inputs);
            let gated = product(isa, 2, &x, &weight, Write::GatedSilu);
            let expected = packed(isa, 1, Activations::plain(&gated, width), Format::Bf16);
            let write = match expected.encoding() {
                Encoding::Bf16 => Write::GatedPairs,
                Encoding::Bf16Rows => Write::GatedRows,
                _ => Write::GatedRounded,
            };
            let words = product(isa, 2, &x, &weight, write);
            let words: Vec<u32> = words.into_iter().map(f32::to_bits).collect();
            let all = expected.groups();
            let groups = (0..all.n_groups).flat_map(|group| all.group(group).1);
            assert!(words.iter().eq(groups), "{isa:?} {rows}x{width}x{inputs}");
        }
    }
}

#[test]
fn instruction_sets_that_round_alike_agree_bit_for_bit() {
    for (rows, outputs, inputs) in [(1, 40, 300), (6, 33, 129), (29, 50, 700)] {
        for format in FORMATS {
            let x = values(3, rows * inputs);
            let mut results: Vec<(Isa, Vec<f32>)> = Vec::new();
            for isa in Isa::available() {
                // The portable path may round twice, and products of bf16 pairs do.
                let has_pairs = matches!(isa, Isa::Avx512Bf16 | Isa::Amx);
                if isa == Isa::Portable || (has_pairs && format == Format::Bf16) {
                    continue;
                }
                let weight = weight(isa, format, &[outputs], inputs);
                results.push((isa, product(isa, 2, &x, &weight, Write::Add)));
            }
            for pair in results.windows(2) {
                let (a, b) = (&pair[0], &pair[1]);
                assert!(a.1 == b.1, "{format:?}: {:?} and {:?}", a.0, b.0);
            }
        }
    }
}

#[test]
fn packing_normalises_and_selects_rows() {
    for (isa, format) in isas_and_formats() {
        let (rows, inputs, eps) = (11, 133, 1e-5);
        let (x, weight) = (values(3, rows * inputs), values(4, inputs));
        let picked: Vec<u32> = (0..rows as u32).rev().step_by(2).collect();
        let normed: Vec<f32> = picked
            .iter()
            .flat_map(|row| {
                let x = &x[*row as usize * inputs..][..inputs];
                let square: f64 = x.iter().map(|x| f64::from(*x).powi(2)).sum();
                let scale = 1.0 / (square / inputs as f64 + eps).sqrt();
                x.iter()
                    .zip(&weight)
                    .map(move |(x, w)| (f64::from(*x) * scale * f64::from(*w)) as f32)
            })
            .collect();
        let source = Activations {
            picked: Some(&picked),
            norm: Some((&weight, eps as f32)),
            ..Activations::plain(&x, inputs)
        };
        let x = packed(isa, 2, source, format);
        let ones = ones(isa, format, inputs);
        let mut out = vec![0.0; picked.len()];
        let product = Product {
            x: std::slice::from_ref(&x),
            weight: &ones,
            bias: None,
            out: &mut out,
            write: Write::Store,
        };
        matmul(
            &mut ThreadPool::new(1).expect("threads start"),
            isa,
            product,
        );
        for (row, got) in normed.chunks_exact(inputs).zip(out) {
            let expected: f32 = as_packed(format, row).into_iter().sum();
            assert!(
                (got - expected).abs() < 0.05,
                "{isa:?} {format:?}: {got} for {expected}"
            );
        }
    }
}

fn ones(isa: Isa, format: Format, inputs: usize) -> Stack {
    let (ones, shape) = (vec![1.0f32; inputs], [1, inputs]);
    let view = TensorView::plain(Dtype::F32, &shape, bytemuck::cast_slice(&ones));
    let mut pool = ThreadPool::new(1).expect("threads start");
    Stack::pack(
        (&mut pool, isa),
        &mut WeightArena::default(),
        FormatRule::all(format),
        (&[view], &[MatrixRole::Inner]),
    )
}

#[test]
fn packed_weights_are_the_stored_ones_rounded_to_the_format() {
    for (isa, format) in isas_and_formats() {
        let (outputs, inputs) = (21, 133);
        let weight = weight(isa, format, &[outputs], inputs);
        let stored = values(5, outputs * inputs);
        let mut row = vec![0.0; inputs];
        for (output, stored) in stored.chunks_exact(inputs).enumerate() {
            weight.read_row(output, &mut row);
            for (got, stored) in row.iter().zip(stored) {
                let right = match format {
                    Format::F32 => *got == *stored,
                    Format::F16 => *got == f16::from_f32(*stored).to_f32(),
                    Format::Bf16 | Format::ExactBf16 => *got == bf16::from_f32(*stored).to_f32(),
                    Format::Int8 => (got - stored).abs() <= 0.5 / 127.0 + 1e-6,
                    Format::Block32(_) | Format::Nibbles(_) | Format::KQuant(_) => {
                        unreachable!("see `blocks`")
                    }
                };
                assert!(right, "{isa:?} {format:?}: {got} for {stored}");
            }
        }
    }
}

#[test]
fn quantisation_does_not_hide_values_that_are_not_finite() {
    for isa in Isa::available() {
        let weight = weight(isa, Format::Int8, &[3], 200);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = values(3, 200);
            x[150] = bad;
            let got = product(isa, 1, &x, &weight, Write::Store);
            assert!(got.iter().all(|y| !y.is_finite()), "{isa:?} {bad}: {got:?}");
        }
    }
}

fn isas_and_formats() -> impl Iterator<Item = (Isa, Format)> {
    let isas = Isa::available().into_iter();
    isas.flat_map(|isa| FORMATS.map(|format| (isa, format)))
}
