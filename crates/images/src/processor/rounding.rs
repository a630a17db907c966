//! Python's arithmetic of sizes.

/// A side in units of `unit` pixels, rounded half to even, in pixels.
pub(super) fn round_to(side: u32, unit: u32) -> u32 {
    let units = (f64::from(side) / f64::from(unit)).round_ties_even();
    (units as u32).saturating_mul(unit)
}

/// `side` in units of `unit` pixels, rounded down, in pixels.
pub(super) fn floor_to(side: f64, unit: u32) -> u32 {
    ((side / f64::from(unit)).floor() as u32).saturating_mul(unit)
}

/// `side` in units of `unit` pixels, rounded up, in pixels.
pub(super) fn ceil_to(side: f64, unit: u32) -> u32 {
    ((side / f64::from(unit)).ceil() as u32).saturating_mul(unit)
}

/// The bounds of a scaled picture.
pub(super) struct Bounds {
    /// Both sides are multiples of it.
    pub(super) unit: u32,
    pub(super) min_pixels: u32,
    pub(super) max_pixels: u32,
}

impl Bounds {
    /// Scales sides that were rounded to `rounded`, if the pixels of that are not within the bounds: `smart_resize` of
    /// Qwen-VL, which LFM2-VL has too. Sizes are (width, height).
    pub(super) fn fit(&self, (width, height): (u32, u32), rounded: (u32, u32)) -> (u32, u32) {
        let area = f64::from(width) * f64::from(height);
        let pixels = u64::from(rounded.0) * u64::from(rounded.1);
        let (min, max) = (self.min_pixels, self.max_pixels);
        if pixels > u64::from(max) {
            let beta = (area / f64::from(max)).sqrt();
            let fit = |side: u32| floor_to(f64::from(side) / beta, self.unit).max(self.unit);
            return (fit(width), fit(height));
        }
        if pixels < u64::from(min) {
            let beta = (f64::from(min) / area).sqrt();
            let fit = |side: u32| ceil_to(f64::from(side) * beta, self.unit);
            return (fit(width), fit(height));
        }
        rounded
    }

    /// As [`fit`](Self::fit), with at most `max_tokens` squares of `unit` pixels, at least 1. `fit` alone exceeds the
    /// bounds where it rounds up: sides below a unit, and pictures that are enlarged.
    pub(super) fn fit_tokens(
        &self,
        (width, height): (u32, u32),
        rounded: (u32, u32),
        max_tokens: u32,
    ) -> (u32, u32) {
        let fitted = self.fit((width, height), rounded);
        let units = |side: u32| u64::from(side / self.unit);
        if units(fitted.0) * units(fitted.1) <= u64::from(max_tokens) {
            return fitted;
        }
        let area = f64::from(width) * f64::from(height);
        let side_of_token = (area / f64::from(max_tokens)).sqrt();
        // A side of one unit leaves all tokens for the other.
        let side = |side: u32| {
            let units = (f64::from(side) / side_of_token).floor() as u32;
            units.clamp(1, max_tokens) * self.unit
        };
        (side(width), side(height))
    }
}
