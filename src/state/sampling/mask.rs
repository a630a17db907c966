//! Which tokens a grammar allows at one position.

/// An allow-list over the vocabulary, one bit a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
    vocab_size: usize,
}

impl TokenMask {
    /// Allows no token of a vocabulary of this size.
    pub fn none(vocab_size: usize) -> Self {
        Self {
            words: vec![0; vocab_size.div_ceil(64)],
            vocab_size,
        }
    }

    /// Allows a token; ids outside the vocabulary are ignored.
    pub fn allow(&mut self, token: u32) {
        if (token as usize) < self.vocab_size {
            self.words[token as usize / 64] |= 1 << (token % 64);
        }
    }

    /// Returns whether the token is allowed.
    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.vocab_size
            && self.words[token as usize / 64] >> (token % 64) & 1 == 1
    }

    /// Returns how many tokens are allowed.
    pub fn allowed_tokens(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Returns whether a token beside these is allowed; each of them is named once.
    pub fn allows_beside(&self, tokens: &[u32]) -> bool {
        let among = tokens.iter().filter(|&&token| self.allows(token));
        self.allowed_tokens() > among.count()
    }

    /// Sets the logits of all other tokens to minus infinity.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (token, logit) in logits.iter_mut().enumerate() {
            if !self.allows(token as u32) {
                *logit = f32::NEG_INFINITY;
            }
        }
    }
}
