//! The mask of tokens that a grammar allows at one position.

const WORD_TOKENS: usize = u32::BITS as usize;

/// An allow-list over the vocabulary, one bit per token: bit `t % 32` of word `t / 32`, the layout of grammar engines
/// and the GPU sampler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u32>,
    vocab_size: usize,
}

impl TokenMask {
    pub fn none(vocab_size: usize) -> Self {
        Self {
            words: vec![0; vocab_size.div_ceil(WORD_TOKENS)],
            vocab_size,
        }
    }

    /// Allows a token; ids outside the vocabulary are ignored.
    pub fn allow(&mut self, token: u32) {
        if (token as usize) < self.vocab_size {
            self.words[token as usize / WORD_TOKENS] |= 1 << (token % u32::BITS);
        }
    }

    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Replaces the mask by `words`. Missing words allow no tokens; bits outside the vocabulary are ignored.
    pub fn set_words(&mut self, words: &[u32]) {
        let n_words = self.words.len().min(words.len());
        self.words[..n_words].copy_from_slice(&words[..n_words]);
        self.words[n_words..].fill(0);
        let last_tokens = self.vocab_size % WORD_TOKENS;
        if let (Some(last), 1..) = (self.words.last_mut(), last_tokens) {
            *last &= (1 << last_tokens) - 1;
        }
    }

    /// The words, `vocab_size / 32` rounded up.
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    pub fn allows(&self, token: u32) -> bool {
        (token as usize) < self.vocab_size
            && self.words[token as usize / WORD_TOKENS] >> (token % u32::BITS) & 1 == 1
    }

    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    pub fn next_allowed(&self, first: u32) -> Option<u32> {
        let start = first as usize / WORD_TOKENS;
        let words = self.words.get(start..)?.iter().enumerate();
        words
            .map(|(index, &word)| match index {
                0 => word & (u32::MAX << (first % u32::BITS)),
                _ => word,
            })
            .enumerate()
            .find(|(_, word)| *word != 0)
            .map(|(index, word)| ((start + index) * WORD_TOKENS) as u32 + word.trailing_zeros())
    }

    pub fn allowed_tokens(&self) -> usize {
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Returns whether a token other than these is allowed; `tokens` has no duplicates.
    pub fn allows_other_than(&self, tokens: &[u32]) -> bool {
        let allowed = tokens.iter().filter(|&&token| self.allows(token));
        self.allowed_tokens() > allowed.count()
    }

    /// Sets the logits of all tokens that are not allowed to minus infinity.
    pub(super) fn apply(&self, logits: &mut [f32]) {
        for (part, &word) in logits.chunks_mut(WORD_TOKENS).zip(&self.words) {
            match word {
                u32::MAX => (),
                0 => part.fill(f32::NEG_INFINITY),
                word => {
                    for (bit, logit) in part.iter_mut().enumerate() {
                        if word >> bit & 1 == 0 {
                            *logit = f32::NEG_INFINITY;
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_truncated_to_the_vocabulary_and_padded() {
        let mut mask = TokenMask::none(70);
        mask.set_words(&[u32::MAX; 4]);
        assert_eq!(mask.allowed_tokens(), 70);
        mask.set_words(&[1]);
        assert_eq!((mask.allowed_tokens(), mask.allows(0)), (1, true));
        mask.clear();
        assert!(mask.is_empty());
    }

    #[test]
    fn allowed_tokens_are_found_in_order() {
        let mut mask = TokenMask::none(100);
        for token in [3, 40, 99, 100] {
            mask.allow(token);
        }
        let next = |first| mask.next_allowed(first);
        assert_eq!((next(0), next(3), next(4)), (Some(3), Some(3), Some(40)));
        assert_eq!((next(41), next(99), next(100)), (Some(99), Some(99), None));
    }

    #[test]
    fn logits_of_masked_tokens_are_minus_infinity() {
        let mut mask = TokenMask::none(70);
        mask.set_words(&[0, u32::MAX, 0b100]);
        let mut logits = vec![1.0; 70];
        mask.apply(&mut logits);
        let kept = |token: usize| (32..64).contains(&token) || token == 66;
        for (token, logit) in logits.iter().enumerate() {
            assert_eq!(*logit == 1.0, kept(token), "token {token}");
        }
    }
}
