//! A vectorisable exponential function for sampling weights.

/// Returns `exp(x)` for `x` of at most 0, within 1e-15 relative, and 0 below -708 (and at NaN).
///
/// Uses only sums, products and shifts in a fixed order, so every machine gets the same bits.
#[inline(always)]
pub(super) fn exp_of_negative(x: f64) -> f64 {
    /// 1.5 * 2^52: adding it rounds to an integer in the low bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    /// ln 2 in two parts, the first short enough for exact multiples.
    const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    let is_normal = x >= -708.0;
    let x = if is_normal { x } else { 0.0 };
    let shifted = x * std::f64::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut sum = TAYLOR[0];
    for coefficient in &TAYLOR[1..] {
        sum = sum * r + coefficient;
    }
    let power = (shifted.to_bits().wrapping_add(1023)) << 52;
    let exp = sum * f64::from_bits(power);
    if is_normal { exp } else { 0.0 }
}

/// 1/13!, 1/12!, ..., 1, 1: for `|r|` of at most ln(2)/2 the truncation error is below 1e-17.
const TAYLOR: [f64; 14] = {
    let mut terms = [1.0; 14];
    let mut factorial = 1.0;
    let mut i = 1;
    while i < 14 {
        factorial *= i as f64;
        terms[13 - i] = 1.0 / factorial;
        i += 1;
    }
    terms
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_the_exponential_of_the_standard_library() {
        let check = |x: f64| {
            let (got, expected) = (exp_of_negative(x), x.exp());
            let error = (got / expected - 1.0).abs();
            assert!(error < 1e-15, "exp({x}) is {expected}, got {got}");
        };
        (0..700_000).for_each(|i| check(-f64::from(i) * 1.000_37e-3));
        (0..100_000).for_each(|i| check(-f64::from(i) * 1e-9));
        check(-708.0);
    }

    #[test]
    fn the_result_is_1_at_zero_and_0_below_minus_708_and_at_nan() {
        assert_eq!(exp_of_negative(0.0), 1.0);
        assert_eq!(exp_of_negative(-0.0), 1.0);
        for x in [-708.1, -1e300, f64::NEG_INFINITY, f64::NAN] {
            assert_eq!(exp_of_negative(x), 0.0, "exp({x})");
        }
    }
}
