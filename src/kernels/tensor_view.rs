//! Weights on the host, as a backend takes them over.

use half::{bf16, f16};

use super::dtype::Dtype;

/// A tensor as it lies in a file: row-major, little endian, at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct TensorView<'a> {
    /// Element type.
    pub dtype: Dtype,
    /// Shape, outermost dimension first.
    pub shape: &'a [usize],
    /// The elements; `shape.product() * dtype.bytes()` bytes.
    pub bytes: &'a [u8],
}

impl TensorView<'_> {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.bytes.len() / self.dtype.bytes()
    }

    /// Reads all elements, widened to f32 without loss.
    pub fn to_f32(&self) -> Vec<f32> {
        let pairs = || {
            self.bytes
                .chunks_exact(2)
                .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
        };
        match self.dtype {
            Dtype::F32 => {
                let words = self.bytes.chunks_exact(4);
                words
                    .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
                    .collect()
            }
            Dtype::F16 => pairs().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            Dtype::BF16 => pairs().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
        }
    }
}
