//! Parameters of rotary position embedding (RoPE), with frequencies given by the caller.

/// Element pair `i` of a head rotates by `position * inv_freq[i]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per token, one for each of `head_dim / 2` pairs `(i, i + head_dim / 2)`.
    pub inv_freq: Vec<f32>,
    /// The frequencies for long sequences, if the model has separate ones.
    pub long_inv_freq: Option<Vec<f32>>,
    /// M-RoPE: for each pair, the number of a token's rotary position (0 time, 1 row, 2 column) by which it rotates.
    /// `None` if all pairs rotate by the position in the sequence.
    pub axes: Option<Vec<usize>>,
    /// Factor on cos and sin, for q and k both.
    pub attention_scale: f32,
}

impl Rope {
    pub fn none() -> Self {
        Self {
            inv_freq: Vec::new(),
            long_inv_freq: None,
            axes: None,
            attention_scale: 1.0,
        }
    }
}

/// A factor on queries that grows with the position: `1 + slope * ln(1 + floor(position / period))`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PositionScale {
    pub slope: f32,
    /// Number of consecutive positions with the same factor.
    pub period: u32,
}

impl PositionScale {
    pub fn at(self, position: u32) -> f32 {
        // In f32, as transformers computes it.
        let periods = (position / self.period) as f32;
        1.0 + self.slope * (1.0 + periods).ln()
    }
}
