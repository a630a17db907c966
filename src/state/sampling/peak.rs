//! Argmax of a row of logits, or of a part of one.

/// Values compared in parallel: a multiple of every vector width.
const LANES: usize = 64;
/// Values per block: only the block with the highest value is searched for its token.
const BLOCK: usize = 16 * LANES;

/// An argmax. Among equal logits, it is the token with the lowest id.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peak {
    /// The token; undefined with `nan`.
    pub token: u32,
    pub logit: f32,
    pub nan: bool,
}

impl Default for Peak {
    fn default() -> Self {
        Self {
            token: 0,
            logit: f32::NEG_INFINITY,
            nan: false,
        }
    }
}

impl Peak {
    /// Returns the argmax of the logits of tokens from `first_token` on, in one pass.
    #[inline(always)]
    pub fn of(logits: &[f32], first_token: usize) -> Self {
        let (mut start, mut max, mut nan) = (0, f32::NEG_INFINITY, false);
        for (index, block) in logits.chunks(BLOCK).enumerate() {
            let (highest, any_nan) = highest(block);
            nan |= any_nan;
            if highest > max {
                (start, max) = (index * BLOCK, highest);
            }
        }
        let index = logits[start..].iter().position(|&logit| logit == max);
        Self {
            token: (first_token + start + index.unwrap_or(0)) as u32,
            logit: max,
            nan,
        }
    }

    /// Returns the argmax of two parts, `later` with the higher ids.
    #[inline]
    pub fn merge(self, later: Self) -> Self {
        let higher = if later.logit > self.logit {
            later
        } else {
            self
        };
        Self {
            nan: self.nan | later.nan,
            ..higher
        }
    }
}

/// The highest value of a block (ignoring NaN), and whether one is NaN.
#[inline(always)]
fn highest(block: &[f32]) -> (f32, bool) {
    let mut highest = [f32::NEG_INFINITY; LANES];
    let mut nans = [0u32; LANES];
    let chunks = block.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for lane in 0..LANES {
            highest[lane] = if chunk[lane] > highest[lane] {
                chunk[lane]
            } else {
                highest[lane]
            };
            nans[lane] |= u32::from(chunk[lane].is_nan());
        }
    }
    let higher = |max: f32, &value: &f32| if value > max { value } else { max };
    let max = highest.iter().chain(rest).fold(f32::NEG_INFINITY, higher);
    let any_nan = nans.iter().any(|nan| *nan != 0) || rest.iter().any(|value| value.is_nan());
    (max, any_nan)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn naive(logits: &[f32]) -> (u32, f32) {
        let mut best = (0, f32::NEG_INFINITY);
        for (token, &logit) in logits.iter().enumerate() {
            if logit > best.1 {
                best = (token as u32, logit);
            }
        }
        best
    }

    fn check(logits: &[f32]) {
        let whole = Peak::of(logits, 0);
        let expected = naive(logits);
        assert_eq!((whole.token, whole.logit), expected);
        for part in [1, 7, 1024, 1500] {
            let parts = logits.chunks(part).enumerate();
            let merged = parts
                .map(|(index, logits)| Peak::of(logits, index * part))
                .fold(Peak::default(), Peak::merge);
            assert_eq!(merged, whole, "parts of {part}");
        }
    }

    #[test]
    fn parts_and_whole_agree_with_a_scan() {
        for len in [1usize, 63, 64, 65, 1023, 1024, 5000] {
            let noise = |i: usize| ((i as u32).wrapping_mul(2_654_435_761) >> 20) as f32 - 2048.0;
            check(&(0..len).map(noise).collect::<Vec<_>>());
            check(&vec![1.5; len]);
            check(&vec![f32::NEG_INFINITY; len]);
            let mut zeros = vec![-0.0; len];
            zeros[len / 2] = 0.0;
            check(&zeros);
            let mut infinite = vec![0.0; len];
            infinite[len - 1] = f32::INFINITY;
            check(&infinite);
        }
    }

    #[test]
    fn nan_is_seen_at_any_place() {
        for at in [0, 63, 64, 1023, 1024, 2999] {
            let mut logits = vec![1.0; 3000];
            logits[at] = f32::NAN;
            assert!(Peak::of(&logits, 0).nan, "at {at}");
            let (low, high) = logits.split_at(1500);
            assert!(Peak::of(low, 0).merge(Peak::of(high, 1500)).nan, "at {at}");
        }
        assert!(!Peak::of(&[1.0; 3000], 0).nan);
    }
}
