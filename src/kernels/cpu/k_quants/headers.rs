//! Unpacks the scales and minima of K-quant superblocks into registers.

use half::f16;

use super::super::panel::PANEL;
use super::super::simd::Lanes;
use super::Header;

const SIX_BITS: u32 = 0x3f3f_3f3f;
const LOW_HALVES: u32 = 0x0f0f_0f0f;
const UPPER_TWO: u32 = 0x3030_3030;
const EVEN_BYTES: u32 = 0x00ff_00ff;
const EVEN_LOW_HALVES: u32 = 0x000f_000f;

/// Lines of scale bytes, one byte for each sixteen inputs. In a word, bytes 0 and 2 belong to an even sub-block, bytes
/// 1 and 3 to the next, odd one.
const PAIR_LINES: usize = 4;

/// `acc + scaled (d dx) - minima (dmin dx)`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn add_with_minima<S: Lanes>(
    (d, dmin): (S::V, S::V),
    (scaled, minima): (S::W, S::W),
    dx: S::V,
    acc: S::V,
) -> S::V {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let acc = S::mul_add(S::words_to_f32(scaled), S::mul(d, dx), acc);
        let min = S::sub(S::splat(0.0), S::mul(dmin, dx));
        S::mul_add(S::words_to_f32(minima), min, acc)
    }
}

/// The two scale bytes of a sub-block.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn pair<S: Lanes>(lines: &[S::W; PAIR_LINES], sub_block: usize) -> S::W {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let word = S::shift_right(lines[sub_block / 2], 8 * (sub_block % 2) as u32);
        S::and(word, S::splat_word(EVEN_BYTES))
    }
}

/// # Safety
/// `lines` is valid for [`PAIR_LINES`] lines; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn load_pairs<S: Lanes>(lines: *const u32) -> [S::W; PAIR_LINES] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut pairs = [S::splat_word(0); PAIR_LINES];
        for (i, pair) in pairs.iter_mut().enumerate() {
            *pair = S::load_words(lines.wrapping_add(i * PANEL));
        }
        pairs
    }
}

/// Copies a byte of each word into both of the word's i16.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn twice<S: Lanes>(words: S::W, byte: usize) -> S::W {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let byte = S::shift_right(words, 8 * byte as u32);
        let byte = S::and(byte, S::splat_word(0xff));
        S::or(byte, S::shift_left(byte, 16))
    }
}

/// The upper two bits of scales 4 to 7 of Q4_K, which the bytes of scales 0 to 3 contain.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn upper_two<S: Lanes>(words: S::W) -> S::W {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe { S::and(S::shift_right(words, 2), S::splat_word(UPPER_TWO)) }
}

/// The header of Q4_K and Q5_K: d, dmin, and the scales and minima of sub-blocks 0 to 3 and 4 to 7, a byte each.
#[derive(Clone, Copy)]
pub struct MinHeader<S: Lanes> {
    d: S::V,
    dmin: S::V,
    scales: [S::W; 2],
    minima: [S::W; 2],
}

impl<S: Lanes> Header<S> for MinHeader<S> {
    #[inline(always)]
    unsafe fn load(block: *const u32) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let halves = block.cast::<f16>();
            let w0 = S::load_words(block.wrapping_add(PANEL));
            let w1 = S::load_words(block.wrapping_add(2 * PANEL));
            let w2 = S::load_words(block.wrapping_add(3 * PANEL));
            let six = S::splat_word(SIX_BITS);
            let low = S::splat_word(LOW_HALVES);
            Self {
                d: S::load_f16(halves),
                dmin: S::load_f16(halves.wrapping_add(PANEL)),
                scales: [S::and(w0, six), S::or(S::and(w2, low), upper_two::<S>(w0))],
                minima: [
                    S::and(w1, six),
                    S::or(S::and(S::shift_right(w2, 4), low), upper_two::<S>(w1)),
                ],
            }
        }
    }

    #[inline(always)]
    unsafe fn scales(&self, sub_block: usize) -> (S::W, S::W) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let (word, byte) = (sub_block / 4, sub_block % 4);
            (
                twice::<S>(self.scales[word], byte),
                twice::<S>(self.minima[word], byte),
            )
        }
    }

    #[inline(always)]
    unsafe fn add(&self, sums: (S::W, S::W), dx: S::V, acc: S::V) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { add_with_minima::<S>((self.d, self.dmin), sums, dx, acc) }
    }
}

/// The header of Q2_K: d, dmin, and a byte for each sixteen inputs, with the scale in its low half, the minimum in the
/// high half.
#[derive(Clone, Copy)]
pub struct HalvesHeader<S: Lanes> {
    d: S::V,
    dmin: S::V,
    pairs: [S::W; PAIR_LINES],
}

impl<S: Lanes> Header<S> for HalvesHeader<S> {
    #[inline(always)]
    unsafe fn load(block: *const u32) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let halves = block.cast::<f16>();
            Self {
                d: S::load_f16(halves),
                dmin: S::load_f16(halves.wrapping_add(PANEL)),
                pairs: load_pairs::<S>(block.wrapping_add(PANEL)),
            }
        }
    }

    #[inline(always)]
    unsafe fn scales(&self, sub_block: usize) -> (S::W, S::W) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let pair = pair::<S>(&self.pairs, sub_block);
            let low = S::splat_word(EVEN_LOW_HALVES);
            (S::and(pair, low), S::and(S::shift_right(pair, 4), low))
        }
    }

    #[inline(always)]
    unsafe fn add(&self, sums: (S::W, S::W), dx: S::V, acc: S::V) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe { add_with_minima::<S>((self.d, self.dmin), sums, dx, acc) }
    }
}

/// The header of Q3_K and Q6_K: d, and a signed scale for each sixteen inputs. Codes are `1 << OFFSET_BITS` too large.
#[derive(Clone, Copy)]
pub struct SignedHeader<S: Lanes, const OFFSET_BITS: u32> {
    d: S::V,
    pairs: [S::W; PAIR_LINES],
}

impl<S: Lanes, const OFFSET_BITS: u32> Header<S> for SignedHeader<S, OFFSET_BITS> {
    #[inline(always)]
    unsafe fn load(block: *const u32) -> Self {
        // SAFETY: guaranteed by the caller.
        unsafe {
            Self {
                d: S::load_f16(block.cast::<f16>()),
                pairs: load_pairs::<S>(block.wrapping_add(PANEL)),
            }
        }
    }

    #[inline(always)]
    unsafe fn scales(&self, sub_block: usize) -> (S::W, S::W) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let pair = S::extend_bytes(pair::<S>(&self.pairs, sub_block));
            (pair, pair)
        }
    }

    #[inline(always)]
    unsafe fn add(&self, (scaled, minima): (S::W, S::W), dx: S::V, acc: S::V) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let exact = S::sub_words(scaled, S::shift_left(minima, OFFSET_BITS));
            S::mul_add(S::words_to_f32(exact), S::mul(self.d, dx), acc)
        }
    }
}
