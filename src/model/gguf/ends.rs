//! The tokens that end an output, as far as a file's metadata names them.

use rustc_hash::FxHashSet;

use super::metadata::Metadata;
use crate::error::LoadError;

/// Keys of token ids at which a text, a turn or a message ends.
const KEYS: [&str; 3] = [
    "tokenizer.ggml.eos_token_id",
    "tokenizer.ggml.eot_token_id",
    "tokenizer.ggml.eom_token_id",
];
/// Control tokens that end a turn in one family of models or another: files often name only one of a model's.
const NAMES: [&str; 12] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eom_id|>",
    "</s>",
    "<eos>",
    "<|return|>",
    "<|call|>",
    "<turn|>",
];
/// `tokenizer.ggml.token_type` of a control token.
const CONTROL: i64 = 3;

/// Returns the ids of all tokens that end an output.
pub(super) fn end_token_ids(metadata: Metadata<'_>) -> Result<Vec<u32>, LoadError> {
    let mut ids = Vec::new();
    for key in KEYS {
        ids.extend(metadata.token_id(key)?);
    }
    let tokens = metadata.texts("tokenizer.ggml.tokens")?.unwrap_or_default();
    let types = metadata.integers("tokenizer.ggml.token_type", i64::MIN..=i64::MAX)?;
    let types = types.unwrap_or_default();
    let named: Vec<(usize, &str)> = tokens
        .iter()
        .zip(&types)
        .enumerate()
        .filter(|(_, (token, kind))| **kind == CONTROL && NAMES.contains(*token))
        .map(|(id, (token, _))| (id, *token))
        .collect();
    let names: FxHashSet<&str> = named.iter().map(|(_, token)| *token).collect();
    // Where calls and answers have ends of their own, this one ends a message and the answer goes on.
    let goes_on = names.contains("<|return|>") && names.contains("<|call|>");
    ids.extend(
        named
            .iter()
            .filter(|(_, token)| !(goes_on && *token == "<|end|>"))
            .map(|(id, _)| *id as u32),
    );
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}
