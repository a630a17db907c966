//! The headers, scales and codes of each K-quant in registers.

use half::f16;

use super::super::format::PANEL;
use super::super::simd::Lanes;
use super::{KQuant, SUB_STEPS};

/// Bytes without their two highest bits.
const SIX_BITS: u32 = 0x3f3f_3f3f;
/// Low halves of bytes.
const LOW_HALVES: u32 = 0x0f0f_0f0f;
/// The fifth and sixth bits of bytes.
const UPPER_TWO: u32 = 0x3030_3030;
/// The fifth bits of bytes.
const FIFTH: u32 = 0x1010_1010;
/// The bytes 0 and 2 of words.
const EVEN_BYTES: u32 = 0x00ff_00ff;

/// 4 bits from minima on.
pub struct Q4K;
/// 5 bits from minima on.
pub struct Q5K;
/// 6 bits around zero.
pub struct Q6K;

/// The header of Q4_K and Q5_K: d, dmin; scales and minima of the sub-blocks, a byte each, of 0 to 3 and of 4 to 7.
#[derive(Clone, Copy)]
pub struct MinHeader<S: Lanes> {
    d: S::V,
    dmin: S::V,
    scales: [S::W; 2],
    minima: [S::W; 2],
}

impl<S: Lanes> MinHeader<S> {
    /// # Safety
    /// `block` is valid for a superblock; the instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn load(block: *const u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            let halves = block.cast::<f16>();
            let word = |i: usize| S::load_words(block.wrapping_add((1 + i) * PANEL));
            let [w0, w1, w2] = [word(0), word(1), word(2)];
            let six = S::splat_word(SIX_BITS);
            let low = S::splat_word(LOW_HALVES);
            let upper = S::splat_word(UPPER_TWO);
            let upper_of = |word| S::and(S::shift_right(word, 2), upper);
            Self {
                d: S::load_f16(halves),
                dmin: S::load_f16(halves.wrapping_add(PANEL)),
                scales: [S::and(w0, six), S::or(S::and(w2, low), upper_of(w0))],
                minima: [
                    S::and(w1, six),
                    S::or(S::and(S::shift_right(w2, 4), low), upper_of(w1)),
                ],
            }
        }
    }

    /// Scales and minima of a sub-block, each twice in a word.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn of(&self, sub_block: usize) -> (S::W, S::W) {
        // SAFETY: the caller's promise.
        unsafe {
            let twice = |bytes: S::W| {
                let byte = S::shift_right(bytes, 8 * (sub_block % 4) as u32);
                let byte = S::and(byte, S::splat_word(0xff));
                S::or(byte, S::shift_left(byte, 16))
            };
            (
                twice(self.scales[sub_block / 4]),
                twice(self.minima[sub_block / 4]),
            )
        }
    }

    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn add(&self, (scaled, minima): (S::W, S::W), dx: S::V, acc: S::V) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let acc = S::mul_add(S::words_to_f32(scaled), S::mul(self.d, dx), acc);
            let min = S::sub(S::splat(0.0), S::mul(self.dmin, dx));
            S::mul_add(S::words_to_f32(minima), min, acc)
        }
    }
}

/// Four lines of codes: the low halves are the first four steps, the high ones the last four.
///
/// # Safety
/// `lines` is valid for four lines; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn halves<S: Lanes>(lines: *const u32) -> [S::W; SUB_STEPS] {
    // SAFETY: the caller's promise.
    unsafe {
        let low = S::splat_word(LOW_HALVES);
        let mut codes = [S::splat_word(0); SUB_STEPS];
        for u in 0..SUB_STEPS / 2 {
            let line = S::load_words(lines.wrapping_add(u * PANEL));
            codes[u] = S::and(line, low);
            codes[u + SUB_STEPS / 2] = S::and(S::shift_right(line, 4), low);
        }
        codes
    }
}

impl KQuant for Q4K {
    const LINES: usize = 36;
    const SCALED_STEPS: usize = 8;
    // 8 x 2 x 15 x 127 = 30,480.
    const NARROW_STEPS: usize = 8;
    type Header<S: Lanes> = MinHeader<S>;

    #[inline(always)]
    unsafe fn header<S: Lanes>(block: *const u32) -> MinHeader<S> {
        // SAFETY: the caller's promise.
        unsafe { MinHeader::load(block) }
    }

    #[inline(always)]
    unsafe fn scales<S: Lanes>(header: &MinHeader<S>, sub_block: usize) -> (S::W, S::W) {
        // SAFETY: the caller's promise.
        unsafe { header.of(sub_block) }
    }

    #[inline(always)]
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS] {
        // SAFETY: the caller's promise.
        unsafe { halves::<S>(block.wrapping_add((4 + 4 * sub_block) * PANEL)) }
    }

    #[inline(always)]
    unsafe fn add<S: Lanes>(
        header: &MinHeader<S>,
        sums: (S::W, S::W),
        dx: S::V,
        acc: S::V,
    ) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { header.add(sums, dx, acc) }
    }
}

impl KQuant for Q5K {
    const LINES: usize = 44;
    const SCALED_STEPS: usize = 8;
    // 4 x 2 x 31 x 127 = 31,496.
    const NARROW_STEPS: usize = 4;
    type Header<S: Lanes> = MinHeader<S>;

    #[inline(always)]
    unsafe fn header<S: Lanes>(block: *const u32) -> MinHeader<S> {
        // SAFETY: the caller's promise.
        unsafe { MinHeader::load(block) }
    }

    #[inline(always)]
    unsafe fn scales<S: Lanes>(header: &MinHeader<S>, sub_block: usize) -> (S::W, S::W) {
        // SAFETY: the caller's promise.
        unsafe { header.of(sub_block) }
    }

    #[inline(always)]
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS] {
        // SAFETY: the caller's promise.
        unsafe {
            let lines = block.wrapping_add((4 + 5 * sub_block) * PANEL);
            let mut codes = halves::<S>(lines);
            let fifths = S::load_words(lines.wrapping_add(4 * PANEL));
            let fifth = S::splat_word(FIFTH);
            for (step, codes) in codes.iter_mut().enumerate() {
                let bits = match step < 4 {
                    true => S::shift_left(fifths, 4 - step as u32),
                    false => S::shift_right(fifths, step as u32 - 4),
                };
                *codes = S::or(*codes, S::and(bits, fifth));
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn add<S: Lanes>(
        header: &MinHeader<S>,
        sums: (S::W, S::W),
        dx: S::V,
        acc: S::V,
    ) -> S::V {
        // SAFETY: the caller's promise.
        unsafe { header.add(sums, dx, acc) }
    }
}

/// The header of Q6_K: d; four words of scales.
#[derive(Clone, Copy)]
pub struct SignedHeader<S: Lanes> {
    d: S::V,
    scales: [S::W; 4],
}

impl KQuant for Q6K {
    const LINES: usize = 53;
    const SCALED_STEPS: usize = 4;
    // 2 x 2 x 63 x 127 = 32,004.
    const NARROW_STEPS: usize = 2;
    type Header<S: Lanes> = SignedHeader<S>;

    #[inline(always)]
    unsafe fn header<S: Lanes>(block: *const u32) -> SignedHeader<S> {
        // SAFETY: the caller's promise.
        unsafe {
            SignedHeader {
                d: S::load_f16(block.cast::<f16>()),
                scales: std::array::from_fn(|i| S::load_words(block.wrapping_add((1 + i) * PANEL))),
            }
        }
    }

    #[inline(always)]
    unsafe fn scales<S: Lanes>(header: &SignedHeader<S>, sub_block: usize) -> (S::W, S::W) {
        // SAFETY: the caller's promise.
        unsafe {
            let word = header.scales[sub_block / 2];
            // Bytes 0 and 2 are the pair of the even sub-block, 1 and 3 that of the odd one.
            let bytes = S::and(
                S::shift_right(word, 8 * (sub_block % 2) as u32),
                S::splat_word(EVEN_BYTES),
            );
            let pair = S::extend_bytes(bytes);
            (pair, pair)
        }
    }

    #[inline(always)]
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS] {
        // SAFETY: the caller's promise.
        unsafe {
            let lines = block.wrapping_add((5 + 6 * sub_block) * PANEL);
            let mut codes = halves::<S>(lines);
            let upper = S::splat_word(UPPER_TWO);
            for half in 0..2 {
                let bits = S::load_words(lines.wrapping_add((4 + half) * PANEL));
                for u in 0..SUB_STEPS / 2 {
                    let bits = match u {
                        0 | 1 => S::shift_left(bits, 4 - 2 * u as u32),
                        2 => bits,
                        _ => S::shift_right(bits, 2),
                    };
                    let code = &mut codes[half * SUB_STEPS / 2 + u];
                    *code = S::or(*code, S::and(bits, upper));
                }
            }
            codes
        }
    }

    #[inline(always)]
    unsafe fn add<S: Lanes>(
        header: &SignedHeader<S>,
        (scaled, minima): (S::W, S::W),
        dx: S::V,
        acc: S::V,
    ) -> S::V {
        // SAFETY: the caller's promise.
        unsafe {
            let exact = S::sub_words(scaled, S::shift_left(minima, 5));
            S::mul_add(S::words_to_f32(exact), S::mul(header.d, dx), acc)
        }
    }
}
