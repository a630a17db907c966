//! Tests of attention whose values are of another width than the keys, or parts of the keys (MLA).

use super::*;

/// Heads with sizes that are and are not multiples of vectors.
const SHAPES: [HeadShape; 6] = [
    // Groups of at most three heads: a decode reads the pool directly if sizes are whole pairs of vectors, or in int8.
    shape((6, 2), 96, Values::Own { dim: 64 }),
    shape((3, 1), 64, Values::InKeys { dim: 32 }),
    shape((4, 4), 32, Values::Own { dim: 96 }),
    shape((3, 3), 42, Values::Own { dim: 30 }),
    // Larger groups, whose keys and values are packed.
    shape((10, 2), 40, Values::InKeys { dim: 24 }),
    shape((7, 1), 19, Values::InKeys { dim: 19 }),
];

const fn shape((n_heads, n_kv_heads): (usize, usize), key_dim: usize, values: Values) -> HeadShape {
    HeadShape {
        n_heads,
        n_kv_heads,
        key_dim,
        values,
        scale: 0.2,
        score_cap: None,
        window: None,
    }
}

#[test]
fn values_of_other_widths_are_right_on_every_instruction_set() {
    for heads in SHAPES {
        check_reference(heads, &[0, 1, 31, 64, 255, 256, 300]);
    }
    let windowed = HeadShape {
        window: Some(100),
        ..SHAPES[1]
    };
    check_reference(windowed, &[0, 99, 100, 270]);
}

#[test]
fn a_latent_vector_serves_as_key_and_value() {
    // DeepSeek's widths, with group sizes for both kernels.
    for n_heads in [1, 5] {
        let heads = shape((n_heads, 1), 576, Values::InKeys { dim: 512 });
        check_reference(
            HeadShape {
                scale: 0.07,
                ..heads
            },
            &[0, 130, 259],
        );
    }
}

#[test]
fn neither_chunks_nor_pages_nor_threads_change_a_bit_with_other_value_widths() {
    for (i, heads) in SHAPES.into_iter().enumerate() {
        check_chunks(DTYPES[i % DTYPES.len()], heads);
        check_chunks(KvDtype::BF16, heads);
        check_chunks(KvDtype::Int8, heads);
    }
}

#[test]
fn shared_prefixes_do_not_change_a_bit_with_other_value_widths() {
    for (heads, page_size) in SHAPES.into_iter().zip([1, 16, 1, 16, 1, 16]) {
        check_shared(KvDtype::BF16, heads, page_size);
        check_shared(KvDtype::Int8, heads, page_size);
    }
    check_shared(KvDtype::F32, SHAPES[1], 1);
}

#[test]
fn keys_and_values_outside_the_context_do_not_change_the_output_with_other_value_widths() {
    for dtype in DTYPES {
        for heads in SHAPES {
            check_outside_context(dtype, heads);
        }
    }
}

#[test]
fn values_in_keys_are_read_once() {
    let heads = SHAPES[1];
    let mut world = World::new(Setup { heads, ..setup() });
    world.grow(1, (1, 0), 300);
    world.attend(&[part(1, 299, 1)]);
    assert_eq!(world.attention.kv_bytes(), 300 * 64 * 2);
    let mut world = World::new(Setup {
        heads,
        dtype: KvDtype::Int8,
        ..setup()
    });
    world.grow(1, (1, 0), 300);
    world.attend(&[part(1, 299, 1)]);
    assert_eq!(world.attention.kv_bytes(), 300 * (64 + 2 * 2));
}

#[test]
fn every_element_of_a_slot_has_a_separate_place() {
    for heads in SHAPES.into_iter().chain([HEADS]) {
        let elements = heads.n_kv_heads * (heads.key_dim + heads.values.stored_dim());
        let mut taken = vec![false; SLOTS * elements];
        for slot in [0, 1, 2, SLOTS - 1] {
            for place in places(&heads, slot) {
                assert!(!std::mem::replace(&mut taken[place], true), "{heads:?}");
            }
        }
        assert_eq!(taken.iter().filter(|taken| **taken).count(), 4 * elements);
    }
}
