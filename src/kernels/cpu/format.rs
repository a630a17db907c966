//! Memory layouts of weights and activations for matrix products.
//!
//! **Weights** are stored in panels of sixteen outputs. A panel is a sequence of *steps*; a step holds the weights of
//! one, two or four successive inputs for all sixteen outputs, one lane per output. **Activations** are stored in
//! groups of rows (see [`even_part`]); a step of a group is one 32-bit word per row, holding the same inputs. A
//! product reads both sequentially.
//!
//! | format | inputs in a step | a panel's step | a row's word |
//! |---|---|---|---|
//! | f32 | 1 | 16 x f32 | f32 |
//! | f16 | 1 | 16 x f16 | f32 |
//! | bf16 | 2 | 16 x (bf16, bf16) | (bf16, bf16), or two words: f32, f32 |
//! | int8 | 4 | 16 x (u8 = q + 128) x 4 | 4 x i8, or two words: see [`Encoding::WideInt8`] |
//! | blocks of 32 | 4 | see `block32`, `nibbles` | 4 x i8 |
//! | K-quants | 4 | see `k_quants` | 4 x i8 |
//!
//! With AMX, rows of bf16 and int8 are contiguous instead, see [`Encoding`]: sixteen steps of a panel form an AMX tile,
//! and so do sixteen words of each row.
//!
//! int8 has a header before each [`INT8_GROUP`] inputs: in panels sixteen f32 scales; in groups of rows the f32 scales
//! of all rows, then the i32 corrections of all rows, -128 times the sum of a row's quantised activations.
//! Inputs are padded with zeros to whole steps (int8: whole groups), outputs to whole panels.

use super::block32::{self, TWO_BLOCKS};
use super::k_quants::{self, SUPER_BLOCK};
use super::nibbles::Header;
use super::panel::{INT8_GROUP, INT8_STEPS, PANEL};
use super::simd::{Isa, Kernel, Lanes, dispatch, dispatch_integers};
use crate::blocks::BlockType;
use crate::dtype::{Dtype, MatrixRole, Quantization};
use crate::tensor_view::Stored;

/// Pairs of bf16 in a row of an AMX tile, and steps of a panel in a tile.
pub const TILE_PAIRS: usize = 16;

/// An encoding of activations; several weight formats may share one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    F32,
    Bf16,
    /// The values of `Bf16` as 32-bit floats.
    WideBf16,
    /// Signed bytes with a scale for each row and `INT8_GROUP` inputs.
    Int8,
    /// `Int8` widened to i16: after a group's header the bytes 0 and 2 of each word, then the bytes 1 and 3.
    WideInt8,
    /// As [`Self::Bf16`], but row-major, in whole tiles of [`TILE_PAIRS`] words, as AMX reads them.
    Bf16Rows,
    /// As [`Self::Int8`], but row-major.
    Int8Rows,
    /// Signed bytes with a scale for each row and 32 inputs.
    A32,
    /// Signed bytes with a scale for each row and 256 inputs.
    A256,
}

impl Encoding {
    pub fn row_words(self, inputs: usize) -> usize {
        match self {
            Self::F32 => inputs,
            Self::Bf16 => inputs.div_ceil(2),
            Self::Bf16Rows => inputs.div_ceil(2).next_multiple_of(TILE_PAIRS),
            Self::WideBf16 => inputs.next_multiple_of(2),
            Self::Int8 | Self::Int8Rows => inputs.div_ceil(INT8_GROUP) * (INT8_STEPS + 2),
            Self::WideInt8 => inputs.div_ceil(INT8_GROUP) * (2 * INT8_STEPS + 2),
            Self::A32 => 2 * inputs.div_ceil(TWO_BLOCKS) * block32::ROW_WORDS,
            Self::A256 => inputs.div_ceil(SUPER_BLOCK) * k_quants::ROW_WORDS,
        }
    }
}

/// Chooses the format in which weights are kept.
#[derive(Clone, Copy, Debug)]
pub struct FormatRule {
    /// The format of weights that are not stored in blocks.
    plain: Format,
    /// The format of an output (logits) matrix that is not stored in blocks.
    logits: Format,
    blocks: BlockRule,
}

#[derive(Clone, Copy, Debug)]
enum BlockRule {
    /// The blocks' own format, or this one if products do not read those blocks natively.
    KeptOr(Format),
    /// A format that represents all values of the blocks, for products with unrounded activations.
    Exact,
    /// This format for all blocks, whose weights are converted.
    All(Format),
}

impl FormatRule {
    pub fn new(dtype: Dtype, quantization: Option<Quantization>) -> Self {
        let float = Format::of_dtype(dtype);
        let [plain, logits] = [MatrixRole::Inner, MatrixRole::Logits].map(|role| {
            quantization.map_or(float, |quantization| match quantization {
                Quantization::Int8 => Format::Int8,
                Quantization::Int4 => Format::KQuant(Quantization::superblocks(role)),
            })
        });
        Self {
            plain,
            logits,
            blocks: match quantization {
                Some(quantization) if !quantization.keeps_blocks() => BlockRule::All(plain),
                None if dtype == Dtype::F32 => BlockRule::Exact,
                _ => BlockRule::KeptOr(float),
            },
        }
    }

    /// For tests.
    pub fn all(format: Format) -> Self {
        Self {
            plain: format,
            logits: format,
            blocks: BlockRule::KeptOr(format),
        }
    }

    pub fn of(self, role: MatrixRole) -> Self {
        match role {
            MatrixRole::Inner => self,
            MatrixRole::Router => Self {
                plain: Format::F32,
                blocks: BlockRule::All(Format::F32),
                ..self
            },
            MatrixRole::Logits => Self {
                plain: self.logits,
                ..self
            },
        }
    }

    pub fn format(self, stored: Stored) -> Format {
        match (stored, self.blocks) {
            (Stored::Plain(_), _) => self.plain,
            (Stored::Blocks(_), BlockRule::All(format)) => format,
            (Stored::Blocks(block), BlockRule::KeptOr(other)) => {
                Format::of_blocks(block).unwrap_or(other)
            }
            (Stored::Blocks(block), BlockRule::Exact) => Format::exact(block),
        }
    }

    pub fn product(self, stored: Stored) -> WeightProduct {
        match self.format(stored) {
            Format::F32 | Format::F16 | Format::ExactBf16 => WeightProduct::F32,
            Format::Bf16 => WeightProduct::Bf16,
            Format::Int8 => WeightProduct::Int8,
            Format::Block32(_) | Format::Nibbles(_) | Format::KQuant(_) => WeightProduct::Blocks,
        }
    }

    /// Whether products read blocks of this type natively, without conversion.
    pub fn keeps(self, block: BlockType) -> bool {
        Format::of_blocks(block) == Some(self.format(Stored::Blocks(block)))
    }

    /// Bytes of a matrix `[outputs, inputs]` stored in blocks; `None` if its weights are converted or quantised.
    pub fn bytes_of_blocks(self, block: BlockType, [outputs, inputs]: [usize; 2]) -> Option<u64> {
        let format = match self.blocks {
            BlockRule::All(_) => return None,
            BlockRule::KeptOr(_) => Format::of_blocks(block)?,
            BlockRule::Exact => Format::exact(block),
        };
        match format {
            Format::F32 => None,
            format => Some((outputs.div_ceil(PANEL) * format.panel_words(inputs) * 4) as u64),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightProduct {
    F32,
    /// Products of pairs of bf16, with AMX if available.
    Bf16,
    /// Products of bytes with a scale for 128 inputs, with AMX if available.
    Int8,
    /// Products of bytes with a scale for fewer inputs, or of quantised values that are unpacked to bytes; never with
    /// AMX.
    Blocks,
}

/// An encoding of weights, with the activations that go with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F32,
    /// 16-bit IEEE floats, activations in f32.
    F16,
    /// 16-bit brain floats, activations rounded to them.
    Bf16,
    /// 16-bit brain floats, activations in f32. The number of inputs must be even.
    ExactBf16,
    /// Signed bytes with a scale for each output and `INT8_GROUP` inputs, activations quantised likewise.
    Int8,
    /// Signed bytes with an f16 scale for each output and 32 inputs; see `block32`.
    Block32(BlockType),
    /// Four bits with a scale for each output and 32 inputs; see `nibbles`.
    Nibbles(Header),
    /// Superblocks of 256 inputs; see `k_quants`.
    KQuant(BlockType),
}

impl Format {
    fn of_dtype(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::BF16 => Self::Bf16,
        }
    }

    /// The format of weights stored in blocks of this type, if products read them natively.
    pub fn of_blocks(block: BlockType) -> Option<Self> {
        match block {
            BlockType::Q8_0 | BlockType::Q5_0 => Some(Self::Block32(block)),
            BlockType::Q2K | BlockType::Q3K | BlockType::Q4K | BlockType::Q5K | BlockType::Q6K => {
                Some(Self::KQuant(block))
            }
            other => Header::of(other).map(Self::Nibbles),
        }
    }

    /// The narrowest format that represents these blocks exactly, with activations in f32.
    fn exact(block: BlockType) -> Self {
        match block {
            // Two bits of mantissa, and the exponents of f32.
            BlockType::Mxfp4 => Self::ExactBf16,
            _ => Self::F32,
        }
    }

    pub fn panel_words(self, inputs: usize) -> usize {
        match self {
            Self::F32 => inputs * PANEL,
            Self::F16 => inputs * PANEL / 2,
            Self::Bf16 | Self::ExactBf16 => inputs.div_ceil(2) * PANEL,
            Self::Int8 => inputs.div_ceil(INT8_GROUP) * (INT8_STEPS + 1) * PANEL,
            Self::Block32(_) => inputs.div_ceil(TWO_BLOCKS) * block32::LINES * PANEL,
            Self::Nibbles(header) => inputs.div_ceil(TWO_BLOCKS) * header.lines() * PANEL,
            Self::KQuant(block) => inputs.div_ceil(SUPER_BLOCK) * k_quants::lines(block) * PANEL,
        }
    }

    pub fn encoding(self, isa: Isa) -> Encoding {
        match self {
            Self::Bf16 if isa == Isa::Amx => Encoding::Bf16Rows,
            Self::Int8 if isa == Isa::Amx => Encoding::Int8Rows,
            Self::F32 | Self::F16 | Self::Bf16 | Self::ExactBf16 => dispatch(isa, EncodingOf(self)),
            Self::Int8 | Self::Block32(_) | Self::Nibbles(_) | Self::KQuant(_) => {
                dispatch_integers(isa, EncodingOf(self))
            }
        }
    }

    /// As `Self::encoding`, for products without AMX tiles.
    pub fn encoding_with<S: Lanes>(self) -> Encoding {
        match self {
            Self::F32 | Self::F16 | Self::ExactBf16 => Encoding::F32,
            Self::Bf16 if S::BF16_PAIRS => Encoding::Bf16,
            Self::Bf16 => Encoding::WideBf16,
            Self::Int8 if S::BYTE_QUADS => Encoding::Int8,
            Self::Int8 => Encoding::WideInt8,
            Self::Block32(_) | Self::Nibbles(_) => Encoding::A32,
            Self::KQuant(_) => Encoding::A256,
        }
    }
}

struct EncodingOf(Format);

impl Kernel for EncodingOf {
    type Output = Encoding;

    #[inline(always)]
    fn run<S: Lanes>(self) -> Encoding {
        self.0.encoding_with::<S>()
    }
}

/// The number of groups into which `rows` rows are cut, each of at most `max` rows.
pub fn n_groups(rows: usize, max: usize) -> usize {
    rows.div_ceil(max)
}

/// The part `index` of `0..len`, cut into `n_parts` of nearly equal length.
pub fn even_part(index: usize, n_parts: usize, len: usize) -> std::ops::Range<usize> {
    index * len / n_parts..(index + 1) * len / n_parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_kept_unless_products_are_exact_or_weights_become_int8() {
        let keeps = |dtype, quantization, role| {
            let rule = FormatRule::new(dtype, quantization);
            rule.of(role).keeps(BlockType::Affine4)
        };
        let (int4, int8) = (Some(Quantization::Int4), Some(Quantization::Int8));
        for (dtype, quantization, kept) in [
            (Dtype::BF16, None, true),
            (Dtype::F16, None, true),
            (Dtype::F32, None, false),
            (Dtype::F32, int4, true),
            (Dtype::BF16, int4, true),
            (Dtype::BF16, int8, false),
        ] {
            assert_eq!(keeps(dtype, quantization, MatrixRole::Inner), kept);
            assert_eq!(keeps(dtype, quantization, MatrixRole::Logits), kept);
            assert!(!keeps(dtype, quantization, MatrixRole::Router));
        }
        assert!(!FormatRule::new(Dtype::BF16, None).keeps(BlockType::Q5_1));
    }
}
