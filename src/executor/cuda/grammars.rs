//! The grammar state of each row of the CUDA executor.

use crate::cuda::row_outputs::RowOutput;
use souffleur_base::ids::RowId;
use souffleur_state::grammar::RowGrammar;
use souffleur_state::step::{RowStart, StepRow};

pub(super) struct RowGrammars {
    rows: Vec<Option<RowGrammar>>,
    /// Number of rows with a grammar: 0 most of the time.
    len: usize,
}

impl RowGrammars {
    pub(super) fn new(n_rows: usize) -> Self {
        Self {
            rows: (0..n_rows).map(|_| None).collect(),
            len: 0,
        }
    }

    pub(super) fn start(&mut self, start: &RowStart, vocab_size: usize) {
        let output = &start.tokens[start.prompt_tokens as usize..];
        let grammar = start.grammar.as_deref();
        let grammar = grammar.map(|grammar| RowGrammar::new(grammar, vocab_size, output));
        let row = &mut self.rows[start.row.index()];
        self.len += usize::from(grammar.is_some());
        self.len -= usize::from(row.is_some());
        *row = grammar;
    }

    pub(super) fn forget(&mut self) {
        self.rows.fill_with(|| None);
        self.len = 0;
    }

    pub(super) fn has(&self, row: RowId) -> bool {
        self.rows[row.index()].is_some()
    }

    pub(super) fn get_mut(&mut self, row: RowId) -> Option<&mut RowGrammar> {
        self.rows[row.index()].as_mut()
    }

    /// Marks the outputs that a grammar constrains, and returns whether there are any.
    pub(super) fn mark(&self, row_outputs: &mut [RowOutput]) -> bool {
        if self.len == 0 {
            return false;
        }
        for output in row_outputs.iter_mut() {
            output.follows_grammar = output.sample && self.has(output.row);
        }
        row_outputs.iter().any(|output| output.follows_grammar)
    }

    pub(super) fn constrains(&self, row: &StepRow) -> bool {
        self.len > 0 && row.sample && self.has(row.row)
    }
}
