//! The intermediate result of a layer's token mixer.

use souffleur_kernels::Backend;

/// Result of the part of a layer that stores KV or a state; input of the layer's remaining part.
pub struct Mixed<B: Backend> {
    /// Queries, or the output of a state mixer.
    pub rows: B::Tensor,
    pub gate: Option<B::Tensor>,
}

impl<B: Backend> Mixed<B> {
    pub(super) fn plain(rows: B::Tensor) -> Self {
        Self { rows, gate: None }
    }

    pub(super) fn pick(&self, backend: &mut B, tokens: &B::TokenList) -> Self {
        Self {
            rows: backend.pick(&self.rows, tokens),
            gate: self.gate.as_ref().map(|gate| backend.pick(gate, tokens)),
        }
    }
}
