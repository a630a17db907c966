//! Generates random outputs (walks), whose tokens are drawn from the grammar's masks.

use souffleur_state::grammar::{Allowed, Grammar, GrammarFailure, GrammarProgress};
use souffleur_state::sampling::TokenMask;

use super::vocabularies::Vocabulary;

/// Number of tokens after which a walk mostly draws tokens that close brackets and strings.
const CLOSING_AFTER_TOKENS: usize = 40;
/// Maximum number of tokens of a walk that must end.
const MAX_WALK_TOKENS: usize = 1_500;

pub(super) struct Walk {
    /// The tokens, including the end of the sequence if there was one.
    pub(super) tokens: Vec<u32>,
    pub(super) text: String,
    pub(super) end: Result<GrammarProgress, GrammarFailure>,
}

/// The mask after an output.
pub(super) struct Masked {
    pub(super) mask: TokenMask,
    pub(super) allowed: Allowed,
}

/// The mask of a new state after it has got `tokens`.
pub(super) fn mask_after(grammar: &dyn Grammar, vocabulary: &Vocabulary, tokens: &[u32]) -> Masked {
    let mut state = grammar.begin();
    for &token in tokens {
        state.commit(token).expect("allowed");
    }
    let mut mask = TokenMask::none(vocabulary.size);
    let allowed = state.mask(&mut mask).expect("the output has not ended");
    Masked { mask, allowed }
}

/// Feeds a text; `None` if the grammar does not allow it as a complete output.
pub(super) fn feed(
    grammar: &dyn Grammar,
    vocabulary: &Vocabulary,
    text: &str,
) -> Option<Result<GrammarProgress, GrammarFailure>> {
    let mut state = grammar.begin();
    let mut mask = TokenMask::none(vocabulary.size);
    let mut progress = GrammarProgress::Open;
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        if progress == GrammarProgress::Done {
            return None;
        }
        let allowed = match state.mask(&mut mask) {
            Ok(allowed) => allowed,
            Err(failure) => return Some(Err(failure)),
        };
        // The longest allowed token that is a prefix of the text.
        let fits = |token: &u32| allowed == Allowed::All || mask.allows(*token);
        let (token, length) = (1..=rest.len().min(64)).rev().find_map(|length| {
            let candidates = vocabulary.single_tokens_of(&rest[..length]);
            Some((candidates.into_iter().find(fits)?, length))
        })?;
        progress = match state.commit(token) {
            Ok(progress) => progress,
            Err(failure) => return Some(Err(failure)),
        };
        rest = &rest[length..];
    }
    let may_end = progress == GrammarProgress::Done || {
        let allowed = state.mask(&mut mask).ok()?;
        allowed == Allowed::All || vocabulary.eos.iter().all(|&eos| mask.allows(eos))
    };
    may_end.then_some(Ok(GrammarProgress::Done))
}

/// Walks to the end, and checks at random steps that a fresh state has the same mask.
pub(super) fn walk(grammar: &dyn Grammar, vocabulary: &Vocabulary, seed: u64) -> Walk {
    let walk = walk_for(grammar, vocabulary, seed, MAX_WALK_TOKENS);
    let text: String = walk.text.chars().take(400).collect();
    assert_ne!(walk.end, Ok(GrammarProgress::Open), "endless: {text}");
    walk
}

pub(super) fn walk_for(
    grammar: &dyn Grammar,
    vocabulary: &Vocabulary,
    seed: u64,
    limit: usize,
) -> Walk {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut state = grammar.begin();
    let mut mask = TokenMask::none(vocabulary.size);
    let mut tokens = Vec::new();
    let end = loop {
        if tokens.len() >= limit {
            break Ok(GrammarProgress::Open);
        }
        let allowed = match state.mask(&mut mask) {
            Ok(allowed) => allowed,
            Err(failure) => break Err(failure),
        };
        if random.u8(..) < 24 {
            let again = mask_after(grammar, vocabulary, &tokens);
            assert_eq!(again.allowed, allowed);
            assert_eq!(
                again.mask.words(),
                mask.words(),
                "after {}",
                vocabulary.spell_lossy(&tokens)
            );
        }
        let is_closing = tokens.len() >= CLOSING_AFTER_TOKENS;
        let token = match allowed {
            Allowed::Masked => draw(&mask, vocabulary, is_closing, &mut random),
            Allowed::All => Some(random.u32(..vocabulary.pieces.len() as u32)),
        };
        let Some(token) = token else {
            break Err(GrammarFailure::NoToken);
        };
        tokens.push(token);
        match state.commit(token) {
            Ok(GrammarProgress::Open) => {}
            end => break end,
        }
    };
    Walk {
        text: match end {
            Ok(GrammarProgress::Done) => vocabulary.spell(&tokens),
            _ => vocabulary.spell_lossy(&tokens),
        },
        tokens,
        end,
    }
}

/// Draws an allowed token, with a preference for tokens that close something.
fn draw(
    mask: &TokenMask,
    vocabulary: &Vocabulary,
    is_closing: bool,
    random: &mut fastrand::Rng,
) -> Option<u32> {
    if random.u8(..) >= if is_closing { 200 } else { 80 } {
        let wanted = random.usize(..mask.allowed_tokens().max(1));
        return tokens_in(mask).get(wanted).copied();
    }
    let ends = vocabulary
        .eos
        .iter()
        .copied()
        .filter(|&eos| mask.allows(eos));
    let allows = |text: &str| {
        vocabulary
            .single_tokens_of(text.as_bytes())
            .iter()
            .any(|&token| mask.allows(token))
    };
    // Where the letter q is allowed, the output is inside a text: a bracket would close nothing.
    let closers = if allows("q") {
        &vocabulary.text_closers
    } else {
        &vocabulary.closers
    };
    let closers = closers.iter().copied();
    let found = ends.chain(closers).find(|&token| mask.allows(token));
    found.or_else(|| {
        let allowed = tokens_in(mask);
        (!allowed.is_empty()).then(|| allowed[random.usize(..allowed.len())])
    })
}

pub(super) fn tokens_in(mask: &TokenMask) -> Vec<u32> {
    let mut tokens = Vec::new();
    let mut next = mask.next_allowed(0);
    while let Some(token) = next {
        tokens.push(token);
        next = mask.next_allowed(token + 1);
    }
    tokens
}
