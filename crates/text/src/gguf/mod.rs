//! Builds the tokenizer and the chat templates of a GGUF file from its metadata.
//!
//! The tokenizer is the one that the model's `tokenizer.json` describes, rebuilt from the converter's fields:
//! the tokens with their types, the merges or the scores, and a name for how texts are cut into words. Two things are
//! lost in the file. Tokens that look like `<|this|>` are special here even if `tokenizer.json` has them as plain added
//! tokens, so texts without special tokens leave them out. And the file does not say whether an added token absorbs the
//! white space after it, which is known only of Phi-3.

mod added;
mod entries;
mod fields;
mod merges;
mod splits;
mod tokenizer;

use std::path::Path;

use super::{Parts, SpecialTokens, TextModel};
use crate::files::TemplateSources;
use entries::Source;
pub use fields::VocabularyFields;
use souffleur_base::error::LoadError;

impl TextModel {
    /// Builds the text side of a model from a GGUF file's fields. Only errors use the path.
    ///
    /// A template that does not compile is not an error here: chats are refused, and everything else works.
    ///
    /// # Errors
    /// [`LoadError::Format`], naming the file and the key: a kind of tokenizer that is not supported, lists that do not
    /// belong together, a token twice, a merge without its result, ids out of range, absurd sizes.
    pub fn from_vocabulary(file: &Path, fields: VocabularyFields<'_>) -> Result<Self, LoadError> {
        let built = tokenizer::build(Source(file), &fields)?;
        let text_of = |id: Option<u32>| id.map(|id| fields.tokens[id as usize].to_string());
        let special = SpecialTokens {
            bos: text_of(fields.bos_id),
            eos: text_of(fields.eos_id),
            pad: text_of(fields.padding_id),
            unk: text_of(fields.unknown_id),
        };
        let is_written = |template: &String| !template.trim().is_empty();
        let default = fields.chat_template.filter(is_written);
        Ok(Self::assemble(Parts {
            tokenizer: built.tokenizer,
            frozen: built.frozen,
            vocab_size: built.vocab_size,
            max_token_bytes: built.max_token_bytes,
            special,
            // The tokenizer's post-processor adds special tokens to prompts.
            adds_bos: None,
            templates: default.map(|default| TemplateSources {
                file: file.to_owned(),
                default,
                tool_use: fields.tool_use_template.filter(is_written),
            }),
            without_template: "use a file with tokenizer.chat_template",
        }))
    }
}

#[cfg(test)]
mod tests;
