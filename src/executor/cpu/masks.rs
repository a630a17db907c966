//! Computes the token masks of rows whose output follows a grammar, on the CPU executor's threads.

use super::{CpuExecutor, RowSampling};
use souffleur_base::ids::RowId;
use souffleur_state::grammar::RowGrammar;

/// Multiply-adds that take about as long as computing a mask.
const MASK_COST: usize = 1 << 20;

impl CpuExecutor {
    /// Computes the masks of these rows, on all threads.
    ///
    /// This runs after the forward pass, not in parallel: the compute threads occupy all cores, and an additional
    /// thread would delay each of their barriers.
    pub(super) fn prepare_masks(&mut self, rows: impl Iterator<Item = RowId>) {
        let mut grammars: Vec<(RowId, Box<RowGrammar>)> = Vec::new();
        for row in rows {
            let sampling = &mut self.sampling[row.index()];
            let grammar = sampling.as_mut().and_then(RowSampling::take_grammar);
            grammars.extend(grammar.map(|grammar| (row, grammar)));
        }
        if grammars.is_empty() {
            return;
        }
        let cost = grammars.len() * MASK_COST;
        self.backend
            .for_each_of(&mut grammars, cost, &|(_, grammar)| grammar.prepare());
        for (row, grammar) in grammars {
            if let Some(sampling) = &mut self.sampling[row.index()] {
                sampling.grammar = Some(grammar);
            }
        }
    }
}

impl RowSampling {
    fn take_grammar(&mut self) -> Option<Box<RowGrammar>> {
        self.grammar.take()
    }
}
