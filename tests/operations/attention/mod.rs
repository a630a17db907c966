//! Tests that attention matches a double-precision reference, and that no bit depends on batch, chunks or pages.

mod bidirectional;
mod codes;
mod nodes;
mod sparse;
mod widths;
mod world;

use std::ops::Range;

use souffleur_base::ids::RowId;
use souffleur_base::kv_layout::{KvDtype, Values};
use souffleur_kernels::HeadShape;
use souffleur_kernels::cpu::Isa;
use souffleur_kernels::cpu::element::with_elements;
use world::{HEADS, Part, SLOTS, Setup, World, keep, part, places, setup};

const DTYPES: [KvDtype; 4] = [KvDtype::F32, KvDtype::BF16, KvDtype::F16, KvDtype::Int8];

#[test]
fn attention_is_right_on_every_instruction_set() {
    let shapes = [
        HEADS,
        HeadShape {
            n_heads: 8,
            n_kv_heads: 1,
            key_dim: 64,
            values: Values::Own { dim: 64 },
            scale: 0.125,
            score_cap: None,
            window: Some(100),
        },
        HeadShape {
            n_heads: 3,
            n_kv_heads: 3,
            key_dim: 42,
            values: Values::Own { dim: 42 },
            scale: 0.2,
            score_cap: Some(0.7),
            window: Some(1),
        },
        HeadShape {
            n_heads: 2,
            n_kv_heads: 1,
            key_dim: 128,
            values: Values::Own { dim: 128 },
            scale: 0.1,
            score_cap: Some(1.5),
            window: None,
        },
    ];
    for heads in shapes {
        check_reference(heads, &[0, 1, 15, 16, 63, 64, 100, 255, 256, 400, 529]);
    }
}

fn check_reference(heads: HeadShape, positions: &[usize]) {
    check_runs(heads, positions, &[]);
}

/// `runs` are the positions that see each other.
fn check_runs(heads: HeadShape, positions: &[usize], runs: &[Range<u32>]) {
    let len = positions.iter().max().map_or(0, |last| last + 1);
    for isa in Isa::available() {
        for dtype in DTYPES {
            let mut world = World::new(Setup {
                isa,
                dtype,
                heads,
                ..setup()
            });
            world.runs = runs.to_vec();
            world.grow(1, (1, 0), len);
            let got = world.attend(&[part(1, 0, len)]);
            for &position in positions {
                let expected = world.naive(dtype, 1, position);
                assert_eq!(got[position].len(), expected.len(), "{heads:?}");
                for (got, expected) in got[position].iter().zip(expected) {
                    let error = (f64::from(f32::from_bits(*got)) - expected).abs();
                    // The reference has the values of int8 codes; the kernels round queries and weights to 16 bits.
                    let limit = match dtype {
                        KvDtype::BF16 => 2e-2,
                        KvDtype::Int8 => 5e-4,
                        KvDtype::F32 | KvDtype::F16 => 2e-5,
                    };
                    assert!(
                        error < limit,
                        "{isa:?}, {dtype:?}, {heads:?}, position {position}: error {error}"
                    );
                }
            }
        }
    }
}

#[test]
fn capped_scores_are_right_and_no_bit_depends_on_the_chunks() {
    // A decode with few heads per key head reads the pool directly; other steps pack keys and values.
    for (n_heads, key_dim) in [(4, 32), (12, 24)] {
        let heads = HeadShape {
            n_heads,
            key_dim,
            values: Values::Own { dim: key_dim },
            score_cap: Some(2.0),
            window: Some(90),
            ..HEADS
        };
        check_reference(heads, &[0, 31, 130, 300]);
        for dtype in [KvDtype::BF16, KvDtype::F32] {
            check_chunks(dtype, heads);
            check_outside_context(dtype, heads);
        }
        check_shared(
            KvDtype::BF16,
            HeadShape {
                window: None,
                ..heads
            },
            16,
        );
    }
}

#[test]
fn neither_chunks_nor_pages_nor_threads_change_a_bit() {
    for (dtype, window) in [
        (KvDtype::BF16, None),
        (KvDtype::BF16, Some(90)),
        (KvDtype::F32, None),
        (KvDtype::F16, Some(300)),
        (KvDtype::Int8, None),
        (KvDtype::Int8, Some(90)),
    ] {
        check_chunks(dtype, HeadShape { window, ..HEADS });
    }
}

/// Compares the bits of a prompt computed at once with those of its chunks, in other pages, on more threads.
fn check_chunks(dtype: KvDtype, heads: HeadShape) {
    const LEN: usize = 700;
    for isa in Isa::available() {
        let base = Setup {
            isa,
            dtype,
            heads,
            ..setup()
        };
        let mut world = World::new(base);
        world.grow(1, (1, 0), LEN);
        let expected = world.attend(&[part(1, 0, LEN)]);
        for (chunk, page_size, threads) in [
            (1, 1, 1),
            (1, 16, 3),
            (7, 48, 2),
            (100, 512, 2),
            (LEN, 1, 3),
        ] {
            let mut world = World::new(Setup {
                page_size,
                threads,
                ..base
            });
            world.grow(1, (1, 0), LEN);
            for first in (0..LEN).step_by(chunk) {
                let n_tokens = chunk.min(LEN - first);
                let got = world.attend(&[part(1, first, n_tokens)]);
                assert!(
                    got == expected[first..first + n_tokens],
                    "{isa:?}, {dtype:?}, {heads:?}: {n_tokens} tokens from {first}, pages of {page_size}, {threads} threads"
                );
            }
        }
    }
}

/// Rows 2 to 8 share 784 tokens with row 1, rows 9 to 16 share 528, and two more rows share none; most rows decode.
fn prefix_rows(setup: Setup) -> (World, Vec<Part>) {
    let mut world = World::new(setup);
    world.grow(1, (1, 0), 900);
    for row in 2..=16 {
        let shared = if row <= 8 { 784 } else { 528 };
        world.grow(row, (1, shared), 800 + row as usize * 16);
    }
    world.grow(17, (17, 0), 700);
    world.grow(18, (18, 0), 100);
    let mut parts: Vec<Part> = (1..=18)
        .map(|row| part(row, world.seeds[row as usize].len() - 1, 1))
        .collect();
    // Some rows prefill: short chunks may share a tile with other rows, long chunks have separate tiles.
    parts[3] = part(4, 850, 5);
    parts[11] = part(12, 600, 300);
    parts[17] = part(18, 0, 100);
    (world, parts)
}

#[test]
fn shared_prefixes_do_not_change_a_bit() {
    for dtype in DTYPES {
        for (page_size, window) in [(1, None), (16, None), (1, Some(600)), (1, Some(5000))] {
            check_shared(dtype, HeadShape { window, ..HEADS }, page_size);
        }
    }
}

/// Compares the bits of rows whose shared prefixes are computed once with those without sharing and one by one.
fn check_shared(dtype: KvDtype, heads: HeadShape, page_size: usize) {
    for isa in Isa::available() {
        let base = Setup {
            isa,
            dtype,
            heads,
            page_size,
            ..setup()
        };
        let (mut alone, parts) = prefix_rows(Setup {
            shares: false,
            ..base
        });
        let expected = alone.attend(&parts);
        for threads in [1, 2] {
            let (mut together, parts) = prefix_rows(Setup { threads, ..base });
            let got = together.attend(&parts);
            assert!(
                got == expected,
                "{isa:?}, {dtype:?}, {heads:?}, pages of {page_size}"
            );
        }
        let mut row = Vec::new();
        for part in &parts {
            row.extend(alone.attend(&[*part]));
        }
        assert!(
            row == expected,
            "{isa:?}, {dtype:?}, {heads:?}: rows one by one"
        );
    }
}

#[test]
fn shared_prefix_is_read_once() {
    let bytes_per_key = 2 * HEADS.n_kv_heads * HEADS.key_dim * 2;
    let read = |shares| {
        let mut world = World::new(Setup { shares, ..setup() });
        world.grow(1, (1, 0), 600);
        for row in 2..=16 {
            world.grow(row, (1, 512), 512 + row as usize);
        }
        let parts: Vec<Part> = (2..=16)
            .map(|row| part(row, 511 + row as usize, 1))
            .collect();
        world.attend(&parts);
        world.attention.kv_bytes() / bytes_per_key
    };
    let own: usize = (2..=16).sum();
    assert_eq!(read(true), 512 + own);
    assert_eq!(read(false), 15 * 512 + own);
}

#[test]
fn rows_that_share_a_page_but_not_an_earlier_one_do_not_share_a_prefix() {
    let mut bits = Vec::new();
    for shares in [true, false] {
        let mut world = World::new(Setup { shares, ..setup() });
        world.grow(1, (1, 0), 600);
        world.grow(2, (1, 512), 600);
        // The rows have the same page where rows are compared for sorting, but an earlier page differs.
        let other = world.table.row(RowId::new(2))[590];
        world.table.row_mut(RowId::new(2))[300] = other;
        bits.push(world.attend(&[part(1, 599, 1), part(2, 599, 1)]));
    }
    assert!(bits[0] == bits[1]);
}

#[test]
fn keys_and_values_outside_the_context_of_a_query_do_not_change_its_output() {
    for dtype in DTYPES {
        check_outside_context(dtype, HEADS);
    }
}

fn check_outside_context(dtype: KvDtype, heads: HeadShape) {
    let mut world = World::new(Setup {
        dtype,
        heads,
        ..setup()
    });
    world.grow(1, (1, 0), 300);
    let expected = world.attend(&[part(1, 0, 300)]);
    let slot = world.table.slot(RowId::new(1), 280);
    let odd = |i: usize| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][i % 3];
    with_elements!(world.kv.layer_mut(0), kv, scales => keep(&heads, slot, (kv, scales), odd));
    let got = world.attend(&[part(1, 0, 300)]);
    assert!(got[..280] == expected[..280], "{dtype:?}, {heads:?}");
    for (position, got) in got.iter().enumerate().skip(280) {
        assert!(
            got.iter().all(|bits| f32::from_bits(*bits).is_nan()),
            "{dtype:?}, position {position}"
        );
    }
    let decoded: Vec<_> = (256..290)
        .map(|position| world.attend(&[part(1, position, 1)]).remove(0))
        .collect();
    assert!(
        decoded[..24] == got[256..280],
        "{dtype:?}, {heads:?}: decoded"
    );
}

#[test]
fn plans_and_buffers_are_reused() {
    let (mut world, parts) = prefix_rows(Setup {
        threads: 2,
        ..setup()
    });
    world.attend(&parts);
    let (records, plans) = (world.attention.states.as_ptr(), world.attention.plans.len());
    world.attend(&parts[..9]);
    world.attend(&parts);
    assert_eq!(world.attention.states.as_ptr(), records);
    assert_eq!(world.attention.plans.len(), plans);
}
