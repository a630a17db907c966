//! Builds the vocabulary for llguidance: a trie of the tokens' bytes.

use std::sync::Arc;

use toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenId, TokenizerEnv};

use souffleur_model::text::{TextModel, TokenPiece};

/// The byte that begins the trie's entry of a token that is not text. No text in UTF-8 contains it.
const MARKER: u8 = TokTrie::SPECIAL_TOKEN_MARKER;
/// Maximum bytes of a token in the trie.
const MAX_LEN: usize = 1000;
/// Length of the forced text that is encoded, in multiples of the longest token.
const LOOK_AHEAD_TOKENS: usize = 8;

/// The vocabulary of a model as a trie, with its encoder.
pub(super) struct Tokens {
    trie: TokTrie,
    text: Arc<TextModel>,
}

impl Tokens {
    /// Builds the trie of the tokens below `vocab_size`.
    ///
    /// # Errors
    /// Why outputs in this vocabulary cannot be constrained.
    pub(super) fn new(
        text: Arc<TextModel>,
        eos_token_ids: &[u32],
        vocab_size: usize,
    ) -> Result<Self, String> {
        let pieces = text.pieces();
        let pieces = pieces.ok_or("the tokenizer has an unknown byte encoding")?;
        let n_tokens = pieces.len().min(vocab_size);
        let mut eos = eos_token_ids.to_vec();
        eos.retain(|&id| (id as usize) < n_tokens);
        let words = words(pieces, n_tokens, &eos);
        let info = TokRxInfo {
            vocab_size: u32::try_from(n_tokens).map_err(|_| "the vocabulary is too large")?,
            tok_eos: eos.first().copied().unwrap_or(INVALID_TOKEN),
            tok_bos: None,
            tok_pad: None,
            tok_unk: None,
            tok_end_of_turn: None,
        };
        let mut trie = TokTrie::from(&info, &words);
        if eos.len() > 1 {
            trie = trie.with_eos_tokens(&eos);
        }
        Ok(Self { trie, text })
    }

    /// Encodes a fragment of an output; `None` if the tokens do not spell it exactly.
    fn encode(&self, text: &str) -> Option<Vec<TokenId>> {
        let ids = self.text.encode_fragment(text)?;
        (self.trie.decode_raw(&ids) == text.as_bytes()).then_some(ids)
    }
}

/// The trie's entry of each token. Tokens with an empty entry are never allowed.
fn words(pieces: Vec<TokenPiece>, n_tokens: usize, eos: &[u32]) -> Vec<Vec<u8>> {
    let mut words: Vec<Vec<u8>> = pieces
        .into_iter()
        .take(n_tokens)
        .enumerate()
        .map(|(id, piece)| match piece {
            TokenPiece::Bytes(bytes) if !bytes.contains(&MARKER) && bytes.len() <= MAX_LEN => bytes,
            TokenPiece::Bytes(_) | TokenPiece::Unknown => Vec::new(),
            TokenPiece::Marker(name) => marker(id, &name),
        })
        .collect();
    for &id in eos {
        let word = &mut words[id as usize];
        if word.first() != Some(&MARKER) {
            *word = marker(id as usize, "");
        }
    }
    words
}

/// The entry of a marker. Compiled grammars use its id; users' Lark grammars may use its name, if Lark can write it.
fn marker(id: usize, name: &str) -> Vec<u8> {
    let inner = name
        .strip_prefix('<')
        .and_then(|rest| rest.strip_suffix('>'));
    let is_writable = inner.is_some_and(|inner| {
        let is_plain = |c: char| !c.is_whitespace() && !matches!(c, '<' | '>');
        !inner.is_empty() && !inner.starts_with('[') && inner.chars().all(is_plain)
    });
    let mut word = vec![MARKER];
    if is_writable && name.len() <= MAX_LEN {
        word.extend_from_slice(name.as_bytes())
    } else {
        word.extend_from_slice(format!("<{id}>").as_bytes())
    }
    word
}

impl TokenizerEnv for Tokens {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        // The trait requires it; llguidance calls it with canonical encoders only. The length is bounded in any case.
        let longest = self.trie.max_token_len().max(64);
        let bytes = &bytes[..bytes.len().min(LOOK_AHEAD_TOKENS * longest)];
        self.trie.tokenize_with_greedy_fallback(bytes, |text| {
            let encoded = self.encode(text);
            encoded.unwrap_or_else(|| self.trie.greedy_tokenize(text.as_bytes()))
        })
    }

    /// With a canonical encoder llguidance expands forced text to its end, without a limit: sixty rules that each name
    /// the next one twice exhaust the memory. Without a canonical encoder, the model chooses the tokens.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}
