//! Decodes quantised blocks, with the operations and roundings of llama.cpp.

use half::f16;

use super::BlockType;

/// Codebook of IQ4_NL and IQ4_XS.
pub const IQ4_VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];
/// Twice the values of MXFP4; the scale is halved to compensate.
pub const MXFP4_VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

pub(super) fn decode(block_type: BlockType, block: &[u8], out: &mut [f32]) {
    match block_type {
        BlockType::Q4_0 => {
            let d = half(block, 0);
            halves(&block[2..], out, |q| d * (f32::from(q) - 8.0));
        }
        BlockType::Q4_1 => {
            let (d, m) = (half(block, 0), half(block, 2));
            halves(&block[4..], out, |q| d * f32::from(q) + m);
        }
        BlockType::Q5_0 => {
            let d = half(block, 0);
            fifths(&block[2..], out, |q| d * (f32::from(q) - 16.0));
        }
        BlockType::Q5_1 => {
            let (d, m) = (half(block, 0), half(block, 2));
            fifths(&block[4..], out, |q| d * f32::from(q) + m);
        }
        BlockType::Q8_0 => {
            let d = half(block, 0);
            for (out, q) in out.iter_mut().zip(&block[2..]) {
                *out = d * f32::from(*q as i8);
            }
        }
        BlockType::Q4K => q4_k(block, out),
        BlockType::Q5K => q5_k(block, out),
        BlockType::Q6K => q6_k(block, out),
        BlockType::Q2K => q2_k(block, out),
        BlockType::Q3K => q3_k(block, out),
        BlockType::Iq4Nl => {
            let d = half(block, 0);
            let value = |q: u8| d * f32::from(IQ4_VALUES[q as usize]);
            halves(&block[2..], out, value);
        }
        BlockType::Iq4Xs => iq4_xs(block, out),
        BlockType::Mxfp4 => {
            let d = half_power(block[0]);
            let value = |q: u8| d * f32::from(MXFP4_VALUES[q as usize]);
            halves(&block[1..], out, value);
        }
        BlockType::Affine4 => {
            let (s, z) = (half(block, 0), f32::from(block[2]));
            halves(&block[3..], out, |q| s * (f32::from(q) - z));
        }
    }
}

/// Unpacks the codes of a block whose 32 values are signed codes times the scale.
///
/// # Panics
/// If the type is neither Q8_0 nor Q5_0.
pub(super) fn signed_codes(block_type: BlockType, block: &[u8], out: &mut [i8; 32]) {
    match block_type {
        BlockType::Q8_0 => {
            let codes = out.iter_mut().zip(&block[2..]);
            codes.for_each(|(out, code)| *out = *code as i8);
        }
        BlockType::Q5_0 => {
            let upper = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
            for (l, code) in block[6..22].iter().enumerate() {
                out[l] = (code & 15) as i8 - 16;
                out[l + 16] = (code >> 4) as i8 - 16;
            }
            for (input, out) in out.iter_mut().enumerate() {
                *out += ((upper >> input & 1) << 4) as i8;
            }
        }
        other => unreachable!("{} has no signed codes", other.name()),
    }
}

fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// 2^(e - 128).
#[inline]
pub fn half_power(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x0020_0000 << e,
        _ => u32::from(e - 1) << 23,
    })
}

/// Decodes sixteen bytes: the low nibbles are the first sixteen inputs, the high nibbles the others.
fn halves(codes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let (low, high) = out.split_at_mut(16);
    for ((low, high), code) in low.iter_mut().zip(high).zip(codes) {
        *low = value(code & 15);
        *high = value(code >> 4);
    }
}

/// Decodes 5-bit codes: a word with the fifth bits, then nibbles as in [`halves`].
fn fifths(codes: &[u8], out: &mut [f32], value: impl Fn(u8) -> f32) {
    let upper = u32::from_le_bytes([codes[0], codes[1], codes[2], codes[3]]);
    let fifth = |input: usize| ((upper >> input & 1) << 4) as u8;
    for (l, code) in codes[4..20].iter().enumerate() {
        out[l] = value(code & 15 | fifth(l));
        out[l + 16] = value(code >> 4 | fifth(l + 16));
    }
}

/// The scale and minimum of a sub-block of Q4_K or Q5_K, 6 bits each.
#[inline]
pub fn scale_and_min(packed: &[u8], sub_block: usize) -> (u8, u8) {
    let j = sub_block;
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (
            packed[j + 4] & 15 | packed[j - 4] >> 6 << 4,
            packed[j + 4] >> 4 | packed[j] >> 6 << 4,
        )
    }
}

fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_and_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(s), dmin * f32::from(m));
        let codes = &block[16 + j / 2 * 32..];
        for (out, code) in out.iter_mut().zip(codes) {
            *out = scale * f32::from(code >> (4 * (j % 2)) & 15) - min;
        }
    }
}

fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let fifths = &block[16..48];
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_and_min(&block[4..16], j);
        let (scale, min) = (d * f32::from(s), dmin * f32::from(m));
        let codes = block[48 + j / 2 * 32..].iter().zip(fifths);
        for (out, (code, fifth)) in out.iter_mut().zip(codes) {
            let q = code >> (4 * (j % 2)) & 15 | (fifth >> j & 1) << 4;
            *out = scale * f32::from(q) - min;
        }
    }
}

/// The code of an input in a Q6_K block, from 0 to 63.
pub fn q6_k_code(block: &[u8], input: usize) -> u8 {
    let (n, k, l) = (input / 128, input / 32 % 4, input % 32);
    let low = block[64 * n + 32 * (k & 1) + l] >> (4 * (k >> 1)) & 15;
    let upper = block[128 + 32 * n + l] >> (2 * k) & 3;
    low | upper << 4
}

fn q6_k(block: &[u8], out: &mut [f32]) {
    let d = half(block, 208);
    for (input, out) in out.iter_mut().enumerate() {
        let scale = d * f32::from(block[192 + input / 16] as i8);
        *out = scale * (f32::from(q6_k_code(block, input)) - 32.0);
    }
}

/// The code of an input in Q2_K, or the lower two bits of its code in Q3_K.
fn two_bits(codes: &[u8], input: usize) -> u8 {
    let (n, k, l) = (input / 128, input / 32 % 4, input % 32);
    codes[32 * n + l] >> (2 * k) & 3
}

fn q2_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    for (input, out) in out.iter_mut().enumerate() {
        let packed = block[input / 16];
        let (scale, min) = (d * f32::from(packed & 15), dmin * f32::from(packed >> 4));
        *out = scale * f32::from(two_bits(&block[16..80], input)) - min;
    }
}

/// The 6-bit scale of a Q3_K sub-block of sixteen inputs.
#[inline]
pub fn q3_k_scale(packed: &[u8], index: usize) -> u8 {
    let low = packed[index % 8] >> (4 * (index / 8)) & 15;
    let upper = packed[8 + index % 4] >> (2 * (index / 4)) & 3;
    low | upper << 4
}

fn q3_k(block: &[u8], out: &mut [f32]) {
    let d = half(block, 108);
    for (input, out) in out.iter_mut().enumerate() {
        let scale = d * (f32::from(q3_k_scale(&block[96..108], input / 16)) - 32.0);
        let third = block[input % 32] >> (input / 32) & 1;
        let q = two_bits(&block[32..96], input) | third << 2;
        *out = scale * (f32::from(q) - 4.0);
    }
}

/// The 6-bit scale of an IQ4_XS sub-block of 32 inputs.
#[inline]
pub fn iq4_xs_scale(block: &[u8], sub_block: usize) -> u8 {
    let upper = u16::from_le_bytes([block[2], block[3]]) >> (2 * sub_block) & 3;
    let low = block[4 + sub_block / 2] >> (4 * (sub_block % 2)) & 15;
    low | (upper as u8) << 4
}

fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let scale = d * (f32::from(iq4_xs_scale(block, j)) - 32.0);
        let value = |q: u8| scale * f32::from(IQ4_VALUES[q as usize]);
        halves(&block[8 + 16 * j..], out, value);
    }
}
