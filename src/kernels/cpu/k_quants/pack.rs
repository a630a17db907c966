//! Between superblocks as files have them and the lines of a panel.
//!
//! A line of sixteen words holds the same of sixteen outputs, a lane an output. Words of four codes stay together, so packing
//! moves and re-pairs halves of bytes and looks at no code by itself.

use half::f16;

use super::super::format::PANEL;
use super::formats::{Q4K, Q5K, Q6K};
use super::{KQuant, SUB_BLOCKS, SUB_STEPS, SUPER_BLOCK};
use crate::kernels::blocks::BlockType;

const LOW_HALVES: u32 = 0x0f0f_0f0f;
const LOW_TWO: u32 = 0x0303_0303;
const LOW_ONE: u32 = 0x0101_0101;
const Q4K_LINES: usize = Q4K::LINES;
const Q5K_LINES: usize = Q5K::LINES;
const Q6K_LINES: usize = Q6K::LINES;
/// Header lines of Q4_K and Q5_K, and of Q6_K.
const MIN_HEADER: usize = 4;
const SIGNED_HEADER: usize = 5;

/// A line: a word of each output.
type Line = [u32; PANEL];

/// A superblock of each output of a panel.
type Superblocks<'a, const BYTES: usize> = [&'a [u8; BYTES]; PANEL];

fn half_at(line: &[u32], index: usize) -> f32 {
    f16::from_bits((line[index / 2] >> (16 * (index % 2))) as u16).to_f32()
}

/// Writes the superblocks of rows of Q4_K, Q5_K or Q6_K, at most sixteen, into the lines of a panel. Lanes without a row become
/// those of a row of zeros.
#[inline(always)]
pub fn pack(block_type: BlockType, rows: &[&[u8]], panel: &mut [u32]) {
    match block_type {
        BlockType::Q4K => pack_rows(rows, panel, Q4K_LINES, pack_q4k),
        BlockType::Q5K => pack_rows(rows, panel, Q5K_LINES, pack_q5k),
        BlockType::Q6K => pack_rows(rows, panel, Q6K_LINES, pack_q6k),
        other => unreachable!("{} is packed elsewhere", other.name()),
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
fn pack_q6k(blocks: &Superblocks<'_, 210>, lines: &mut [Line]) {
    put_halves(blocks, 208, &mut lines[0][..PANEL / 2]);
    for i in 0..4 {
        // The bytes 1 and 2 change places.
        lines[1 + i] = words(blocks, 192 + 4 * i)
            .map(|w| w & 0xff00_00ff | w >> 8 & 0xff00 | (w & 0xff00) << 8);
    }
    for n in 0..2 {
        let lines = &mut lines[SIGNED_HEADER + 24 * n..];
        for part in 0..2 {
            let (low, high) = lines[6 * part..].split_at_mut(12);
            put_codes(blocks, 64 * n + 32 * part, low, high);
        }
        for half in 0..2 {
            let upper: [Line; 4] =
                std::array::from_fn(|u| words(blocks, 128 + 32 * n + 4 * (4 * half + u)));
            for k in 0..4 {
                lines[6 * k + 4 + half] = gathered(&upper, LOW_TWO, 2 * k, 2);
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

/// The word at a byte of each superblock.
#[inline(always)]
fn words<const BYTES: usize>(blocks: &Superblocks<'_, BYTES>, at: usize) -> Line {
    std::array::from_fn(|lane| {
        let bytes = &blocks[lane][at..at + 4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    })
}

/// Puts the half word at a byte of each superblock side by side.
#[inline(always)]
fn put_halves<const BYTES: usize>(blocks: &Superblocks<'_, BYTES>, at: usize, out: &mut [u32]) {
    for (pair, out) in out.iter_mut().enumerate() {
        let half = |lane: usize| u16::from_le_bytes([blocks[lane][at], blocks[lane][at + 1]]);
        *out = u32::from(half(2 * pair)) | u32::from(half(2 * pair + 1)) << 16;
    }
}

/// Writes the four-bit codes of 32 bytes: those in the low halves are the steps of one sub-block, those in the high halves of
/// another. Four lines hold the eight steps of a sub-block.
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

/// The bits of `mask`, shifted down by `from`, of each step, side by side with `width` between them.
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

/// Reads the values of a lane of a superblock's lines, as [`BlockType::decode`] gives them.
pub fn unpack(block_type: BlockType, lines: &[u32], lane: usize, out: &mut [f32]) {
    let out = &mut out[..SUPER_BLOCK];
    let line = |index: usize| lines[index * PANEL + lane];
    match block_type {
        BlockType::Q4K | BlockType::Q5K => {
            let (d, dmin) = (half_at(lines, lane), half_at(lines, PANEL + lane));
            let packed: Vec<u8> = (0..3).flat_map(|i| line(1 + i).to_le_bytes()).collect();
            let has_fifth = block_type == BlockType::Q5K;
            let size = if has_fifth { 5 } else { 4 };
            for (j, out) in out.chunks_exact_mut(32).enumerate() {
                let (s, m) = crate::kernels::blocks::scale_and_min(&packed, j);
                let (scale, min) = (d * f32::from(s), dmin * f32::from(m));
                let first = MIN_HEADER + size * j;
                for (i, out) in out.iter_mut().enumerate() {
                    let mut code = low_code(|u| line(first + u), i);
                    if has_fifth {
                        let byte = line(first + 4).to_le_bytes()[i % 4];
                        code |= (byte >> (i / 4) & 1) << 4;
                    }
                    *out = scale * f32::from(code) - min;
                }
            }
        }
        BlockType::Q6K => {
            let d = half_at(lines, lane);
            for (input, out) in out.iter_mut().enumerate() {
                let (j, i, s) = (input / 32, input % 32, input / 16);
                let place = [0, 2, 1, 3][s % 4];
                let scale = d * f32::from(line(1 + s / 4).to_le_bytes()[place] as i8);
                let first = SIGNED_HEADER + 6 * j;
                let low = low_code(|u| line(first + u), i);
                let upper = line(first + 4 + i / 16).to_le_bytes()[i % 4] >> (2 * (i / 4 % 4)) & 3;
                *out = scale * (f32::from(low | upper << 4) - 32.0);
            }
        }
        other => unreachable!("{} is unpacked elsewhere", other.name()),
    }
}

/// The low four bits of input `i` of a sub-block.
fn low_code(line: impl Fn(usize) -> u32, i: usize) -> u8 {
    let (step, byte) = (i / 4, i % 4);
    line(step % 4).to_le_bytes()[byte] >> (4 * (step / 4)) & 15
}
