//! Tests of queries that see their whole run of keys, as those of an image do in some models.

use std::ops::Range;

use souffleur_base::kv_layout::{KvDtype, Values};
use souffleur_base::prompt_images::BidirectionalLayers;
use souffleur_kernels::HeadShape;

use super::check_runs;
use super::world::{HEADS, Setup, World, part, setup};

const LEN: usize = 300;

/// Runs of several blocks and spans of keys, of a few keys and of one.
fn runs() -> Vec<Range<u32>> {
    vec![3..40, 41..42, 100..280, 290..300]
}

/// A decode with few heads per key head reads the pool directly; other steps pack keys and values.
fn shapes() -> [HeadShape; 3] {
    let direct = HeadShape {
        key_dim: 32,
        values: Values::Own { dim: 32 },
        ..HEADS
    };
    let windowed = HeadShape {
        window: Some(90),
        ..direct
    };
    let many = HeadShape {
        n_heads: 12,
        ..HEADS
    };
    [direct, windowed, many]
}

fn world(setup: Setup) -> World {
    let mut world = World::new(setup);
    world.runs = runs();
    world.grow(1, (1, 0), LEN);
    world
}

#[test]
fn queries_see_the_keys_up_to_the_end_of_their_run() {
    let positions = [
        0, 2, 3, 20, 39, 40, 41, 99, 100, 127, 128, 200, 255, 256, 279, 280, 290, 299,
    ];
    for heads in shapes() {
        check_runs(heads, &positions, &runs());
    }
}

#[test]
fn neither_chunks_nor_cached_parts_of_runs_nor_pages_change_a_bit() {
    let [direct, windowed, _] = shapes();
    for heads in [direct, windowed] {
        for dtype in [KvDtype::BF16, KvDtype::F32, KvDtype::Int8] {
            let setup = Setup {
                dtype,
                heads,
                ..setup()
            };
            let expected = world(setup).attend(&[part(1, 0, LEN)]);
            for (page_size, threads) in [(1, 1), (16, 3), (256, 2)] {
                let mut world = world(Setup {
                    page_size,
                    threads,
                    ..setup
                });
                let name = format!("{heads:?}, {dtype:?}, pages of {page_size}");
                // The prefix is cached up to `first`, also within a run.
                for first in (1..LEN).step_by(71).chain([39, 99, 101, 279, 299]) {
                    let got = world.attend(&[part(1, first, LEN - first)]);
                    assert!(got == expected[first..], "{name}, from {first}");
                }
                let ends = [0, 1, 3, 40, 42, 43, 99, 281, 289, LEN];
                for chunk in ends.windows(2) {
                    let (first, end) = (chunk[0], chunk[1]);
                    let got = world.attend(&[part(1, first, end - first)]);
                    assert!(got == expected[first..end], "{name}, {first} to {end}");
                }
            }
        }
    }
}

#[test]
fn rows_with_runs_share_prefixes_and_steps() {
    for heads in shapes() {
        let setup = Setup {
            heads,
            page_size: 16,
            ..setup()
        };
        let mut world = World::new(setup);
        world.runs = vec![60..70, 256..288];
        world.grow(1, (1, 0), LEN);
        world.grow(2, (1, 256), LEN);
        world.grow(3, (1, 0), 80);
        let parts = [
            part(3, 79, 1),
            part(1, 256, 44),
            part(3, 64, 15),
            part(2, 256, 44),
            part(1, 250, 50),
        ];
        let together = world.attend(&parts);
        let mut first = 0;
        for one in parts {
            let alone = world.attend(&[one]);
            let got = &together[first..first + one.n_tokens];
            assert!(
                alone == got,
                "{heads:?}, row {} from {}",
                one.row,
                one.first
            );
            first += one.n_tokens;
        }
    }
}

#[test]
fn causal_queries_in_a_run_differ_and_all_others_are_equal() {
    for heads in shapes() {
        let setup = Setup { heads, ..setup() };
        let mut world = world(setup);
        let got = world.attend(&[part(1, 0, LEN)]);
        world.runs.clear();
        let causal = world.attend(&[part(1, 0, LEN)]);
        for (position, (got, causal)) in got.iter().zip(&causal).enumerate() {
            let mut runs = runs().into_iter();
            // The last query of a run sees no later key.
            let sees_ahead = runs
                .any(|run| run.contains(&(position as u32 + 1)) && run.start as usize <= position);
            assert_eq!(got != causal, sees_ahead, "{heads:?}, position {position}");
        }
        world.runs = runs();
        world.layers = BidirectionalLayers::Windowed;
        let in_windows = world.attend(&[part(1, 0, LEN)]);
        let expected = if heads.window.is_some() {
            &got
        } else {
            &causal
        };
        assert!(in_windows == *expected, "{heads:?}");
    }
}
