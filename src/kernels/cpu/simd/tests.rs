//! Tests of the SIMD lanes of every available instruction set, against plain arithmetic.

use super::{EIGHT, FOUR, Isa, Kernel, LANES, Lanes, dispatch, dispatch_integers};

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
fn exp_is_accurate_to_two_units_in_the_last_place() {
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

struct Tanh([f32; LANES]);

impl Kernel for Tanh {
    type Output = [f32; LANES];

    #[inline(always)]
    fn run<S: Lanes>(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        // SAFETY: both arrays hold sixteen values; `dispatch` detected the instruction set.
        unsafe { S::store(out.as_mut_ptr(), S::tanh(S::load(self.0.as_ptr()))) };
        out
    }
}

#[test]
fn tanh_is_accurate_to_four_units_in_the_last_place_and_never_beyond_one() {
    for isa in Isa::available() {
        for step in 0..20_000 {
            // Near zero too, where only the relative error counts.
            let far = |i: usize| -10.0 + (step * LANES + i) as f32 * 6.25e-5;
            let near = |i: usize| 1e-6 * 1.000_05f32.powi((step * LANES + i) as i32);
            let x: [f32; LANES] = std::array::from_fn(|i| match i % 2 {
                0 => far(i),
                _ => near(i).min(9.0),
            });
            for (x, got) in x.into_iter().zip(dispatch(isa, Tanh(x))) {
                let expected = f64::from(x).tanh();
                let error = (f64::from(got) - expected).abs();
                assert!(
                    error <= 4.8e-7 * expected.abs() && got.abs() <= 1.0,
                    "{isa:?}: tanh({x}) is {got}, expected {expected}, error {error}"
                );
            }
        }
        let mut x = [0.0; LANES];
        x[..4].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e30]);
        let got = dispatch(isa, Tanh(x));
        assert!(got[0].is_nan(), "{isa:?}");
        for (got, expected) in got[1..5].iter().zip([1.0, -1.0, -1.0, 0.0]) {
            assert!((got - expected).abs() <= 4.8e-7, "{isa:?}: {got}");
        }
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
fn exp2_is_accurate_to_two_units_in_the_last_place() {
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
fn exp2_keeps_nan_and_one_and_underflows_to_almost_zero() {
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

struct TransposeSome<const N: usize>([[u32; LANES]; N]);

impl<const N: usize> Kernel for TransposeSome<N> {
    type Output = [[u32; LANES]; N];

    #[inline(always)]
    fn run<S: Lanes>(self) -> Self::Output {
        let mut out = self.0;
        // SAFETY: every array holds sixteen words; `dispatch` detected the instruction set.
        unsafe {
            let rows = self.0.map(|row| S::load_words(row.as_ptr()));
            let columns = match N {
                FOUR => S::transpose_four(std::array::from_fn(|i| rows[i])).to_vec(),
                _ => S::transpose_eight(std::array::from_fn(|i| rows[i])).to_vec(),
            };
            for (columns, out) in columns.into_iter().zip(&mut out) {
                S::store_words(out.as_mut_ptr(), columns);
            }
        }
        out
    }
}

fn some_rows_are_transposed<const N: usize>() {
    for isa in Isa::available() {
        let rows = std::array::from_fn(|row| std::array::from_fn(|i| (row * 100 + i) as u32));
        let columns = dispatch(isa, TransposeSome::<N>(rows));
        for (i, word) in columns.as_flattened().iter().enumerate() {
            assert_eq!(*word, rows[i % N][i / N], "{isa:?}: word {i}");
        }
    }
}

#[test]
fn eight_rows_are_transposed_into_pairs_of_columns() {
    some_rows_are_transposed::<EIGHT>();
}

#[test]
fn four_rows_are_transposed_into_groups_of_four_columns() {
    some_rows_are_transposed::<FOUR>();
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
fn quarters_are_interleaved() {
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

/// Operands: sums; signed bytes or pairs of i16; unsigned bytes or pairs of i16.
#[derive(Clone, Copy)]
struct Dots([[u32; LANES]; 3]);

impl Kernel for Dots {
    type Output = [[u32; LANES]; 4];

    #[inline(always)]
    fn run<S: Lanes>(self) -> Self::Output {
        let mut out = [[0; LANES]; 4];
        // SAFETY: every array holds sixteen words; `dispatch_integers` detected the instruction set.
        unsafe {
            let [acc, a, b] = self.0.map(|words| S::load_words(words.as_ptr()));
            // The sum of two products of 7-bit and 8-bit numbers fits into i16.
            let small = S::and(b, S::splat_word(0x7f7f_7f7f));
            let codes = S::dot_codes(S::splat_word(0), a, small);
            let results = [
                S::dot_quads(acc, a, b),
                S::dot_shorts(acc, a, b),
                S::add_scaled(acc, codes, S::low_scales(b)),
                S::add_scaled(acc, codes, S::high_scales(b)),
            ];
            for (out, result) in out.iter_mut().zip(results) {
                S::store_words(out.as_mut_ptr(), result);
            }
        }
        out
    }
}

#[test]
fn integer_dots_are_exact() {
    let dot = |signed: u32, unsigned: u32| -> i32 {
        let bytes = signed.to_le_bytes().into_iter().zip(unsigned.to_le_bytes());
        bytes.map(|(a, b)| i32::from(a as i8) * i32::from(b)).sum()
    };
    let shorts = |word: u32| [i32::from(word as i16), i32::from((word >> 16) as i16)];
    for isa in Isa::available() {
        for seed in 0..200 {
            let random = |i: usize| ((seed * 64 + i) as u32 + 1).wrapping_mul(0x9e37_79b1);
            let mut given: [[u32; LANES]; 3] =
                std::array::from_fn(|row| std::array::from_fn(|i| random(row * LANES + i)));
            given[0] = given[0].map(|word| word >> 8);
            // The extremes: -128 by 255 in all bytes, and by the largest code.
            (given[1][0], given[2][0]) = (0x8080_8080, 0xffff_ffff);
            (given[1][1], given[2][1]) = (0x7f7f_7f7f, 0xffff_ffff);
            let got = dispatch_integers(isa, Dots(given));
            for lane in 0..LANES {
                let [acc, a, b] = given.map(|words| words[lane]);
                let (sa, sb) = (shorts(a), shorts(b));
                let codes = dot(a, b & 0x7f7f_7f7f);
                let expected = [
                    dot(a, b),
                    (sa[0] * sb[0]).wrapping_add(sa[1] * sb[1]),
                    codes.wrapping_mul(sb[0]),
                    codes.wrapping_mul(sb[1]),
                ];
                let expected = expected.map(|sum| acc.wrapping_add(sum as u32));
                assert_eq!(
                    got.map(|words| words[lane]),
                    expected,
                    "{isa:?}: lane {lane}"
                );
            }
        }
    }
}

#[test]
fn instruction_sets_have_distinct_names_and_missing_ones_are_reported() {
    let names = Isa::ALL.map(Isa::name);
    let expected = [
        "portable",
        "avx2",
        "avx2_vnni",
        "avx512",
        "avx512_vnni",
        "avx512_bf16",
        "amx",
    ];
    assert_eq!(names, expected);
    let available = Isa::available();
    assert_eq!(
        Isa::detect(),
        *available.last().expect("the portable path is available")
    );
    for isa in Isa::ALL.iter().filter(|isa| !available.contains(isa)) {
        report(&format!(
            "kernel path {}: not present on this machine\n",
            isa.name()
        ));
    }
    #[cfg(target_arch = "x86_64")]
    if available.contains(&Isa::Avx2Vnni) && !is_x86_feature_detected!("avxvnni") {
        report("kernel path avx2_vnni: AVX-512 VNNI stands in for AVX-VNNI in these tests\n");
    }
}

/// Prints to the terminal: the test runner hides output of `eprintln` from tests that pass.
fn report(line: &str) {
    let written = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
    written.expect("stderr is writable");
}

struct Bytes([[u32; LANES]; 4]);

impl Kernel for Bytes {
    type Output = ([[u32; LANES]; 4], [[u32; LANES]; 3]);

    #[inline(always)]
    fn run<S: Lanes>(self) -> Self::Output {
        let (mut zipped, mut others) = ([[0; LANES]; 4], [[0; LANES]; 3]);
        // SAFETY: whole vectors; `dispatch` detected the instruction set.
        unsafe {
            let rows = self.0.map(|row| S::load_words(row.as_ptr()));
            for (to, words) in zipped.iter_mut().zip(S::zip_bytes(rows)) {
                S::store_words(to.as_mut_ptr(), words);
            }
            let words = [
                S::extend_bytes(rows[0]),
                S::high_bytes(rows[0]),
                S::add_words(rows[0], rows[1]),
            ];
            for (to, words) in others.iter_mut().zip(words) {
                S::store_words(to.as_mut_ptr(), words);
            }
        }
        (zipped, others)
    }
}

#[test]
fn bytes_of_four_rows_are_zipped_and_become_shorts() {
    let rows: [[u32; LANES]; 4] = std::array::from_fn(|row| {
        std::array::from_fn(|i| ((row * 100 + i) as u32).wrapping_mul(0x9e37_79b1))
    });
    let byte = |row: usize, i: usize| rows[row][i / 4].to_le_bytes()[i % 4];
    let short = |byte: u8| u32::from(i16::from(byte as i8) as u16);
    for isa in Isa::available() {
        let (zipped, [low, high, sums]) = dispatch(isa, Bytes(rows));
        for i in 0..LANES {
            for (k, quads) in zipped.iter().enumerate() {
                let (half, quarter) = (k / 2, i / 4);
                let word = (2 * half + quarter % 2) * 4 + 2 * (k % 2) + quarter / 2;
                let at = 4 * word + i % 4;
                let expected = [0, 1, 2, 3].map(|row| byte(row, at));
                assert_eq!(quads[i].to_le_bytes(), expected, "{isa:?}: {k}, {i}");
            }
            let [b0, b1, b2, b3] = rows[0][i].to_le_bytes();
            assert_eq!(low[i], short(b0) | short(b2) << 16, "{isa:?}");
            assert_eq!(high[i], short(b1) | short(b3) << 16, "{isa:?}");
            assert_eq!(sums[i], rows[0][i].wrapping_add(rows[1][i]), "{isa:?}");
        }
    }
}
