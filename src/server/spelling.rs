//! The text of single tokens, for log probabilities and for echoed prompts of token ids.

use std::sync::Arc;

use souffleur_model::text::TextModel;
use souffleur_state::detok::TokenText;

pub(super) trait SpellTokens: Send + Sync {
    /// The bytes that the token adds to a text; they may be part of a character.
    fn bytes(&self, token: u32) -> Vec<u8>;

    /// Returns whether a token is a control token, which adds nothing to the text.
    fn is_special(&self, token: u32) -> bool;
}

impl SpellTokens for TextModel {
    fn bytes(&self, token: u32) -> Vec<u8> {
        let text = self.token_text(token);
        if !text.contains(char::REPLACEMENT_CHARACTER) {
            return text.into_bytes();
        }
        let raw = self.token(token).unwrap_or_default();
        raw_bytes(&raw).unwrap_or_else(|| text.into_bytes())
    }

    fn is_special(&self, token: u32) -> bool {
        self.decode(&[token], true, true).is_empty() && !self.token_text(token).is_empty()
    }
}

/// The bytes of a token that holds part of a character, parsed from SentencePiece's or byte-level BPE's notation.
fn raw_bytes(token: &str) -> Option<Vec<u8>> {
    let hex = token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'));
    if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        return Some(vec![byte]);
    }
    token.chars().map(byte_level).collect()
}

/// Inverts GPT-2's table of bytes: printable bytes map to themselves, the others are numbered from U+0100 on.
fn byte_level(character: char) -> Option<u8> {
    let is_printable = |byte: &u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u32::from(character).checked_sub(0x100) {
        None => u8::try_from(character).ok().filter(is_printable),
        Some(index) => (0..=u8::MAX)
            .filter(|byte| !is_printable(byte))
            .nth(index as usize),
    }
}

/// Spells tokens with the vocabulary, or by their ids if no tokenizer is loaded.
#[derive(Clone)]
pub(super) struct Spelling(Option<Arc<dyn SpellTokens>>);

impl Spelling {
    pub(super) fn of(tokenizer: Option<&Arc<TextModel>>) -> Self {
        Self(tokenizer.map(|tokenizer| tokenizer.clone() as Arc<dyn SpellTokens>))
    }

    pub(super) fn bytes(&self, token: u32) -> Vec<u8> {
        match &self.0 {
            Some(spelling) => spelling.bytes(token),
            None => format!("token_id:{token}").into_bytes(),
        }
    }

    /// The bytes of a token in a text; empty for a special token.
    pub(super) fn text_bytes(&self, token: u32) -> Vec<u8> {
        match &self.0 {
            Some(spelling) if !spelling.is_special(token) => spelling.bytes(token),
            _ => Vec::new(),
        }
    }

    /// The token as text; bytes that are not a whole character become U+FFFD.
    pub(super) fn lossy(&self, token: u32) -> String {
        String::from_utf8_lossy(&self.bytes(token)).into_owned()
    }

    /// Counts the bytes of the text of `tokens`, and stops once they exceed `limit`.
    pub(super) fn text_len_up_to(&self, tokens: &[u32], limit: usize) -> usize {
        let mut bytes = 0;
        for token in tokens {
            bytes += self.text_bytes(*token).len();
            if bytes > limit {
                break;
            }
        }
        bytes
    }

    pub(super) fn text(&self, tokens: &[u32]) -> String {
        let bytes: Vec<u8> = tokens
            .iter()
            .flat_map(|token| self.text_bytes(*token))
            .collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// Converts bytes to text: valid UTF-8 is unchanged; other bytes are escaped, after `prefix`.
pub(super) fn spell(bytes: Vec<u8>, prefix: &str) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let escaped = error.as_bytes().iter().map(|byte| format!("\\x{byte:02x}"));
        std::iter::once(prefix.to_owned()).chain(escaped).collect()
    })
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Each byte is a token; tokens from 256 on are special.
    pub(crate) struct Bytewise;

    impl SpellTokens for Bytewise {
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

    pub(crate) fn bytewise() -> Spelling {
        Spelling(Some(Arc::new(Bytewise)))
    }

    #[test]
    fn fragments_are_escaped_and_whole_characters_are_not() {
        assert_eq!(spell("é".into(), "bytes:"), "é");
        assert_eq!(spell(vec![0xf0, 0x9f], "bytes:"), "bytes:\\xf0\\x9f");
        assert_eq!(spell(vec![0xa9], ""), "\\xa9");
    }

    #[test]
    fn raw_tokens_are_parsed_in_both_notations() {
        assert_eq!(raw_bytes("<0xE2>"), Some(vec![0xe2]));
        assert_eq!(raw_bytes("Ġé"), Some(vec![0x20, 0xe9]));
        assert_eq!(raw_bytes("âĤ"), Some(vec![0xe2, 0x82]));
        assert_eq!(raw_bytes("▁x"), None);
    }

    #[test]
    fn special_tokens_add_no_text() {
        assert_eq!(bytewise().text(&[256, 104, 0xc3, 0xa9, 257]), "hé");
        assert_eq!(bytewise().lossy(256), "<|256|>");
        assert_eq!(Spelling(None).lossy(7), "token_id:7");
    }
}
