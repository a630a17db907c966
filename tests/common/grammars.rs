//! A pseudo-random grammar: a hash of all previous tokens decides which tokens may follow.

use std::ops::ControlFlow;

use souffleur_state::grammar::{
    Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState, RowGrammar,
};
use souffleur_state::sampling::TokenMask;

/// After the opening, all tokens are allowed when the length of the output is a multiple of this.
const FREE_EVERY: usize = 5;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HashedGrammar {
    pub seed: u32,
    pub vocab_size: u32,
    /// The tokens with which outputs begin.
    pub opening: Vec<u32>,
    /// The output is done after this many tokens.
    pub done_after: usize,
    /// The grammar fails as too complex after this many tokens.
    pub fails_after: Option<usize>,
}

#[derive(Debug)]
struct HashedState {
    grammar: HashedGrammar,
    hash: u32,
    tokens: usize,
}

impl Grammar for HashedGrammar {
    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(HashedState {
            grammar: self.clone(),
            hash: self.seed,
            tokens: 0,
        })
    }

    fn opening(&self) -> &[u32] {
        &self.opening
    }
}

impl HashedState {
    fn allows(&self, token: u32) -> bool {
        match self.grammar.opening.get(self.tokens) {
            Some(opening) => *opening == token,
            None => self.is_free() || mix(self.hash, token) & 1 == 1,
        }
    }

    fn is_free(&self) -> bool {
        self.tokens >= self.grammar.opening.len() && self.tokens.is_multiple_of(FREE_EVERY)
    }
}

impl GrammarState for HashedState {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, GrammarFailure> {
        if self.grammar.fails_after == Some(self.tokens) {
            return Err(GrammarFailure::TooComplex);
        }
        if self.is_free() {
            return Ok(Allowed::All);
        }
        mask.clear();
        for token in (0..self.grammar.vocab_size).filter(|&token| self.allows(token)) {
            mask.allow(token);
        }
        Ok(Allowed::Masked)
    }

    fn commit(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure> {
        if !self.allows(token) {
            return Err(GrammarFailure::NoToken);
        }
        self.hash = mix(self.hash, token);
        self.tokens += 1;
        Ok(if self.tokens >= self.grammar.done_after {
            GrammarProgress::Done
        } else {
            GrammarProgress::Open
        })
    }
}

fn mix(hash: u32, token: u32) -> u32 {
    let mixed = (hash ^ token.wrapping_add(0x9e37_79b9)).wrapping_mul(0x85eb_ca6b);
    mixed ^ (mixed >> 13)
}

/// The output of a row and the final state of its grammar. Each token is the first allowed one at or after
/// `propose(output)`. The output ends after `n_tokens`, or when the grammar is done or `is_end` breaks.
pub fn follow(
    grammar: &HashedGrammar,
    n_tokens: usize,
    mut propose: impl FnMut(&[u32]) -> u32,
    mut is_end: impl FnMut(u32) -> ControlFlow<()>,
) -> (Vec<u32>, Result<GrammarProgress, GrammarFailure>) {
    let mut row = RowGrammar::new(grammar, grammar.vocab_size as usize, &[]);
    let mut output = Vec::new();
    while output.len() < n_tokens {
        row.prepare();
        if row.standing().is_err() {
            break;
        }
        let token = propose(&output);
        let token = row.mask().map_or(token, |mask| {
            let next = mask.next_allowed(token).or_else(|| mask.next_allowed(0));
            next.expect("about half of the tokens are allowed")
        });
        row.commit(token);
        output.push(token);
        if row.standing() == Ok(GrammarProgress::Done) || is_end(token).is_break() {
            break;
        }
    }
    (output, row.standing())
}
