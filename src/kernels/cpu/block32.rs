//! Products with blocks of 32 signed bytes that share a scale: Q8_0, and Q5_0 with its quantised values widened to
//! bytes. The quantised values are called codes.
//!
//! For each two blocks, a panel has a line of f16 scales (all outputs of the first block, then of the second) and
//! sixteen lines of codes. A word holds the codes of four inputs of an output, each plus 128. Activations are signed
//! bytes with a scale for each row and 32 inputs; a correction next to the scale cancels the 128. The sum of a block is
//! an exact integer, then `acc = fma(sum, d dx, acc)`, in ascending order of blocks.

use half::f16;

use super::ahead::{Ahead, is_int8_prefetched};
use super::panel::{PANEL, SUMS, Sums};
use super::simd::{Lanes, read};
use crate::blocks::BlockType;

pub const BLOCK: usize = 32;
pub const BLOCK_STEPS: usize = BLOCK / 4;
/// Inputs of two blocks, which share a line of scales.
pub const TWO_BLOCKS: usize = 2 * BLOCK;
pub const LINES: usize = 1 + 2 * BLOCK_STEPS;
/// Words of a row of activations for a block: scale, correction, bytes.
pub const ROW_WORDS: usize = 2 + BLOCK_STEPS;

/// Multiplies `M` rows with `N` panels of `pairs` pairs of blocks, into `N * PANEL` values of `M` rows of `sums`.
///
/// # Safety
/// `rows` is valid for `2 * pairs * ROW_WORDS * M` words, each panel for `pairs * LINES` lines; the
/// instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn tile<S: Lanes, const M: usize, const N: usize>(
    rows: *const u32,
    panels: [*const u32; N],
    pairs: usize,
    ahead: Ahead,
    sums: &mut Sums,
) {
    let mut ahead = ahead.over(2 * pairs).shorten(is_int8_prefetched::<S>(M));
    let mut until_fetch = 0;
    let sums = sums.as_mut_ptr().cast::<f32>();
    // SAFETY: all offsets stay within the ranges that the caller guaranteed.
    unsafe {
        let mut acc = [[S::splat(0.0); N]; M];
        for block in 0..2 * pairs {
            if until_fetch == 0 {
                ahead.fetch::<S>();
                until_fetch = ahead.every;
            }
            until_fetch -= 1;
            let row = rows.wrapping_add(block * ROW_WORDS * M);
            let (corrections, words) = (row.wrapping_add(M), row.wrapping_add(2 * M));
            let half = block % 2;
            let mut lines = panels;
            for lines in &mut lines {
                *lines = lines.wrapping_add(block / 2 * LINES * PANEL);
            }
            if N == 1 {
                ahead.follow_lines::<S>(lines[0], half, LINES);
            }
            let mut dot = [[S::splat_word(0); N]; M];
            for (m, dot) in dot.iter_mut().enumerate() {
                *dot = [S::splat_word(read::<u32, u32>(corrections.wrapping_add(m))); N];
            }
            for step in 0..BLOCK_STEPS {
                let mut codes = [S::splat_word(0); N];
                for n in 0..N {
                    let first = (1 + half * BLOCK_STEPS + step) * PANEL;
                    codes[n] = S::load_words(lines[n].wrapping_add(first));
                }
                for m in 0..M {
                    let word = read::<u32, u32>(words.wrapping_add(step * M + m));
                    for n in 0..N {
                        dot[m][n] = S::dot_quads(dot[m][n], S::splat_word(word), codes[n]);
                    }
                }
            }
            for n in 0..N {
                let d = S::load_f16(lines[n].cast::<f16>().wrapping_add(half * PANEL));
                for m in 0..M {
                    let dx = S::splat(f32::from_bits(read(row.wrapping_add(m))));
                    let sum = S::words_to_f32(dot[m][n]);
                    acc[m][n] = S::mul_add(sum, S::mul(d, dx), acc[m][n]);
                }
            }
        }
        for m in 0..M {
            for n in 0..N {
                S::store(sums.wrapping_add(m * SUMS + n * PANEL), acc[m][n]);
            }
        }
    }
}

/// Writes the blocks of at most sixteen rows into the lanes of their zeroed panel.
#[inline(always)]
pub fn pack(block_type: BlockType, rows: &[&[u8]], panel: &mut [u32]) {
    let size = block_type.bytes();
    let n_blocks = rows.first().map_or(0, |row| row.len() / size);
    let (panel, _) = panel.as_chunks_mut::<PANEL>();
    for index in 0..n_blocks {
        let lines = &mut panel[index / 2 * LINES..][..LINES];
        let half = index % 2;
        for (lane, row) in rows.iter().enumerate() {
            let block = &row[index * size..][..size];
            let d = u32::from(u16::from_le_bytes([block[0], block[1]]));
            let place = half * PANEL + lane;
            lines[0][place / 2] |= d << (16 * (place % 2));
            let first = 1 + half * BLOCK_STEPS;
            let steps = lines[first..first + BLOCK_STEPS].iter_mut();
            for (line, word) in steps.zip(quads(block_type, block)) {
                line[lane] = word;
            }
        }
    }
}

/// The codes of a block in the layout of a panel, four in a word.
#[inline(always)]
fn quads(block_type: BlockType, block: &[u8]) -> [u32; BLOCK_STEPS] {
    let word = |bytes: [u8; 4]| u32::from_le_bytes(bytes) ^ 0x8080_8080;
    if block_type == BlockType::Q8_0 {
        let (bytes, _) = block[2..2 + BLOCK].as_chunks::<4>();
        return std::array::from_fn(|step| word(bytes[step]));
    }
    let mut codes = [0i8; BLOCK];
    block_type.signed_codes(block, &mut codes);
    let (codes, _) = codes.as_chunks::<4>();
    std::array::from_fn(|step| word(codes[step].map(|code| code as u8)))
}

pub fn unpack(panel: &[u32], lane: usize, out: &mut [f32]) {
    for (index, out) in out.chunks_mut(BLOCK).enumerate() {
        let lines = &panel[index / 2 * LINES * PANEL..];
        let half = index % 2;
        let place = half * PANEL + lane;
        let d = f16::from_bits((lines[place / 2] >> (16 * (place % 2))) as u16).to_f32();
        for (i, out) in out.iter_mut().enumerate() {
            let word = lines[(1 + half * BLOCK_STEPS + i / 4) * PANEL + lane];
            *out = d * (f32::from(word.to_le_bytes()[i % 4]) - 128.0);
        }
    }
}
