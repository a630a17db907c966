//! Implements the grammar traits of the scheduler's state with llguidance's parser.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::earley::{BiasComputer, ParserRecognizer};
use toktrie::{SimpleVob, TokEnv, TokTrie};

use souffleur_state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress, GrammarState};
use souffleur_state::sampling::TokenMask;

const MAX_OPENING_TOKENS: usize = 64;

/// A compiled grammar: the parser before the first token.
pub(super) struct Template {
    parser: TokenParser,
    /// The forced tokens at the beginning of every output.
    opening: Vec<u32>,
}

/// The parser of one output.
struct Parsing {
    parser: TokenParser,
}

/// Resets the lexer's fuel and its limit of states. llguidance does this only when it computes a mask: without masks,
/// an output that is replayed from its beginning would run out of fuel, and forced text would have no limit.
struct Refuel(TokEnv);

impl BiasComputer for Refuel {
    fn compute_bias(&self, _: &mut ParserRecognizer<'_>, _: &[u8]) -> SimpleVob {
        SimpleVob::new()
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }
}

impl Template {
    /// Builds the template from a new parser, and computes the first mask.
    ///
    /// # Errors
    /// If no output can begin.
    pub(super) fn new(mut parser: TokenParser) -> Result<Self, GrammarFailure> {
        parser.start_without_prompt();
        let mut first = Parsing { parser };
        first.mask_words()?;
        let template = Self {
            parser: first.parser,
            opening: Vec::new(),
        };
        Ok(Self {
            opening: template.forced_tokens(),
            ..template
        })
    }

    /// The forced first tokens, such as the marker before a required call.
    fn forced_tokens(&self) -> Vec<u32> {
        let mut parsing = self.parsing();
        let mut opening = Vec::new();
        while opening.len() < MAX_OPENING_TOKENS {
            let words = parsing
                .mask_words()
                .ok()
                .filter(|words| words.num_set() == 1);
            let Some(token) = words.and_then(|words| words.first_bit_set()) else {
                break;
            };
            let token = token as u32;
            if parsing.take(token) != Ok(GrammarProgress::Open) {
                break;
            }
            opening.push(token);
        }
        opening
    }

    fn parsing(&self) -> Parsing {
        Parsing {
            // A shallow clone would share the lexer, and its lock, with all outputs of this grammar.
            parser: self.parser.deep_clone(),
        }
    }

    pub(super) fn tokens(&self) -> TokEnv {
        self.parser.token_env.clone()
    }
}

impl Parsing {
    fn mask_words(&mut self) -> Result<SimpleVob, GrammarFailure> {
        let words = catch_unwind(AssertUnwindSafe(|| {
            self.refuel();
            self.parser.compute_mask()
        }));
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
            self.refuel();
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

    fn refuel(&mut self) {
        let refuel = Refuel(self.parser.token_env.clone());
        // With a text, llguidance computes the bias even if the mask of the next token is cached.
        self.parser.parser.compute_bias(&refuel, b" ");
    }

    /// Whether the parser refused the last token because the grammar forbids it. llguidance has no code for this.
    fn was_refused(&self) -> bool {
        let message = self.parser.error_message().unwrap_or_default();
        let refused = ["doesn't satisfy the grammar", "out of range"];
        self.parser.parser.get_error().is_none()
            && refused.iter().any(|part| message.contains(part))
    }
}

impl Grammar for Template {
    fn begin(&self) -> Box<dyn GrammarState> {
        Box::new(self.parsing())
    }

    fn opening(&self) -> &[u32] {
        &self.opening
    }
}

impl GrammarState for Parsing {
    fn mask(&mut self, mask: &mut TokenMask) -> Result<Allowed, GrammarFailure> {
        mask.set_words(self.mask_words()?.as_slice());
        Ok(Allowed::Masked)
    }

    fn commit(&mut self, token: u32) -> Result<GrammarProgress, GrammarFailure> {
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
