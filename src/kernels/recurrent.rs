//! The weights of layers with a state of fixed size.

use super::{Backend, Linear};

/// Most tokens that a convolution mixes.
pub const MAX_TAPS: usize = 8;

/// The weights of [`Backend::gated_conv`].
pub struct GatedConvWeights<B: Backend> {
    /// Two gates and an input stacked: `[3 * channels, hidden]`.
    pub input: Linear<B>,
    /// Factors of the tokens up to the current one, the oldest first: `[n_taps, channels]`.
    pub taps: B::Vector,
    /// Number of taps.
    pub n_taps: usize,
    /// Added to their sum, `[channels]`.
    pub bias: Option<B::Vector>,
}

/// The weights of [`Backend::delta_net`].
///
/// Per token: `[m, z, b, a]` is the projection of its input, and `[q, k, v] = silu(sum of taps[j] * m[t - n_taps + 1 + j])`.
/// Heads of q and k are divided by their lengths (`eps` 1e-6 in the sum of squares), and q by the root of `key_dim`. A value
/// head's matrix `S [key_dim, value_dim]`, zero at first, becomes `d S + k (x) sigmoid(b) (v - (d S)^T k)` with
/// `d = exp(decay * softplus(a + dt_bias))`. Its output is `rms_norm(S^T q) * norm * silu(z)`.
///
/// The state of a layer is `S` of each value head, and `m` of the last `n_taps - 1` tokens, all in f32.
pub struct DeltaNetWeights<B: Backend> {
    /// The heads.
    pub shape: DeltaNetShape,
    /// `m`, `z`, `b` and `a` stacked: `[channels + value_heads * value_dim + 2 * value_heads, hidden]`.
    pub input: Linear<B>,
    /// Factors of the tokens up to the current one, the oldest first: `[n_taps, channels]`.
    pub taps: B::Vector,
    /// `[value_heads]`, all negative.
    pub decay: B::Vector,
    /// `[value_heads]`.
    pub dt_bias: B::Vector,
    /// The weight of the norm of each head, `[value_dim]`.
    pub norm: B::Vector,
    /// Added to the mean square in that norm.
    pub eps: f32,
}

/// The heads of a gated delta net.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaNetShape {
    /// Query heads, and key heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Elements of a query head and of a key head.
    pub key_dim: usize,
    /// Elements of a value head.
    pub value_dim: usize,
    /// Tokens that the convolution mixes.
    pub n_taps: usize,
    /// The order of the value heads.
    pub order: HeadOrder,
}

/// Which value heads share a key head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadOrder {
    /// Neighbours.
    Grouped,
    /// Heads whose numbers differ by a multiple of the key heads.
    Tiled,
}

impl DeltaNetShape {
    /// Columns of a head's matrix that are computed together; a last block may be filled up with columns of zeros.
    pub const COLUMNS: usize = 16;

    /// Elements of all query heads, and of all key heads.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Elements of all value heads.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Outputs of the input projection.
    pub fn projected(&self) -> usize {
        self.channels() + self.values() + 2 * self.value_heads
    }

    /// The key head that a value head uses.
    pub fn key_head(&self, value_head: usize) -> usize {
        match self.order {
            HeadOrder::Grouped => value_head / (self.value_heads / self.key_heads),
            HeadOrder::Tiled => value_head % self.key_heads,
        }
    }

    /// Blocks of columns of a head.
    pub fn blocks(&self) -> usize {
        self.value_dim.div_ceil(Self::COLUMNS)
    }

    /// Elements of a block.
    pub fn block_elements(&self) -> usize {
        self.key_dim * Self::COLUMNS
    }

    /// Elements of the matrix of a head.
    pub fn head_elements(&self) -> usize {
        self.blocks() * self.block_elements()
    }

    /// Elements of the matrices of a layer.
    pub fn matrix_elements(&self) -> usize {
        self.value_heads * self.head_elements()
    }

    /// Elements of a layer's state.
    pub fn state_elements(&self) -> usize {
        self.matrix_elements() + (self.n_taps - 1) * self.channels()
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
