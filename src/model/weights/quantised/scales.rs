//! Scales of 4-bit groups. Blocks store them as f16, which may lose precision of bf16 or f32 scales.

use half::f16;

use super::tensors::Part;
use souffleur_base::error::LoadError;
use souffleur_kernels::dtype::Dtype;
use souffleur_kernels::tensor_view::widen;

const LARGEST: f32 = 65504.0;
/// The smallest normal f16.
const SMALLEST: f32 = 1.0 / 16384.0;
const CHUNK: usize = 512;

/// The scales of a matrix, checked.
///
/// Rounding to f16 changes a scale by at most 1/2048 of itself or, below [`SMALLEST`], by at most 1/2048 of the largest
/// scale. Matrices with larger errors are rejected.
pub struct GroupScales<'a> {
    dtype: Dtype,
    bytes: &'a [u8],
}

impl<'a> GroupScales<'a> {
    pub fn of(part: Part<'a>) -> Result<Self, LoadError> {
        let scales = Self {
            dtype: part.float()?,
            bytes: part.bytes(),
        };
        match scales.problem() {
            None => Ok(scales),
            Some(reason) => Err(part.error(reason)),
        }
    }

    pub fn get(&self, index: usize) -> f32 {
        let size = self.dtype.bytes();
        let mut value = [0.0];
        widen(self.dtype, &self.bytes[index * size..][..size], &mut value);
        value[0]
    }

    /// Whether the scales are f16, so that nothing is rounded.
    pub fn are_half(&self) -> bool {
        self.dtype == Dtype::F16
    }

    /// Why the scales cannot be rounded to f16. Infinite and NaN scales are kept.
    fn problem(&self) -> Option<String> {
        const REMEDY: &str = "use the float16 or bfloat16 model";
        if self.are_half() {
            return None;
        }
        let mut values = [0f32; CHUNK];
        let (mut largest, mut is_rounded) = (0f32, false);
        for bytes in self.bytes.chunks(CHUNK * self.dtype.bytes()) {
            let values = &mut values[..bytes.len() / self.dtype.bytes()];
            widen(self.dtype, bytes, values);
            let finite = values.iter().filter(|value| value.is_finite());
            largest = finite.fold(largest, |largest, value| largest.max(value.abs()));
            is_rounded |= values
                .iter()
                .any(|value| value.abs() < SMALLEST && f16::from_f32(*value).to_f32() != *value);
        }
        if largest > LARGEST {
            return Some(format!(
                "holds the scale {largest}, but scales of 4-bit weights are kept in f16, whose limit is {LARGEST}: \
                 {REMEDY}"
            ));
        }
        (is_rounded && largest < SMALLEST).then(|| {
            format!(
                "holds no scale above {largest:e}, but scales of 4-bit weights are kept in f16, which loses precision \
                 below {SMALLEST:e}: {REMEDY}"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(dtype: Dtype, values: &[f32]) -> Option<String> {
        let bytes: Vec<u8> = match dtype {
            Dtype::F32 => values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            Dtype::BF16 => {
                let halves = values.iter().map(|x| half::bf16::from_f32(*x));
                halves.flat_map(half::bf16::to_le_bytes).collect()
            }
            Dtype::F16 => {
                let halves = values.iter().map(|x| f16::from_f32(*x));
                halves.flat_map(f16::to_le_bytes).collect()
            }
        };
        let bytes = bytes.as_slice();
        GroupScales { dtype, bytes }.problem()
    }

    #[test]
    fn scales_outside_of_f16_are_rejected() {
        for dtype in [Dtype::F32, Dtype::BF16] {
            let of = |values: &[f32]| problem(dtype, values);
            let mut many = vec![0.5; 3 * CHUNK + 5];
            assert_eq!(of(&many), None);
            many[3 * CHUNK + 4] = -131_072.0;
            let error = of(&many).expect("beyond f16");
            assert!(error.contains("the scale 131072"), "{error}");
            let error = of(&[3e-6, -1e-5, 0.0]).expect("below f16");
            assert!(error.contains("no scale above"), "{error}");
            // Relative to a large scale these errors are small; powers of two are exact.
            assert_eq!(of(&[3e-6, 0.001, 1e-9]), None);
            assert_eq!(of(&[f32::powi(2.0, -23), f32::powi(2.0, -20), 0.0]), None);
            assert_eq!(of(&[f32::NAN, f32::NEG_INFINITY, 1.0]), None);
            assert_eq!(of(&[]), None);
        }
        assert_eq!(problem(Dtype::F16, &[3e-6, f32::INFINITY]), None);
    }

    #[test]
    fn rounding_changes_scales_by_a_2048th_at_most() {
        let mut random = fastrand::Rng::with_seed(19);
        let (mut worst, mut squares) = (0f64, 0f64);
        const N: u32 = 20_000;
        for _ in 0..N {
            let scale = (random.f32() * 18.0 - 14.0).exp2();
            let rounded = f16::from_f32(scale).to_f32();
            let error = f64::from((rounded - scale).abs() / scale);
            worst = worst.max(error);
            squares += error * error;
        }
        let mean = (squares / f64::from(N)).sqrt();
        assert!(worst <= 1.0 / 2048.0 && mean < 2.5e-4, "{worst} {mean}");
    }
}
