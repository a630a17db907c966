//! Encodes texts in which the names of special tokens are ordinary letters.

use tokenizers::tokenizer::{Model, OffsetType, PreTokenizer};
use tokenizers::{AddedVocabulary, Encoding};

use super::{TextModel, not_tokenized};
use souffleur_base::error::RequestError;

impl TextModel {
    /// Encodes a text with the names of special tokens as ordinary letters. If it `is_whole`, adds the model's special
    /// tokens as [`encode`](Self::encode) does.
    ///
    /// # Errors
    /// Those of [`encode`](Self::encode).
    pub fn encode_letters(&self, text: &str, is_whole: bool) -> Result<Vec<u32>, RequestError> {
        let mut added = self.tokenizer.get_added_vocabulary().clone();
        added.set_encode_special_tokens(true);
        let encode = || -> tokenizers::Result<Encoding> {
            let encoding = self.encode_matching(&added, text)?;
            self.tokenizer.post_process(encoding, None, is_whole)
        };
        let encoding = encode().map_err(|error| not_tokenized(&*error))?;
        let ids = encoding.get_ids().to_vec();
        Ok(if is_whole {
            self.with_bos(ids, false)
        } else {
            ids
        })
    }

    /// Encodes a text, in which only the tokens of `added` are matched by their names.
    pub(super) fn encode_matching(
        &self,
        added: &AddedVocabulary,
        text: &str,
    ) -> tokenizers::Result<Encoding> {
        let mut cut = added.extract_and_normalize(self.tokenizer.get_normalizer(), text);
        if let Some(frozen) = &self.frozen {
            frozen.cut(&mut cut)?;
        }
        if let Some(splitter) = self.tokenizer.get_pre_tokenizer() {
            splitter.pre_tokenize(&mut cut)?;
        }
        let model = self.tokenizer.get_model();
        cut.tokenize(|piece| model.tokenize(piece.get()))?;
        cut.into_encoding(None, 0, OffsetType::None)
    }
}
