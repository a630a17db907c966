//! The grammar of one row of an executor.

use std::sync::{Mutex, PoisonError};

use super::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use crate::state::sampling::TokenMask;

/// The state and the mask of a row whose output follows a grammar.
#[derive(Debug)]
pub struct RowGrammar {
    /// Never waited for: it is only used by whoever may change the row, and a mutex lets others look at the rest.
    state: Mutex<Box<dyn GrammarState>>,
    mask: TokenMask,
    allowed: Allowed,
    standing: Result<GrammarProgress, GrammarFailure>,
}

impl RowGrammar {
    /// A row that stands after `output` (empty for a new sequence).
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

    /// Computes the mask of the next token; [`Self::mask`] has it then.
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

    /// Takes the token that was sampled.
    pub fn commit(&mut self, token: u32) {
        if self.standing == Ok(GrammarProgress::Open) {
            let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            self.standing = state.commit(token);
        }
    }

    /// Returns where the output stands; a failure stays.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub fn standing(&self) -> Result<GrammarProgress, GrammarFailure> {
        self.standing
    }
}
