//! Packs K-quant superblocks from GGUF into the lines of a panel.
//!
//! A line has one word for each of sixteen outputs. Packing rearranges words of four codes, never single codes.

use super::super::panel::PANEL;
use super::formats::{Q2K, Q3K, Q4K, Q5K, Q6K};
use super::{KQuant, SUB_BLOCKS, SUB_STEPS};
use crate::blocks::{BlockType, q3_k_scale};

const LOW_HALVES: u32 = 0x0f0f_0f0f;
const LOW_TWO: u32 = 0x0303_0303;
const LOW_ONE: u32 = 0x0101_0101;
/// Header lines of Q4_K and Q5_K, and of the types with a scale for each sixteen inputs.
pub(super) const MIN_HEADER: usize = 4;
pub(super) const PAIR_HEADER: usize = 5;
/// The order of the four scales in a word: the pairs of two sub-blocks alternate.
pub(super) const PAIR_ORDER: [usize; 4] = [0, 2, 1, 3];

type Line = [u32; PANEL];

/// A superblock of each output of a panel.
type Superblocks<'a, const BYTES: usize> = [&'a [u8; BYTES]; PANEL];

/// Writes the superblocks of at most sixteen rows into the lines of a panel. Lanes without a row are zero.
#[inline(always)]
pub fn pack(block_type: BlockType, rows: &[&[u8]], panel: &mut [u32]) {
    match block_type {
        BlockType::Q2K => pack_rows(rows, panel, Q2K::LINES, pack_q2k),
        BlockType::Q3K => pack_rows(rows, panel, Q3K::LINES, pack_q3k),
        BlockType::Q4K => pack_rows(rows, panel, Q4K::LINES, pack_q4k),
        BlockType::Q5K => pack_rows(rows, panel, Q5K::LINES, pack_q5k),
        BlockType::Q6K => pack_rows(rows, panel, Q6K::LINES, pack_q6k),
        other => unreachable!("{} is not a K-quant", other.name()),
    }
}

#[inline(always)]
fn pack_rows<const BYTES: usize>(
    rows: &[&[u8]],
    panel: &mut [u32],
    lines: usize,
    pack: impl Fn(&Superblocks<'_, BYTES>, &mut [Line]),
) {
    let zeros = [0; BYTES];
    let (panel, _) = panel.as_chunks_mut::<PANEL>();
    for (index, lines) in panel.chunks_exact_mut(lines).enumerate() {
        let blocks = std::array::from_fn(|lane| match rows.get(lane) {
            Some(row) => &row.as_chunks::<BYTES>().0[index],
            None => &zeros,
        });
        pack(&blocks, lines);
    }
}

#[inline(always)]
fn pack_q4k(blocks: &Superblocks<'_, 144>, lines: &mut [Line]) {
    pack_min_header(blocks, lines);
    for pair in 0..SUB_BLOCKS / 2 {
        let (low, high) = lines[MIN_HEADER + 8 * pair..].split_at_mut(4);
        put_codes(blocks, 16 + 32 * pair, low, high);
    }
}

#[inline(always)]
fn pack_q5k(blocks: &Superblocks<'_, 176>, lines: &mut [Line]) {
    pack_min_header(blocks, lines);
    for pair in 0..SUB_BLOCKS / 2 {
        let (low, high) = lines[MIN_HEADER + 10 * pair..].split_at_mut(5);
        put_codes(blocks, 48 + 32 * pair, low, high);
    }
    let upper: [Line; SUB_STEPS] = std::array::from_fn(|t| words(blocks, 16 + 4 * t));
    for j in 0..SUB_BLOCKS {
        lines[MIN_HEADER + 5 * j + 4] = gathered(&upper, LOW_ONE, j, 1);
    }
}

#[inline(always)]
fn pack_q2k(blocks: &Superblocks<'_, 84>, lines: &mut [Line]) {
    let (d, dmin) = lines[0].split_at_mut(PANEL / 2);
    put_halves(blocks, 80, d);
    put_halves(blocks, 82, dmin);
    put_pairs(blocks, 0, lines);
    put_two_bits(blocks, 16, &mut lines[PAIR_HEADER..], 2);
}

#[inline(always)]
fn pack_q3k(blocks: &Superblocks<'_, 110>, lines: &mut [Line]) {
    put_halves(blocks, 108, &mut lines[0][..PANEL / 2]);
    for i in 0..4 {
        lines[1 + i] = std::array::from_fn(|lane| {
            let packed = &blocks[lane][96..108];
            // Signed, as in Q6_K.
            let scale = |at: usize| q3_k_scale(packed, 4 * i + at).wrapping_sub(32);
            u32::from_le_bytes(PAIR_ORDER.map(scale))
        });
    }
    put_two_bits(blocks, 32, &mut lines[PAIR_HEADER..], 3);
    let third: [Line; SUB_STEPS] = std::array::from_fn(|t| words(blocks, 4 * t));
    for j in 0..SUB_BLOCKS {
        lines[PAIR_HEADER + 3 * j + 2] = gathered(&third, LOW_ONE, j, 1);
    }
}

#[inline(always)]
fn pack_q6k(blocks: &Superblocks<'_, 210>, lines: &mut [Line]) {
    put_halves(blocks, 208, &mut lines[0][..PANEL / 2]);
    put_pairs(blocks, 192, lines);
    for n in 0..2 {
        let lines = &mut lines[PAIR_HEADER + 24 * n..];
        for part in 0..2 {
            let (low, high) = lines[6 * part..].split_at_mut(12);
            put_codes(blocks, 64 * n + 32 * part, low, high);
        }
    }
    put_two_bits(blocks, 128, &mut lines[PAIR_HEADER + 4..], 6);
}

/// Writes the sixteen scale bytes of each superblock, one for each sixteen inputs.
#[inline(always)]
fn put_pairs<const BYTES: usize>(blocks: &Superblocks<'_, BYTES>, at: usize, lines: &mut [Line]) {
    for i in 0..4 {
        // Bytes 1 and 2 are swapped.
        lines[1 + i] = words(blocks, at + 4 * i)
            .map(|w| w & 0xff00_00ff | w >> 8 & 0xff00 | (w & 0xff00) << 8);
    }
}

/// Writes two bits of each input, 64 bytes of each superblock, into the first two of every `each` lines.
#[inline(always)]
fn put_two_bits<const BYTES: usize>(
    blocks: &Superblocks<'_, BYTES>,
    at: usize,
    lines: &mut [Line],
    each: usize,
) {
    for n in 0..2 {
        for half in 0..2 {
            let bits: [Line; 4] =
                std::array::from_fn(|u| words(blocks, at + 32 * n + 4 * (4 * half + u)));
            for k in 0..4 {
                lines[each * (4 * n + k) + half] = gathered(&bits, LOW_TWO, 2 * k, 2);
            }
        }
    }
}

#[inline(always)]
fn pack_min_header<const BYTES: usize>(blocks: &Superblocks<'_, BYTES>, lines: &mut [Line]) {
    let (d, dmin) = lines[0].split_at_mut(PANEL / 2);
    put_halves(blocks, 0, d);
    put_halves(blocks, 2, dmin);
    for i in 0..3 {
        lines[1 + i] = words(blocks, 4 + 4 * i);
    }
}

#[inline(always)]
fn words<const BYTES: usize>(blocks: &Superblocks<'_, BYTES>, at: usize) -> Line {
    std::array::from_fn(|lane| {
        let bytes = &blocks[lane][at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    })
}

/// Writes the 16-bit word at byte `at` of each superblock, two in a word.
#[inline(always)]
fn put_halves<const BYTES: usize>(blocks: &Superblocks<'_, BYTES>, at: usize, out: &mut [u32]) {
    for (pair, out) in out.iter_mut().enumerate() {
        let half = |lane: usize| u16::from_le_bytes([blocks[lane][at], blocks[lane][at + 1]]);
        *out = u32::from(half(2 * pair)) | u32::from(half(2 * pair + 1)) << 16;
    }
}

/// Writes the four-bit codes of 32 bytes: low halves are the steps of one sub-block, high halves those of another. Four
/// lines hold the eight steps of a sub-block.
#[inline(always)]
fn put_codes<const BYTES: usize>(
    blocks: &Superblocks<'_, BYTES>,
    at: usize,
    low: &mut [Line],
    high: &mut [Line],
) {
    for u in 0..SUB_STEPS / 2 {
        let first = words(blocks, at + 4 * u);
        let second = words(blocks, at + 4 * (u + SUB_STEPS / 2));
        for lane in 0..PANEL {
            let (first, second) = (first[lane], second[lane]);
            low[u][lane] = first & LOW_HALVES | (second & LOW_HALVES) << 4;
            high[u][lane] = first >> 4 & LOW_HALVES | second & !LOW_HALVES;
        }
    }
}

/// Gathers the bits `mask << from` of all steps into one line, `width` bits apart.
#[inline(always)]
fn gathered<const STEPS: usize>(
    steps: &[Line; STEPS],
    mask: u32,
    from: usize,
    width: usize,
) -> Line {
    std::array::from_fn(|lane| {
        let bits = |t: usize| (steps[t][lane] >> from & mask) << (width * t);
        (0..STEPS).fold(0, |all, t| all | bits(t))
    })
}
