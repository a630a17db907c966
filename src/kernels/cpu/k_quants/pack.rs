//! Between superblocks as files have them and the lines of a panel.
//!
//! A line of sixteen words holds the same of sixteen outputs, a lane an output. Words of four codes stay together, so packing
//! moves and re-pairs halves of bytes and looks at no code by itself.

use half::f16;

use super::super::format::PANEL;
use super::{SUB_BLOCKS, SUB_STEPS, SUPER_BLOCK};
use crate::kernels::blocks::{BlockType, q3_k_scale, scale_and_min};

const LOW_HALVES: u32 = 0x0f0f_0f0f;
const LOW_TWO: u32 = 0x0303_0303;
const LOW_ONE: u32 = 0x0101_0101;
/// Header lines of Q4_K and Q5_K, and of the types with a scale for each sixteen inputs.
const MIN_HEADER: usize = 4;
const PAIR_HEADER: usize = 5;
/// Where a line of four scales has each of them: the pairs of two sub-blocks by turns.
const PAIR_ORDER: [usize; 4] = [0, 2, 1, 3];

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Puts a half word into its lane of a line of twice sixteen.
fn put_half(line: &mut [u32], index: usize, bits: [u8; 2]) {
    line[index / 2] |= u32::from(u16::from_le_bytes(bits)) << (16 * (index % 2));
}

fn half_at(line: &[u32], index: usize) -> f32 {
    f16::from_bits((line[index / 2] >> (16 * (index % 2))) as u16).to_f32()
}

/// Writes a superblock into a lane of its lines, which are zero there.
pub fn pack(block_type: BlockType, block: &[u8], lane: usize, lines: &mut [u32]) {
    match block_type {
        BlockType::Q2K => {
            put_half(lines, lane, [block[80], block[81]]);
            put_half(lines, PANEL + lane, [block[82], block[83]]);
            put_pairs(|i| block[i], lane, lines);
            for j in 0..SUB_BLOCKS {
                let lines = &mut lines[(PAIR_HEADER + 2 * j) * PANEL..];
                put_two_bits(&block[16..], j, lane, lines);
            }
        }
        BlockType::Q3K => {
            put_half(lines, lane, [block[108], block[109]]);
            // Signed, as Q6_K has them.
            let scale = |i| q3_k_scale(&block[96..108], i).wrapping_sub(32);
            put_pairs(scale, lane, lines);
            for j in 0..SUB_BLOCKS {
                let lines = &mut lines[(PAIR_HEADER + 3 * j) * PANEL..];
                put_two_bits(&block[32..], j, lane, lines);
                lines[2 * PANEL + lane] = one_bit(block, j);
            }
        }
        BlockType::Q4K => {
            pack_min_header(block, lane, lines);
            for j in 0..SUB_BLOCKS {
                let codes = low_codes(&block[16 + j / 2 * 32..], j % 2);
                put_lines(&codes, lane, &mut lines[(MIN_HEADER + 4 * j) * PANEL..]);
            }
        }
        BlockType::Q5K => {
            pack_min_header(block, lane, lines);
            for j in 0..SUB_BLOCKS {
                let codes = low_codes(&block[48 + j / 2 * 32..], j % 2);
                let lines = &mut lines[(MIN_HEADER + 5 * j) * PANEL..];
                put_lines(&codes, lane, lines);
                lines[4 * PANEL + lane] = one_bit(&block[16..], j);
            }
        }
        BlockType::Q6K => {
            put_half(lines, lane, [block[208], block[209]]);
            put_pairs(|i| block[192 + i], lane, lines);
            for j in 0..SUB_BLOCKS {
                let (n, k) = (j / 4, j % 4);
                let codes = low_codes(&block[64 * n + 32 * (k & 1)..], k >> 1);
                let lines = &mut lines[(PAIR_HEADER + 6 * j) * PANEL..];
                put_lines(&codes, lane, lines);
                put_two_bits(&block[128..], j, lane, &mut lines[4 * PANEL..]);
            }
        }
        other => unreachable!("{} is packed elsewhere", other.name()),
    }
}

/// Writes the scales of each sixteen inputs.
fn put_pairs(scale: impl Fn(usize) -> u8, lane: usize, lines: &mut [u32]) {
    for i in 0..4 {
        let scales = PAIR_ORDER.map(|at| scale(4 * i + at));
        lines[(1 + i) * PANEL + lane] = u32::from_le_bytes(scales);
    }
}

/// Writes two bits of each input of a sub-block, as Q2_K, Q3_K and Q6_K hold them, into two lines.
fn put_two_bits(bits: &[u8], sub_block: usize, lane: usize, lines: &mut [u32]) {
    let (n, k) = (sub_block / 4, sub_block % 4);
    let two = |t: usize| word(bits, 32 * n + 4 * t) >> (2 * k) & LOW_TWO;
    for half in 0..2 {
        let steps = (0..4).map(|u| two(4 * half + u) << (2 * u));
        lines[half * PANEL + lane] = steps.fold(0, |bits, step| bits | step);
    }
}

/// One bit of each input of a sub-block, which Q3_K and Q5_K have in one bit of 32 bytes, for a line.
fn one_bit(bits: &[u8], sub_block: usize) -> u32 {
    let steps = (0..SUB_STEPS).map(|t| (word(bits, 4 * t) >> sub_block & LOW_ONE) << t);
    steps.fold(0, |bits, step| bits | step)
}

fn pack_min_header(block: &[u8], lane: usize, lines: &mut [u32]) {
    put_half(lines, lane, [block[0], block[1]]);
    put_half(lines, PANEL + lane, [block[2], block[3]]);
    for i in 0..3 {
        lines[(1 + i) * PANEL + lane] = word(block, 4 + 4 * i);
    }
}

/// Four-bit codes of 32 inputs, a word a step, from one half of 32 bytes.
fn low_codes(bytes: &[u8], half: usize) -> [u32; SUB_STEPS] {
    std::array::from_fn(|t| word(bytes, 4 * t) >> (4 * half) & LOW_HALVES)
}

/// Writes the codes of eight steps into four lines.
fn put_lines(codes: &[u32; SUB_STEPS], lane: usize, lines: &mut [u32]) {
    for u in 0..SUB_STEPS / 2 {
        lines[u * PANEL + lane] = codes[u] | codes[u + SUB_STEPS / 2] << 4;
    }
}

/// Reads the values of a lane of a superblock's lines, as [`BlockType::decode`] gives them.
pub fn unpack(block_type: BlockType, lines: &[u32], lane: usize, out: &mut [f32]) {
    let out = &mut out[..SUPER_BLOCK];
    let line = |index: usize| lines[index * PANEL + lane];
    match block_type {
        BlockType::Q2K => {
            let (d, dmin) = (half_at(lines, lane), half_at(lines, PANEL + lane));
            for (input, out) in out.iter_mut().enumerate() {
                let packed = pair_scale(line, input);
                let (scale, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
                let first = PAIR_HEADER + 2 * (input / 32);
                *out = scale * f32::from(two_bits(|half| line(first + half), input % 32)) - min;
            }
        }
        BlockType::Q3K => {
            for (input, out) in out.iter_mut().enumerate() {
                let (first, i) = (PAIR_HEADER + 3 * (input / 32), input % 32);
                let code = two_bits(|half| line(first + half), i) | bit(line(first + 2), i) << 2;
                let scale = half_at(lines, lane) * f32::from(pair_scale(line, input) as i8);
                *out = scale * (f32::from(code) - 4.0);
            }
        }
        BlockType::Q4K | BlockType::Q5K => {
            let (d, dmin) = (half_at(lines, lane), half_at(lines, PANEL + lane));
            let packed: Vec<u8> = (0..3).flat_map(|i| line(1 + i).to_le_bytes()).collect();
            let has_fifth = block_type == BlockType::Q5K;
            let size = if has_fifth { 5 } else { 4 };
            for (j, out) in out.chunks_exact_mut(32).enumerate() {
                let (s, m) = scale_and_min(&packed, j);
                let (scale, min) = (d * f32::from(s), dmin * f32::from(m));
                let first = MIN_HEADER + size * j;
                for (i, out) in out.iter_mut().enumerate() {
                    let mut code = low_code(|u| line(first + u), i);
                    if has_fifth {
                        code |= bit(line(first + 4), i) << 4;
                    }
                    *out = scale * f32::from(code) - min;
                }
            }
        }
        BlockType::Q6K => {
            for (input, out) in out.iter_mut().enumerate() {
                let (j, i) = (input / 32, input % 32);
                let first = PAIR_HEADER + 6 * j;
                let low = low_code(|u| line(first + u), i);
                let upper = two_bits(|half| line(first + 4 + half), i);
                let scale = half_at(lines, lane) * f32::from(pair_scale(line, input) as i8);
                *out = scale * (f32::from(low | upper << 4) - 32.0);
            }
        }
        other => unreachable!("{} is unpacked elsewhere", other.name()),
    }
}

/// The byte of the scale of an input's sixteen inputs.
fn pair_scale(line: impl Fn(usize) -> u32, input: usize) -> u8 {
    let s = input / 16;
    line(1 + s / 4).to_le_bytes()[PAIR_ORDER[s % 4]]
}

/// The two bits of input `i` of a sub-block.
fn two_bits(line: impl Fn(usize) -> u32, i: usize) -> u8 {
    line(i / 16).to_le_bytes()[i % 4] >> (2 * (i / 4 % 4)) & 3
}

/// The bit of input `i` of a sub-block in its line.
fn bit(line: u32, i: usize) -> u8 {
    line.to_le_bytes()[i % 4] >> (i / 4) & 1
}

/// The low four bits of input `i` of a sub-block.
fn low_code(line: impl Fn(usize) -> u32, i: usize) -> u8 {
    let (step, byte) = (i / 4, i % 4);
    line(step % 4).to_le_bytes()[byte] >> (4 * (step / 4)) & 15
}
