//! Products with blocks of 32 quantised values (codes) of four bits: Q4_0, Q4_1, IQ4_NL, IQ4_XS, MXFP4, and Affine4
//! with zero points.
//!
//! For each two blocks, a panel has one or two header lines ([`Header`]) and eight lines of codes, four per block. As
//! in GGUF, line u holds inputs 4u to 4u + 3 of an output in the low halves of its bytes, and inputs 16 + 4u to 16 +
//! 4u + 3 in the high halves. Activations are those of [`block32`](super::block32): signed bytes with a scale for each
//! row and 32 inputs.
//!
//! The value of a code is the code or a table entry, minus an offset. The sum of (value - offset) x activation over a
//! block is an exact integer. Then `acc = fma(sum, scale dx, acc)`, and with a minimum also
//! `acc = fma(sum of activations, min dx, acc)`, in ascending order of blocks.

mod header;
mod pack;

use self::header::CODE_LINES;
pub use self::header::Header;
pub use self::pack::{pack, unpack};
use super::ahead::Ahead;
use super::block32::{BLOCK_STEPS, ROW_WORDS};
use super::k_quants::by_lines;
use super::panel::{PANEL, SUMS, Sums};
use super::simd::{Lanes, read};

const LOW_HALVES: u32 = 0x0f0f_0f0f;
/// The number 1 in both halves, as [`Lanes::low_scales`] takes it.
const ONES: u32 = 0x0001_0001;

pub trait Codes: 'static {
    /// Adds the products of a block's steps to the sums of the rows.
    ///
    /// # Safety
    /// `words` is valid for [`BLOCK_STEPS`] words of `M` rows; the instruction set of `S` was detected.
    unsafe fn dot<S: Lanes, const M: usize>(
        sums: &mut [S::W; M],
        words: *const u32,
        codes: &[S::W; BLOCK_STEPS],
    );

    /// The unsigned values of codes in the low halves of bytes.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    unsafe fn values<S: Lanes>(header: Header, codes: S::W) -> S::W;
}

/// Codes that are their own values. A block's sum fits in 16 bits: 8 steps x 2 products x 15 x 127 = 30,480.
pub struct Plain;

impl Codes for Plain {
    #[inline(always)]
    unsafe fn dot<S: Lanes, const M: usize>(
        sums: &mut [S::W; M],
        words: *const u32,
        codes: &[S::W; BLOCK_STEPS],
    ) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let mut narrow = [S::splat_word(0); M];
            for i in 0..BLOCK_STEPS {
                let step = by_lines(i);
                for m in 0..M {
                    let word = read::<u32, u32>(words.wrapping_add(step * M + m));
                    narrow[m] = S::dot_codes(narrow[m], S::splat_word(word), codes[step]);
                }
            }
            let one = S::low_scales(S::splat_word(ONES));
            for m in 0..M {
                sums[m] = S::add_scaled(sums[m], narrow[m], one);
            }
        }
    }

    #[inline(always)]
    unsafe fn values<S: Lanes>(_: Header, codes: S::W) -> S::W {
        codes
    }
}

/// Codes that index a table of values.
pub struct TableCodes;

impl Codes for TableCodes {
    #[inline(always)]
    unsafe fn dot<S: Lanes, const M: usize>(
        sums: &mut [S::W; M],
        words: *const u32,
        codes: &[S::W; BLOCK_STEPS],
    ) {
        for step in 0..BLOCK_STEPS {
            for m in 0..M {
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let word = read::<u32, u32>(words.wrapping_add(step * M + m));
                    sums[m] = S::dot_quads(sums[m], S::splat_word(word), codes[step]);
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn values<S: Lanes>(header: Header, codes: S::W) -> S::W {
        // SAFETY: only lane arithmetic; the caller detected the instruction set.
        unsafe { S::look_up(header.values(), codes) }
    }
}

/// Multiplies `M` rows with a panel of `2 * block_pairs` blocks, into the first sixteen values of `M` rows of `sums`.
///
/// # Safety
/// `rows` is valid for `2 * block_pairs * ROW_WORDS * M` words, `panel` for `block_pairs * header.lines()` lines; the
/// instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn tile<S: Lanes, C: Codes, const M: usize>(
    rows: *const u32,
    panel: *const u32,
    (block_pairs, header): (usize, Header),
    ahead: Ahead,
    sums: &mut Sums,
) {
    let mut ahead = ahead.over(2 * block_pairs);
    let mut until_fetch = 0;
    let sums = sums.as_mut_ptr().cast::<f32>();
    let lines = header.lines();
    // SAFETY: all offsets stay within the ranges that the caller guaranteed.
    unsafe {
        let zero = S::splat_word(0);
        let mut acc = [S::splat(0.0); M];
        for block in 0..2 * block_pairs {
            if until_fetch == 0 {
                ahead.fetch::<S>();
                until_fetch = ahead.every;
            }
            until_fetch -= 1;
            let scales = rows.wrapping_add(block * ROW_WORDS * M);
            let (corrections, words) = (scales.wrapping_add(M), scales.wrapping_add(2 * M));
            let pair = panel.wrapping_add(block / 2 * lines * PANEL);
            let half = block % 2;
            ahead.follow_lines::<S>(pair, half, lines);
            let codes = codes::<S, C>(header, pair, half);
            let scale = header.scale::<S>(pair, half);
            let offset = header.offset::<S>(pair, half);
            let mut dots = [zero; M];
            for m in 0..M {
                // A correction is -128 times the sum of activations: shifted by 7 bits, it is the negated sum.
                let minus_sum = read::<u32, u32>(corrections.wrapping_add(m)) as i32 >> 7;
                let minus_sum = S::splat_word(u32::from(minus_sum as u16));
                dots[m] = S::dot_shorts(zero, minus_sum, offset);
            }
            C::dot::<S, M>(&mut dots, words, &codes);
            for m in 0..M {
                let dx = S::splat(f32::from_bits(read(scales.wrapping_add(m))));
                acc[m] = S::mul_add(S::words_to_f32(dots[m]), S::mul(scale, dx), acc[m]);
                if let Some(min) = header.min::<S>(pair, half) {
                    let total = -(read::<u32, u32>(corrections.wrapping_add(m)) as i32 >> 7);
                    let total = S::splat(total as f32);
                    acc[m] = S::mul_add(total, S::mul(min, dx), acc[m]);
                }
            }
        }
        for m in 0..M {
            S::store(sums.wrapping_add(m * SUMS), acc[m]);
        }
    }
}

/// # Safety
/// `pair` is valid for two blocks; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn codes<S: Lanes, C: Codes>(
    header: Header,
    pair: *const u32,
    half: usize,
) -> [S::W; BLOCK_STEPS] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let low = S::splat_word(LOW_HALVES);
        let mut codes = [S::splat_word(0); BLOCK_STEPS];
        for u in 0..CODE_LINES {
            let line = header.header_lines() + half * CODE_LINES + u;
            let line = S::load_words(pair.wrapping_add(line * PANEL));
            codes[u] = C::values::<S>(header, S::and(line, low));
            codes[u + CODE_LINES] = C::values::<S>(header, S::and(S::shift_right(line, 4), low));
        }
        codes
    }
}
