//! How single tokens are spelled, for log probabilities and for echoing prompts of token ids.

use std::sync::Arc;

/// The vocabulary, as far as clients see it.
pub trait TokenWords: Send + Sync {
    /// The bytes that the token adds to a text; they may be part of a character.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// True of tokens that steer the model and add nothing to the text.
    fn is_special(&self, token: u32) -> bool;
}

/// The vocabulary, or numbers in its place when no tokenizer is loaded.
#[derive(Clone)]
pub(super) struct Words(Option<Arc<dyn TokenWords>>);

impl Words {
    pub(super) fn new(words: Option<Arc<dyn TokenWords>>) -> Self {
        Self(words)
    }

    pub(super) fn bytes(&self, token: u32) -> Vec<u8> {
        match &self.0 {
            Some(words) => words.bytes(token),
            None => format!("token_id:{token}").into_bytes(),
        }
    }

    /// The bytes that stand in a text: none of a special token.
    pub(super) fn text_bytes(&self, token: u32) -> Vec<u8> {
        match &self.0 {
            Some(words) if !words.is_special(token) => words.bytes(token),
            _ => Vec::new(),
        }
    }

    /// The token as text; bytes that are no character become U+FFFD.
    pub(super) fn lossy(&self, token: u32) -> String {
        String::from_utf8_lossy(&self.bytes(token)).into_owned()
    }

    /// The text of a prompt of tokens.
    pub(super) fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|token| self.text_bytes(*token))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Spells bytes that need not be whole characters: as they are, or else escaped behind `prefix`.
pub(super) fn spell(bytes: Vec<u8>, prefix: &str) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let escaped = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
        std::iter::once(prefix.to_owned()).chain(escaped).collect()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One token a byte; 256 and above are special.
    pub(in crate::server) struct Bytewise;

    impl TokenWords for Bytewise {
        fn bytes(&self, token: u32) -> Vec<u8> {
            match u8::try_from(token) {
                Ok(byte) => vec![byte],
                Err(_) => format!("<|{token}|>").into_bytes(),
            }
        }

        fn is_special(&self, token: u32) -> bool {
            token > 255
        }
    }

    pub(in crate::server) fn bytewise() -> Words {
        Words::new(Some(Arc::new(Bytewise)))
    }

    #[test]
    fn fragments_are_escaped_and_whole_characters_are_not() {
        assert_eq!(spell("é".into(), "bytes:"), "é");
        assert_eq!(spell(vec![0xf0, 0x9f], "bytes:"), "bytes:\\xf0\\x9f");
        assert_eq!(spell(vec![0xa9], ""), "\\xa9");
    }

    #[test]
    fn special_tokens_stand_in_no_text() {
        assert_eq!(bytewise().text(&[256, 104, 0xc3, 0xa9, 257]), "hé");
        assert_eq!(bytewise().lossy(256), "<|256|>");
        assert_eq!(Words::new(None).lossy(7), "token_id:7");
    }
}
