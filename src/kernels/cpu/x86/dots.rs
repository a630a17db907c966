//! Dot product instructions that only some processors have (VNNI, AVX-512 BF16).

use std::arch::x86_64::*;

pub trait Extensions: Copy + 'static {
    const VNNI: bool;
    const BF16: bool;
}

#[derive(Clone, Copy)]
pub struct Plain;
#[derive(Clone, Copy)]
pub struct Vnni;
#[derive(Clone, Copy)]
pub struct VnniAndBf16;

impl Extensions for Plain {
    const VNNI: bool = false;
    const BF16: bool = false;
}

impl Extensions for Vnni {
    const VNNI: bool = true;
    const BF16: bool = false;
}

impl Extensions for VnniAndBf16 {
    const VNNI: bool = true;
    const BF16: bool = true;
}

/// Dot products of integers in registers of eight words.
///
/// # Safety
/// Every method must only run where its instructions were detected.
pub trait Dots: Copy + 'static {
    /// Whether each method is one instruction.
    const VNNI: bool;

    /// Adds to each word the four products of unsigned bytes with signed bytes.
    unsafe fn quads(acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i;

    /// Adds to each word the products of its i16 halves.
    unsafe fn shorts(acc: __m256i, a: __m256i, b: __m256i) -> __m256i;
}

/// Dot products by AVX2 multiplications.
#[derive(Clone, Copy)]
pub struct MultiplyAdd;

impl Dots for MultiplyAdd {
    const VNNI: bool = false;

    /// Multiplies in 16 bits, where products never saturate.
    #[inline(always)]
    unsafe fn quads(acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe {
            let even = _mm256_madd_epi16(
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(signed)),
                _mm256_and_si256(unsigned, _mm256_set1_epi16(0xff)),
            );
            let odd = _mm256_madd_epi16(
                _mm256_srai_epi16::<8>(signed),
                _mm256_srli_epi16::<8>(unsigned),
            );
            _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
        }
    }

    #[inline(always)]
    unsafe fn shorts(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(a, b)) }
    }
}

#[derive(Clone, Copy)]
pub struct AvxVnni;

impl Dots for AvxVnni {
    const VNNI: bool = true;

    #[inline(always)]
    unsafe fn quads(acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm256_dpbusd_avx_epi32(acc, unsigned, signed) }
    }

    #[inline(always)]
    unsafe fn shorts(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm256_dpwssd_avx_epi32(acc, a, b) }
    }
}

/// The EVEX encoding (AVX-512 VL and VNNI), with which tests run the AVX-VNNI path on machines without it.
#[cfg(test)]
#[derive(Clone, Copy)]
pub struct EvexVnni;

#[cfg(test)]
impl Dots for EvexVnni {
    const VNNI: bool = true;

    #[inline(always)]
    unsafe fn quads(acc: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm256_dpbusd_epi32(acc, unsigned, signed) }
    }

    #[inline(always)]
    unsafe fn shorts(acc: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: only registers; the caller detected the instruction set.
        unsafe { _mm256_dpwssd_epi32(acc, a, b) }
    }
}
