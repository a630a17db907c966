//! What a token leaves behind in the KV pool, as a trait: the pages and the tree never ask what a page holds.

/// One buffer of the pool, as long as the pool has slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvBuffer {
    /// The layer that writes it.
    pub layer: usize,
    /// What it holds: `k`, `v`, or the name another layout gives.
    pub name: &'static str,
    /// Elements that one token takes.
    pub elements_per_token: usize,
    /// Size of an element, in bytes.
    pub element_bytes: usize,
}

impl KvBuffer {
    /// Bytes that one token takes.
    pub fn bytes_per_token(&self) -> u64 {
        self.elements_per_token as u64 * self.element_bytes as u64
    }
}

/// How K/V is laid out in the pool.
///
/// Every buffer is indexed by slot: a layout decides the width of a slot, never where a token stands.
pub trait KvLayout: std::fmt::Debug + Send + Sync {
    /// The buffers, by layer, in the order in which a layer writes them.
    fn buffers(&self) -> Vec<KvBuffer>;

    /// Bytes that one token takes in all buffers (the seeds' cell size).
    fn bytes_per_token(&self) -> u64 {
        self.buffers().iter().map(KvBuffer::bytes_per_token).sum()
    }
}

/// Keys and values of every head, for multi-head and grouped-query attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MhaLayout {
    /// Number of layers.
    pub layers: usize,
    /// Key and value heads in each layer.
    pub kv_heads: usize,
    /// Elements in a head.
    pub head_dim: usize,
    /// Size of an element, in bytes.
    pub element_bytes: usize,
}

impl KvLayout for MhaLayout {
    fn buffers(&self) -> Vec<KvBuffer> {
        let elements_per_token = self.kv_heads * self.head_dim;
        let buffer = |layer, name| KvBuffer {
            layer,
            name,
            elements_per_token,
            element_bytes: self.element_bytes,
        };
        (0..self.layers)
            .flat_map(|layer| [buffer(layer, "k"), buffer(layer, "v")])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Latent attention: one compressed vector and one rotated key, of different widths and element sizes.
    #[derive(Debug)]
    struct LatentLayout {
        layers: usize,
    }

    impl KvLayout for LatentLayout {
        fn buffers(&self) -> Vec<KvBuffer> {
            let widths = [("latent", 512, 1), ("rotated_k", 64, 2)];
            let of_layer = |layer| {
                widths.map(|(name, elements_per_token, element_bytes)| KvBuffer {
                    layer,
                    name,
                    elements_per_token,
                    element_bytes,
                })
            };
            (0..self.layers).flat_map(of_layer).collect()
        }
    }

    #[test]
    fn bytes_per_token_sum_over_buffers_of_any_layout() {
        // Llama 3 8B in bf16: 128 KiB a token.
        let mha = MhaLayout {
            layers: 32,
            kv_heads: 8,
            head_dim: 128,
            element_bytes: 2,
        };
        let latent = LatentLayout { layers: 3 };
        let layouts: [(&dyn KvLayout, usize, u64); 2] =
            [(&mha, 64, 131_072), (&latent, 6, 3 * (512 + 128))];
        for (layout, n_buffers, bytes) in layouts {
            assert_eq!(layout.buffers().len(), n_buffers, "{layout:?}");
            assert_eq!(layout.bytes_per_token(), bytes, "{layout:?}");
        }
        assert_eq!(
            mha.buffers()[3],
            KvBuffer {
                layer: 1,
                name: "v",
                elements_per_token: 1024,
                element_bytes: 2
            }
        );
    }
}
