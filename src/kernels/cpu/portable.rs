//! Portable SIMD lanes: a plain array, for any target.

use half::{bf16, f16};

use super::simd::lanes::{LANES, Lanes};
use super::simd::unaligned::{read, write};

#[derive(Clone, Copy)]
pub struct Portable;

// Loops instead of `map` and `from_fn` of arrays, which large kernels don't inline but call for each lane.

#[inline(always)]
fn each<A: Copy, B: Copy + Default>(a: [A; LANES], f: impl Fn(A) -> B) -> [B; LANES] {
    let mut out = [B::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i]);
    }
    out
}

#[inline(always)]
fn zip<A: Copy, B: Copy + Default>(
    a: [A; LANES],
    b: [A; LANES],
    f: impl Fn(A, A) -> B,
) -> [B; LANES] {
    let mut out = [B::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Lanes for Portable {
    type V = [f32; LANES];
    type W = [u32; LANES];

    const REGISTERS_PER_VECTOR: usize = 4;
    const BF16_PAIRS: bool = true;
    const BYTE_QUADS: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller's pointer is valid for sixteen values.
        unsafe { read(p) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: the caller's pointer is valid for sixteen values; bf16 is a transparent u16.
        let raw: [u16; LANES] = unsafe { read(p) };
        each(raw, |bits| f32::from_bits(u32::from(bits) << 16))
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        // SAFETY: the caller's pointer is valid for sixteen values.
        let raw: [f16; LANES] = unsafe { read(p) };
        each(raw, f16::to_f32)
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller's pointer is valid for sixteen values.
        unsafe { write(p, v) };
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let mut out = [0f32; LANES];
        for i in 0..LANES {
            // Without hardware FMA `f32::mul_add` is a library call.
            out[i] = if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
                a[i].mul_add(b[i], c[i])
            } else {
                a[i] * b[i] + c[i]
            };
        }
        out
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(v: Self::V, n: Self::V) -> Self::V {
        zip(v, n, |v, n| {
            f32::from_bits(v.to_bits().wrapping_add(n.to_bits() << 23))
        })
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        let narrow = each(v, |x| bf16::from_f32(x).to_bits());
        // SAFETY: the caller's pointer is valid for sixteen values.
        unsafe { write(p, narrow) };
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> Self::W {
        [word; LANES]
    }

    #[inline(always)]
    unsafe fn splat_at(p: *const f32) -> Self::V {
        // SAFETY: the caller's pointer is valid for a value.
        [unsafe { read(p) }; LANES]
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> Self::W {
        // SAFETY: the caller's pointer is valid for sixteen words.
        unsafe { read(p) }
    }

    #[inline(always)]
    unsafe fn dot_pairs(acc: Self::V, a: Self::W, b: Self::W) -> Self::V {
        let low = |word: u32| f32::from_bits(word << 16);
        let high = |word: u32| f32::from_bits(word & 0xffff_0000);
        // Products of two bf16 are exact in f32, so only the sums round.
        let first = zip(a, b, |a, b| low(a) * low(b));
        let second = zip(a, b, |a, b| high(a) * high(b));
        zip(zip(acc, first, |a, b| a + b), second, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn dot_quads(acc: Self::W, a: Self::W, b: Self::W) -> Self::W {
        let mut out = acc;
        for i in 0..LANES {
            for byte in 0..4 {
                let a = (a[i] << (24 - 8 * byte)) as i32 >> 24;
                let b = ((b[i] >> (8 * byte)) & 0xff) as i32;
                out[i] = out[i].wrapping_add(a.wrapping_mul(b) as u32);
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn and(a: Self::W, b: Self::W) -> Self::W {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    unsafe fn or(a: Self::W, b: Self::W) -> Self::W {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    unsafe fn shift_left(words: Self::W, n: u32) -> Self::W {
        each(words, |word| word << n)
    }

    #[inline(always)]
    unsafe fn shift_right(words: Self::W, n: u32) -> Self::W {
        each(words, |word| word >> n)
    }

    #[inline(always)]
    unsafe fn look_up(values: &[u8; 16], bytes: Self::W) -> Self::W {
        let value = |word: u32, byte: u32| {
            u32::from(values[(word >> (8 * byte)) as usize & 15]) << (8 * byte)
        };
        each(bytes, |word| {
            value(word, 0) | value(word, 1) | value(word, 2) | value(word, 3)
        })
    }

    #[inline(always)]
    unsafe fn extend_bytes(words: Self::W) -> Self::W {
        let extend = |byte: u32| u32::from(i16::from(byte as u8 as i8) as u16);
        each(words, |word| extend(word) | extend(word >> 16) << 16)
    }

    #[inline(always)]
    unsafe fn sub_words(a: Self::W, b: Self::W) -> Self::W {
        zip(a, b, u32::wrapping_sub)
    }

    #[inline(always)]
    unsafe fn dot_shorts(acc: Self::W, a: Self::W, b: Self::W) -> Self::W {
        let low = |word: u32| i32::from(word as i16);
        let high = |word: u32| word as i32 >> 16;
        let sums = zip(a, b, |a, b| {
            let first = low(a).wrapping_mul(low(b));
            first.wrapping_add(high(a).wrapping_mul(high(b))) as u32
        });
        zip(acc, sums, u32::wrapping_add)
    }

    const NARROW_SUMS: bool = false;

    #[inline(always)]
    unsafe fn dot_codes(sums: Self::W, row: Self::W, codes: Self::W) -> Self::W {
        // SAFETY: the portable path requires nothing.
        unsafe { Self::dot_quads(sums, row, codes) }
    }

    #[inline(always)]
    unsafe fn add_scaled(acc: Self::W, sums: Self::W, scales: Self::W) -> Self::W {
        zip(acc, zip(sums, scales, u32::wrapping_mul), u32::wrapping_add)
    }

    #[inline(always)]
    unsafe fn low_scales(pairs: Self::W) -> Self::W {
        each(pairs, |pair| i32::from(pair as i16) as u32)
    }

    #[inline(always)]
    unsafe fn high_scales(pairs: Self::W) -> Self::W {
        each(pairs, |pair| (pair as i32 >> 16) as u32)
    }

    #[inline(always)]
    unsafe fn words_to_f32(words: Self::W) -> Self::V {
        each(words, |word| word as i32 as f32)
    }

    #[inline(always)]
    unsafe fn to_words(v: Self::V) -> Self::W {
        each(v, f32::to_bits)
    }

    #[inline(always)]
    unsafe fn from_words(words: Self::W) -> Self::V {
        each(words, f32::from_bits)
    }

    #[inline(always)]
    unsafe fn store_words(p: *mut u32, words: Self::W) {
        // SAFETY: the caller's pointer is valid for sixteen words.
        unsafe { write(p, words) };
    }

    #[inline(always)]
    unsafe fn transpose(rows: [Self::W; LANES]) -> [Self::W; LANES] {
        let mut out = [[0; LANES]; LANES];
        for i in 0..LANES {
            for j in 0..LANES {
                out[i][j] = rows[j][i];
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn zip_bf16(low: Self::W, high: Self::W) -> (Self::W, Self::W) {
        let mut out = ([0; LANES], [0; LANES]);
        for i in (0..LANES).step_by(2) {
            // The first two words of each quarter fill a quarter of the first vector, the last two of the second.
            let (to, at) = match i % 4 {
                0 => (&mut out.0, i),
                _ => (&mut out.1, i - 2),
            };
            for j in 0..2 {
                let (low, high) = (low[i + j], high[i + j]);
                to[at + 2 * j] = low & 0xffff | high << 16;
                to[at + 2 * j + 1] = low >> 16 | high & 0xffff_0000;
            }
        }
        out
    }
}
