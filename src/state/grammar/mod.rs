//! Grammars that outputs must follow, as the executor and the scheduler see them.
//!
//! A request's [`Grammar`] is compiled once, aside, and travels with the request. The executor begins a state of it for
//! each row and feeds it the output that the row has already: where an output stands in its grammar is a pure function of
//! the grammar and the tokens. So retraction, preemption and lost steps need no rollback.

mod constraint;
mod row;

use std::fmt::Debug;

use crate::state::sampling::TokenMask;
pub use constraint::{Constraint, JsonWhitespace};
pub use row::RowGrammar;

/// Stack of a thread that computes masks. What a grammar is compiled into may be nested as deep as its source is long, and
/// some of it is followed by recursion. Only touched pages take memory.
pub const STACK_BYTES: usize = 64 << 20;

/// A compiled grammar, shared by the outputs that follow it.
pub trait Grammar: Debug + Send + Sync {
    /// Begins the state of an output that has no tokens yet.
    fn begin(&self) -> Box<dyn GrammarState>;

    /// Returns tokens that every output begins with, as the tokenizer would encode their text; none if the grammar leaves
    /// a choice.
    fn opening(&self) -> &[u32] {
        &[]
    }
}

/// Where one output stands in its grammar.
///
/// Both functions depend on the grammar and the tokens only. A limit that is reached fails the output and never changes
/// a mask.
pub trait GrammarState: Debug + Send {
    /// Writes the tokens that may follow into `mask`, unless all may.
    ///
    /// # Errors
    /// [`GrammarFailure`] when the output cannot go on.
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, GrammarFailure>;

    /// Takes the next token of the output, one that the mask allowed.
    ///
    /// # Errors
    /// [`GrammarFailure`] when the token is not allowed or a limit is reached.
    fn commit(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure>;
}

/// How far a mask restricts what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// Every token may follow: the mask was not written.
    All,
    /// The tokens of the mask may follow.
    Masked,
}

/// Whether an output goes on after a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarProgress {
    /// It goes on.
    Open,
    /// It is complete, and nothing may follow.
    Done,
}

/// Why an output cannot follow its grammar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrammarFailure {
    /// No token of the vocabulary may follow, or the last one was not allowed.
    NoToken,
    /// The grammar takes more time or memory for the next token than a request may have.
    TooComplex,
}

impl GrammarFailure {
    /// Returns the reason as a part of a sentence.
    pub fn reason(self) -> &'static str {
        match self {
            Self::NoToken => {
                "no token of the vocabulary may follow: send a grammar that the vocabulary can spell"
            }
            Self::TooComplex => {
                "the next token takes more time or memory than a request may have: send a simpler grammar"
            }
        }
    }
}
