//! Unpacks the K-quant lines of a panel to values.

use half::f16;

use super::super::panel::PANEL;
use super::SUPER_BLOCK;
use super::pack::{MIN_HEADER, PAIR_HEADER, PAIR_ORDER};
use crate::blocks::{BlockType, scale_and_min};

fn half_at(line: &[u32], index: usize) -> f32 {
    f16::from_bits((line[index / 2] >> (16 * (index % 2))) as u16).to_f32()
}

/// Decodes one lane of a superblock's lines, to the values of [`BlockType::decode`].
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
        other => unreachable!("{} is not a K-quant", other.name()),
    }
}

/// The scale byte of the sixteen inputs that include `input`.
fn pair_scale(line: impl Fn(usize) -> u32, input: usize) -> u8 {
    let s = input / 16;
    line(1 + s / 4).to_le_bytes()[PAIR_ORDER[s % 4]]
}

fn two_bits(line: impl Fn(usize) -> u32, i: usize) -> u8 {
    line(i / 16).to_le_bytes()[i % 4] >> (2 * (i / 4 % 4)) & 3
}

fn bit(line: u32, i: usize) -> u8 {
    line.to_le_bytes()[i % 4] >> (i / 4) & 1
}

fn low_code(line: impl Fn(usize) -> u32, i: usize) -> u8 {
    let (step, byte) = (i / 4, i % 4);
    line(step % 4).to_le_bytes()[byte] >> (4 * (step / 4)) & 15
}
