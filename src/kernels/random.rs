//! Random weights: a model of any shape without a checkpoint, for benchmarks and tests.
//!
//! An element depends only on its tensor's name and its index, so every device makes the same bits in any order
//! (`kernels/fill.cu` on the GPU). Values are uniform around 0, with a usual standard deviation of initial weights.

use half::{bf16, f16};

use super::dtype::Dtype;
use super::tensor_view::TensorView;

const SEED: u64 = 0x736f_7566_666c_6575;
const DEVIATION: f32 = 0.02;
/// Half the width of a uniform distribution, in standard deviations.
const SQRT_3: f32 = 1.732_050_8;
/// Integers are drawn from `-STEPS..STEPS`; they are exact as f32.
const STEPS: i32 = 1 << 23;

#[derive(Clone, Debug, PartialEq)]
pub struct RandomTensor {
    /// Outermost dimension first.
    pub shape: Vec<usize>,
    pub dtype: Dtype,
    pub seed: u64,
}

impl RandomTensor {
    pub fn new(name: &str, shape: &[usize], dtype: Dtype) -> Self {
        // FNV-1a: stable between versions and machines.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        Self {
            shape: shape.to_vec(),
            dtype,
            seed: hash ^ SEED,
        }
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The factor from the drawn 24-bit integers to elements.
    pub fn unit() -> f32 {
        DEVIATION * SQRT_3 / STEPS as f32
    }

    /// The elements before rounding to the dtype.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        let elements = 0..self.elements() as u64;
        elements.map(|index| random_element(self.seed, index))
    }

    /// The elements in the layout of a model file.
    pub fn bytes(&self) -> Vec<u8> {
        let values = self.values();
        match self.dtype {
            Dtype::F32 => values.flat_map(f32::to_le_bytes).collect(),
            Dtype::F16 => values
                .flat_map(|value| f16::from_f32(value).to_le_bytes())
                .collect(),
            Dtype::BF16 => values
                .flat_map(|value| bf16::from_f32(value).to_le_bytes())
                .collect(),
        }
    }

    pub fn view<'a>(&'a self, bytes: &'a [u8]) -> TensorView<'a> {
        TensorView::plain(self.dtype, &self.shape, bytes)
    }
}

fn random_element(seed: u64, index: u64) -> f32 {
    // The finaliser of splitmix64 over its counter.
    let counter = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut x = seed.wrapping_add(counter);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    ((x >> 40) as i32 - STEPS) as f32 * RandomTensor::unit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_reproducible_and_have_the_expected_deviation() {
        let tensor = RandomTensor::new("model.embed_tokens.weight", &[100, 50], Dtype::F32);
        let bytes = tensor.bytes();
        assert_eq!(bytes, tensor.bytes());
        let values = tensor.view(&bytes).to_f32();
        assert_eq!(values.len(), 5000);
        let sum: f32 = values.iter().sum();
        let squares: f32 = values.iter().map(|value| value * value).sum();
        assert!((sum / 5000.0).abs() < 0.002, "{sum}");
        assert!(((squares / 5000.0).sqrt() - DEVIATION).abs() < 0.001);
        assert!(values.iter().all(|value| value.abs() <= DEVIATION * SQRT_3));
        let other = RandomTensor::new("lm_head.weight", &[100, 50], Dtype::F32);
        assert_ne!(bytes, other.bytes());
    }

    #[test]
    fn dtypes_round_the_same_values() {
        let bytes = |dtype| RandomTensor::new("x.weight", &[33], dtype).bytes();
        let tensor = |dtype| RandomTensor::new("x.weight", &[33], dtype);
        let exact = tensor(Dtype::F32).view(&bytes(Dtype::F32)).to_f32();
        let rounded = tensor(Dtype::BF16).view(&bytes(Dtype::BF16)).to_f32();
        let expected: Vec<f32> = exact
            .iter()
            .map(|value| bf16::from_f32(*value).to_f32())
            .collect();
        assert_eq!(rounded, expected);
    }
}
