//! The experts of gpt-oss: parts of tensors that hold those of all experts, with gates beside what they let through.
//!
//! | tensor | shape | what it holds |
//! |---|---|---|
//! | `gate_up_proj` | \[experts, hidden, 2 width\] | inputs as rows; an output of a gate, then one of what it lets through |
//! | `down_proj` | \[experts, width, hidden\] | inputs as rows |
//! | `gate_up_proj_blocks` | \[experts, 2 width, hidden / 32, 16\] U8 | a row of a gate, then one of what it lets through; neighbours are a byte's halves, the low one first |
//! | `gate_up_proj_scales` | \[experts, 2 width, hidden / 32\] U8 | powers of two, 127 more |
//! | `down_proj_blocks`, `down_proj_scales` | likewise | |
//! | `gate_up_proj_bias`, `down_proj_bias` | \[experts, 2 width\], \[experts, hidden\] | |

use std::ops::Range;

use super::super::{Entry, Weights};
use crate::error::LoadError;
use crate::kernels::blocks::BlockType;
use crate::kernels::dtype::Dtype;
use crate::kernels::tensor_view::{RowOrder, Stored};
use crate::model::config::experts::ExpertsConfig;
use crate::model::json_file::format_error;

/// Inputs of a block of MXFP4.
const BLOCK: usize = 32;

/// A matrix of an expert as a stack holds it.
#[derive(Clone)]
pub struct Turned {
    /// Which of the files holds which bytes: those of all outputs of the expert, and their scales where they are blocks.
    codes: (usize, Range<usize>),
    scales: Option<(usize, Range<usize>)>,
    /// The type of the elements; `None` for blocks.
    dtype: Option<Dtype>,
    /// Outputs of the matrix and inputs.
    pub shape: [usize; 2],
    /// The first of its outputs among those of the stack, and the distance to the next.
    first: usize,
    step: usize,
}

impl Turned {
    /// How the matrix is stored once it is converted.
    pub fn stored(&self) -> Stored {
        match self.dtype {
            Some(dtype) => Stored::Plain(dtype),
            None => Stored::Blocks(BlockType::Mxfp4),
        }
    }

    /// Bytes of its part of the file.
    pub fn file_bytes(&self) -> usize {
        let scales = self.scales.as_ref().map_or(0, |(_, range)| range.len());
        (self.codes.1.len() + scales) / self.step
    }

    /// The bytes in the files, by file.
    pub fn ranges(&self) -> impl Iterator<Item = &(usize, Range<usize>)> {
        std::iter::once(&self.codes).chain(&self.scales)
    }
}

/// A turned matrix with its bytes.
pub struct TurnedBytes<'a> {
    matrix: &'a Turned,
    codes: &'a [u8],
    scales: &'a [u8],
}

impl<'a> TurnedBytes<'a> {
    pub fn stored(&self) -> Stored {
        self.matrix.stored()
    }

    /// Converts whole rows from `first` on.
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

    /// The elements of an output, which stand one in each row of inputs.
    fn column(&self, output: usize, size: usize, out: &mut [u8]) {
        let [outputs, _] = self.matrix.shape;
        let row = outputs * self.matrix.step * size;
        let elements = self.codes[output * size..].chunks(row);
        for (to, from) in out.chunks_exact_mut(size).zip(elements) {
            to.copy_from_slice(&from[..size]);
        }
    }

    /// The blocks of an output, whose bytes hold elements that are half a block apart.
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

impl Weights {
    /// The bytes of a turned matrix, if there is one of this name.
    pub(in super::super) fn turned<'a>(&'a self, name: &str) -> Option<TurnedBytes<'a>> {
        let matrix = self.turned.get(name)?;
        let bytes =
            |(file, range): &(usize, Range<usize>)| &self.files[*file].bytes()[range.clone()];
        Some(TurnedBytes {
            matrix,
            codes: bytes(&matrix.codes),
            scales: matrix.scales.as_ref().map_or(&[], bytes),
        })
    }

    /// Takes matrices and biases of experts out of stacks in which they are turned.
    ///
    /// # Errors
    /// [`LoadError::WrongShape`] or [`LoadError::Format`] for a stack that is not as the configuration says.
    pub fn turn_experts(
        &mut self,
        experts: &ExpertsConfig,
        hidden: usize,
    ) -> Result<(), LoadError> {
        let width = experts.width;
        for layer in (0..experts.layers.len()).filter(|layer| experts.are_in(*layer)) {
            let module = format!("{}.experts", experts.names.module(layer));
            for (stack, parts, [outputs, inputs]) in [
                ("gate_up_proj", &[0, 1][..], [width, hidden]),
                ("down_proj", &[2], [hidden, width]),
            ] {
                let stack = format!("{module}.{stack}");
                let place = (experts, layer, parts);
                self.turn_stack(&stack, place, [outputs, inputs])?;
                self.turn_biases(&format!("{stack}_bias"), place, outputs)?;
            }
        }
        Ok(())
    }

    fn turn_stack(
        &mut self,
        stack: &str,
        (experts, layer, parts): (&ExpertsConfig, usize, &[usize]),
        [outputs, inputs]: [usize; 2],
    ) -> Result<(), LoadError> {
        let (count, all) = (experts.count(), parts.len() * outputs);
        let (codes, scales, dtype) = match self.entries.remove(stack) {
            Some(entry) => {
                let name = stack.to_owned();
                self.expect(&name, &entry, &[count, inputs, all])?;
                let dtype = match &entry.stored {
                    Ok(Stored::Plain(dtype)) => *dtype,
                    _ => return Err(self.wrong_type(&name, &entry, "F32, F16 and BF16")),
                };
                (entry, None, Some(dtype))
            }
            None => {
                let name = |part: &str| format!("{stack}_{part}");
                let Some(codes) = self.entries.remove(&name("blocks")) else {
                    return Ok(());
                };
                if !inputs.is_multiple_of(BLOCK) {
                    let reason = format!(
                        "tensor {} is made of blocks of {BLOCK} inputs, which {inputs} are not a multiple of",
                        name("blocks")
                    );
                    return Err(format_error(self.files[codes.file].path(), reason));
                }
                let n = inputs / BLOCK;
                self.expect(&name("blocks"), &codes, &[count, all, n, BLOCK / 2])?;
                let scales = self.entries.remove(&name("scales"));
                let scales = scales.ok_or_else(|| LoadError::MissingTensor {
                    file: self.searched().to_owned(),
                    tensor: name("scales"),
                    expected: vec![count, all, n],
                })?;
                self.expect(&name("scales"), &scales, &[count, all, n])?;
                for (part, entry) in [("blocks", &codes), ("scales", &scales)] {
                    if entry.stored != Err("U8".to_owned()) {
                        return Err(self.wrong_type(&name(part), entry, "U8"));
                    }
                }
                (codes, Some(scales), None)
            }
        };
        for expert in 0..count {
            let part_of = |entry: &Entry| {
                let bytes = entry.range.len() / count;
                let start = entry.range.start + expert * bytes;
                (entry.file, start..start + bytes)
            };
            let projections = experts.names.projections(layer, expert);
            for (first, part) in parts.iter().enumerate() {
                let turned = Turned {
                    codes: part_of(&codes),
                    scales: scales.as_ref().map(part_of),
                    dtype,
                    shape: [outputs, inputs],
                    first,
                    step: parts.len(),
                };
                self.turned
                    .insert(format!("{}.weight", projections[*part]), turned);
            }
        }
        Ok(())
    }

    fn turn_biases(
        &mut self,
        name: &str,
        (experts, layer, parts): (&ExpertsConfig, usize, &[usize]),
        outputs: usize,
    ) -> Result<(), LoadError> {
        let Some(entry) = self.entries.remove(name) else {
            return Ok(());
        };
        let (count, step) = (experts.count(), parts.len());
        self.expect(name, &entry, &[count, step * outputs])?;
        let bytes = entry.range.len() / count;
        let element = bytes / (step * outputs);
        for expert in 0..count {
            let projections = experts.names.projections(layer, expert);
            for (first, part) in parts.iter().enumerate() {
                let start = entry.range.start + expert * bytes;
                let bias = Entry {
                    file: entry.file,
                    stored: entry.stored.clone(),
                    shape: vec![outputs],
                    range: start + first * element..start + bytes,
                    order: RowOrder::Every { step },
                };
                self.entries
                    .insert(format!("{}.bias", projections[*part]), bias);
            }
        }
        Ok(())
    }

    fn expect(&self, name: &str, entry: &Entry, expected: &[usize]) -> Result<(), LoadError> {
        if entry.shape == expected {
            return Ok(());
        }
        Err(LoadError::WrongShape {
            file: self.files[entry.file].path().to_owned(),
            tensor: name.to_owned(),
            expected: expected.to_vec(),
            got: entry.shape.clone(),
        })
    }

    fn wrong_type(&self, name: &str, entry: &Entry, supported: &str) -> LoadError {
        let got = match &entry.stored {
            Ok(Stored::Plain(dtype)) => dtype.name(),
            Ok(Stored::Blocks(block)) => block.name(),
            Err(name) => name,
        };
        let reason = format!("tensor {name} has dtype {got}, supported is {supported}");
        format_error(self.files[entry.file].path(), reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

    #[test]
    fn blocks_have_the_values_of_their_codes() {
        // Two outputs, of which every other one is a gate's; 64 inputs; all bytes, and scales of zero.
        let codes: Vec<u8> = (0..=255)
            .chain(0..=255)
            .take(4 * 32)
            .map(|i| i * 7)
            .collect();
        let scales = [127, 130, 0, 120, 127, 1, 126, 128];
        for first in [0, 1] {
            let matrix = Turned {
                codes: (0, 0..codes.len()),
                scales: Some((0, 0..scales.len())),
                dtype: None,
                shape: [2, 64],
                first,
                step: 2,
            };
            let bytes = TurnedBytes {
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
        // Three inputs as rows; outputs 0, 2 are a gate's and 1, 3 what they let through.
        let elements: Vec<f32> = (0..12).map(|i| i as f32).collect();
        for (first, expected) in [
            (0, [0.0, 4.0, 8.0, 2.0, 6.0, 10.0]),
            (1, [1.0, 5.0, 9.0, 3.0, 7.0, 11.0]),
        ] {
            let matrix = Turned {
                codes: (0, 0..48),
                scales: None,
                dtype: Some(Dtype::F32),
                shape: [2, 3],
                first,
                step: 2,
            };
            let bytes = TurnedBytes {
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
