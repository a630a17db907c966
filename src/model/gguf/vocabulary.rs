//! Tokenizer and chat template fields from GGUF metadata.

use std::borrow::Cow;

use crate::text::{FimIds, VocabularyFields};
use souffleur_base::error::LoadError;
use souffleur_gguf::Metadata;

#[derive(Clone, Copy)]
struct Keys<'a>(Metadata<'a>);

impl<'a> Keys<'a> {
    fn text(self, name: &str) -> Result<Option<&'a str>, LoadError> {
        self.0.text(&key(name))
    }

    fn texts(self, name: &str) -> Result<Vec<Cow<'a, str>>, LoadError> {
        let texts = self.0.texts(&key(name))?.unwrap_or_default();
        Ok(texts.into_iter().map(Cow::Borrowed).collect())
    }

    fn id(self, name: &str) -> Result<Option<u32>, LoadError> {
        self.0.token_id(&key(&format!("{name}_token_id")))
    }

    fn flag(self, name: &str) -> Result<Option<bool>, LoadError> {
        self.0.flag(&key(name))
    }

    fn token_types(self) -> Result<Vec<i32>, LoadError> {
        let within = i64::from(i32::MIN)..=i64::from(i32::MAX);
        let types = self.0.integers(&key("token_type"), within)?;
        let types = types.unwrap_or_default().into_iter();
        Ok(types.map(|kind| kind as i32).collect())
    }
}

fn key(name: &str) -> String {
    format!("tokenizer.ggml.{name}")
}

/// `None` if the file has no vocabulary.
pub(super) fn fields(metadata: Metadata<'_>) -> Result<Option<VocabularyFields<'_>>, LoadError> {
    let keys = Keys(metadata);
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let Some(model) = keys.text("model")? else {
        return Ok(None);
    };
    Ok(Some(VocabularyFields {
        architecture: owned(metadata.text("general.architecture")?),
        model: model.to_owned(),
        pre: owned(keys.text("pre")?),
        scores: metadata.numbers(&key("scores"))?.unwrap_or_default(),
        merges: keys.texts("merges")?,
        bos_id: keys.id("bos")?,
        unknown_id: keys.id("unknown")?,
        padding_id: keys.id("padding")?,
        fim: fim_ids(keys)?,
        add_bos: keys.flag("add_bos_token")?,
        add_eos: keys.flag("add_eos_token")?,
        add_space_prefix: keys.flag("add_space_prefix")?,
        chat_template: owned(metadata.text("tokenizer.chat_template")?),
        tool_use_template: owned(metadata.text("tokenizer.chat_template.tool_use")?),
        ..end_fields(keys)?
    }))
}

/// The older keys of CodeLlama's converter, such as `prefix_token_id`, count if the newer ones are absent.
fn fim_ids(keys: Keys<'_>) -> Result<FimIds, LoadError> {
    let either = |name, old| -> Result<_, LoadError> { Ok(keys.id(name)?.or(keys.id(old)?)) };
    Ok(FimIds {
        prefix: either("fim_pre", "prefix")?,
        suffix: either("fim_suf", "suffix")?,
        middle: either("fim_mid", "middle")?,
        pad: keys.id("fim_pad")?,
        repository: keys.id("fim_rep")?,
        separator: keys.id("fim_sep")?,
    })
}

/// The EOS tokens below `vocab_size`, which apply even if the tokenizer comes from another file.
pub(super) fn end_token_ids(
    metadata: Metadata<'_>,
    vocab_size: usize,
) -> Result<Vec<u32>, LoadError> {
    let mut ids = end_fields(Keys(metadata))?.end_token_ids();
    ids.retain(|id| (*id as usize) < vocab_size);
    Ok(ids)
}

/// Reads only the fields that determine EOS.
fn end_fields(keys: Keys<'_>) -> Result<VocabularyFields<'_>, LoadError> {
    Ok(VocabularyFields {
        tokens: keys.texts("tokens")?,
        token_types: keys.token_types()?,
        eos_id: keys.id("eos")?,
        eot_id: keys.id("eot")?,
        eom_id: keys.id("eom")?,
        ..VocabularyFields::default()
    })
}
