//! Products with K-quants: superblocks of 256 inputs with quantised values (codes) of 2 to 6 bits and two levels of
//! scales.
//!
//! For each superblock, **a panel** of sixteen outputs has lines of 64 bytes, one word per output:
//!
//! | format | lines | header | a sub-block of 32 inputs |
//! |---|---|---|---|
//! | Q2_K | 21 | d, dmin (f16); four lines of scales and minima of sixteen inputs, see [`pack`] | 2 lines of codes |
//! | Q3_K | 29 | d (f16) in half a line; four lines of signed scales | 2 lines of lower bits, one of third bits |
//! | Q4_K | 36 | d, dmin (f16); three lines of 6-bit scales and minima, as in GGUF | 4 lines of codes |
//! | Q5_K | 44 | the same | 4 lines of codes, one of fifth bits |
//! | Q6_K | 53 | d (f16) in half a line; four lines of signed scales | 4 lines of codes, two of upper bits |
//!
//! A line of codes holds two steps of four inputs: step u in the low halves of its bytes, step u + 4 in the high
//! halves. In a line of third or fifth bits, bit t of a byte belongs to step t. Other lines of lower or upper bits, and
//! the codes of Q2_K, hold four steps, two bits each.
//!
//! **Activations** ([`Encoding::A256`](super::format::Encoding)) are signed bytes with one f32 scale for each row and
//! superblock, and the sums of each sixteen of these bytes, as pairs of i16.
//!
//! **Sums** inside a superblock are exact integers: S of scale x code x activation, M of minimum x activation. Then
//! `acc = fma(S, d dx, acc)` and `acc = fma(M, -(dmin dx), acc)`, in ascending order of superblocks: the same bits for
//! any number of rows and on every instruction set with a fused multiply-add. Q3_K and Q6_K have no minima. Their codes
//! are 4 and 32 too large, so 4 or 32 times M, here the sum of scale x activation, is subtracted from S.

mod formats;
mod headers;
mod pack;
mod unpack;

use super::ahead::Ahead;
use super::panel::{PANEL, SUMS, Sums};
use super::simd::{Lanes, read};
use crate::blocks::BlockType;

pub use formats::{Q2K, Q3K, Q4K, Q5K, Q6K};
pub use pack::pack;
pub use unpack::unpack;

pub const SUPER_BLOCK: usize = 256;
pub const SUB_BLOCKS: usize = 8;
pub const SUB_STEPS: usize = 8;
/// Words of a row of activations for a superblock: the scale, sums in pairs, bytes.
pub const ROW_WORDS: usize = 1 + SUB_BLOCKS + SUPER_BLOCK / 4;

/// # Panics
/// If `block` is not a K-quant.
pub fn lines(block: BlockType) -> usize {
    match block {
        BlockType::Q2K => Q2K::LINES,
        BlockType::Q3K => Q3K::LINES,
        BlockType::Q4K => Q4K::LINES,
        BlockType::Q5K => Q5K::LINES,
        BlockType::Q6K => Q6K::LINES,
        other => unreachable!("{} is not a K-quant", other.name()),
    }
}

pub trait KQuant: 'static {
    const LINES: usize;
    /// Steps that share a scale: eight for 32 inputs, four for sixteen.
    const SCALED_STEPS: usize;
    /// Number of steps whose products, summed in pairs, fit into i16.
    const NARROW_STEPS: usize;
    type Header<S: Lanes>: Header<S>;

    /// The codes of a sub-block, step by step.
    ///
    /// # Safety
    /// `block` is valid for a superblock; the instruction set of `S` was detected.
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS];
}

pub trait Header<S: Lanes>: Copy {
    /// # Safety
    /// `block` is valid for a superblock; the instruction set of `S` was detected.
    unsafe fn load(block: *const u32) -> Self;

    /// The scales of a sub-block, and its factors of M: pairs of i16, for the first and the second sixteen inputs.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    unsafe fn scales(&self, sub_block: usize) -> (S::W, S::W);

    /// Adds a superblock with the sums S and M and the row's scale `dx` to `acc`.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    unsafe fn add(&self, sums: (S::W, S::W), dx: S::V, acc: S::V) -> S::V;
}

/// The step of a sub-block at `index` in an order in which steps of the same line of codes are adjacent.
#[inline(always)]
pub fn by_lines(index: usize) -> usize {
    index / 2 + SUB_STEPS / 2 * (index % 2)
}

/// Multiplies `M` rows with a panel into the first sixteen values of `M` rows of `sums`.
///
/// # Safety
/// `rows` is valid for `blocks * ROW_WORDS * M` words, `panel` for `blocks` superblocks; the instruction set of `S` was
/// detected.
#[inline(always)]
pub unsafe fn tile<S: Lanes, F: KQuant, const M: usize>(
    rows: *const u32,
    panel: *const u32,
    blocks: usize,
    ahead: Ahead,
    sums: &mut Sums,
) {
    let mut ahead = ahead.over(blocks * SUB_BLOCKS);
    let mut until_fetch = 0;
    let narrow_steps = if S::NARROW_SUMS {
        F::NARROW_STEPS
    } else {
        F::SCALED_STEPS
    };
    let sums = sums.as_mut_ptr().cast::<f32>();
    // SAFETY: all offsets stay within the ranges that the caller guaranteed.
    unsafe {
        let zero = S::splat_word(0);
        let mut acc = [S::splat(0.0); M];
        for block in 0..blocks {
            let row = rows.wrapping_add(block * ROW_WORDS * M);
            let words = row.wrapping_add((1 + SUB_BLOCKS) * M);
            let panel = panel.wrapping_add(block * F::LINES * PANEL);
            let header = F::Header::<S>::load(panel);
            let (mut scaled, mut minima) = ([zero; M], [zero; M]);
            for sub_block in 0..SUB_BLOCKS {
                if until_fetch == 0 {
                    ahead.fetch::<S>();
                    until_fetch = ahead.every;
                }
                until_fetch -= 1;
                ahead.follow_lines::<S>(panel, sub_block, F::LINES);
                let (scales, factors) = header.scales(sub_block);
                let halves = [S::low_scales(scales), S::high_scales(scales)];
                let codes = F::codes::<S>(panel, sub_block);
                for m in 0..M {
                    let pair = read::<u32, u32>(row.wrapping_add((1 + sub_block) * M + m));
                    minima[m] = S::dot_shorts(minima[m], S::splat_word(pair), factors);
                }
                let words = words.wrapping_add(sub_block * SUB_STEPS * M);
                for first in (0..SUB_STEPS).step_by(narrow_steps) {
                    let mut sums = [zero; M];
                    for i in 0..narrow_steps {
                        let step = match narrow_steps {
                            SUB_STEPS => by_lines(i),
                            _ => first + i,
                        };
                        for m in 0..M {
                            let word = read::<u32, u32>(words.wrapping_add(step * M + m));
                            sums[m] = S::dot_codes(sums[m], S::splat_word(word), codes[step]);
                        }
                    }
                    let scales = halves[first / (SUB_STEPS / 2)];
                    for m in 0..M {
                        scaled[m] = S::add_scaled(scaled[m], sums[m], scales);
                    }
                }
            }
            for m in 0..M {
                let dx = S::splat(f32::from_bits(read(row.wrapping_add(m))));
                acc[m] = header.add((scaled[m], minima[m]), dx, acc[m]);
            }
        }
        for m in 0..M {
            S::store(sums.wrapping_add(m * SUMS), acc[m]);
        }
    }
}
