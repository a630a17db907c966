//! Builds the tokenizer and the chat templates of a GGUF file from its metadata.
//!
//! The tokenizer is rebuilt from the converter's fields: the tokens with their types, the merges or the scores, and the
//! name of the pre-tokenizer. A GGUF file lacks two facts of `tokenizer.json`: first, which control tokens such as
//! `<|this|>` are special. Here all of them are, so decoding without special tokens omits them. Second, which added
//! tokens absorb the white space after them (`rstrip`). Here only those of Phi-3 do.

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
        let parts = tokenizer::build(Source(file), &fields)?;
        let text_of = |id: Option<u32>| id.map(|id| fields.tokens[id as usize].to_string());
        let special = SpecialTokens {
            bos: text_of(fields.bos_id),
            eos: text_of(fields.eos_id),
            pad: text_of(fields.padding_id),
            unk: text_of(fields.unknown_id),
        };
        let has_text = |template: &String| !template.trim().is_empty();
        let default = fields.chat_template.filter(has_text);
        Ok(Self::assemble(Parts {
            tokenizer: parts.tokenizer,
            frozen: parts.frozen,
            vocab_size: parts.vocab_size,
            max_token_bytes: parts.max_token_bytes,
            special,
            fim: fields.fim,
            // The tokenizer's post-processor adds special tokens to prompts.
            adds_bos: None,
            templates: default.map(|default| TemplateSources {
                file: file.to_owned(),
                default,
                tool_use: fields.tool_use_template.filter(has_text),
            }),
            missing_template_advice: "load a GGUF file with the key tokenizer.chat_template",
        }))
    }
}

#[cfg(test)]
mod tests;
