//! Reads and checks the tokens of a GGUF file.

use std::borrow::Cow;
use std::path::Path;

use tokenizers::models::bpe::Vocab;

use super::fields::{CONTROL, USER, VocabularyFields};
use souffleur_base::error::LoadError;

/// The largest vocabularies in use have about 250,000 tokens.
const MAX_TOKENS: usize = 1 << 21;
const MAX_MERGES: usize = 1 << 23;
const MAX_TOKEN_BYTES: usize = 1 << 16;
const MAX_TEMPLATE_BYTES: usize = 4 << 20;
const MAX_SHOWN_CHARS: usize = 40;

/// The character that SentencePiece writes for a space.
pub(super) const BLANK: &str = "\u{2581}";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    Unknown,
    Control,
    User,
    Unused,
    Byte,
}

#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    pub(super) text: Cow<'a, str>,
    pub(super) kind: Kind,
    /// A placeholder for an unused row of the embedding; no text encodes to it.
    pub(super) is_filler: bool,
}

impl Entry<'_> {
    pub(super) fn holds_blank(&self) -> bool {
        self.text.contains(' ') || self.text.contains(BLANK)
    }
}

/// The GGUF file, for errors.
#[derive(Clone, Copy)]
pub(super) struct Source<'a>(pub(super) &'a Path);

impl Source<'_> {
    pub(super) fn refuse(self, reason: String) -> LoadError {
        LoadError::Format {
            file: self.0.to_owned(),
            reason,
        }
    }
}

/// Lists the tokens by id. Fails with [`LoadError::Format`] if sizes, lengths, types or ids are invalid.
pub(super) fn entries<'a>(
    source: Source<'_>,
    fields: &'a VocabularyFields<'_>,
) -> Result<Vec<Entry<'a>>, LoadError> {
    check_sizes(source, fields)?;
    check_ids(source, fields)?;
    let mut entries = Vec::with_capacity(fields.tokens.len());
    for (id, text) in fields.tokens.iter().enumerate() {
        let kind = kind_of(source, fields, id)?;
        if text.len() > MAX_TOKEN_BYTES {
            return Err(source.refuse(format!(
                "tokenizer.ggml.tokens[{id}] has {} bytes, the limit is {MAX_TOKEN_BYTES}: convert the model again",
                text.len()
            )));
        }
        entries.push(Entry {
            text: Cow::Borrowed(text),
            kind,
            is_filler: is_filler(text, id, kind),
        });
    }
    Ok(entries)
}

/// Maps texts to ids, without fillers. Fails with [`LoadError::Format`] if two tokens have the same text.
pub(super) fn vocabulary(source: Source<'_>, entries: &[Entry<'_>]) -> Result<Vocab, LoadError> {
    let mut vocabulary = Vocab::with_capacity(entries.len());
    for (entry, id) in entries.iter().zip(0_u32..) {
        if entry.is_filler {
            continue;
        }
        if let Some(other) = vocabulary.insert(entry.text.clone().into_owned(), id) {
            return Err(source.refuse(format!(
                "tokenizer.ggml.tokens holds {} twice, as {other} and as {id}: convert the model again",
                quoted(&entry.text)
            )));
        }
    }
    Ok(vocabulary)
}

pub(super) fn longest(entries: &[Entry<'_>]) -> usize {
    let tokens = entries.iter().filter(|entry| !entry.is_filler);
    tokens.map(|entry| entry.text.len()).max().unwrap_or(0)
}

/// Whether a token is white space only; U+2581 counts as white space.
pub(super) fn is_blank(text: &str) -> bool {
    text.chars().all(|c| c.is_whitespace() || BLANK.contains(c))
}

pub(super) fn quoted(text: &str) -> String {
    match text.char_indices().nth(MAX_SHOWN_CHARS) {
        Some((end, _)) => format!("{:?}...", &text[..end]),
        None => format!("{text:?}"),
    }
}

fn check_sizes(source: Source<'_>, fields: &VocabularyFields<'_>) -> Result<(), LoadError> {
    let n_tokens = fields.tokens.len();
    if n_tokens == 0 {
        return Err(source.refuse(
            "tokenizer.ggml.tokens is missing or empty: convert the model again, or put its tokenizer.json into the \
             file's folder"
                .to_owned(),
        ));
    }
    for (key, length, limit) in [
        ("ggml.tokens", n_tokens, MAX_TOKENS),
        ("ggml.merges", fields.merges.len(), MAX_MERGES),
    ] {
        if length > limit {
            return Err(source.refuse(format!(
                "tokenizer.{key} has {length} entries, the limit is {limit}: convert the model again"
            )));
        }
    }
    for (key, length) in [
        ("token_type", fields.token_types.len()),
        ("scores", fields.scores.len()),
    ] {
        if length != 0 && length != n_tokens {
            return Err(source.refuse(format!(
                "tokenizer.ggml.{key} has {length} entries, but there are {n_tokens} tokens: convert the model again"
            )));
        }
    }
    for (key, template) in [
        ("chat_template", &fields.chat_template),
        ("chat_template.tool_use", &fields.tool_use_template),
    ] {
        let length = template.as_ref().map_or(0, String::len);
        if length > MAX_TEMPLATE_BYTES {
            return Err(source.refuse(format!(
                "tokenizer.{key} has {length} bytes, the limit is {MAX_TEMPLATE_BYTES}: convert the model again"
            )));
        }
    }
    Ok(())
}

fn check_ids(source: Source<'_>, fields: &VocabularyFields<'_>) -> Result<(), LoadError> {
    let n_tokens = fields.tokens.len();
    for (key, id) in [
        ("bos", fields.bos_id),
        ("eos", fields.eos_id),
        ("eot", fields.eot_id),
        ("eom", fields.eom_id),
        ("unknown", fields.unknown_id),
        ("padding", fields.padding_id),
    ] {
        if let Some(id) = id.filter(|&id| id as usize >= n_tokens) {
            return Err(source.refuse(format!(
                "tokenizer.ggml.{key}_token_id is {id}, but there are {n_tokens} tokens: convert the model again"
            )));
        }
    }
    Ok(())
}

fn kind_of(
    source: Source<'_>,
    fields: &VocabularyFields<'_>,
    id: usize,
) -> Result<Kind, LoadError> {
    let Some(&kind) = fields.token_types.get(id) else {
        return Ok(kind_by_role(fields, id));
    };
    Ok(match kind {
        0 | 1 => Kind::Normal,
        2 => Kind::Unknown,
        CONTROL => Kind::Control,
        USER => Kind::User,
        5 => Kind::Unused,
        6 => Kind::Byte,
        other => {
            return Err(source.refuse(format!(
                "tokenizer.ggml.token_type[{id}] is {other}, expected 0 to 6: convert the model again"
            )));
        }
    })
}

/// The type of a token in a file without types.
fn kind_by_role(fields: &VocabularyFields<'_>, id: usize) -> Kind {
    let roles = [fields.bos_id, fields.eos_id, fields.eot_id, fields.eom_id];
    let is_named = roles.into_iter().flatten().any(|role| role as usize == id);
    if is_named {
        Kind::Control
    } else {
        Kind::Normal
    }
}

/// Converters pad a vocabulary to the number of embedding rows with `[PADn]`; the type of these tokens varies.
fn is_filler(text: &str, id: usize, kind: Kind) -> bool {
    let number = || text.strip_prefix("[PAD")?.strip_suffix(']');
    let is_pad = |number: &str| match kind {
        Kind::Unused => !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()),
        _ => number.parse() == Ok(id),
    };
    text.is_empty() || number().is_some_and(is_pad)
}
