//! What goes on from the block of a layer that mixes tokens.

use crate::kernels::Backend;

/// The input of the rest of a layer, once all that the layer keeps is stored.
pub struct Mixed<B: Backend> {
    /// Queries, or what a state gave.
    pub rows: B::Tensor,
    /// Gates on attention's result.
    pub gate: Option<B::Tensor>,
}

impl<B: Backend> Mixed<B> {
    pub(super) fn plain(rows: B::Tensor) -> Self {
        Self { rows, gate: None }
    }

    /// That of some tokens.
    pub(super) fn pick(&self, backend: &mut B, tokens: &B::TokenList) -> Self {
        Self {
            rows: backend.pick(&self.rows, tokens),
            gate: self.gate.as_ref().map(|gate| backend.pick(gate, tokens)),
        }
    }
}
