//! The part of a file's metadata that a text side is made of.

use super::Metadata;
use crate::error::LoadError;
use crate::model::text::VocabularyFields;

/// Reads what a tokenizer and a chat template are made of; `None` if the file has no vocabulary.
pub(super) fn fields(metadata: Metadata<'_>) -> Result<Option<VocabularyFields>, LoadError> {
    let key = |name: &str| format!("tokenizer.ggml.{name}");
    let Some(model) = metadata.text(&key("model"))? else {
        return Ok(None);
    };
    let owned = |text: Option<&str>| text.map(str::to_owned);
    let texts = |name: &str| -> Result<Vec<String>, LoadError> {
        let texts = metadata.texts(&key(name))?.unwrap_or_default();
        Ok(texts.into_iter().map(str::to_owned).collect())
    };
    let types = metadata.integers(
        &key("token_type"),
        i64::from(i32::MIN)..=i64::from(i32::MAX),
    )?;
    let id = |name: &str| metadata.token_id(&key(&format!("{name}_token_id")));
    Ok(Some(VocabularyFields {
        model: model.to_owned(),
        pre: owned(metadata.text(&key("pre"))?),
        tokens: texts("tokens")?,
        token_types: types
            .unwrap_or_default()
            .into_iter()
            .map(|kind| kind as i32)
            .collect(),
        scores: metadata.numbers(&key("scores"))?.unwrap_or_default(),
        merges: texts("merges")?,
        bos_id: id("bos")?,
        eos_id: id("eos")?,
        eot_id: id("eot")?,
        eom_id: id("eom")?,
        unknown_id: id("unknown")?,
        padding_id: id("padding")?,
        add_bos: metadata.flag(&key("add_bos_token"))?,
        add_eos: metadata.flag(&key("add_eos_token"))?,
        add_space_prefix: metadata.flag(&key("add_space_prefix"))?,
        chat_template: owned(metadata.text("tokenizer.chat_template")?),
        tool_use_template: owned(metadata.text("tokenizer.chat_template.tool_use")?),
    }))
}
