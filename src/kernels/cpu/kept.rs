//! Stores keys and values into the KV pool: rounded, or quantised to int8 in groups.

use half::bf16;

use super::element::{Element, narrow_into};
use super::simd::{LANES, Lanes, MAGIC};
use souffleur_base::kv_layout::SCALE_GROUP;

const VECTOR_CODES: usize = 4 * LANES;
/// The largest int8 value. A group's largest may be lower, as scales are rounded up.
const MAX_CODE: f32 = 127.0;
/// The bits of infinity; the magnitude bits of NaNs are greater.
const INFINITY_BITS: u32 = 0x7f80_0000;

/// An element type of the KV pool.
pub trait Kept: bytemuck::Pod + Send + Sync {
    /// Whether each [`SCALE_GROUP`] elements of a key or value share a scale.
    const SCALED: bool;
    /// Elements after the last slot, so that whole vectors can be read from every slot.
    const SLACK: usize;

    /// Writes a key or value of a head, and its scales if it has any. The result depends on these values alone.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    unsafe fn keep<S: Lanes>(values: &[f32], out: &mut [Self], scales: &mut [bf16]);
}

impl<E: Element> Kept for E {
    const SCALED: bool = false;
    const SLACK: usize = 0;

    #[inline(always)]
    unsafe fn keep<S: Lanes>(values: &[f32], out: &mut [Self], _scales: &mut [bf16]) {
        narrow_into::<E, S>(values, out);
    }
}

impl Kept for i8 {
    const SCALED: bool = true;
    const SLACK: usize = VECTOR_CODES;

    #[inline(always)]
    unsafe fn keep<S: Lanes>(values: &[f32], out: &mut [Self], scales: &mut [bf16]) {
        let groups = values.chunks(SCALE_GROUP).zip(out.chunks_mut(SCALE_GROUP));
        for ((values, out), scale) in groups.zip(scales) {
            // SAFETY: guaranteed by the caller.
            *scale = unsafe { quantise::<S>(values, out) };
        }
    }
}

/// Quantises a group to int8 and returns its scale: NaN if one of the values is NaN or infinite.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn quantise<S: Lanes>(values: &[f32], out: &mut [i8]) -> bf16 {
    let mut padded = [0f32; VECTOR_CODES];
    padded[..values.len()].copy_from_slice(values);
    let magnitudes = padded.iter().map(|value| value.abs().to_bits());
    let (scale, inverse) = scale_of(magnitudes.fold(0, u32::max));
    let mut codes = [0i8; VECTOR_CODES];
    // SAFETY: `padded` holds four times sixteen values, `codes` as many bytes; the caller detected the instruction set.
    unsafe {
        let mut rounded = [S::splat(MAGIC); VECTOR_CODES / LANES];
        for (i, rounded) in rounded[..SCALE_GROUP / LANES].iter_mut().enumerate() {
            let values = S::load(padded.as_ptr().wrapping_add(i * LANES));
            *rounded = S::add(S::mul(values, S::splat(inverse)), *rounded);
        }
        S::store_words(codes.as_mut_ptr().cast(), S::low_bytes(rounded));
    }
    out.copy_from_slice(&codes[..out.len()]);
    scale
}

/// The scale of a group, from the bits of its largest magnitude, and the factor from values to int8. Scales are rounded
/// up, so no quantised value exceeds [`MAX_CODE`].
#[inline(always)]
fn scale_of(largest: u32) -> (bf16, f32) {
    if largest >= INFINITY_BITS {
        return (bf16::NAN, 0.0);
    }
    let exact = f32::from_bits(largest) / MAX_CODE;
    if exact < f32::MIN_POSITIVE {
        return (bf16::ZERO, 0.0);
    }
    let scale = (exact.to_bits() + 0xffff) & 0xffff_0000;
    (
        bf16::from_bits((scale >> 16) as u16),
        1.0 / f32::from_bits(scale),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::{Isa, Kernel, dispatch};

    struct Keep<'a>(&'a [f32]);

    impl Kernel for Keep<'_> {
        type Output = (Vec<i8>, Vec<bf16>);

        #[inline(always)]
        fn run<S: Lanes>(self) -> Self::Output {
            let len = self.0.len();
            let mut out = (vec![0; len], vec![bf16::ZERO; len.div_ceil(SCALE_GROUP)]);
            // SAFETY: `dispatch` detected the instruction set.
            unsafe { i8::keep::<S>(self.0, &mut out.0, &mut out.1) };
            out
        }
    }

    #[test]
    fn every_value_is_within_half_a_step_of_its_code() {
        let values: Vec<f32> = (0..150)
            .map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.013 * (1 + i / SCALE_GROUP) as f32)
            .collect();
        let (codes, scales) = dispatch(Isa::Portable, Keep(&values));
        for (i, (value, code)) in values.iter().zip(&codes).enumerate() {
            let scale = scales[i / SCALE_GROUP].to_f32();
            let error = (value - f32::from(*code) * scale).abs();
            assert!(error <= 0.5001 * scale, "{value} became {code} * {scale}");
        }
        for group in values.chunks(SCALE_GROUP).zip(&scales) {
            let largest = group
                .0
                .iter()
                .fold(0.0, |max: f32, value| max.max(value.abs()));
            let steps = largest / group.1.to_f32();
            assert!(steps <= MAX_CODE && steps > 126.0, "{steps} steps");
        }
        for isa in Isa::available() {
            assert_eq!(
                dispatch(isa, Keep(&values)),
                (codes.clone(), scales.clone())
            );
        }
    }

    #[test]
    fn scales_are_nan_only_for_nan_and_infinite_values() {
        for isa in Isa::available() {
            for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = [1.0; SCALE_GROUP + 6];
                values[SCALE_GROUP + 2] = odd;
                let (codes, scales) = dispatch(isa, Keep(&values));
                // The scale is rounded up, so the largest code is 126, not 127.
                assert_eq!(codes[..SCALE_GROUP], [126; SCALE_GROUP], "{isa:?}, {odd}");
                assert!(scales[0].to_f32() < 0.01 && scales[1].is_nan());
            }
            let (codes, scales) = dispatch(isa, Keep(&[f32::MIN_POSITIVE, 0.0, -0.0]));
            assert_eq!((codes, scales), (vec![0; 3], vec![bf16::ZERO]));
            let (codes, scales) = dispatch(isa, Keep(&[f32::MAX, f32::MIN]));
            assert!(codes[0] >= 126 && codes[1] == -codes[0], "{codes:?}");
            assert!(scales[0].is_finite());
        }
    }
}
