//! Per-layer variation of a model: heads, MLP width, shared KV.

use super::ModelConfig;
use super::gemma4::Gemma4Config;
use super::latent::LatentConfig;
use souffleur_kernels::latent::LatentShape;

impl ModelConfig {
    /// KV heads and elements of a key, each as `[window layers, other layers]`.
    pub(super) fn kinds_of_heads(&self) -> ([usize; 2], [usize; 2]) {
        let dim = self.latent.as_ref();
        let dim = dim.map_or(self.head_dim, LatentConfig::key_dim);
        match self.gemma4() {
            None => ([self.num_key_value_heads; 2], [dim; 2]),
            Some(gemma4) => (
                [self.num_key_value_heads, gemma4.full_kv_heads],
                [dim, gemma4.full_head_dim],
            ),
        }
    }

    /// KV heads of a layer, and elements of a key.
    pub fn heads_in(&self, layer: usize) -> (usize, usize) {
        let (heads, dims) = self.kinds_of_heads();
        let kind = usize::from(self.windows[layer].is_none());
        (heads[kind], dims[kind])
    }

    pub fn gemma4(&self) -> Option<&Gemma4Config> {
        self.gemma.as_ref()?.gemma4.as_ref()
    }

    /// Index of the layer whose KV `layer` reads, usually `layer` itself.
    pub fn kv_source(&self, layer: usize) -> usize {
        let source = self
            .gemma4()
            .and_then(|gemma4| gemma4.source(&self.windows, layer));
        source.unwrap_or(layer)
    }

    /// The width of a layer's MLP.
    pub fn intermediate_in(&self, layer: usize) -> usize {
        match self.gemma4() {
            Some(gemma4) if gemma4.double_wide && self.kv_source(layer) != layer => {
                2 * self.intermediate_size
            }
            _ => self.intermediate_size,
        }
    }
}

impl LatentConfig {
    pub fn shape(&self, config: &ModelConfig) -> LatentShape {
        LatentShape {
            n_heads: config.num_attention_heads,
            rank: self.rank,
            plain_dim: self.plain_dim,
            rotary_dim: self.rotary_dim,
            value_dim: self.value_dim,
            scale: config.attention_scale(),
        }
    }
}
