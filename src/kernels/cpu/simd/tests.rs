//! The lanes of every instruction set that this machine has, against plain arithmetic.

use super::{EIGHT, Isa, Kernel, LANES, Lanes, dispatch};

struct Exp([f32; LANES]);

impl Kernel for Exp {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<S: Lanes>(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: both arrays hold sixteen values; `dispatch` detected the instruction set.
        unsafe { S::store(out.as_mut_ptr(), S::exp(S::load(self.0.as_ptr()))) };
        out
    }
}

#[test]
fn exp_is_right_to_two_units_in_the_last_place() {
    for isa in Isa::available() {
        for step in 0..20_000 {
            let x: [f32; LANES] =
                std::array::from_fn(|i| -87.0 + (step * LANES + i) as f32 * 5.4e-4);
            for (x, got) in x.into_iter().zip(dispatch(isa, Exp(x))) {
                let expected = f64::from(x).exp();
                let error = (f64::from(got) - expected).abs() / expected;
                assert!(
                    error < 2.4e-7,
                    "{isa:?}: exp({x}) is {got}, expected {expected}, error {error}"
                );
            }
        }
    }
}

#[test]
fn exp_keeps_nan_and_stays_finite_elsewhere() {
    for isa in Isa::available() {
        let mut x = [0.0; LANES];
        x[..4].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e30]);
        let got = dispatch(isa, Exp(x));
        assert!(got[0].is_nan(), "{isa:?}");
        assert!(got[1].is_finite() && got[1] > 1e38, "{isa:?}: {}", got[1]);
        assert!(
            got[2..4].iter().all(|y| (0.0..2e-38).contains(y)),
            "{isa:?}: {got:?}"
        );
        assert!(got[4..].iter().all(|y| *y == 1.0), "{isa:?}: {got:?}");
    }
}

struct Exp2([f32; LANES]);

impl Kernel for Exp2 {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<S: Lanes>(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: both arrays hold sixteen values; `dispatch` detected the instruction set.
        unsafe { S::store(out.as_mut_ptr(), S::exp2(S::load(self.0.as_ptr()))) };
        out
    }
}

#[test]
fn exp2_is_right_to_two_units_in_the_last_place() {
    for isa in Isa::available() {
        for step in 0..10_000 {
            let x: [f32; LANES] =
                std::array::from_fn(|i| -126.0 + (step * LANES + i) as f32 * 7.9e-4);
            for (x, got) in x.into_iter().zip(dispatch(isa, Exp2(x))) {
                let expected = f64::from(x).exp2();
                let error = (f64::from(got) - expected).abs() / expected;
                assert!(
                    error < 2.4e-7,
                    "{isa:?}: 2^{x} is {got}, expected {expected}, error {error}"
                );
            }
        }
    }
}

#[test]
fn exp2_keeps_nan_one_and_almost_nothing() {
    for isa in Isa::available() {
        let mut x = [0.0; LANES];
        x[..3].copy_from_slice(&[f32::NAN, f32::NEG_INFINITY, -1e30]);
        let got = dispatch(isa, Exp2(x));
        assert!(got[0].is_nan(), "{isa:?}");
        assert!(
            got[1..3].iter().all(|y| (0.0..2e-38).contains(y)),
            "{isa:?}: {got:?}"
        );
        assert!(got[3..].iter().all(|y| *y == 1.0), "{isa:?}: {got:?}");
    }
}

struct Moves([[u32; LANES]; LANES]);

impl Kernel for Moves {
    type Output = ([[u32; LANES]; LANES], [[u32; LANES]; 2], f32);

    #[inline(always)]
    fn run<S: Lanes>(self) -> Self::Output {
        let (mut transposed, mut zipped) = ([[0; LANES]; LANES], [[0; LANES]; 2]);
        // SAFETY: every array holds sixteen words; `dispatch` detected the instruction set.
        unsafe {
            let rows = S::transpose(std::array::from_fn(|i| S::load_words(self.0[i].as_ptr())));
            for i in 0..LANES {
                S::store_words(transposed[i].as_mut_ptr(), rows[i]);
            }
            let (low, high) = (
                S::load_words(self.0[0].as_ptr()),
                S::load_words(self.0[1].as_ptr()),
            );
            let pairs = S::zip_bf16(low, high);
            S::store_words(zipped[0].as_mut_ptr(), pairs.0);
            S::store_words(zipped[1].as_mut_ptr(), pairs.1);
            let values: [f32; LANES] = std::array::from_fn(|i| self.0[2][i] as i32 as f32);
            let values = S::load(values.as_ptr());
            (transposed, zipped, S::max_lane(values))
        }
    }
}

#[test]
fn words_are_transposed_and_zipped() {
    for isa in Isa::available() {
        let rows: [[u32; LANES]; LANES] = std::array::from_fn(|row| {
            std::array::from_fn(|i| ((row * 100 + i) as u32).wrapping_mul(0x9e37_79b1))
        });
        let (transposed, zipped, max) = dispatch(isa, Moves(rows));
        for row in 0..LANES {
            for i in 0..LANES {
                assert_eq!(
                    transposed[i][row], rows[row][i],
                    "{isa:?}: row {row}, word {i}"
                );
            }
        }
        let half = |row: usize, i: usize| (rows[row][i / 2] >> (16 * (i % 2))) & 0xffff;
        for i in 0..2 * LANES {
            let word = zipped[i % 8 / 4][i / 8 * 4 + i % 4];
            assert_eq!(word, half(0, i) | half(1, i) << 16, "{isa:?}: element {i}");
        }
        let expected = rows[2].iter().map(|&word| word as i32 as f32);
        assert_eq!(max, expected.fold(f32::NEG_INFINITY, f32::max), "{isa:?}");
    }
}

struct TransposeEight([[u32; LANES]; EIGHT]);

impl Kernel for TransposeEight {
    type Output = [[u32; LANES]; EIGHT];

    #[inline(always)]
    fn run<S: Lanes>(self) -> Self::Output {
        let mut out = self.0;
        // SAFETY: every array holds sixteen words; `dispatch` detected the instruction set.
        unsafe {
            let rows = std::array::from_fn(|i| S::load_words(self.0[i].as_ptr()));
            for (pair, out) in S::transpose_eight(rows).into_iter().zip(&mut out) {
                S::store_words(out.as_mut_ptr(), pair);
            }
        }
        out
    }
}

#[test]
fn eight_rows_are_transposed_into_pairs_of_columns() {
    for isa in Isa::available() {
        let rows = std::array::from_fn(|row| std::array::from_fn(|i| (row * 100 + i) as u32));
        let pairs = dispatch(isa, TransposeEight(rows));
        for (i, word) in pairs.as_flattened().iter().enumerate() {
            assert_eq!(*word, rows[i % EIGHT][i / EIGHT], "{isa:?}: word {i}");
        }
    }
}

struct ZipQuarters([[f32; LANES]; 2]);

impl Kernel for ZipQuarters {
    type Output = [[f32; LANES]; 2];

    #[inline(always)]
    fn run<S: Lanes>(self) -> Self::Output {
        let mut out = [[0.0; LANES]; 2];
        // SAFETY: all arrays hold sixteen values; `dispatch` detected the instruction set.
        unsafe {
            let (first, second) =
                S::zip_quarters(S::load(self.0[0].as_ptr()), S::load(self.0[1].as_ptr()));
            S::store(out[0].as_mut_ptr(), first);
            S::store(out[1].as_mut_ptr(), second);
        }
        out
    }
}

#[test]
fn quarters_are_taken_by_turns() {
    let of = |base: usize| std::array::from_fn(|i| (base + i) as f32);
    for isa in Isa::available() {
        let [first, second] = dispatch(isa, ZipQuarters([of(0), of(100)]));
        let quarters = [0, 100, 4, 104, 8, 108, 12, 112];
        let expected = quarters
            .iter()
            .flat_map(|first| (0..4).map(move |i| (first + i) as f32));
        assert!(first.into_iter().chain(second).eq(expected), "{isa:?}");
    }
}
