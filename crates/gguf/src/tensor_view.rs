//! A view of a stored weight tensor, which backends copy or pack.

use half::{bf16, f16};

use crate::blocks::BlockType;
use crate::dtype::Dtype;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stored {
    Plain(Dtype),
    /// Each block holds consecutive elements of a row.
    Blocks(BlockType),
}

impl Stored {
    /// # Panics
    /// If `inputs` is not a multiple of the block size.
    #[inline]
    pub fn row_bytes(self, inputs: usize) -> usize {
        match self {
            Self::Plain(dtype) => inputs * dtype.bytes(),
            Self::Blocks(block) => block.row_bytes(inputs),
        }
    }
}

/// The order of a tensor's rows in a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RowOrder {
    /// The model's order.
    #[default]
    AsNumbered,
    /// The last `rotary_dim` rows of each head are interleaved: rows i and i + rotary_dim / 2 of the model are
    /// adjacent in the file.
    Pairs {
        head_dim: usize,
        /// Rotated rows of a head, even.
        rotary_dim: usize,
    },
    /// The tensor has `len` of every `period` rows in the file, beginning with row `first` of each period.
    Within {
        period: usize,
        first: usize,
        len: usize,
    },
    /// Strided rows; the rows between them belong to other tensors.
    Every {
        /// Distance between rows.
        step: usize,
    },
}

impl RowOrder {
    #[inline]
    pub fn stored_row(self, row: usize) -> usize {
        match self {
            Self::AsNumbered => row,
            Self::Every { step } => row * step,
            Self::Pairs {
                head_dim,
                rotary_dim,
            } => {
                let first = row / head_dim * head_dim + head_dim - rotary_dim;
                let half = rotary_dim / 2;
                match row.checked_sub(first) {
                    Some(within) => first + 2 * (within % half) + within / half,
                    None => row,
                }
            }
            Self::Within { period, first, len } => row / len * period + first + row % len,
        }
    }
}

/// Row-major, little endian, unaligned.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    pub stored: Stored,
    /// Outermost dimension first. The rows of a vector have one element.
    pub shape: &'a [usize],
    /// The stored rows, each of [`Stored::row_bytes`].
    pub bytes: &'a [u8],
    pub order: RowOrder,
}

impl<'a> TensorView<'a> {
    /// Plain elements in the model's order.
    pub fn plain(dtype: Dtype, shape: &'a [usize], bytes: &'a [u8]) -> Self {
        Self {
            stored: Stored::Plain(dtype),
            shape,
            bytes,
            order: RowOrder::AsNumbered,
        }
    }

    #[inline]
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    #[inline]
    pub fn width(&self) -> usize {
        self.shape[1..].iter().product()
    }

    /// `None` unless the bytes are plain elements in the model's order.
    pub fn plain_dtype(&self) -> Option<Dtype> {
        match (self.stored, self.order) {
            (Stored::Plain(dtype), RowOrder::AsNumbered) => Some(dtype),
            (Stored::Plain(_), _) | (Stored::Blocks(_), _) => None,
        }
    }

    /// # Panics
    /// If `row` is out of range.
    #[inline]
    pub fn row(&self, row: usize) -> &'a [u8] {
        let bytes = self.stored.row_bytes(self.width());
        &self.bytes[self.order.stored_row(row) * bytes..][..bytes]
    }

    /// Writes a row to `out` as f32, decoding blocks.
    ///
    /// # Panics
    /// If `row` is out of range, or `out` is not as long as a row.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        let bytes = self.row(row);
        assert_eq!(out.len(), self.width(), "out must hold one row");
        match self.stored {
            Stored::Plain(dtype) => widen(dtype, bytes, out),
            Stored::Blocks(block) => block.decode(bytes, out),
        }
    }

    /// All values as f32, with blocks decoded.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.elements()];
        match self.plain_dtype() {
            Some(dtype) => widen(dtype, self.bytes, &mut values),
            None => {
                let rows = values.chunks_exact_mut(self.width().max(1));
                rows.enumerate()
                    .for_each(|(row, out)| self.read_row(row, out));
            }
        }
        values
    }
}

/// Widens elements to f32 without loss until `out` is full.
#[inline(always)]
pub fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    let pairs = bytes
        .chunks_exact(2)
        .map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
    match dtype {
        Dtype::F32 => {
            let words = bytes.chunks_exact(4);
            let values = words.map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]));
            out.iter_mut().zip(values).for_each(|(out, x)| *out = x);
        }
        Dtype::BF16 => {
            let values = pairs.map(|bits| bf16::from_bits(bits).to_f32());
            out.iter_mut().zip(values).for_each(|(out, x)| *out = x);
        }
        Dtype::F16 => {
            let values = pairs.map(|bits| f16::from_bits(bits).to_f32());
            out.iter_mut().zip(values).for_each(|(out, x)| *out = x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_are_read_in_the_models_order() {
        // Two heads of six rows: the file has rows 0, 3, 1, 4, 2, 5 of each.
        let file: Vec<f32> = [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]
            .map(|row| row as f32)
            .to_vec();
        let view = TensorView {
            order: RowOrder::Pairs {
                head_dim: 6,
                rotary_dim: 6,
            },
            ..TensorView::plain(Dtype::F32, &[12], bytemuck::cast_slice(&file))
        };
        let expected: Vec<f32> = (0..12).map(|row| row as f32).collect();
        assert_eq!(view.to_f32(), expected);
        let wide: Vec<f32> = file.iter().flat_map(|row| [*row, -row]).collect();
        let view = TensorView {
            shape: &[12, 2],
            bytes: bytemuck::cast_slice(&wide),
            ..view
        };
        let mut row = [0.0; 2];
        view.read_row(10, &mut row);
        assert_eq!(row, [10.0, -10.0]);
        // Only the last four of each head's six rows are interleaved: the file has rows 0, 1, 2, 4, 3, 5 of each.
        let file = [0, 1, 2, 4, 3, 5, 6, 7, 8, 10, 9, 11].map(|row| row as f32);
        let view = TensorView {
            order: RowOrder::Pairs {
                head_dim: 6,
                rotary_dim: 4,
            },
            ..TensorView::plain(Dtype::F32, &[12], bytemuck::cast_slice(&file))
        };
        assert_eq!(view.to_f32(), expected);
    }

    #[test]
    fn rows_within_groups_are_selected() {
        let file: Vec<f32> = (0..12).map(|row| row as f32).collect();
        let view = TensorView {
            order: RowOrder::Within {
                period: 6,
                first: 1,
                len: 2,
            },
            ..TensorView::plain(Dtype::F32, &[4], bytemuck::cast_slice(&file))
        };
        assert_eq!(view.to_f32(), [1.0, 2.0, 7.0, 8.0]);
    }

    #[test]
    fn rows_of_blocks_are_decoded() {
        // Q8_0: a scale of one half, then bytes.
        let mut bytes = f16::from_f32(0.5).to_le_bytes().to_vec();
        bytes.extend(0..32);
        let rows = [bytes.clone(), bytes].concat();
        let view = TensorView {
            stored: Stored::Blocks(BlockType::Q8_0),
            shape: &[2, 32],
            bytes: &rows,
            order: RowOrder::AsNumbered,
        };
        let expected: Vec<f32> = (0..64).map(|i| 0.5 * (i % 32) as f32).collect();
        assert_eq!(view.to_f32(), expected);
    }
}
