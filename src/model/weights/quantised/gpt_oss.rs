//! Expert matrices of gpt-oss: transposed or interleaved in stacks, and converted to rows at load.

use std::ops::Range;

use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::Stored;

pub(super) const BLOCK: usize = 32;

/// A matrix whose outputs are every `step`-th output of a stack.
#[derive(Clone)]
pub struct Strided {
    /// File and bytes of the expert's part of the stack, and of its scales if it has blocks.
    pub(super) codes: (usize, Range<usize>),
    pub(super) scales: Option<(usize, Range<usize>)>,
    /// `None` for blocks.
    pub(super) dtype: Option<Dtype>,
    /// `[outputs, inputs]`.
    pub shape: [usize; 2],
    /// Index of the matrix's first output in the stack, and the distance to the next one.
    pub(super) first: usize,
    pub(super) step: usize,
}

impl Strided {
    pub fn stored(&self) -> Stored {
        match self.dtype {
            Some(dtype) => Stored::Plain(dtype),
            None => Stored::Blocks(BlockType::Mxfp4),
        }
    }

    pub fn file_bytes(&self) -> usize {
        let scales = self.scales.as_ref().map_or(0, |(_, range)| range.len());
        (self.codes.1.len() + scales) / self.step
    }

    pub fn ranges(&self) -> impl Iterator<Item = &(usize, Range<usize>)> {
        std::iter::once(&self.codes).chain(&self.scales)
    }
}

pub struct StridedBytes<'a> {
    pub(super) matrix: &'a Strided,
    pub(super) codes: &'a [u8],
    pub(super) scales: &'a [u8],
}

impl<'a> StridedBytes<'a> {
    pub fn stored(&self) -> Stored {
        self.matrix.stored()
    }

    pub fn convert(&self, first: usize, out: &mut [u8]) {
        let inputs = self.matrix.shape[1];
        let rows = out.chunks_exact_mut(self.stored().row_bytes(inputs));
        for (row, out) in rows.enumerate() {
            let output = self.matrix.first + (first + row) * self.matrix.step;
            match self.matrix.dtype {
                Some(dtype) => self.column(output, dtype.bytes(), out),
                None => self.blocks(output, out),
            }
        }
    }

    /// Gathers an output's elements, one from each row of inputs.
    fn column(&self, output: usize, size: usize, out: &mut [u8]) {
        let [outputs, _] = self.matrix.shape;
        let row = outputs * self.matrix.step * size;
        let elements = self.codes[output * size..].chunks(row);
        for (to, from) in out.chunks_exact_mut(size).zip(elements) {
            to.copy_from_slice(&from[..size]);
        }
    }

    /// Repacks an output's blocks: a stored byte has inputs `2 i` and `2 i + 1`, a byte of `out` `i` and `i + 16`.
    fn blocks(&self, output: usize, out: &mut [u8]) {
        let n = self.matrix.shape[1] / BLOCK;
        let codes = self.codes[output * n * BLOCK / 2..].chunks_exact(BLOCK / 2);
        let scales = &self.scales[output * n..][..n];
        for ((out, codes), scale) in out.chunks_exact_mut(1 + BLOCK / 2).zip(codes).zip(scales) {
            let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
            out[0] = *scale;
            for (i, byte) in out[1..].iter_mut().enumerate() {
                *byte = code(i) | code(i + BLOCK / 2) << 4;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

    #[test]
    fn blocks_have_the_values_of_their_codes() {
        // Gate and up projections of two outputs each, alternating, and 64 inputs; one scale is the smallest, 2^-127.
        let codes: Vec<u8> = (0..=255)
            .chain(0..=255)
            .take(4 * 32)
            .map(|i: u8| i.wrapping_mul(7))
            .collect();
        let scales = [127, 130, 0, 120, 127, 1, 126, 128];
        for first in [0, 1] {
            let matrix = Strided {
                codes: (0, 0..codes.len()),
                scales: Some((0, 0..scales.len())),
                dtype: None,
                shape: [2, 64],
                first,
                step: 2,
            };
            let bytes = StridedBytes {
                matrix: &matrix,
                codes: &codes,
                scales: &scales,
            };
            let row_bytes = matrix.stored().row_bytes(64);
            let mut rows = vec![0; 2 * row_bytes];
            bytes.convert(0, &mut rows);
            let mut second = vec![0; row_bytes];
            bytes.convert(1, &mut second);
            assert_eq!(rows[row_bytes..], second);
            for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
                let mut values = [0.0; 64];
                BlockType::Mxfp4.decode(bytes, &mut values);
                let output = first + 2 * row;
                for (i, value) in values.iter().enumerate() {
                    let code = codes[output * 32 + i / 2] >> (4 * (i % 2)) & 15;
                    let sign = if code > 7 { -1.0 } else { 1.0 };
                    let scale = f32::from(scales[output * 2 + i / 32]) - 127.0;
                    let expected = sign * CODES[usize::from(code & 7)] * scale.exp2();
                    assert_eq!(*value, expected, "output {output}, input {i}");
                }
            }
        }
    }

    #[test]
    fn columns_become_rows() {
        // Three inputs as rows; outputs 0, 2 are of the gate and 1, 3 of the up projection.
        let elements: Vec<f32> = (0..12).map(|i| i as f32).collect();
        for (first, expected) in [
            (0, [0.0, 4.0, 8.0, 2.0, 6.0, 10.0]),
            (1, [1.0, 5.0, 9.0, 3.0, 7.0, 11.0]),
        ] {
            let matrix = Strided {
                codes: (0, 0..48),
                scales: None,
                dtype: Some(Dtype::F32),
                shape: [2, 3],
                first,
                step: 2,
            };
            let bytes = StridedBytes {
                matrix: &matrix,
                codes: bytemuck::cast_slice(&elements),
                scales: &[],
            };
            let mut rows = vec![0; 24];
            bytes.convert(0, &mut rows);
            let values: Vec<f32> = rows
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            assert_eq!(values, expected);
        }
    }
}
