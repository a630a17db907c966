//! The lanes of AVX2 and AVX-512.

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::simd::{Kernel, Lanes, read, write};

/// Runs a kernel compiled for AVX2, FMA and F16C.
///
/// # Safety
/// The machine must have them.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// Runs a kernel compiled for AVX-512 F, BW, DQ and VL.
///
/// # Safety
/// The machine must have them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<false>>()
}

/// Runs a kernel compiled for AVX-512 F, BW, DQ, VL, BF16 and VNNI.
///
/// # Safety
/// The machine must have them.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni,avx2,fma,f16c")]
pub unsafe fn run_avx512_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<true>>()
}

/// Two registers of eight lanes.
#[derive(Clone, Copy)]
pub struct Avx2;

/// All sixteen lanes. Masked loads and stores of all lanes compile to plain unaligned ones, in debug builds too, where
/// others carry a check of the pointer that keeps tiles out of registers.
const ALL: u16 = !0;

/// One register of sixteen lanes; with or without the dot products of BF16 and VNNI.
#[derive(Clone, Copy)]
pub struct Avx512<const DOT: bool>;

/// The high halves of words.
const HIGH: i32 = 0xffff_0000u32 as i32;

// SAFETY of both impls: the trait's contract puts detection and pointer validity on the caller; loads and stores
// take any alignment.
impl Lanes for Avx2 {
    type V = (__m256, __m256);
    type W = (__m256i, __m256i);

    const REGISTERS: usize = 2;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        unsafe { (_mm256_set1_ps(x), _mm256_set1_ps(x)) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { (read(p), read(p.wrapping_add(8))) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        unsafe {
            let low = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(read(p)));
            let high = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(read(p.wrapping_add(8))));
            (_mm256_castsi256_ps(low), _mm256_castsi256_ps(high))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        unsafe {
            (
                _mm256_cvtph_ps(read(p)),
                _mm256_cvtph_ps(read(p.wrapping_add(8))),
            )
        }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        unsafe {
            write(p, v.0);
            write(p.wrapping_add(8), v.1);
        }
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_add_ps(a.0, b.0), _mm256_add_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_sub_ps(a.0, b.0), _mm256_sub_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_mul_ps(a.0, b.0), _mm256_mul_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_div_ps(a.0, b.0), _mm256_div_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_max_ps(a.0, b.0), _mm256_max_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        unsafe { (_mm256_min_ps(a.0, b.0), _mm256_min_ps(a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe {
            (
                _mm256_fmadd_ps(a.0, b.0, c.0),
                _mm256_fmadd_ps(a.1, b.1, c.1),
            )
        }
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(v: Self::V, n: Self::V) -> Self::V {
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
        unsafe {
            let low = round_bf16(_mm256_castps_si256(v.0), v.0);
            let high = round_bf16(_mm256_castps_si256(v.1), v.1);
            // Packing works inside 128-bit halves: the permutation puts the quarters back in order.
            let packed = _mm256_packus_epi32(low, high);
            write(p, _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> Self::W {
        unsafe {
            (
                _mm256_set1_epi32(word as i32),
                _mm256_set1_epi32(word as i32),
            )
        }
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> Self::W {
        unsafe { (read(p), read(p.wrapping_add(8))) }
    }

    #[inline(always)]
    unsafe fn dot_pairs(acc: Self::V, a: Self::W, b: Self::W) -> Self::V {
        unsafe { (dot_pairs8(acc.0, a.0, b.0), dot_pairs8(acc.1, a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn dot_quads(acc: Self::W, a: Self::W, b: Self::W) -> Self::W {
        unsafe { (dot_quads8(acc.0, a.0, b.0), dot_quads8(acc.1, a.1, b.1)) }
    }

    #[inline(always)]
    unsafe fn words_to_f32(words: Self::W) -> Self::V {
        unsafe { (_mm256_cvtepi32_ps(words.0), _mm256_cvtepi32_ps(words.1)) }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        unsafe { sum8(_mm256_add_ps(v.0, v.1)) }
    }
}

impl<const DOT: bool> Lanes for Avx512<DOT> {
    type V = __m512;
    type W = __m512i;

    const REGISTERS: usize = 1;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        unsafe { _mm512_maskz_loadu_ps(ALL, p) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        unsafe {
            let raw = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(ALL, p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(raw))
        }
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(ALL, p.cast())) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        unsafe { _mm512_mask_storeu_ps(p, ALL, v) };
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_max_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        unsafe { _mm512_min_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(v: Self::V, n: Self::V) -> Self::V {
        unsafe {
            let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(n));
            _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(v), exponent))
        }
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        unsafe {
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let rounded = _mm512_srli_epi32::<16>(_mm512_add_epi32(bits, half));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let rounded = _mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(0x7fc0));
            _mm256_mask_storeu_epi16(p.cast(), ALL, _mm512_cvtepi32_epi16(rounded));
        }
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> Self::W {
        unsafe { _mm512_set1_epi32(word as i32) }
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> Self::W {
        unsafe { _mm512_maskz_loadu_epi32(ALL, p.cast()) }
    }

    #[inline(always)]
    unsafe fn dot_pairs(acc: Self::V, a: Self::W, b: Self::W) -> Self::V {
        unsafe {
            if DOT {
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
        unsafe {
            if DOT {
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
    unsafe fn words_to_f32(words: Self::W) -> Self::V {
        unsafe { _mm512_cvtepi32_ps(words) }
    }

    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        unsafe {
            sum8(_mm256_add_ps(
                _mm512_castps512_ps256(v),
                _mm512_extractf32x8_ps::<1>(v),
            ))
        }
    }
}

/// Lane i with i+4, i+2, i+1.
#[inline(always)]
unsafe fn sum8(v: __m256) -> f32 {
    unsafe {
        let v4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
        let v1 = _mm_add_ss(v2, _mm_shuffle_ps::<1>(v2, v2));
        _mm_cvtss_f32(v1)
    }
}

/// Two words of sixteen bf16 pairs as the dot product takes them.
#[inline(always)]
unsafe fn bf16_lanes(words: __m512i) -> __m512bh {
    // SAFETY: both are 512 plain bits.
    unsafe { std::mem::transmute(words) }
}

/// Rounds to the nearest bf16, ties to even; the result stands in the low half of each word.
#[inline(always)]
unsafe fn round_bf16(bits: __m256i, v: __m256) -> __m256i {
    unsafe {
        let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
        let half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, half));
        let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
        _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), nan)
    }
}

#[inline(always)]
unsafe fn dot_pairs8(acc: __m256, a: __m256i, b: __m256i) -> __m256 {
    unsafe {
        let low = |w| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
        let high = |w| _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(HIGH)));
        let first = _mm256_fmadd_ps(low(a), low(b), acc);
        _mm256_fmadd_ps(high(a), high(b), first)
    }
}

/// Products of bytes in 16 bits, where they never saturate.
#[inline(always)]
unsafe fn dot_quads8(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
    unsafe {
        let even = _mm256_madd_epi16(
            _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(a)),
            _mm256_and_si256(b, _mm256_set1_epi16(0xff)),
        );
        let odd = _mm256_madd_epi16(_mm256_srai_epi16::<8>(a), _mm256_srli_epi16::<8>(b));
        _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
    }
}
