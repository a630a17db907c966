//! Tests of activation encodings for groups of every size, against a plain computation.

use half::bf16;

use super::*;
use crate::cpu::activations::max_group_rows;

const GUARD: u32 = 0xdead_beef;

#[test]
fn groups_of_every_size_are_encoded_without_writing_past_the_end() {
    for isa in Isa::available() {
        for encoding in [Encoding::F32, Encoding::WideBf16, Encoding::Bf16] {
            for n in 1..=max_group_rows(isa) {
                for inputs in [2, 16, 30, 32, 34, 64, 100] {
                    check_encoding(isa, encoding, n, inputs);
                }
            }
        }
    }
}

#[test]
fn panels_are_encoded_like_rows_of_sixteen_values() {
    for isa in Isa::available() {
        for n in 1..=max_group_rows(isa) {
            let values: Vec<f32> = (0..n * LANES).map(|i| (i as f32 * 0.73).cos()).collect();
            let source = Activations::plain(&values, LANES);
            for encoding in [Encoding::Bf16, Encoding::WideBf16] {
                let n_words = n * encoding.row_words(LANES);
                let mut words = vec![GUARD; n_words + LANES];
                let (values, out) = (&values, &mut words[..n_words]);
                dispatch(
                    isa,
                    Panel {
                        encoding,
                        values,
                        n,
                        out,
                    },
                );
                let mut expected = vec![GUARD; n_words + LANES];
                pack_group(isa, encoding, source, 0..n, &mut expected[..n_words]);
                assert_eq!(words, expected, "{isa:?} {encoding:?}: {n} rows");
            }
        }
    }
}

struct Panel<'a> {
    encoding: Encoding,
    values: &'a [f32],
    n: usize,
    out: &'a mut [u32],
}

impl Kernel for Panel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let Self { values, n, out, .. } = self;
        // SAFETY: `dispatch` detected the instruction set.
        unsafe {
            match self.encoding {
                Encoding::Bf16 => pack_panel::<S, Pairs>(values, n, out),
                _ => pack_panel::<S, Rounded>(values, n, out),
            }
        }
    }
}

fn check_encoding(isa: Isa, encoding: Encoding, n: usize, inputs: usize) {
    let case = format!("{isa:?} {encoding:?}: {n} rows of {inputs}");
    let x: Vec<f32> = (0..n * inputs).map(|i| (i as f32 * 0.37).sin()).collect();
    let n_words = n * encoding.row_words(inputs);
    let mut words = vec![GUARD; n_words + LANES];
    let source = Activations::plain(&x, inputs);
    pack_group(isa, encoding, source, 0..n, &mut words[..n_words]);
    assert_eq!(words[n_words..], [GUARD; LANES], "{case}");
    for (index, value) in x.iter().enumerate() {
        let (m, i) = (index / inputs, index % inputs);
        let rounded = bf16::from_f32(*value).to_f32();
        let (bits, expected) = match encoding {
            Encoding::F32 => (words[i * n + m], *value),
            Encoding::WideBf16 => (words[i * n + m], rounded),
            _ if i % 2 == 0 => (words[i / 2 * n + m] << 16, rounded),
            _ => (words[i / 2 * n + m] & 0xffff_0000, rounded),
        };
        assert_eq!(bits, expected.to_bits(), "{case}: value {i} of row {m}");
    }
}
