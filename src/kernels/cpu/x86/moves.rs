//! Lane transpositions and horizontal reductions.

use std::arch::x86_64::*;

/// Adds lane i to i+4, then i+2, i+1.
#[inline(always)]
pub unsafe fn sum8(v: __m256) -> f32 {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let v4 = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v2 = _mm_add_ps(v4, _mm_movehl_ps(v4, v4));
        let v1 = _mm_add_ss(v2, _mm_shuffle_ps::<1>(v2, v2));
        _mm_cvtss_f32(v1)
    }
}

#[inline(always)]
pub unsafe fn max8(v: __m256) -> f32 {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let v4 = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let v2 = _mm_max_ps(v4, _mm_movehl_ps(v4, v4));
        let v1 = _mm_max_ss(v2, _mm_shuffle_ps::<1>(v2, v2));
        _mm_cvtss_f32(v1)
    }
}

/// As [`zip_bytes`](super::super::simd::Lanes::zip_bytes), for half a vector of each row.
#[inline(always)]
pub unsafe fn zip_bytes8(rows: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let [a, b, c, d] = rows;
        let low = (_mm256_unpacklo_epi8(a, b), _mm256_unpacklo_epi8(c, d));
        let high = (_mm256_unpackhi_epi8(a, b), _mm256_unpackhi_epi8(c, d));
        [
            _mm256_unpacklo_epi16(low.0, low.1),
            _mm256_unpackhi_epi16(low.0, low.1),
            _mm256_unpacklo_epi16(high.0, high.1),
            _mm256_unpackhi_epi16(high.0, high.1),
        ]
    }
}

#[inline(always)]
pub unsafe fn transpose8(rows: [__m256i; 8]) -> [__m256i; 8] {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        let zero = _mm256_setzero_si256();
        let mut quads = [zero; 8];
        for i in [0, 4] {
            let four = [rows[i], rows[i + 1], rows[i + 2], rows[i + 3]];
            quads[i..i + 4].copy_from_slice(&transpose_halves(four));
        }
        let mut out = [zero; 8];
        for i in 0..4 {
            out[i] = _mm256_permute2x128_si256::<0x20>(quads[i], quads[i + 4]);
            out[i + 4] = _mm256_permute2x128_si256::<0x31>(quads[i], quads[i + 4]);
        }
        out
    }
}

/// Transposes four rows of eight words: words i of all rows become adjacent, two such columns in a register.
#[inline(always)]
pub unsafe fn transpose4(rows: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: the caller detected the instruction set.
    unsafe {
        let [a, b, c, d] = transpose_halves(rows);
        [
            _mm256_permute2x128_si256::<0x20>(a, b),
            _mm256_permute2x128_si256::<0x20>(c, d),
            _mm256_permute2x128_si256::<0x31>(a, b),
            _mm256_permute2x128_si256::<0x31>(c, d),
        ]
    }
}

/// Transposes four rows inside each half of 128 bits: word i of row j becomes word j of row i.
#[inline(always)]
unsafe fn transpose_halves([a, b, c, d]: [__m256i; 4]) -> [__m256i; 4] {
    // SAFETY: the caller detected the instruction set.
    unsafe {
        let (low_ab, low_cd) = (_mm256_unpacklo_epi32(a, b), _mm256_unpacklo_epi32(c, d));
        let (high_ab, high_cd) = (_mm256_unpackhi_epi32(a, b), _mm256_unpackhi_epi32(c, d));
        [
            _mm256_unpacklo_epi64(low_ab, low_cd),
            _mm256_unpackhi_epi64(low_ab, low_cd),
            _mm256_unpacklo_epi64(high_ab, high_cd),
            _mm256_unpackhi_epi64(high_ab, high_cd),
        ]
    }
}

/// Transposes four rows inside each quarter of 128 bits: word i of row j becomes word j of row i.
#[inline(always)]
pub unsafe fn transpose_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    // SAFETY: the caller detected the instruction set.
    unsafe {
        let (low_ab, low_cd) = (_mm512_unpacklo_epi32(a, b), _mm512_unpacklo_epi32(c, d));
        let (high_ab, high_cd) = (_mm512_unpackhi_epi32(a, b), _mm512_unpackhi_epi32(c, d));
        [
            _mm512_unpacklo_epi64(low_ab, low_cd),
            _mm512_unpackhi_epi64(low_ab, low_cd),
            _mm512_unpacklo_epi64(high_ab, high_cd),
            _mm512_unpackhi_epi64(high_ab, high_cd),
        ]
    }
}

/// Quarter i of vector j becomes quarter j of vector i.
#[inline(always)]
pub unsafe fn exchange_quarters([a, b, c, d]: [__m512i; 4]) -> [__m512i; 4] {
    const EVEN: i32 = 0b10_00_10_00;
    const ODD: i32 = 0b11_01_11_01;
    // SAFETY: the caller detected the instruction set.
    unsafe {
        let (even_ab, even_cd) = (
            _mm512_shuffle_i32x4::<EVEN>(a, b),
            _mm512_shuffle_i32x4::<EVEN>(c, d),
        );
        let (odd_ab, odd_cd) = (
            _mm512_shuffle_i32x4::<ODD>(a, b),
            _mm512_shuffle_i32x4::<ODD>(c, d),
        );
        [
            _mm512_shuffle_i32x4::<EVEN>(even_ab, even_cd),
            _mm512_shuffle_i32x4::<EVEN>(odd_ab, odd_cd),
            _mm512_shuffle_i32x4::<ODD>(even_ab, even_cd),
            _mm512_shuffle_i32x4::<ODD>(odd_ab, odd_cd),
        ]
    }
}
