//! Rotary position embedding, as kernels compute it. Which frequencies a model has is known above.

/// The rotation: element pair `i` of a head turns by `position * inv_freq[i]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rope {
    /// Radians per token, one for each of `head_dim / 2` pairs `(i, i + head_dim / 2)`.
    pub inv_freq: Vec<f32>,
    /// Factor on cos and sin, for q and k both.
    pub attention_scale: f32,
}
