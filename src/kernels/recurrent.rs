//! Weights and sizes of recurrent layers, whose state has a fixed size: gated convolution and gated delta net.

use super::{Backend, Linear};

pub const MAX_TAPS: usize = 8;

/// For [`Backend::gated_conv`].
pub struct GatedConvWeights<B: Backend> {
    /// Two gates and an input stacked: `[3 * channels, hidden]`.
    pub input: Linear<B>,
    /// Oldest token first: `[n_taps, channels]`.
    pub taps: B::Vector,
    pub n_taps: usize,
    /// `[channels]`.
    pub bias: Option<B::Vector>,
}

/// For [`Backend::delta_net`].
///
/// The projection of a token's input is `[m, z, b, a]`, and `[q, k, v] = silu(sum of taps[j] * m[t - n_taps + 1 + j])`.
/// Heads of q and k are divided by their L2 norms (`eps` 1e-6 in the sum of squares), q also by the root of `key_dim`.
/// A value head's matrix `S [key_dim, value_dim]`, initially zero, becomes `d S + k (x) sigmoid(b) (v - (d S)^T k)`
/// with `d = exp(decay * softplus(a + dt_bias))`. The head's output is `rms_norm(S^T q) * norm * silu(z)`.
///
/// The state of a layer is `S` of each value head, and `m` of the last `n_taps - 1` tokens, all in f32.
pub struct DeltaNetWeights<B: Backend> {
    pub shape: DeltaNetShape,
    /// `m`, `z`, `b` and `a` stacked: `[channels + value_heads * value_dim + 2 * value_heads, hidden]`.
    pub input: Linear<B>,
    /// Oldest token first: `[n_taps, channels]`.
    pub taps: B::Vector,
    /// `[value_heads]`, all negative.
    pub decay: B::Vector,
    /// `[value_heads]`.
    pub dt_bias: B::Vector,
    /// Norm of each head, `[value_dim]`.
    pub norm: B::Vector,
    pub eps: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// The number of key heads, and of query heads.
    pub key_heads: usize,
    /// A multiple of `key_heads`.
    pub value_heads: usize,
    /// Elements of a query head and of a key head.
    pub key_dim: usize,
    pub value_dim: usize,
    pub n_taps: usize,
    pub order: HeadOrder,
}

/// Which value heads share a key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Consecutive value heads.
    Grouped,
    /// Value heads whose indices differ by a multiple of `key_heads`.
    Tiled,
}

impl DeltaNetShape {
    /// Columns of a head's matrix that are computed together; the last block may be zero-padded.
    pub const COLUMNS: usize = 16;

    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    pub fn projected(&self) -> usize {
        self.channels() + self.values() + 2 * self.value_heads
    }

    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadOrder::Tiled => value_head % self.key_heads,
        }
    }

    pub fn blocks(&self) -> usize {
        self.value_dim.div_ceil(Self::COLUMNS)
    }

    pub fn block_elements(&self) -> usize {
        self.key_dim * Self::COLUMNS
    }

    pub fn head_elements(&self) -> usize {
        self.blocks() * self.block_elements()
    }

    pub fn matrix_elements(&self) -> usize {
        self.value_heads * self.head_elements()
    }

    pub fn state_elements(&self) -> usize {
        self.matrix_elements() + (self.n_taps - 1) * self.channels()
    }

    /// Elements of what a draft's change of the state is made of: the convolution's inputs, key and value heads, decays
    /// and betas.
    pub fn draft_elements(&self) -> usize {
        self.channels() + self.keys() + self.values() + 2 * self.value_heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_of_a_published_model() {
        // Qwen3.5-9B.
        let shape = DeltaNetShape {
            key_heads: 16,
            value_heads: 32,
            key_dim: 128,
            value_dim: 128,
            n_taps: 4,
            order: HeadOrder::Grouped,
        };
        assert_eq!(shape.channels(), 8192);
        assert_eq!(4 * shape.state_elements(), 4 * (32 * 128 * 128 + 3 * 8192));
        assert_eq!(
            [0, 1, 2, 31].map(|head| shape.key_head(head)),
            [0, 0, 1, 15]
        );
        let tiled = DeltaNetShape {
            order: HeadOrder::Tiled,
            ..shape
        };
        assert_eq!(
            [0, 1, 16, 31].map(|head| tiled.key_head(head)),
            [0, 1, 0, 15]
        );
    }
}
