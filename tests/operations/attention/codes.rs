//! Tests of attention to int8 keys and values.

use half::bf16;

use super::*;
use souffleur_kernels::cpu::element::{Borrowed, Storage};
use souffleur_kernels::cpu::planes::Planes;

const LEN: usize = 300;

fn world(isa: Isa, heads: HeadShape) -> World {
    let mut world = World::new(Setup {
        isa,
        dtype: KvDtype::Int8,
        heads,
        ..setup()
    });
    world.grow(1, (1, 0), LEN);
    world
}

/// Heads with more than one scale group, with few and with many queries per key head.
const SHAPES: [HeadShape; 2] = [
    HeadShape {
        n_heads: 4,
        n_kv_heads: 2,
        key_dim: 128,
        values: Values::Own { dim: 128 },
        scale: 0.1,
        score_cap: None,
        window: None,
    },
    HeadShape {
        n_heads: 10,
        n_kv_heads: 2,
        key_dim: 80,
        values: Values::Own { dim: 96 },
        scale: 0.1,
        score_cap: None,
        window: None,
    },
];

fn error(world: &mut World) -> f64 {
    let got = world.attend(&[part(1, LEN - 1, 1)]).remove(0);
    let expected = world.naive(KvDtype::Int8, 1, LEN - 1);
    let pairs = got.iter().zip(expected);
    pairs
        .map(|(got, expected)| (f64::from(f32::from_bits(*got)) - expected).abs())
        .fold(0.0, f64::max)
}

#[test]
fn a_wrong_code_or_scale_changes_the_output() {
    for isa in Isa::available() {
        for heads in SHAPES {
            let baseline = error(&mut world(isa, heads));
            assert!(baseline < 1e-4, "{isa:?}: {baseline}");
            for (of_scales, of_value) in
                [(true, false), (true, true), (false, false), (false, true)]
            {
                let mut world = world(isa, heads);
                let slot = world.table.slot(RowId::new(1), LEN - 1);
                let Storage::I8(codes, scales) = world.kv.layer_mut(0) else {
                    panic!("the layer is not in int8");
                };
                let codes: &mut [i8] = codes.slice();
                let scales: &mut [bf16] = scales.slice();
                let planes = Planes::over(&heads, codes);
                // The last group of the last head.
                let (at, dim, of_scale) = if of_value {
                    (
                        planes.values(1),
                        heads.values.dim(),
                        planes.scales_of_value(1, slot),
                    )
                } else {
                    (planes.keys(1), heads.key_dim, planes.scales_of_key(1, slot))
                };
                let last = at + planes.slot(slot) + dim - 1;
                if of_scales {
                    scales[of_scale.end - 1] = bf16::from_f32(0.5)
                } else {
                    codes[last] = if codes[last] > 0 { -127 } else { 127 }
                }
                let error = error(&mut world);
                assert!(
                    error > 3.0 * baseline,
                    "{isa:?}, {of_scales}, {of_value}: {error}, {baseline}"
                );
            }
        }
    }
}

#[test]
fn the_bits_are_the_same_on_all_paths_with_fused_multiply_adds() {
    for heads in SHAPES {
        let results: Vec<_> = Isa::available()
            .into_iter()
            .filter(|isa| *isa != Isa::Portable)
            .map(|isa| world(isa, heads).attend(&[part(1, 0, LEN)]))
            .collect();
        for pair in results.windows(2) {
            assert!(pair[0] == pair[1], "{heads:?}");
        }
    }
}
