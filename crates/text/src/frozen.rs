//! Matches SentencePiece's user-defined pieces ("frozen": never merged) in a text before BPE merges.
//!
//! `tokenizers` matches added tokens either in the raw text, before the normalizer prepends a space and replaces spaces
//! by U+2581, or with names normalized in the same way. Neither works for pieces that contain spaces: they must be
//! matched in the normalized text, but without a prepended space in their names.

use aho_corasick::{AhoCorasick, MatchKind};
use tokenizers::normalizer::Range;
use tokenizers::tokenizer::{Model, OffsetType, PreTokenizedString};
use tokenizers::{Encoding, NormalizedString, Token, Tokenizer};

#[derive(Debug)]
pub(super) struct FrozenPieces {
    matcher: AhoCorasick,
    /// Token ids, by pattern index.
    ids: Vec<u32>,
}

impl FrozenPieces {
    /// Builds the matcher from normalized texts and ids; of equal texts, the first is used. `None` without pieces.
    /// Fails if the pieces are too many or too long for the matcher.
    pub(super) fn new(pieces: &[(String, u32)]) -> Result<Option<Self>, aho_corasick::BuildError> {
        if pieces.is_empty() {
            return Ok(None);
        }
        let mut builder = AhoCorasick::builder();
        let builder = builder.match_kind(MatchKind::LeftmostLongest);
        let matcher = builder.build(pieces.iter().map(|(text, _)| text))?;
        let ids = pieces.iter().map(|(_, id)| *id).collect();
        Ok(Some(Self { matcher, ids }))
    }

    /// Encodes a text with the tokenizer, but matches these pieces before its merges.
    pub(super) fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        add_special_tokens: bool,
    ) -> tokenizers::Result<Encoding> {
        let added = tokenizer.get_added_vocabulary();
        let mut cut = added.extract_and_normalize(tokenizer.get_normalizer(), text);
        self.cut(&mut cut)?;
        let model = tokenizer.get_model();
        model.tokenize_in_pretokenized(&mut cut, None)?;
        let encoding = cut.into_encoding(None, 0, OffsetType::None)?;
        tokenizer.post_process(encoding, None, add_special_tokens)
    }

    /// Splits the untokenized parts of a normalized text at leftmost-longest matches, which become tokens.
    pub(super) fn cut(&self, text: &mut PreTokenizedString) -> tokenizers::Result<()> {
        text.split(|_, part| Ok(self.cut_part(part)))
    }

    fn cut_part(&self, part: NormalizedString) -> Vec<(NormalizedString, Option<Vec<Token>>)> {
        let mut parts = Vec::new();
        let mut done = 0;
        for found in self.matcher.find_iter(part.get()) {
            if done < found.start() {
                parts.extend(slice(&part, done, found.start()).map(|between| (between, None)));
            }
            let id = self.ids[found.pattern().as_usize()];
            let name = part.get()[found.range()].to_owned();
            let length = name.len();
            let token = Token::new(id, name, (0, length));
            let piece = slice(&part, found.start(), found.end());
            parts.extend(piece.map(|piece| (piece, Some(vec![token]))));
            done = found.end();
        }
        if done == 0 {
            return vec![(part, None)];
        }
        let length = part.get().len();
        if done < length {
            parts.extend(slice(&part, done, length).map(|rest| (rest, None)));
        }
        parts
    }
}

fn slice(part: &NormalizedString, start: usize, end: usize) -> Option<NormalizedString> {
    part.slice(Range::Normalized(start..end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(pieces: &[&str], text: &str) -> Vec<(String, Option<u32>)> {
        let pieces: Vec<(String, u32)> = pieces
            .iter()
            .map(|text| (*text).to_owned())
            .zip(7..)
            .collect();
        let frozen = FrozenPieces::new(&pieces).expect("few pieces");
        let mut cut = PreTokenizedString::from(text);
        let frozen = frozen.expect("some pieces");
        frozen.cut(&mut cut).expect("a whole text");
        let splits = cut.get_splits(tokenizers::OffsetReferential::Normalized, OffsetType::Byte);
        let id = |tokens: &Option<Vec<Token>>| Some(tokens.as_ref()?.first()?.id);
        splits
            .into_iter()
            .map(|(text, _, tokens)| (text.to_owned(), id(tokens)))
            .collect()
    }

    #[test]
    fn the_longest_piece_is_taken_at_each_place_from_the_left() {
        let piece = |text: &str, id| (text.to_owned(), Some(id));
        let text = |text: &str| (text.to_owned(), None);
        assert_eq!(
            cut(&["__", "____", "_\n"], "a_______b_\n"),
            [
                text("a"),
                piece("____", 8),
                piece("__", 7),
                text("_b"),
                piece("_\n", 9)
            ]
        );
        assert_eq!(cut(&["ab", "bcd"], "abcd"), [piece("ab", 7), text("cd")]);
        assert_eq!(cut(&["é"], "xyz"), [text("xyz")]);
        assert_eq!(cut(&["é"], ""), []);
        assert_eq!(cut(&["é"], "éé"), [piece("é", 7), piece("é", 7)]);
    }

    #[test]
    fn no_pieces_need_no_matcher() {
        assert!(FrozenPieces::new(&[]).expect("nothing to build").is_none());
    }
}
