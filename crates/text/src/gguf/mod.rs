//! Builds the tokenizer and the chat templates of a GGUF file from its metadata.
//!
//! The tokenizer is rebuilt from the converter's fields: the tokens with their types, the merges or the scores, and the
//! name of the pre-tokenizer. A GGUF file lacks two facts of `tokenizer.json`. Tokens such as `<|this|>` may be plain
//! added tokens there. Here they are all special, so decoding without special tokens omits them. And a GGUF file does
//! not mark the added tokens that absorb the white space after them (`rstrip`): only those of Phi-3 are known.

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
    /// Builds the tokenizer and the chat template from a GGUF file's fields. Only errors use the path.
    ///
    /// A template that does not compile is not an error here: chats are refused, and everything else works.
    ///
    /// # Errors
    /// [`LoadError::Format`], naming the file and the key: an unsupported tokenizer, lists of different lengths, a
    /// duplicate token, a merge whose result is not a token, ids out of range, sizes above the limits.
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
            missing_template_advice: "use a file with tokenizer.chat_template",
        }))
    }
}

#[cfg(test)]
mod tests;
