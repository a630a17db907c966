//! Quantises values to superblocks of Q4_K and Q6_K.
//!
//! No sum crosses vector lanes, which are sub-blocks, so the output is the same on every instruction set. For each
//! sub-block, the encoder tries a few scales around the one that just covers the largest value. It computes the codes
//! for each scale, refits scale and minimum to the codes by least squares, and keeps the best fit.

use half::f16;

use super::BlockType;

const SUPER_BLOCK: usize = 256;
const Q4_K_BYTES: usize = 144;
const Q6_K_BYTES: usize = 210;

/// 1.5 * 2^23: adding and subtracting it rounds to an integer, half to even.
const MAGIC: f32 = 12_582_912.0;
/// Candidates for the number of steps in the range of a Q4_K sub-block. More than fifteen steps clip the largest codes.
const RANGE_STEPS: [f32; 5] = [14.0, 14.7, 15.4, 16.1, 17.0];
/// Candidates for the code of the largest magnitude in a Q6_K sub-block. Codes beyond 32 are clipped.
const LARGEST_CODES: [f32; 5] = [30.0, 31.0, 32.0, 33.0, 34.0];

/// Encodes a superblock. If a value is not finite or exceeds the range of f16 scales, all values of the superblock
/// become NaN, so that the error is visible in the results.
///
/// # Panics
/// If the type is neither Q4_K nor Q6_K, or `out` is not as long as an encoded superblock.
#[inline(always)]
pub fn encode(block: BlockType, values: &[f32; SUPER_BLOCK], out: &mut [u8]) {
    let expected = "out has the bytes of one superblock";
    match block {
        BlockType::Q4K => q4_k(values, out.try_into().expect(expected)),
        BlockType::Q6K => q6_k(values, out.try_into().expect(expected)),
        other => unreachable!("{} cannot be encoded", other.name()),
    }
}

#[inline(always)]
fn q4_k(values: &[f32; SUPER_BLOCK], out: &mut [u8; Q4_K_BYTES]) {
    let x: Transposed<32, 8> = transposed(values);
    out.fill(0);
    if !are_encodable(&x) {
        out[..2].copy_from_slice(&f16::NAN.to_le_bytes());
        return;
    }
    let fits = fit_ranges(&x);
    let (d, scales) = six_bits(&fits.scale);
    let (dmin, mins) = six_bits(&fits.min);
    out[..2].copy_from_slice(&d.to_le_bytes());
    out[2..4].copy_from_slice(&dmin.to_le_bytes());
    for j in 0..4 {
        let (s, m) = (scales[j + 4] as u8, mins[j + 4] as u8);
        out[4 + j] = scales[j] as u8 | s >> 4 << 6;
        out[8 + j] = mins[j] as u8 | m >> 4 << 6;
        out[12 + j] = s & 15 | m << 4;
    }
    let mut codes = [0u32; SUPER_BLOCK];
    for j in 0..8 {
        let min = dmin.to_f32() * mins[j];
        let inverse = reciprocal(d.to_f32() * scales[j]);
        for i in 32 * j..32 * j + 32 {
            codes[i] = bits(clamp((values[i] + min) * inverse, 0.0, 15.0));
        }
    }
    for j in 0..4 {
        for i in 0..32 {
            out[16 + 32 * j + i] = (codes[64 * j + i] | codes[64 * j + 32 + i] << 4) as u8;
        }
    }
}

#[inline(always)]
fn q6_k(values: &[f32; SUPER_BLOCK], out: &mut [u8; Q6_K_BYTES]) {
    let x: Transposed<16, 16> = transposed(values);
    out.fill(0);
    if !are_encodable(&x) {
        out[208..].copy_from_slice(&f16::NAN.to_le_bytes());
        return;
    }
    let scale = fit_signed(&x);
    let mut largest = 0f32;
    for s in scale {
        largest = max(largest, s.abs());
    }
    let d = nearest(largest / 127.0);
    out[208..].copy_from_slice(&d.to_le_bytes());
    let mut codes = [0u32; SUPER_BLOCK];
    for j in 0..16 {
        // The clamp matters only if `scale` is too small for the precision of f16.
        let s = round(clamp(scale[j] * reciprocal(d.to_f32()), -127.0, 127.0));
        out[192 + j] = s as i8 as u8;
        let inverse = reciprocal(d.to_f32() * s);
        for i in 16 * j..16 * j + 16 {
            codes[i] = bits(clamp(values[i] * inverse, -32.0, 31.0) + 32.0);
        }
    }
    for n in 0..2 {
        for l in 0..32 {
            let at = 128 * n + l;
            let [a, b, c, e] = [codes[at], codes[at + 32], codes[at + 64], codes[at + 96]];
            out[64 * n + l] = (a & 15 | c << 4) as u8;
            out[64 * n + 32 + l] = (b & 15 | e << 4) as u8;
            out[128 + 32 * n + l] = (a >> 4 | b >> 4 << 2 | c >> 4 << 4 | e >> 4 << 6) as u8;
        }
    }
}

/// Values indexed by input within the sub-block, then by sub-block.
type Transposed<const INPUTS: usize, const LANES: usize> = [[f32; LANES]; INPUTS];

#[inline(always)]
fn transposed<const INPUTS: usize, const LANES: usize>(
    x: &[f32; SUPER_BLOCK],
) -> Transposed<INPUTS, LANES> {
    let mut out = [[0f32; LANES]; INPUTS];
    for i in 0..INPUTS {
        for j in 0..LANES {
            out[i][j] = x[INPUTS * j + i];
        }
    }
    out
}

#[inline(always)]
fn are_encodable<const INPUTS: usize, const LANES: usize>(x: &Transposed<INPUTS, LANES>) -> bool {
    let mut zeros = [0f32; LANES];
    for x in x {
        for j in 0..LANES {
            // Above 3e8, `x * 1e30` is infinite, and zero times infinity is NaN.
            zeros[j] += x[j] * 1e30 * 0.0;
        }
    }
    let mut finite = true;
    for zero in zeros {
        finite &= zero == 0.0;
    }
    finite
}

/// The fit of each sub-block: a value is about `scale * code - min`. Scales and minima are not negative.
struct Ranges {
    scale: [f32; 8],
    min: [f32; 8],
}

#[inline(always)]
fn fit_ranges(x: &Transposed<32, 8>) -> Ranges {
    const INPUTS: f32 = 32.0;
    let (mut low, mut high, mut sum) = ([0f32; 8], x[0], [0f32; 8]);
    for x in x {
        for j in 0..8 {
            low[j] = min(low[j], x[j]);
            high[j] = max(high[j], x[j]);
            sum[j] += x[j];
        }
    }
    let mut best = [f32::NEG_INFINITY; 8];
    let mut fits = Ranges {
        scale: [0.0; 8],
        min: [0.0; 8],
    };
    for steps in RANGE_STEPS {
        let (mut step, mut inverse) = ([0f32; 8], [0f32; 8]);
        for j in 0..8 {
            step[j] = (high[j] - low[j]) / steps;
            inverse[j] = reciprocal(step[j]);
        }
        let (mut codes, mut squares, mut products) = ([0f32; 8], [0f32; 8], [0f32; 8]);
        for x in x {
            for j in 0..8 {
                let code = round(clamp((x[j] - low[j]) * inverse[j], 0.0, 15.0));
                codes[j] += code;
                squares[j] += code * code;
                products[j] += code * x[j];
            }
        }
        for j in 0..8 {
            let spread = INPUTS * squares[j] - codes[j] * codes[j];
            let fitted = (INPUTS * products[j] - codes[j] * sum[j]) / spread;
            let lowest = (sum[j] - fitted * codes[j]) / INPUTS;
            // The format has no positive lowest value: fit the scale alone.
            let (fitted, lowest) = if lowest > 0.0 {
                (products[j] / squares[j], 0.0)
            } else {
                (fitted, lowest)
            };
            // With equal codes, the least-squares fit divides by zero.
            let (fitted, lowest) = if spread > 0.0 {
                (fitted, lowest)
            } else {
                (step[j], low[j])
            };
            // The sum of squares of the values, less the squared error of the fit.
            let gain = fitted * (2.0 * products[j] - fitted * squares[j])
                + lowest * (2.0 * (sum[j] - fitted * codes[j]) - INPUTS * lowest);
            let is_better = gain > best[j];
            best[j] = if is_better { gain } else { best[j] };
            fits.scale[j] = if is_better { fitted } else { fits.scale[j] };
            fits.min[j] = if is_better { -lowest } else { fits.min[j] };
        }
    }
    fits
}

/// The scale of each sub-block, for codes from -32 to 31.
#[inline(always)]
fn fit_signed(x: &Transposed<16, 16>) -> [f32; 16] {
    let mut extreme = [0f32; 16];
    for x in x {
        for j in 0..16 {
            extreme[j] = if x[j].abs() > extreme[j].abs() {
                x[j]
            } else {
                extreme[j]
            };
        }
    }
    let (mut best, mut scale) = ([0f32; 16], [0f32; 16]);
    for largest in LARGEST_CODES {
        let mut inverse = [0f32; 16];
        for j in 0..16 {
            // The extreme value gets a negative code, because codes range from -32 to 31.
            inverse[j] = reciprocal(extreme[j] / -largest);
        }
        let (mut squares, mut products) = ([0f32; 16], [0f32; 16]);
        for x in x {
            for j in 0..16 {
                let code = round(clamp(x[j] * inverse[j], -32.0, 31.0));
                squares[j] += code * code;
                products[j] += code * x[j];
            }
        }
        for j in 0..16 {
            let fitted = products[j] * reciprocal(squares[j]);
            let gain = fitted * products[j];
            let is_better = gain > best[j];
            best[j] = if is_better { gain } else { best[j] };
            scale[j] = if is_better { fitted } else { scale[j] };
        }
    }
    scale
}

/// An f16 scale for all values, and each value as a six-bit multiple of the scale.
#[inline(always)]
fn six_bits(values: &[f32; 8]) -> (f16, [f32; 8]) {
    let mut largest = 0f32;
    for value in values {
        largest = max(largest, *value);
    }
    let scale = nearest(largest / 63.0);
    let inverse = reciprocal(scale.to_f32());
    let mut codes = [0f32; 8];
    for (code, value) in codes.iter_mut().zip(values) {
        *code = round(clamp(value * inverse, 0.0, 63.0));
    }
    (scale, codes)
}

/// Compiles to two instructions.
#[inline(always)]
fn clamp(x: f32, least: f32, largest: f32) -> f32 {
    max(min(x, largest), least)
}

/// The nearest f16; zero only for zero.
#[inline(always)]
fn nearest(x: f32) -> f16 {
    let nearest = f16::from_f32(x);
    if x > 0.0 && nearest == f16::ZERO {
        f16::from_bits(1)
    } else {
        nearest
    }
}

#[inline(always)]
fn bits(x: f32) -> u32 {
    (x + MAGIC).to_bits() & 255
}

#[inline(always)]
fn round(x: f32) -> f32 {
    (x + MAGIC) - MAGIC
}

/// `1 / x`, or 0 for 0.
#[inline(always)]
fn reciprocal(x: f32) -> f32 {
    if x == 0.0 { 0.0 } else { 1.0 / x }
}

/// One instruction: `b` if either is NaN.
#[inline(always)]
fn min(a: f32, b: f32) -> f32 {
    if a < b { a } else { b }
}

/// One instruction: `b` if either is NaN.
#[inline(always)]
fn max(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TYPES: [BlockType; 2] = [BlockType::Q4K, BlockType::Q6K];

    fn recoded(block: BlockType, values: &[f32]) -> Vec<f32> {
        let (mut bytes, mut out) = (vec![0; block.bytes()], vec![0.0; values.len()]);
        let superblocks = values.as_chunks::<SUPER_BLOCK>().0.iter();
        for (values, out) in superblocks.zip(out.chunks_exact_mut(SUPER_BLOCK)) {
            encode(block, values, &mut bytes);
            block.decode(&bytes, out);
        }
        out
    }

    fn gauss(n: usize, deviation: f32) -> Vec<f32> {
        let mut state = 1u64;
        let mut uniform = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            ((state >> 40) as f64 + 0.5) / f64::from(1 << 24)
        };
        let mut normal = move || {
            let radius = (-2.0 * uniform().ln()).sqrt();
            radius * (std::f64::consts::TAU * uniform()).cos()
        };
        (0..n).map(|_| normal() as f32 * deviation).collect()
    }

    fn relative_error(values: &[f32], recoded: &[f32]) -> f64 {
        let square = |x: f32| f64::from(x).powi(2);
        let errors = values.iter().zip(recoded).map(|(x, y)| square(x - y));
        let squares = values.iter().map(|x| square(*x));
        (errors.sum::<f64>() / squares.sum::<f64>()).sqrt()
    }

    #[test]
    fn errors_of_normal_values_match_those_of_llama_cpp() {
        for deviation in [1e-3, 0.02, 3.0] {
            let values = gauss(512 * SUPER_BLOCK, deviation);
            for (block, limit) in [(BlockType::Q4K, 0.073), (BlockType::Q6K, 0.0178)] {
                let error = relative_error(&values, &recoded(block, &values));
                assert!(error < limit, "{}, {deviation}: {error}", block.name());
                assert!(error > 0.9 * limit, "{}: {error}", block.name());
            }
        }
    }

    #[test]
    fn encoding_decoded_values_again_changes_little() {
        for block in TYPES {
            let values = recoded(block, &gauss(SUPER_BLOCK, 0.5));
            let error = relative_error(&values, &recoded(block, &values));
            assert!(error < 0.012, "{}: {error}", block.name());
        }
    }

    #[test]
    fn zeros_stay_zero_and_equal_values_change_little() {
        for block in TYPES {
            assert_eq!(recoded(block, &[0.0; SUPER_BLOCK]), [0.0; SUPER_BLOCK]);
            for value in [0.02, -0.02, 1.0, -1.0, 1e-4, -1e-4, 100.0] {
                let values = [value; SUPER_BLOCK];
                let error = relative_error(&values, &recoded(block, &values));
                assert!(error < 0.01, "{}, {value}: {error}", block.name());
            }
            // The scale that fits is below the smallest f16.
            let error = relative_error(&[1e-5], &recoded(block, &[1e-5; SUPER_BLOCK])[..1]);
            assert!(error < 0.05, "{}: {error}", block.name());
        }
    }

    #[test]
    fn zero_sub_blocks_do_not_affect_the_others() {
        let mut values = gauss(SUPER_BLOCK, 0.02);
        values[64..].fill(0.0);
        for block in TYPES {
            let recoded = recoded(block, &values);
            assert_eq!(recoded[64..], values[64..], "{}", block.name());
            assert!(relative_error(&values, &recoded) < 0.08);
        }
    }

    #[test]
    fn one_large_value_changes_little() {
        for block in TYPES {
            for large in [1.0, -1.0] {
                let mut values = gauss(SUPER_BLOCK, 1e-3);
                values[77] = large;
                let recoded = recoded(block, &values);
                assert!((recoded[77] - large).abs() < 0.02, "{}", recoded[77]);
            }
        }
    }

    #[test]
    fn blocks_with_values_that_are_not_finite_become_nan() {
        for block in TYPES {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = gauss(2 * SUPER_BLOCK, 0.02);
                values[300] = value;
                let recoded = recoded(block, &values);
                assert!(recoded[..SUPER_BLOCK].iter().all(|x| x.is_finite()));
                assert!(recoded[SUPER_BLOCK..].iter().all(|x| x.is_nan()));
            }
            // Beyond the range of f16 scales.
            let huge = recoded(block, &[3e38; SUPER_BLOCK]);
            assert!(huge.iter().all(|x| !x.is_finite()), "{}", block.name());
        }
    }
}
