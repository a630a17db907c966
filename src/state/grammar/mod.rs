//! Traits of output grammars and their states, which constrain sampling.
//!
//! A request's [`Grammar`] is compiled once, on a separate thread, and travels with the request. The executor creates a
//! [`GrammarState`] for each row and feeds it the row's existing output. The state is a pure function of the grammar
//! and the tokens, so retraction, preemption and lost steps need no rollback.
//!
//! Only the executor knows the tokens in time: the Scheduler plans a step before the previous step's tokens are known,
//! and the Tokenizer receives tokens even later. The message log records when a row's grammar ends or fails, so a
//! replay runs no grammar.

mod constraint;
mod row;

use std::fmt::Debug;

use crate::sampling::TokenMask;
pub use constraint::{Constraint, JsonWhitespace};
pub use row::RowGrammar;

/// Stack size of the threads that compute masks. The computation recurses over the grammar, whose nesting depth is
/// limited only by the length of its source. Only touched pages of the stack take memory.
pub const STACK_BYTES: usize = 64 << 20;

/// A compiled grammar, shared by all outputs that follow it.
pub trait Grammar: Debug + Send + Sync {
    fn begin(&self) -> Box<dyn GrammarState>;

    /// The tokens that every output begins with, as the tokenizer encodes them; empty if outputs may begin differently.
    fn opening(&self) -> &[u32] {
        &[]
    }
}

/// The position of one output in its grammar.
///
/// Both methods depend only on the grammar and the tokens. Reaching a limit fails the output and never changes a mask.
pub trait GrammarState: Debug + Send {
    /// Writes the tokens that may follow into `mask`, unless all may follow.
    ///
    /// # Errors
    /// [`GrammarFailure`] if the output cannot continue.
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, GrammarFailure>;

    /// Takes the next output token, which the mask allowed.
    ///
    /// # Errors
    /// [`GrammarFailure`] if the token is not allowed or a limit is reached.
    fn commit(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Every token may follow: the mask was not written.
    All,
    Masked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarProgress {
    Open,
    /// The output is complete, and nothing may follow.
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarFailure {
    /// No token of the vocabulary may follow, or the last token was not allowed.
    NoToken,
    /// The next token exceeds the time or memory limit of the grammar.
    TooComplex,
}

impl GrammarFailure {
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoToken => {
                "the grammar allows none of the model's tokens at this point: send a grammar that the model's tokens \
                 can spell"
            }
            Self::TooComplex => {
                "computing the tokens that the grammar allows next exceeds the time or memory limit: send a simpler \
                 grammar"
            }
        }
    }
}
