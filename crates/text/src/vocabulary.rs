//! Converts the tokens of a vocabulary to bytes, for grammars.

use tokenizers::Tokenizer;
use tokenizers::tokenizer::{Model, OffsetType, PreTokenizedString, PreTokenizer};

use super::TextModel;
use crate::frozen::FrozenPieces;

/// SentencePiece's sign for a space.
const BLANK: char = '\u{2581}';

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenPiece {
    /// The token's bytes, at least one. They may be a part of a character.
    Bytes(Vec<u8>),
    /// An added token with this name. Ordinary tokens that spell the same text are not markers.
    Marker(String),
    /// Unknown text: the id is unused, or the entry is malformed.
    Unknown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's table: one printable character for each byte.
    ByteLevel,
    /// SentencePiece: text with U+2581 for spaces, and tokens such as `<0x0A>` for single bytes.
    SentencePiece,
}

impl TextModel {
    /// The bytes that each token adds to a text, by id; `None` if the tokenizer has an unknown byte encoding.
    pub fn pieces(&self) -> Option<Vec<TokenPiece>> {
        let spelling = self.spelling?;
        let mut pieces = vec![TokenPiece::Unknown; self.vocab_size];
        for (word, id) in self.tokenizer.get_vocab(false) {
            if let Some(piece) = pieces.get_mut(id as usize) {
                *piece = match spelling.bytes(&word) {
                    Some(bytes) if !bytes.is_empty() => TokenPiece::Bytes(bytes),
                    _ => TokenPiece::Unknown,
                };
            }
        }
        let added = self.tokenizer.get_added_tokens_decoder();
        let named = added.into_iter().map(|(id, token)| (id, token.content));
        for (id, name) in named.chain(self.named_special_tokens()) {
            if let Some(piece) = pieces.get_mut(id as usize) {
                *piece = match spelling.blanks(&name) {
                    Some(blanks) => TokenPiece::Bytes(blanks.into_bytes()),
                    None => TokenPiece::Marker(name),
                };
            }
        }
        Some(pieces)
    }

    /// Returns the names and ids of all markers: added and special tokens, except runs of white space.
    pub fn markers(&self) -> Vec<(String, u32)> {
        let added = self.tokenizer.get_added_tokens_decoder();
        let named = added.into_iter().map(|(id, token)| (id, token.content));
        let all = named.chain(self.named_special_tokens());
        let spelling = self.spelling.unwrap_or(Spelling::ByteLevel);
        all.filter(|(_, name)| spelling.blanks(name).is_none())
            .map(|(id, name)| (name, id))
            .collect()
    }

    /// Encodes a fragment of an output: without special tokens or a leading space, and with names of markers as
    /// ordinary letters. The tokens may spell another text if the tokenizer normalizes.
    pub fn encode_fragment(&self, text: &str) -> Option<Vec<u32>> {
        let spelling = self.spelling?;
        let mut fragment = match spelling {
            Spelling::ByteLevel => PreTokenizedString::from(text),
            Spelling::SentencePiece => {
                PreTokenizedString::from(text.replace(' ', &BLANK.to_string()))
            }
        };
        if let Some(pieces) = self.frozen.as_ref().or(self.blanks.as_ref()) {
            pieces.cut(&mut fragment).ok()?;
        }
        if let (Spelling::ByteLevel, Some(splitter)) =
            (spelling, self.tokenizer.get_pre_tokenizer())
        {
            splitter.pre_tokenize(&mut fragment).ok()?;
        }
        let model = self.tokenizer.get_model();
        fragment
            .tokenize(|piece| model.tokenize(piece.get()))
            .ok()?;
        let encoding = fragment.into_encoding(None, 0, OffsetType::None).ok()?;
        Some(encoding.get_ids().to_vec())
    }

    fn named_special_tokens(&self) -> impl Iterator<Item = (u32, String)> + '_ {
        let special = &self.special;
        let names = [&special.bos, &special.eos, &special.pad, &special.unk];
        let names = names.into_iter().flatten();
        names.filter_map(|name| Some((self.token_id(name)?, name.clone())))
    }
}

/// The added tokens of white space only, as spelled in a fragment; `None` if there are none or too many.
pub(super) fn blanks(tokenizer: &Tokenizer) -> Option<FrozenPieces> {
    let spelling = Spelling::of(tokenizer)?;
    let added = tokenizer.get_added_tokens_decoder().into_iter();
    let blanks = added.filter_map(|(id, token)| Some((spelling.blanks(&token.content)?, id)));
    let spelled = blanks.map(|(text, id)| match spelling {
        Spelling::ByteLevel => (text, id),
        Spelling::SentencePiece => (text.replace(' ', &BLANK.to_string()), id),
    });
    let mut pieces: Vec<(String, u32)> = spelled.collect();
    pieces.sort_unstable();
    FrozenPieces::new(&pieces).ok().flatten()
}

impl Spelling {
    /// Detects the spelling from the decoder, or else from the pre-tokenizer.
    pub(super) fn of(tokenizer: &Tokenizer) -> Option<Self> {
        let decoder = serde_json::to_string(&tokenizer.get_decoder()).ok()?;
        let splitter = serde_json::to_string(&tokenizer.get_pre_tokenizer()).ok()?;
        [decoder, splitter].iter().find_map(|json| {
            let names = |name: &str| json.contains(&format!("\"type\":\"{name}\""));
            if names("ByteLevel") {
                return Some(Self::ByteLevel);
            }
            (names("Metaspace") || names("ByteFallback")).then_some(Self::SentencePiece)
        })
    }

    /// The bytes of an entry; `None` if it does not spell bytes.
    fn bytes(self, word: &str) -> Option<Vec<u8>> {
        match self {
            Self::ByteLevel => word.chars().map(byte_of).collect(),
            Self::SentencePiece => Some(match byte_token(word) {
                Some(byte) => vec![byte],
                None => word.replace(BLANK, " ").into_bytes(),
            }),
        }
    }

    /// The text of an added token of white space only: some vocabularies have runs of spaces as added tokens.
    fn blanks(self, name: &str) -> Option<String> {
        let text = match self {
            Self::ByteLevel => name.to_owned(),
            Self::SentencePiece => name.replace(BLANK, " "),
        };
        (!text.is_empty() && text.chars().all(char::is_whitespace)).then_some(text)
    }
}

/// The byte that a character stands for in GPT-2's table.
fn byte_of(letter: char) -> Option<u8> {
    let code = u32::from(letter);
    match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u8::try_from(code).ok(),
        0x100..=0x120 => u8::try_from(code - 0x100).ok(),
        0x121..=0x142 => u8::try_from(code - 0x121 + 0x7f).ok(),
        0x143 => Some(0xad),
        _ => None,
    }
}

/// The byte of a token such as `<0x0A>`.
fn byte_token(word: &str) -> Option<u8> {
    let digits = word.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_table_spells_every_byte_once() {
        let spelled: Vec<u8> = (0..0x200_u32)
            .filter_map(char::from_u32)
            .filter_map(byte_of)
            .collect();
        assert_eq!(spelled.len(), 256);
        let mut sorted = spelled;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq(0..=255));
        assert_eq!(byte_of('Ġ'), Some(b' '));
        assert_eq!(byte_of('Ċ'), Some(b'\n'));
    }

    #[test]
    fn characters_outside_of_the_byte_table_spell_nothing() {
        for word in ["\n", "a\u{1}", "\u{7f}", " ", "日"] {
            assert_eq!(Spelling::ByteLevel.bytes(word), None, "{word:?}");
        }
    }

    #[test]
    fn sentence_piece_spells_blanks_and_single_bytes() {
        let bytes = |word| Spelling::SentencePiece.bytes(word);
        assert_eq!(bytes("\u{2581}a"), Some(b" a".to_vec()));
        assert_eq!(bytes("<0x0A>"), Some(vec![b'\n']));
        assert_eq!(bytes("<0xZZ>"), Some(b"<0xZZ>".to_vec()));
    }
}
