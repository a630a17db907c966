//! The SIMD lanes on AVX-512: one register of sixteen.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use half::{bf16, f16};

use super::super::simd::lanes::{EIGHT, FOUR, LANES, Lanes};
use super::super::simd::unaligned::read;
use super::dots::Extensions;
use super::moves::{exchange_quarters, max8, sum8, transpose_quarters};

/// Mask of all lanes. Masked loads and stores compile to plain unaligned ones; other intrinsics have a pointer check in
/// debug builds that keeps tiles out of registers.
const ALL: u16 = !0;

#[derive(Clone, Copy)]
pub struct Avx512<E>(PhantomData<E>);

const HIGH: i32 = 0xffff_0000u32 as i32;

impl<E: Extensions> Lanes for Avx512<E> {
    type V = __m512;
    type W = __m512i;

    const REGISTERS_PER_VECTOR: usize = 1;
    const BF16_PAIRS: bool = E::BF16;
    const BYTE_QUADS: bool = E::VNNI;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller guarantees sixteen elements at `p`, and the instruction set.
        unsafe { _mm512_maskz_loadu_ps(ALL, p) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: the caller guarantees sixteen elements at `p`, and the instruction set.
        unsafe {
            let raw = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(ALL, p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(raw))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        // SAFETY: the caller guarantees sixteen elements at `p`, and the instruction set.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(ALL, p.cast())) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller guarantees space for sixteen elements at `p`, and the instruction set.
        unsafe { _mm512_mask_storeu_ps(p, ALL, v) };
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(v: Self::V, n: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        // SAFETY: the caller guarantees space for sixteen elements at `p`, and the instruction set.
        unsafe {
            _mm256_mask_storeu_epi16(p.cast(), ALL, _mm512_cvtepi32_epi16(rounded_bf16(v)));
        }
    }

    #[inline(always)]
    unsafe fn round_bf16(v: Self::V) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(rounded_bf16(v))) }
    }

    #[inline(always)]
    unsafe fn store_bf16_normal(p: *mut bf16, v: Self::V) {
        // SAFETY: the caller guarantees space for sixteen elements at `p`, and the instruction set.
        unsafe {
            if !E::BF16 {
                return Self::store_bf16(p, v);
            }
            let narrow = bf16_bits(_mm512_cvtneps_pbh(v));
            _mm256_mask_storeu_epi16(p.cast(), ALL, narrow);
        }
    }

    #[inline(always)]
    unsafe fn pair_bf16(low: Self::V, high: Self::V) -> Self::W {
        // SAFETY: `narrow` holds 32 bf16, which are sixteen words; the caller detected the instruction set.
        unsafe {
            if E::BF16 {
                return word_bits(_mm512_cvtne2ps_pbh(high, low));
            }
            let mut narrow = [bf16::ZERO; 2 * LANES];
            Self::store_bf16(narrow.as_mut_ptr(), low);
            Self::store_bf16(narrow.as_mut_ptr().wrapping_add(LANES), high);
            Self::load_words(narrow.as_ptr().cast())
        }
    }

    #[inline(always)]
    unsafe fn low_bytes(values: [Self::V; 4]) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let mut bytes = [_mm_setzero_si128(); 4];
            for (bytes, v) in bytes.iter_mut().zip(values) {
                *bytes = _mm512_cvtepi32_epi8(_mm512_castps_si512(v));
            }
            let [a, b, c, d] = bytes;
            let low = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(a), b);
            let high = _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(c), d);
            _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
        }
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    // Not a plain dereference, which has a check in debug builds that keeps tiles out of registers.
    #[inline(always)]
    unsafe fn splat_at(p: *const f32) -> Self::V {
        // SAFETY: the caller guarantees one value at `p`, and the instruction set.
        unsafe { _mm512_broadcastss_ps(_mm_load_ss(p)) }
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> Self::W {
        // SAFETY: the caller guarantees sixteen elements at `p`, and the instruction set.
        unsafe { _mm512_maskz_loadu_epi32(ALL, p.cast()) }
    }

    #[inline(always)]
    unsafe fn dot_pairs(acc: Self::V, a: Self::W, b: Self::W) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if E::BF16 {
                return _mm512_dpbf16_ps(acc, bf16_lanes(a), bf16_lanes(b));
            }
            let low = |w| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(w));
            let high = |w| _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(HIGH)));
            let first = _mm512_fmadd_ps(low(a), low(b), acc);
            _mm512_fmadd_ps(high(a), high(b), first)
        }
    }

    #[inline(always)]
    unsafe fn dot_quads(acc: Self::W, a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if E::VNNI {
                return _mm512_dpbusd_epi32(acc, b, a);
            }
            let even = _mm512_madd_epi16(
                _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(a)),
                _mm512_and_si512(b, _mm512_set1_epi16(0xff)),
            );
            let odd = _mm512_madd_epi16(_mm512_srai_epi16::<8>(a), _mm512_srli_epi16::<8>(b));
            _mm512_add_epi32(acc, _mm512_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn and(a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn or(a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    unsafe fn shift_left(words: Self::W, n: u32) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_sll_epi32(words, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    unsafe fn shift_right(words: Self::W, n: u32) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_srl_epi32(words, _mm_cvtsi32_si128(n as i32)) }
    }

    #[inline(always)]
    unsafe fn look_up(values: &[u8; 16], bytes: Self::W) -> Self::W {
        // SAFETY: only registers, and the values are sixteen bytes; the caller detected the instruction set.
        unsafe {
            let values = _mm512_broadcast_i32x4(read(values.as_ptr()));
            _mm512_shuffle_epi8(values, bytes)
        }
    }

    #[inline(always)]
    unsafe fn extend_bytes(words: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(words)) }
    }

    #[inline(always)]
    unsafe fn high_bytes(words: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_srai_epi16::<8>(words) }
    }

    #[inline(always)]
    unsafe fn sub_words(a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    unsafe fn dot_shorts(acc: Self::W, a: Self::W, b: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if E::VNNI {
                return _mm512_dpwssd_epi32(acc, a, b);
            }
            _mm512_add_epi32(acc, _mm512_madd_epi16(a, b))
        }
    }

    const NARROW_SUMS: bool = !E::VNNI;

    #[inline(always)]
    unsafe fn dot_codes(sums: Self::W, row: Self::W, codes: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if E::VNNI {
                return _mm512_dpbusd_epi32(sums, codes, row);
            }
            _mm512_add_epi16(sums, _mm512_maddubs_epi16(codes, row))
        }
    }

    #[inline(always)]
    unsafe fn add_scaled(acc: Self::W, sums: Self::W, scales: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if E::VNNI {
                return _mm512_add_epi32(acc, _mm512_mullo_epi32(sums, scales));
            }
            _mm512_add_epi32(acc, _mm512_madd_epi16(sums, scales))
        }
    }

    #[inline(always)]
    unsafe fn low_scales(pairs: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if E::VNNI {
                return _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(pairs));
            }
            let low = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff));
            _mm512_or_si512(low, _mm512_slli_epi32::<16>(low))
        }
    }

    #[inline(always)]
    unsafe fn high_scales(pairs: Self::W) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            if E::VNNI {
                return _mm512_srai_epi32::<16>(pairs);
            }
            let high = _mm512_srli_epi32::<16>(pairs);
            _mm512_or_si512(high, _mm512_slli_epi32::<16>(high))
        }
    }

    #[inline(always)]
    unsafe fn words_to_f32(words: Self::W) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_cvtepi32_ps(words) }
    }

    #[inline(always)]
    unsafe fn to_words(v: Self::V) -> Self::W {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_castps_si512(v) }
    }

    #[inline(always)]
    unsafe fn from_words(words: Self::W) -> Self::V {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm512_castsi512_ps(words) }
    }

    #[inline(always)]
    unsafe fn store_words(p: *mut u32, words: Self::W) {
        // SAFETY: the caller guarantees space for sixteen elements at `p`, and the instruction set.
        unsafe { _mm512_mask_storeu_epi32(p.cast(), ALL, words) };
    }

    // No loops over registers: compilers keep those in memory.
    #[inline(always)]
    unsafe fn transpose(rows: [Self::W; LANES]) -> [Self::W; LANES] {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            // Quarter q of `a[i]` holds word 4 q + i of the first four rows, and so on.
            let a = transpose_quarters([rows[0], rows[1], rows[2], rows[3]]);
            let b = transpose_quarters([rows[4], rows[5], rows[6], rows[7]]);
            let c = transpose_quarters([rows[8], rows[9], rows[10], rows[11]]);
            let d = transpose_quarters([rows[12], rows[13], rows[14], rows[15]]);
            let e = exchange_quarters([a[0], b[0], c[0], d[0]]);
            let f = exchange_quarters([a[1], b[1], c[1], d[1]]);
            let g = exchange_quarters([a[2], b[2], c[2], d[2]]);
            let h = exchange_quarters([a[3], b[3], c[3], d[3]]);
            [
                e[0], f[0], g[0], h[0], e[1], f[1], g[1], h[1], e[2], f[2], g[2], h[2], e[3], f[3],
                g[3], h[3],
            ]
        }
    }

    #[inline(always)]
    unsafe fn transpose_four(rows: [Self::W; FOUR]) -> [Self::W; FOUR] {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { exchange_quarters(transpose_quarters(rows)) }
    }

    #[inline(always)]
    unsafe fn transpose_eight(rows: [Self::W; EIGHT]) -> [Self::W; EIGHT] {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let a = transpose_quarters([rows[0], rows[1], rows[2], rows[3]]);
            let b = transpose_quarters([rows[4], rows[5], rows[6], rows[7]]);
            let even = exchange_quarters([a[0], b[0], a[1], b[1]]);
            let odd = exchange_quarters([a[2], b[2], a[3], b[3]]);
            [
                even[0], odd[0], even[1], odd[1], even[2], odd[2], even[3], odd[3],
            ]
        }
    }

    #[inline(always)]
    unsafe fn zip_bf16(low: Self::W, high: Self::W) -> (Self::W, Self::W) {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            (
                _mm512_unpacklo_epi16(low, high),
                _mm512_unpackhi_epi16(low, high),
            )
        }
    }

    #[inline(always)]
    unsafe fn zip_bytes(rows: [Self::W; 4]) -> [Self::W; 4] {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let [a, b, c, d] = rows;
            let low = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
            let high = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
            let quads = [
                _mm512_unpacklo_epi16(low.0, low.1),
                _mm512_unpackhi_epi16(low.0, low.1),
                _mm512_unpacklo_epi16(high.0, high.1),
                _mm512_unpackhi_epi16(high.0, high.1),
            ];
            // Each result joins halves of two vectors: the first two the first halves (0x44), the others the second
            // halves (0xee).
            [
                _mm512_shuffle_i64x2::<0x44>(quads[0], quads[1]),
                _mm512_shuffle_i64x2::<0x44>(quads[2], quads[3]),
                _mm512_shuffle_i64x2::<0xee>(quads[0], quads[1]),
                _mm512_shuffle_i64x2::<0xee>(quads[2], quads[3]),
            ]
        }
    }

    #[inline(always)]
    unsafe fn zip_quarters(a: Self::V, b: Self::V) -> (Self::V, Self::V) {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let first = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
            let second = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
            let (a, b) = (_mm512_castps_pd(a), _mm512_castps_pd(b));
            (
                _mm512_castpd_ps(_mm512_permutex2var_pd(a, first, b)),
                _mm512_castpd_ps(_mm512_permutex2var_pd(a, second, b)),
            )
        }
    }

    #[inline(always)]
    unsafe fn prefetch<T>(p: *const T) {
        // SAFETY: only a hint, which takes any address; the caller detected the instruction set.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn prefetch_near<T>(p: *const T) {
        // SAFETY: only a hint, which takes any address; the caller detected the instruction set.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn prefetch_write<T>(p: *const T) {
        // SAFETY: only a hint, which takes any address; the caller detected the instruction set.
        unsafe { _mm_prefetch::<_MM_HINT_ET0>(p.cast()) };
    }

    #[inline(always)]
    unsafe fn max_lane(v: Self::V) -> f32 {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            max8(_mm256_max_ps(
                _mm512_castps512_ps256(v),
                _mm512_extractf32x8_ps::<1>(v),
            ))
        }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            sum8(_mm256_add_ps(
                _mm512_castps512_ps256(v),
                _mm512_extractf32x8_ps::<1>(v),
            ))
        }
    }
}

/// Rounds to the nearest bf16, ties to even; the result is in the low half of each word.
#[inline(always)]
unsafe fn rounded_bf16(v: __m512) -> __m512i {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let bits = _mm512_castps_si512(v);
        let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
        let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
        let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
        let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
        _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0))
    }
}

#[inline(always)]
unsafe fn bf16_bits(narrow: __m256bh) -> __m256i {
    // SAFETY: both are 256 plain bits.
    unsafe { std::mem::transmute(narrow) }
}

#[inline(always)]
unsafe fn bf16_lanes(words: __m512i) -> __m512bh {
    // SAFETY: both are 512 plain bits.
    unsafe { std::mem::transmute(words) }
}

#[inline(always)]
unsafe fn word_bits(pairs: __m512bh) -> __m512i {
    // SAFETY: both are 512 plain bits.
    unsafe { std::mem::transmute(pairs) }
}
