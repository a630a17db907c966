//! Block headers (scales, minima, zero points) of the four-bit formats.

use half::{bf16, f16};

use super::super::block32::BLOCK_STEPS;
use super::super::panel::PANEL;
use super::super::simd::Lanes;
use crate::blocks::{BlockType, IQ4_VALUES, MXFP4_VALUES};

pub(super) const CODE_LINES: usize = BLOCK_STEPS / 2;

/// The lines before the codes of two blocks.
///
/// | type | lines | content |
/// |---|---|---|
/// | Q4_0, IQ4_NL | 1 | d (f16) of all outputs for the first block, then for the second |
/// | Q4_1 | 2 | d likewise; the minima likewise |
/// | Affine4 | 2 | d likewise; a word per output: the zero points of both blocks, 16 bits each |
/// | IQ4_XS | 1 | d (f16) of all outputs; for each output two bytes: the scales s of both blocks |
/// | MXFP4 | 1 | a word per output: of both blocks the f32 exponent of half the scale, at least 0; both scale bytes |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    Around8,
    Minima,
    Zeros,
    Table,
    ScaledTable,
    Powers,
}

/// Offsets that make the values of [`IQ4_VALUES`] and [`MXFP4_VALUES`] unsigned.
const IQ4_OFFSET: u8 = 128;
const MXFP4_OFFSET: u8 = 12;
static IQ4_CODES: [u8; 16] = without_sign(IQ4_VALUES, IQ4_OFFSET);
static MXFP4_CODES: [u8; 16] = without_sign(MXFP4_VALUES, MXFP4_OFFSET);
static IDENTITY_CODES: [u8; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];

const fn without_sign(values: [i8; 16], offset: u8) -> [u8; 16] {
    let mut out = [0; 16];
    let mut i = 0;
    while i < 16 {
        out[i] = (values[i] as i16 + offset as i16) as u8;
        i += 1;
    }
    out
}

impl Header {
    /// The header of a four-bit format; `None` for other formats and for K-quants.
    pub fn of(block: BlockType) -> Option<Self> {
        match block {
            BlockType::Q4_0 => Some(Self::Around8),
            BlockType::Q4_1 => Some(Self::Minima),
            BlockType::Affine4 => Some(Self::Zeros),
            BlockType::Iq4Nl => Some(Self::Table),
            BlockType::Iq4Xs => Some(Self::ScaledTable),
            BlockType::Mxfp4 => Some(Self::Powers),
            _ => None,
        }
    }

    /// Whether codes are looked up in [`Header::values`].
    pub fn is_table(self) -> bool {
        matches!(self, Self::Table | Self::ScaledTable | Self::Powers)
    }

    #[inline(always)]
    pub fn header_lines(self) -> usize {
        match self {
            Self::Minima | Self::Zeros => 2,
            Self::Around8 | Self::Table | Self::ScaledTable | Self::Powers => 1,
        }
    }

    #[inline(always)]
    pub fn lines(self) -> usize {
        self.header_lines() + 2 * CODE_LINES
    }

    /// The value of each code plus [`Self::value_offset`], which makes it unsigned.
    #[inline(always)]
    pub fn values(self) -> &'static [u8; 16] {
        match self {
            Self::Around8 | Self::Minima | Self::Zeros => &IDENTITY_CODES,
            Self::Table | Self::ScaledTable => &IQ4_CODES,
            Self::Powers => &MXFP4_CODES,
        }
    }

    /// The offset of [`Self::values`]; 0 for formats with minima or zero points.
    #[inline(always)]
    pub fn value_offset(self) -> u8 {
        match self {
            Self::Around8 => 8,
            Self::Minima | Self::Zeros => 0,
            Self::Table | Self::ScaledTable => IQ4_OFFSET,
            Self::Powers => MXFP4_OFFSET,
        }
    }

    /// The offset of the values of the first block (`half` 0) or the second (1), in the low half of each word.
    ///
    /// # Safety
    /// `pair` is valid for two blocks; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn offset<S: Lanes>(self, pair: *const u32, half: usize) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe {
            if self != Self::Zeros {
                return S::splat_word(u32::from(self.value_offset()));
            }
            let zeros = S::load_words(pair.wrapping_add(PANEL));
            S::and(
                S::shift_right(zeros, 16 * half as u32),
                S::splat_word(0xffff),
            )
        }
    }

    /// The scales of the first block (`half` 0) or the second (1).
    ///
    /// # Safety
    /// `pair` is valid for two blocks; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn scale<S: Lanes>(self, pair: *const u32, half: usize) -> S::V {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let halves = pair.cast::<f16>();
            match self {
                Self::Around8 | Self::Minima | Self::Zeros | Self::Table => {
                    S::load_f16(halves.wrapping_add(half * PANEL))
                }
                Self::ScaledTable => {
                    // Widening moves the 16 bits to the upper halves of words.
                    let pairs = S::load_bf16(halves.wrapping_add(PANEL).cast::<bf16>());
                    let words = S::shift_right(S::to_words(pairs), 16 + 8 * half as u32);
                    let s = S::words_to_f32(S::and(words, S::splat_word(0xff)));
                    S::mul(S::load_f16(halves), S::sub(s, S::splat(32.0)))
                }
                Self::Powers => {
                    let exponents = S::shift_right(S::load_words(pair), 8 * half as u32);
                    let exponents = S::and(exponents, S::splat_word(0xff));
                    S::from_words(S::shift_left(exponents, 23))
                }
            }
        }
    }

    /// # Safety
    /// `pair` is valid for two blocks; the instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn min<S: Lanes>(self, pair: *const u32, half: usize) -> Option<S::V> {
        let minima = pair.wrapping_add(PANEL).cast::<f16>();
        // SAFETY: guaranteed by the caller.
        (self == Self::Minima).then(|| unsafe { S::load_f16(minima.wrapping_add(half * PANEL)) })
    }
}
