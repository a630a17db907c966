//! Unpacks the codes of each K-quant format into registers.

use super::super::panel::PANEL;
use super::super::simd::Lanes;
use super::headers::{HalvesHeader, MinHeader, SignedHeader};
use super::{KQuant, SUB_STEPS};

const LOW_HALVES: u32 = 0x0f0f_0f0f;
const ONE: u32 = 0x0101_0101;
const TWO: u32 = 0x0303_0303;

/// 2-bit codes with minima.
pub struct Q2K;
/// 3-bit codes around zero, without minima.
pub struct Q3K;
/// 4-bit codes with minima.
pub struct Q4K;
/// 5-bit codes with minima.
pub struct Q5K;
/// 6-bit codes around zero, without minima.
pub struct Q6K;

/// Unpacks four lines of 4-bit codes: the low halves of bytes are the first four steps, the high halves the last four.
///
/// # Safety
/// `lines` is valid for four lines; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn halves<S: Lanes>(lines: *const u32) -> [S::W; SUB_STEPS] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let low = S::splat_word(LOW_HALVES);
        let mut codes = [S::splat_word(0); SUB_STEPS];
        for u in 0..SUB_STEPS / 2 {
            let line = S::load_words(lines.wrapping_add(u * PANEL));
            codes[u] = S::and(line, low);
            codes[u + SUB_STEPS / 2] = S::and(S::shift_right(line, 4), low);
        }
        codes
    }
}

/// Unpacks two lines, each with two bits for each of four steps, to bit `place`.
///
/// # Safety
/// `lines` is valid for two lines; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn two_bits<S: Lanes>(lines: *const u32, place: u32) -> [S::W; SUB_STEPS] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mask = S::splat_word(TWO << place);
        let mut codes = [S::splat_word(0); SUB_STEPS];
        for (step, codes) in codes.iter_mut().enumerate() {
            let (line, at) = (step / 4, 2 * (step % 4) as u32);
            let bits = S::load_words(lines.wrapping_add(line * PANEL));
            *codes = S::and(shifted::<S>(bits, at, place), mask);
        }
        codes
    }
}

/// Unpacks a line with one bit for each of eight steps, to bit `place`.
///
/// # Safety
/// `line` is valid for a line; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn one_bit<S: Lanes>(line: *const u32, place: u32) -> [S::W; SUB_STEPS] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let (bits, mask) = (S::load_words(line), S::splat_word(ONE << place));
        let mut codes = [S::splat_word(0); SUB_STEPS];
        for (step, codes) in codes.iter_mut().enumerate() {
            *codes = S::and(shifted::<S>(bits, step as u32, place), mask);
        }
        codes
    }
}

/// Moves bits from position `from` to position `to`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn shifted<S: Lanes>(bits: S::W, from: u32, to: u32) -> S::W {
    // SAFETY: only registers; the caller detected the instruction set.
    unsafe {
        match from < to {
            true => S::shift_left(bits, to - from),
            false if from == to => bits,
            false => S::shift_right(bits, from - to),
        }
    }
}

/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn combine<S: Lanes>(low: [S::W; SUB_STEPS], high: [S::W; SUB_STEPS]) -> [S::W; SUB_STEPS] {
    let mut codes = low;
    for step in 0..SUB_STEPS {
        // SAFETY: only registers; the caller detected the instruction set.
        codes[step] = unsafe { S::or(low[step], high[step]) };
    }
    codes
}

impl KQuant for Q2K {
    const LINES: usize = 21;
    const SCALED_STEPS: usize = 4;
    // 4 steps x 2 products x code 3 x activation 127 = 3,048.
    const NARROW_STEPS: usize = 4;
    type Header<S: Lanes> = HalvesHeader<S>;

    #[inline(always)]
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS] {
        // SAFETY: guaranteed by the caller.
        unsafe { two_bits::<S>(block.wrapping_add((5 + 2 * sub_block) * PANEL), 0) }
    }
}

impl KQuant for Q3K {
    const LINES: usize = 29;
    const SCALED_STEPS: usize = 4;
    // 4 steps x 2 products x code 7 x activation 127 = 7,112.
    const NARROW_STEPS: usize = 4;
    type Header<S: Lanes> = SignedHeader<S, 2>;

    #[inline(always)]
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let lines = block.wrapping_add((5 + 3 * sub_block) * PANEL);
            let third = one_bit::<S>(lines.wrapping_add(2 * PANEL), 2);
            combine::<S>(two_bits::<S>(lines, 0), third)
        }
    }
}

impl KQuant for Q4K {
    const LINES: usize = 36;
    const SCALED_STEPS: usize = 8;
    // 8 steps x 2 products x code 15 x activation 127 = 30,480.
    const NARROW_STEPS: usize = 8;
    type Header<S: Lanes> = MinHeader<S>;

    #[inline(always)]
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS] {
        // SAFETY: guaranteed by the caller.
        unsafe { halves::<S>(block.wrapping_add((4 + 4 * sub_block) * PANEL)) }
    }
}

impl KQuant for Q5K {
    const LINES: usize = 44;
    const SCALED_STEPS: usize = 8;
    // 4 steps x 2 products x code 31 x activation 127 = 31,496.
    const NARROW_STEPS: usize = 4;
    type Header<S: Lanes> = MinHeader<S>;

    #[inline(always)]
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let lines = block.wrapping_add((4 + 5 * sub_block) * PANEL);
            let fifth = one_bit::<S>(lines.wrapping_add(4 * PANEL), 4);
            combine::<S>(halves::<S>(lines), fifth)
        }
    }
}

impl KQuant for Q6K {
    const LINES: usize = 53;
    const SCALED_STEPS: usize = 4;
    // 2 steps x 2 products x code 63 x activation 127 = 32,004.
    const NARROW_STEPS: usize = 2;
    type Header<S: Lanes> = SignedHeader<S, 5>;

    #[inline(always)]
    unsafe fn codes<S: Lanes>(block: *const u32, sub_block: usize) -> [S::W; SUB_STEPS] {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let lines = block.wrapping_add((5 + 6 * sub_block) * PANEL);
            let upper = two_bits::<S>(lines.wrapping_add(4 * PANEL), 4);
            combine::<S>(halves::<S>(lines), upper)
        }
    }
}
