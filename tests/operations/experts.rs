//! Tests of MoE experts in every format: their bits are those of dense layers, and the errors against f64 are small.

use crate::matmul::blocks::{TYPES, product, seeded_stack_on};
use crate::matmul::{FORMATS, seeded_weight, seeded_weight_on, values};
use souffleur_kernels::Gate;
use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::cpu::experts::routes::Routes;
use souffleur_kernels::cpu::experts::{Experts, MoeContext};
use souffleur_kernels::cpu::format::Format;
use souffleur_kernels::cpu::panel::PANEL;
use souffleur_kernels::cpu::rowwise;
use souffleur_kernels::cpu::stack::Stack;
use souffleur_kernels::cpu::tensor::Scratch;
use souffleur_kernels::cpu::threads::ThreadPool;
use souffleur_kernels::cpu::{CpuBackend, Isa};
use souffleur_kernels::routing::Routing;
use souffleur_kernels::{Expert, Linear};

const EXPERTS: usize = 6;
const USED: usize = 3;
const F64_TOKENS: usize = 5;
const HIDDEN: usize = 256;
const WIDTH: usize = 256;

/// Weights of one expert in some format: gate and up, then down.
struct Weights {
    stacks: [Stack; 2],
    values: [Vec<f32>; 2],
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Plain(Format),
    Blocks(BlockType),
    Mixed(BlockType, BlockType),
}

fn kinds() -> Vec<Kind> {
    let plain = FORMATS.map(Kind::Plain).into_iter();
    let mixed = [
        Kind::Mixed(BlockType::Q4K, BlockType::Q6K),
        Kind::Mixed(BlockType::Q4K, BlockType::Q8_0),
    ];
    plain.chain(TYPES.map(Kind::Blocks)).chain(mixed).collect()
}

fn all_values(stack: &Stack) -> Vec<f32> {
    let mut values = vec![0.0; stack.outputs * stack.inputs];
    let rows = values.chunks_exact_mut(stack.inputs).enumerate();
    rows.for_each(|(row, out)| stack.read_row(row, out));
    values
}

fn weights(isa: Isa, kind: Kind, expert: usize) -> Weights {
    let mut pool = ThreadPool::new(2).expect("threads start");
    weights_on((&mut pool, isa), kind, expert)
}

fn weights_on((pool, isa): (&mut ThreadPool, Isa), kind: Kind, expert: usize) -> Weights {
    let seed = 100 * expert as u32;
    match kind {
        Kind::Plain(format) => {
            let down = seeded_weight_on((&mut *pool, isa), format, seed + 1, &[HIDDEN], WIDTH);
            let mut gate_up =
                |parts: &[usize]| seeded_weight_on((&mut *pool, isa), format, seed, parts, HIDDEN);
            let halves = gate_up(&[2 * WIDTH]);
            Weights {
                values: [all_values(&halves), all_values(&down)],
                stacks: [gate_up(&[WIDTH; 2]), down],
            }
        }
        Kind::Blocks(block) => in_blocks((pool, isa), [block; 3], seed),
        Kind::Mixed(gate, up) => in_blocks((pool, isa), [gate, up, gate], seed),
    }
}

fn in_blocks(
    (pool, isa): (&mut ThreadPool, Isa),
    [gate, up, down]: [BlockType; 3],
    seed: u32,
) -> Weights {
    let both = [(gate, WIDTH), (up, WIDTH)];
    let (gate_up, first) = seeded_stack_on((&mut *pool, isa), seed, &both, HIDDEN);
    let (down, second) = seeded_stack_on((pool, isa), seed + 7, &[(down, HIDDEN)], WIDTH);
    Weights {
        stacks: [gate_up, down],
        values: [first.concat(), second.concat()],
    }
}

fn linear(weight: Stack) -> Linear<CpuBackend> {
    Linear { weight, bias: None }
}

fn routes(isa: Isa, pool: &mut ThreadPool, n_tokens: usize, seed: u32) -> Routes {
    let routing = Routing::softmax(EXPERTS, USED, true);
    let mut logits = Scratch::default().tensor(n_tokens, EXPERTS);
    let random = values(seed, n_tokens * EXPERTS);
    logits.values_mut().copy_from_slice(&random);
    let mut routes = Routes::default();
    routes.choose((pool, isa), (&routing, [None; 2]), &logits);
    routes
}

fn moe(isa: Isa, threads: usize, experts: &Experts, x: &[f32], seed: u32) -> (Vec<f32>, Routes) {
    let mut pool = ThreadPool::new(threads).expect("threads start");
    moe_on((&mut pool, isa), experts, x, seed)
}

fn moe_on(
    (pool, isa): (&mut ThreadPool, Isa),
    experts: &Experts,
    x: &[f32],
    seed: u32,
) -> (Vec<f32>, Routes) {
    let scratch = Scratch::default();
    let n_tokens = x.len() / HIDDEN;
    let tensor = |values: &[f32]| {
        let mut tensor = scratch.tensor(n_tokens, HIDDEN);
        tensor.values_mut().copy_from_slice(values);
        tensor
    };
    let mut residual = tensor(&residual(n_tokens));
    let routes = routes(isa, pool, n_tokens, seed);
    let mut context = MoeContext {
        pool,
        isa,
        scratch: &scratch,
        routes: &routes,
        runs: &mut Vec::new(),
    };
    context.add(experts, &tensor(x), &mut residual);
    (residual.values().to_vec(), routes)
}

fn residual(n_tokens: usize) -> Vec<f32> {
    values(77, n_tokens * HIDDEN)
}

/// The experts and weights of a token, by ascending expert.
fn rows_of(routes: &Routes, token: usize) -> Vec<(usize, f32)> {
    let experts = routes.active.iter().flat_map(|active| {
        let rows = active.first..active.first + active.rows;
        rows.map(|row| (active.expert, row))
    });
    let own = experts.filter(|(_, row)| routes.tokens[*row] as usize == token);
    own.map(|(expert, row)| (expert, routes.weights[row]))
        .collect()
}

fn dense(isa: Isa, weights: &Weights, x: &[f32]) -> Vec<f32> {
    let [gate_up, down] = &weights.stacks;
    let scratch = Scratch::default();
    let mut both = scratch.tensor(1, 2 * WIDTH);
    both.values_mut()
        .copy_from_slice(&product(isa, 1, x, gate_up));
    let mut pool = ThreadPool::new(1).expect("threads start");
    let gated = rowwise::gated(&mut pool, isa, Gate::Silu, &both, scratch.tensor(1, WIDTH));
    product(isa, 1, gated.values(), down)
}

fn in_f64(weights: &Weights, x: &[f32]) -> Vec<f64> {
    let times = |x: &[f64], matrix: &[f32]| -> Vec<f64> {
        let rows = matrix.chunks_exact(x.len());
        let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
        rows.map(dot).collect()
    };
    let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    let both = times(&x, &weights.values[0]);
    let (gates, ups) = both.split_at(WIDTH);
    let gated = gates.iter().zip(ups);
    let gated: Vec<f64> = gated
        .map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up)
        .collect();
    times(&gated, &weights.values[1])
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn relative_error(got: &[f32], before: &[f32], expected: &[f64]) -> f64 {
    let (mut off, mut size) = (0.0, 0.0);
    for ((got, before), expected) in got.iter().zip(before).zip(expected) {
        off += (f64::from(*got) - f64::from(*before) - expected).powi(2);
        size += expected * expected;
    }
    (off / size).sqrt()
}

/// Maximum relative error, which comes from rounding activations: with bf16 three times, to eight bits.
fn bound(kind: Kind) -> f64 {
    match kind {
        Kind::Plain(Format::F32 | Format::F16) => 3e-6,
        Kind::Plain(Format::Bf16) => 1e-2,
        _ => 0.04,
    }
}

#[test]
fn experts_equal_dense_layers_in_every_format_and_for_any_number_of_tokens() {
    for isa in Isa::available() {
        for kind in kinds() {
            let all: Vec<Weights> = (0..EXPERTS)
                .map(|expert| weights(isa, kind, expert))
                .collect();
            let experts = Experts::new(
                (0..EXPERTS)
                    .map(|expert| {
                        let [gate_up, down] = weights(isa, kind, expert).stacks.map(linear);
                        Expert { gate_up, down }
                    })
                    .collect(),
                Gate::Silu,
            );
            let x = values(3, 30 * HIDDEN);
            for n_tokens in [1, 5, 30] {
                let x = &x[..n_tokens * HIDDEN];
                let (got, routes) = moe(isa, 3, &experts, x, 11);
                let (alone, _) = moe(isa, 1, &experts, x, 11);
                assert_eq!(bits(&got), bits(&alone), "{isa:?} {kind:?}: threads");
                let before = residual(n_tokens);
                let (mut right, mut sums) = (before.clone(), vec![0f64; before.len()]);
                for (token, x) in x.chunks_exact(HIDDEN).enumerate() {
                    let rows = rows_of(&routes, token);
                    assert_eq!(rows.len(), USED);
                    let own = token * HIDDEN..(token + 1) * HIDDEN;
                    for (expert, weight) in rows {
                        let y = dense(isa, &all[expert], x);
                        for (out, y) in right[own.clone()].iter_mut().zip(y) {
                            *out = match isa {
                                Isa::Portable if !cfg!(target_arch = "aarch64") => {
                                    weight * y + *out
                                }
                                _ => weight.mul_add(y, *out),
                            };
                        }
                        if n_tokens == F64_TOKENS {
                            let y = in_f64(&all[expert], x);
                            for (sum, y) in sums[own.clone()].iter_mut().zip(y) {
                                *sum += f64::from(weight) * y;
                            }
                        }
                    }
                }
                assert_eq!(
                    bits(&got),
                    bits(&right),
                    "{isa:?} {kind:?} {n_tokens} tokens"
                );
                if n_tokens == F64_TOKENS {
                    let error = relative_error(&got, &before, &sums);
                    assert!(error <= bound(kind), "{isa:?} {kind:?}: {error}");
                }
            }
        }
    }
}

#[test]
fn experts_on_numa_nodes_give_the_bits_of_one_node_in_every_format() {
    let experts = |isa, kind, threads: &[usize]| {
        let mut pool = ThreadPool::on_nodes(threads).expect("threads start");
        let experts = (0..EXPERTS).map(|expert| {
            let [gate_up, down] = weights_on((&mut pool, isa), kind, expert)
                .stacks
                .map(linear);
            Expert { gate_up, down }
        });
        let experts = Experts::new(experts.collect(), Gate::Silu);
        [1, 30].map(|n_tokens| {
            let x = values(3, n_tokens * HIDDEN);
            bits(&moe_on((&mut pool, isa), &experts, &x, 11).0)
        })
    };
    for isa in Isa::available() {
        for kind in kinds() {
            let expected = experts(isa, kind, &[2]);
            for threads in [&[1, 1][..], &[1, 2], &[1, 1, 1, 1]] {
                let got = experts(isa, kind, threads);
                assert_eq!(got, expected, "{isa:?} {kind:?}, {threads:?}");
            }
        }
    }
}

#[test]
fn routes_sort_tokens_by_expert_and_groups_cover_all_rows() {
    let isa = Isa::detect();
    let mut pool = ThreadPool::new(2).expect("threads start");
    let max_rows = souffleur_kernels::cpu::activations::max_group_rows(isa);
    for n_tokens in [0, 1, 2, 33, 300] {
        let routes = routes(isa, &mut pool, n_tokens, 5);
        assert_eq!(routes.rows(), n_tokens * USED);
        let mut first = 0;
        for active in &routes.active {
            assert_eq!(active.first, first);
            assert!(active.rows > 0);
            let tokens = &routes.tokens[first..first + active.rows];
            assert!(tokens.is_sorted_by(|a, b| a < b), "{tokens:?}");
            first += active.rows;
        }
        assert_eq!(first, routes.rows());
        let mut last_token = None;
        for block in &routes.blocks {
            let experts = &routes.active[block.clone()];
            assert!(experts.is_sorted_by(|a, b| a.expert < b.expert));
            let rows = experts
                .iter()
                .flat_map(|active| active.first..active.first + active.rows);
            let tokens = rows.map(|row| routes.tokens[row]);
            let (least, most) = tokens.fold((u32::MAX, 0), |(least, most), token| {
                (least.min(token), most.max(token))
            });
            assert!(last_token.is_none_or(|last| last < least) || experts.is_empty());
            last_token = last_token.max((!experts.is_empty()).then_some(most));
        }
        let blocks: usize = routes.blocks.iter().map(ExactSizeIterator::len).sum();
        assert_eq!(blocks, routes.active.len());
        let mut groups = routes.groups.iter();
        for active in &routes.active {
            let (mut at, end) = (active.first, active.first + active.rows);
            while at < end {
                let (start, end) = *groups.next().expect("groups cover all rows");
                assert_eq!(start as usize, at);
                assert!((1..=max_rows).contains(&((end - start) as usize)));
                at = end as usize;
            }
            assert_eq!(at, end);
        }
        assert!(groups.next().is_none());
    }
}

#[test]
fn blocks_of_tokens_have_the_bits_of_all_tokens_together() {
    let n_tokens = 16 * EXPERTS * 3 * 3 / USED;
    let x = values(3, n_tokens * HIDDEN);
    let kinds = [
        Kind::Plain(Format::Bf16),
        Kind::Plain(Format::Int8),
        Kind::Mixed(BlockType::Q4K, BlockType::Q6K),
    ];
    // Other instruction sets use a single block, which is faster there.
    let has_blocks = |isa| isa == Isa::Avx512Bf16;
    let cases = Isa::available().into_iter().flat_map(|isa| {
        let kinds = if has_blocks(isa) {
            &kinds[..]
        } else {
            &kinds[..1]
        };
        kinds.iter().map(move |kind| (isa, *kind))
    });
    for (isa, kind) in cases {
        let experts = (0..EXPERTS).map(|expert| {
            let [gate_up, down] = weights(isa, kind, expert).stacks.map(linear);
            Expert { gate_up, down }
        });
        let experts = Experts::new(experts.collect(), Gate::Silu);
        let (together, routes) = moe(isa, 1, &experts, &x, 11);
        assert_eq!(routes.blocks.len(), 1);
        for threads in [2, 3] {
            let (apart, routes) = moe(isa, threads, &experts, &x, 11);
            let blocks = if has_blocks(isa) { threads } else { 1 };
            assert_eq!(routes.blocks.len(), blocks, "{isa:?}");
            let case = format!("{isa:?}, {kind:?}, {threads} threads");
            assert_eq!(bits(&apart), bits(&together), "{case}");
        }
    }
}

#[test]
fn widths_that_fill_no_panel_are_padded() {
    let isa = Isa::detect();
    let clamped = Gate::Clamped {
        limit: 7.0,
        slope: 1.702,
    };
    // The panels of gate and up alternate. With 24 outputs each, the last two of four panels are partly filled.
    for (format, (width, gate)) in FORMATS
        .into_iter()
        .flat_map(|format| [(40usize, Gate::Silu), (24, clamped)].map(|of| (format, of)))
    {
        assert!(!width.is_multiple_of(PANEL));
        let hidden = 52;
        let experts = (0..EXPERTS as u32).map(|seed| Expert {
            gate_up: linear(seeded_weight(isa, format, seed, &[width; 2], hidden)),
            down: linear(seeded_weight(isa, format, seed + 50, &[hidden], width)),
        });
        let experts = Experts::new(experts.collect(), gate);
        let mut pool = ThreadPool::new(2).expect("threads start");
        let scratch = Scratch::default();
        let mut rows: Vec<Vec<f32>> = Vec::new();
        for n_tokens in [1, 60] {
            let routes = routes(isa, &mut pool, n_tokens, 9);
            let tensor = |seed| {
                let mut tensor = scratch.tensor(n_tokens, hidden);
                tensor
                    .values_mut()
                    .copy_from_slice(&values(seed, n_tokens * hidden));
                tensor
            };
            let mut residual = tensor(1);
            let mut context = MoeContext {
                pool: &mut pool,
                isa,
                scratch: &scratch,
                routes: &routes,
                runs: &mut Vec::new(),
            };
            context.add(&experts, &tensor(2), &mut residual);
            rows.push(residual.values()[..hidden].to_vec());
        }
        assert_eq!(bits(&rows[0]), bits(&rows[1]), "{format:?}, {width} wide");
    }
}
