//! The SIMD lanes on AVX2: two registers of eight.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use half::{bf16, f16};

use super::super::simd::lanes::{FOUR, LANES, Lanes};
use super::super::simd::unaligned::{read, write};
use super::super::strip_product::{NARROW_STRIP, StripProduct, WIDE_STRIP};
use super::dots::Dots;
use super::moves::{max8, sum8, transpose4, transpose8, zip_bytes8};
use super::strip;

const HIGH: i32 = 0xffff_0000u32 as i32;

/// `D` provides the integer dot products.
#[derive(Clone, Copy)]
pub struct Avx2<D>(PhantomData<D>);

// Loads and stores take any alignment, as the trait requires.
impl<D: Dots> Lanes for Avx2<D> {
    type V = (__m256, __m256);
    type W = (__m256i, __m256i);

    const REGISTERS_PER_VECTOR: usize = 2;
    const BF16_PAIRS: bool = false;
    const BYTE_QUADS: bool = D::VNNI;
    const STRIPS: bool = true;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller guarantees sixteen elements at `p`, and the instruction set.
        unsafe { (read(p), read(p.wrapping_add(8))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: the caller guarantees sixteen elements at `p`, and the instruction set.
        unsafe {
            let low = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(read(p)));
            let high = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(read(p.wrapping_add(8))));
            (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        // SAFETY: the caller guarantees sixteen elements at `p`, and the instruction set.
        unsafe {
            (
                _mm256_cvtph_ps(read(p)),
                _mm256_cvtph_ps(read(p.wrapping_add(8))),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller guarantees space for sixteen elements at `p`, and the instruction set.
        unsafe {
            write(p, v.0);
            write(p.wrapping_add(8), v.1);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            (
                _mm256_fmadd_ps(a.0, b.0, c.0),
                _mm256_fmadd_ps(a.1, b.1, c.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let low = _mm256_slli_epi32::<23>(_mm256_castps_si256(n.0));
            let high = _mm256_slli_epi32::<23>(_mm256_castps_si256(n.1));
            let low = _mm256_add_epi32(_mm256_castps_si256(v.0), low);
            let high = _mm256_add_epi32(_mm256_castps_si256(v.1), high);
            (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        // SAFETY: the caller guarantees space for sixteen elements at `p`, and the instruction set.
        unsafe {
            let (low, high) = (rounded_bf16(v.0), rounded_bf16(v.1));
            // Packing works inside 128-bit halves: the permutation puts the quarters back in order.
            let packed = _mm256_packus_epi32(low, high);
            write(p, _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let narrow = (rounded_bf16(v.0), rounded_bf16(v.1));
            Self::from_words(Self::shift_left(narrow, 16))
        }
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            (
                _mm256_set1_epi32(word as i32),
                _mm256_set1_epi32(word as i32),
            )
        }
    }

    // Not a plain dereference, which has a check in debug builds that keeps tiles out of registers.
    #[inline(always)]
    unsafe fn splat_at(p: *const f32) -> Self::V {
        // SAFETY: the caller guarantees one value at `p`, and the instruction set.
        unsafe {
            let v = _mm256_broadcastss_ps(_mm_load_ss(p));
            (v, v)
        }
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> Self::W {
        // SAFETY: the caller guarantees sixteen elements at `p`, and the instruction set.
        unsafe { (read(p), read(p.wrapping_add(8))) }
    }

    #[inline(always)]
    unsafe fn dot_pairs(acc: Self::V, a: Self::W, b: Self::W) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (dot_pairs8(acc.0, a.0, b.0), dot_pairs8(acc.1, a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn dot_quads(acc: Self::W, a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (D::quads(acc.0, b.0, a.0), D::quads(acc.1, b.1, a.1)) }
    }

    #[inline(always)]
    unsafe fn and(a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_and_si256(a.0, b.0), _mm256_and_si256(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn or(a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_or_si256(a.0, b.0), _mm256_or_si256(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn shift_left(words: Self::W, n: u32) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            (_mm256_sll_epi32(words.0, n), _mm256_sll_epi32(words.1, n))
        }
    }

    #[inline(always)]
    unsafe fn shift_right(words: Self::W, n: u32) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let n = _mm_cvtsi32_si128(n as i32);
            (_mm256_srl_epi32(words.0, n), _mm256_srl_epi32(words.1, n))
        }
    }

    #[inline(always)]
    unsafe fn look_up(values: &[u8; 16], bytes: Self::W) -> Self::W {
        // SAFETY: only registers, and the values are sixteen bytes; the caller detected the instruction set.
        unsafe {
            let values = _mm256_broadcastsi128_si256(read(values.as_ptr()));
            (
                _mm256_shuffle_epi8(values, bytes.0),
                _mm256_shuffle_epi8(values, bytes.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn extend_bytes(words: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let extend = |w| _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(w));
            (extend(words.0), extend(words.1))
        }
    }

    #[inline(always)]
    unsafe fn high_bytes(words: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            (
                _mm256_srai_epi16::<8>(words.0),
                _mm256_srai_epi16::<8>(words.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn sub_words(a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_sub_epi32(a.0, b.0), _mm256_sub_epi32(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn dot_shorts(acc: Self::W, a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (D::shorts(acc.0, a.0, b.0), D::shorts(acc.1, a.1, b.1)) }
    }

    const NARROW_SUMS: bool = !D::VNNI;

    #[inline(always)]
    unsafe fn dot_codes(sums: Self::W, row: Self::W, codes: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if D::VNNI {
                return Self::dot_quads(sums, row, codes);
            }
            (
                _mm256_add_epi16(sums.0, _mm256_maddubs_epi16(codes.0, row.0)),
                _mm256_add_epi16(sums.1, _mm256_maddubs_epi16(codes.1, row.1)),
            )
        }
    }

    #[inline(always)]
    unsafe fn add_scaled(acc: Self::W, sums: Self::W, scales: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if D::VNNI {
                return (
                    _mm256_add_epi32(acc.0, _mm256_mullo_epi32(sums.0, scales.0)),
                    _mm256_add_epi32(acc.1, _mm256_mullo_epi32(sums.1, scales.1)),
                );
            }
            Self::dot_shorts(acc, sums, scales)
        }
    }

    #[inline(always)]
    unsafe fn low_scales(pairs: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if D::VNNI {
                return Self::high_scales(Self::shift_left(pairs, 16));
            }
            let low = Self::and(pairs, Self::splat_word(0xffff));
            Self::or(low, Self::shift_left(low, 16))
        }
    }

    #[inline(always)]
    unsafe fn high_scales(pairs: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if D::VNNI {
                return (
                    _mm256_srai_epi32::<16>(pairs.0),
                    _mm256_srai_epi32::<16>(pairs.1),
                );
            }
            let high = Self::shift_right(pairs, 16);
            Self::or(high, Self::shift_left(high, 16))
        }
    }

    #[inline(always)]
    unsafe fn words_to_f32(words: Self::W) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_cvtepi32_ps(words.0), _mm256_cvtepi32_ps(words.1)) }
    }

    #[inline(always)]
    unsafe fn to_words(v: Self::V) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_castps_si256(v.0), _mm256_castps_si256(v.1)) }
    }

    #[inline(always)]
    unsafe fn from_words(words: Self::W) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { (_mm256_castsi256_ps(words.0), _mm256_castsi256_ps(words.1)) }
    }

    #[inline(always)]
    unsafe fn store_words(p: *mut u32, words: Self::W) {
        // SAFETY: the caller guarantees space for sixteen elements at `p`, and the instruction set.
        unsafe {
            write(p, words.0);
            write(p.wrapping_add(8), words.1);
        }
    }

    #[inline(always)]
    unsafe fn transpose(rows: [Self::W; LANES]) -> [Self::W; LANES] {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let quarter = |first: usize, high: bool| {
                transpose8(std::array::from_fn(|i| {
                    let row = rows[first + i];
                    if high { row.1 } else { row.0 }
                }))
            };
            let (top, bottom) = (
                [quarter(0, false), quarter(0, true)],
                [quarter(8, false), quarter(8, true)],
            );
            std::array::from_fn(|i| (top[i / 8][i % 8], bottom[i / 8][i % 8]))
        }
    }

    #[inline(always)]
    unsafe fn transpose_four([a, b, c, d]: [Self::W; FOUR]) -> [Self::W; FOUR] {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let low = transpose4([a.0, b.0, c.0, d.0]);
            let high = transpose4([a.1, b.1, c.1, d.1]);
            [
                (low[0], low[1]),
                (low[2], low[3]),
                (high[0], high[1]),
                (high[2], high[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn zip_bf16(low: Self::W, high: Self::W) -> (Self::W, Self::W) {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            (
                (
                    _mm256_unpacklo_epi16(low.0, high.0),
                    _mm256_unpacklo_epi16(low.1, high.1),
                ),
                (
                    _mm256_unpackhi_epi16(low.0, high.0),
                    _mm256_unpackhi_epi16(low.1, high.1),
                ),
            )
        }
    }

    #[inline(always)]
    unsafe fn zip_bytes(rows: [Self::W; 4]) -> [Self::W; 4] {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let [a, b, c, d] = rows;
            let first = zip_bytes8([a.0, b.0, c.0, d.0]);
            let second = zip_bytes8([a.1, b.1, c.1, d.1]);
            [
                (first[0], first[1]),
                (first[2], first[3]),
                (second[0], second[1]),
                (second[2], second[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn zip_quarters(a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let zip = |a, b| {
                (
                    _mm256_permute2f128_ps::<0x20>(a, b),
                    _mm256_permute2f128_ps::<0x31>(a, b),
                )
            };
            (zip(a.0, b.0), zip(a.1, b.1))
        }
    }

    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        // SAFETY: only a hint, which takes any address; the caller detected the instruction set.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn prefetch_write<T>(p: *const T) {
        // SAFETY: only a hint, which takes any address; the caller detected the instruction set.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn multiply_strip<const M: usize, const STRIP: usize>(product: StripProduct) {
        // SAFETY: the caller guarantees the same.
        unsafe {
            match STRIP {
                WIDE_STRIP => strip::multiply::<M, 3>(product),
                NARROW_STRIP => strip::multiply::<M, 2>(product),
                _ => unreachable!("no strip has {STRIP} outputs"),
            }
        }
    }

    #[inline(always)]
    unsafe fn widen_strip(product: StripProduct, halves: [*const u32; 3]) {
        // SAFETY: the caller guarantees the same.
        unsafe { strip::widen(product, halves) };
    }

    #[inline(always)]
    unsafe fn max_lane(v: Self::V) -> f32 {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { max8(_mm256_max_ps(v.0, v.1)) }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { sum8(_mm256_add_ps(v.0, v.1)) }
    }
}

/// Rounds to the nearest bf16, ties to even; the result is in the low half of each word.
#[inline(always)]
unsafe fn rounded_bf16(v: __m256) -> __m256i {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let bits = _mm256_castps_si256(v);
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan)
    }
}

#[inline(always)]
unsafe fn dot_pairs8(acc: __m256, a: __m256i, b: __m256i) -> __m256 {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let low = |w| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
        let high = |w| _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(HIGH)));
        let first = _mm256_fmadd_ps(low(a), low(b), acc);
        _mm256_fmadd_ps(high(a), high(b), first)
    }
}
