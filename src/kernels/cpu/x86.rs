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
    kernel.run::<Avx512>()
}

/// Two registers of eight lanes.
#[derive(Clone, Copy)]
pub struct Avx2;

/// All sixteen lanes. Masked loads and stores of all lanes compile to plain unaligned ones, in debug builds too, where
/// others carry a check of the pointer that keeps tiles out of registers.
const ALL: u16 = !0;

/// One register of sixteen lanes.
#[derive(Clone, Copy)]
pub struct Avx512;

// SAFETY of both impls: the trait's contract puts detection and pointer validity on the caller; loads and stores
// take any alignment.
impl Lanes for Avx2 {
    type V = (__m256, __m256);

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
    unsafe fn sum(v: Self::V) -> f32 {
        unsafe { sum8(_mm256_add_ps(v.0, v.1)) }
    }
}

impl Lanes for Avx512 {
    type V = __m512;

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
