//! Where one output stands in its grammar: llguidance's parser behind our traits.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::TokenParser;
use llguidance::api::StopReason;

use crate::state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use crate::state::sampling::TokenMask;

/// After as many tokens without a mask, one is computed all the same: llguidance gives the lexer its fuel for the
/// next tokens only then, and an output that is fed again from its beginning must not run out of it.
const TOKENS_PER_FUEL: u32 = 16;

/// A compiled grammar: the parser before the first token.
pub(super) struct Template {
    parser: TokenParser,
}

/// The parser of one output.
struct Parsing {
    parser: TokenParser,
    tokens_since_mask: u32,
}

impl Template {
    /// Takes a new parser, and computes its first mask.
    ///
    /// # Errors
    /// The output could not even begin.
    pub(super) fn new(mut parser: TokenParser) -> Result<Self, GrammarFailure> {
        parser.start_without_prompt();
        let mut first = Parsing {
            parser,
            tokens_since_mask: 0,
        };
        first.words()?;
        Ok(Self {
            parser: first.parser,
        })
    }
}

impl Parsing {
    /// The words of the next token's mask.
    fn words(&mut self) -> Result<toktrie::SimpleVob, GrammarFailure> {
        self.tokens_since_mask = 0;
        let words = catch_unwind(AssertUnwindSafe(|| self.parser.compute_mask()));
        match words {
            Ok(Ok(words)) => Ok(words),
            Ok(Err(_)) if self.parser.stop_reason() == StopReason::NoExtensionBias => {
                Err(GrammarFailure::NoToken)
            }
            Ok(Err(_)) | Err(_) => Err(GrammarFailure::TooComplex),
        }
    }

    fn take(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure> {
        let trie = self.parser.token_env.tok_trie();
        let is_end = trie.eos_tokens().contains(&token);
        let taken = catch_unwind(AssertUnwindSafe(|| {
            let consumed = self.parser.consume_token(token);
            consumed.and_then(|_| self.parser.check_stop())
        }));
        match taken {
            Ok(Ok(is_done)) if is_done || is_end => Ok(GrammarProgress::Done),
            Ok(Ok(_)) => Ok(GrammarProgress::Open),
            Ok(Err(_)) if self.was_refused() => Err(GrammarFailure::NoToken),
            Ok(Err(_)) | Err(_) => Err(GrammarFailure::TooComplex),
        }
    }

    /// Whether the last token was not taken because the grammar does not allow it. llguidance has no code for this.
    fn was_refused(&self) -> bool {
        let message = self.parser.error_message().unwrap_or_default();
        let refused = ["doesn't satisfy the grammar", "out of range"];
        self.parser.parser.get_error().is_none()
            && refused.iter().any(|told| message.contains(told))
    }
}

impl Grammar for Template {
    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(Parsing {
            // A shallow clone would share the lexer, and its lock, with all outputs of this grammar.
            parser: self.parser.deep_clone(),
            tokens_since_mask: 0,
        })
    }
}

impl GrammarState for Parsing {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, GrammarFailure> {
        mask.set_words(self.words()?.as_slice());
        Ok(Allowed::Masked)
    }

    fn commit(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure> {
        if self.tokens_since_mask >= TOKENS_PER_FUEL {
            self.words()?;
        }
        self.tokens_since_mask += 1;
        self.take(token)
    }
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").finish_non_exhaustive()
    }
}

impl fmt::Debug for Parsing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.parser.num_tokens();
        f.debug_struct("Parsing")
            .field("tokens", &tokens)
            .finish_non_exhaustive()
    }
}
