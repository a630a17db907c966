//! Packs four-bit blocks of GGUF into the lines of a panel, and unpacks them.

use half::f16;

use super::super::block32::BLOCK;
use super::super::panel::PANEL;
use super::header::{CODE_LINES, Header};
use crate::blocks::{half_power, iq4_xs_scale};

/// Bytes before the codes of a superblock of IQ4_XS, and its number of blocks.
const XS_HEADER: usize = 8;
const XS_BLOCKS: usize = 8;
const CODE_BYTES: usize = BLOCK / 2;

/// Writes the blocks of a row into its lane of a zeroed panel.
pub fn pack(header: Header, row: &[u8], lane: usize, panel: &mut [u32]) {
    match header {
        Header::ScaledTable => {
            let bytes = XS_HEADER + XS_BLOCKS * CODE_BYTES;
            for (index, block) in row.chunks_exact(bytes).enumerate() {
                for j in 0..XS_BLOCKS {
                    let out = pair_mut(header, panel, index * XS_BLOCKS + j);
                    put_half(out, lane, [block[0], block[1]]);
                    out[PANEL / 2 + lane / 2] |=
                        u32::from(iq4_xs_scale(block, j)) << (16 * (lane % 2) + 8 * (j % 2));
                    let codes = &block[XS_HEADER + j * CODE_BYTES..][..CODE_BYTES];
                    put_codes(header, codes, (lane, j % 2), out);
                }
            }
        }
        Header::Around8 | Header::Table => each(header, 2, row, panel, |block, half, out| {
            put_half(out, half * PANEL + lane, [block[0], block[1]]);
            put_codes(header, &block[2..], (lane, half), out);
        }),
        Header::Minima => each(header, 4, row, panel, |block, half, out| {
            put_half(out, half * PANEL + lane, [block[0], block[1]]);
            put_half(&mut out[PANEL..], half * PANEL + lane, [block[2], block[3]]);
            put_codes(header, &block[4..], (lane, half), out);
        }),
        Header::Zeros => each(header, 3, row, panel, |block, half, out| {
            put_half(out, half * PANEL + lane, [block[0], block[1]]);
            out[PANEL + lane] |= u32::from(block[2]) << (16 * half);
            put_codes(header, &block[3..], (lane, half), out);
        }),
        Header::Powers => each(header, 1, row, panel, |block, half, out| {
            let exponent = u32::from(block[0].saturating_sub(1));
            out[lane] |= (exponent | u32::from(block[0]) << 16) << (8 * half);
            put_codes(header, &block[1..], (lane, half), out);
        }),
    }
}

/// Calls `put` with each block of a row, its index in its pair of blocks, and the lines of the pair.
fn each(
    header: Header,
    scale_bytes: usize,
    row: &[u8],
    panel: &mut [u32],
    mut put: impl FnMut(&[u8], usize, &mut [u32]),
) {
    for (index, block) in row.chunks_exact(scale_bytes + CODE_BYTES).enumerate() {
        put(block, index % 2, pair_mut(header, panel, index));
    }
}

/// The lines of two blocks, one of which is `block`.
fn pair_mut(header: Header, panel: &mut [u32], block: usize) -> &mut [u32] {
    let words = header.lines() * PANEL;
    &mut panel[block / 2 * words..][..words]
}

fn put_half(line: &mut [u32], index: usize, bits: [u8; 2]) {
    line[index / 2] |= u32::from(u16::from_le_bytes(bits)) << (16 * (index % 2));
}

fn half_at(line: &[u32], index: usize) -> f32 {
    f16::from_bits((line[index / 2] >> (16 * (index % 2))) as u16).to_f32()
}

fn put_codes(header: Header, codes: &[u8], (lane, half): (usize, usize), out: &mut [u32]) {
    let lines = &mut out[(header.header_lines() + half * CODE_LINES) * PANEL..];
    for (line, codes) in lines.chunks_exact_mut(PANEL).zip(codes.as_chunks().0) {
        line[lane] = u32::from_le_bytes(*codes);
    }
}

/// Decodes a lane of a panel, to the values of [`BlockType::decode`](crate::blocks::BlockType::decode).
pub fn unpack(header: Header, panel: &[u32], lane: usize, out: &mut [f32]) {
    let pairs = panel.chunks_exact(header.lines() * PANEL);
    for (pair, out) in pairs.zip(out.chunks_mut(2 * BLOCK)) {
        for (half, out) in out.chunks_mut(BLOCK).enumerate() {
            let scale = scale(header, pair, (lane, half));
            let offset = match header {
                Header::Zeros => (pair[PANEL + lane] >> (16 * half)) as i16,
                _ => i16::from(header.value_offset()),
            };
            let lines = &pair[(header.header_lines() + half * CODE_LINES) * PANEL..];
            for (i, out) in out.iter_mut().enumerate() {
                let byte = lines[i % CODE_BYTES / 4 * PANEL + lane].to_le_bytes()[i % 4];
                let code = byte >> (4 * (i / CODE_BYTES)) & 15;
                let value = i16::from(header.values()[usize::from(code)]);
                *out = scale * f32::from(value - offset);
                if header == Header::Minima {
                    *out += half_at(&pair[PANEL..], half * PANEL + lane);
                }
            }
        }
    }
}

fn scale(header: Header, pair: &[u32], (lane, half): (usize, usize)) -> f32 {
    match header {
        Header::Around8 | Header::Minima | Header::Zeros | Header::Table => {
            half_at(pair, half * PANEL + lane)
        }
        Header::ScaledTable => {
            let s = pair[PANEL / 2 + lane / 2] >> (16 * (lane % 2) + 8 * half) & 0xff;
            half_at(pair, lane) * (s as f32 - 32.0)
        }
        Header::Powers => half_power(pair[lane].to_le_bytes()[2 + half]),
    }
}
