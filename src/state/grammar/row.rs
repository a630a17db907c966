//! Constrained decoding of one executor row: its grammar state and token mask.

use std::sync::{Mutex, PoisonError};

use super::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use crate::sampling::TokenMask;

#[derive(Debug)]
pub struct RowGrammar {
    /// The mutex makes the row `Sync`. It is never contended: only the row's owner uses it.
    state: Mutex<Box<dyn GrammarState>>,
    mask: TokenMask,
    allowed: Allowed,
    standing: Result<GrammarProgress, GrammarFailure>,
}

impl RowGrammar {
    /// Creates the state after `output`, which is empty for a new sequence.
    pub fn new(grammar: &dyn Grammar, vocab_size: usize, output: &[u32]) -> Self {
        let mut row = Self {
            state: Mutex::new(grammar.begin()),
            mask: TokenMask::none(vocab_size),
            allowed: Allowed::All,
            standing: Ok(GrammarProgress::Open),
        };
        for &token in output {
            row.commit(token);
        }
        row
    }

    /// Computes the mask of the next token, for [`Self::mask`].
    pub fn prepare(&mut self) {
        self.allowed = Allowed::All;
        if self.standing != Ok(GrammarProgress::Open) {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        match state.mask(&mut self.mask) {
            Ok(Allowed::Masked) if self.mask.is_empty() => {
                self.standing = Err(GrammarFailure::NoToken);
            }
            Ok(allowed) => self.allowed = allowed,
            Err(failure) => self.standing = Err(failure),
        }
    }

    /// Returns the tokens that may follow; `None` if all may, or if the output has ended.
    pub fn mask(&self) -> Option<&TokenMask> {
        match self.allowed {
            Allowed::Masked => Some(&self.mask),
            Allowed::All => None,
        }
    }

    pub fn commit(&mut self, token: u32) {
        if self.standing == Ok(GrammarProgress::Open) {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.standing = state.commit(token);
        }
    }

    /// The progress of the output, or why it cannot continue; a failure is permanent.
    pub fn standing(&self) -> Result<GrammarProgress, GrammarFailure> {
        self.standing
    }
}
