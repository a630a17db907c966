//! The table of all model families, and the lookup of a file's family.

use super::family::{Architecture, Family};
use super::{
    deepseek_v2, deepseek_v3, gemma2, gemma3, gemma4, glm4_moe_lite, gpt_oss, granite, lfm2, llama,
    ministral3, mistral, mixtral, olmo2, phi3, qwen2, qwen3, qwen3_5, qwen3_moe, qwen3_vl, smollm3,
};
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;

/// Supported families, in the order in which errors list them.
pub(crate) static FAMILIES: [&Family; 24] = [
    &llama::FAMILY,
    &mistral::FAMILY,
    &mixtral::FAMILY,
    &qwen2::FAMILY,
    &qwen3::FAMILY,
    &qwen3_moe::FAMILY,
    &qwen3_vl::FAMILY,
    &qwen3_5::FAMILY,
    &qwen3_5::MOE,
    &qwen3_5::NEXT,
    &lfm2::FAMILY,
    &lfm2::MOE,
    &deepseek_v2::FAMILY,
    &deepseek_v3::FAMILY,
    &glm4_moe_lite::FAMILY,
    &gpt_oss::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &gemma4::FAMILY,
    &granite::FAMILY,
    &smollm3::FAMILY,
    &phi3::FAMILY,
    &ministral3::FAMILY,
    &olmo2::FAMILY,
];

impl Architecture {
    pub fn all() -> impl Iterator<Item = Self> {
        FAMILIES.into_iter().map(Self)
    }
}

pub(crate) fn of_json(json: &JsonFile) -> Result<&'static Family, LoadError> {
    let names = json
        .texts("architectures")?
        .ok_or_else(|| json.error("architectures", "is missing: it names the model's class"))?;
    let is_decoder = |family: &&Family| names.iter().any(|name| family.decoder_of.contains(name));
    let decoders: Vec<&'static Family> = FAMILIES.into_iter().filter(is_decoder).collect();
    if !decoders.is_empty() {
        return of_decoder(json, &decoders);
    }
    let named = |name: &&str| FAMILIES.into_iter().find(|family| is_named(family, name));
    names
        .iter()
        .find_map(named)
        .ok_or_else(|| LoadError::UnknownArchitecture {
            file: json.file().to_owned(),
            found: names.join(", "),
            supported: FAMILIES.map(|family| family.name).join(", "),
        })
}

pub(crate) fn of_gguf(name: &str) -> Option<&'static Family> {
    let mut all = FAMILIES.into_iter();
    all.find(|family| family.gguf.name == Some(name))
}

pub(crate) fn gguf_names() -> impl Iterator<Item = &'static str> {
    FAMILIES.into_iter().filter_map(|family| family.gguf.name)
}

/// Whether `class` is the family's class or, for a vision-language family, the class of its decoder alone.
fn is_named(family: &Family, class: &str) -> bool {
    let model = family.name.strip_suffix("ForConditionalGeneration");
    family.name == class
        || model.is_some_and(|model| class.strip_suffix("ForCausalLM") == Some(model))
}

/// The family of a vision-language model's decoder: the one with the nested `model_type`, or the first.
fn of_decoder(json: &JsonFile, decoders: &[&'static Family]) -> Result<&'static Family, LoadError> {
    let inner = json.object("text_config")?;
    let inner = inner.as_ref();
    let kind = inner.map(|inner| inner.text("model_type")).transpose()?;
    let Some(kind) = kind.flatten() else {
        return Ok(decoders[0]);
    };
    let found = decoders.iter().find(|family| family.model_type == kind);
    found.copied().ok_or_else(|| {
        let quoted = decoders
            .iter()
            .map(|family| format!("{:?}", family.model_type));
        let supported = quoted.collect::<Vec<_>>().join(" and ");
        let reason = format!("is {kind:?}, supported: {supported}");
        inner.unwrap_or(json).error("model_type", reason)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn names_belong_to_one_family() {
        let classes: HashSet<_> = Architecture::all().map(Architecture::name).collect();
        let types: HashSet<_> = FAMILIES.iter().map(|family| family.model_type).collect();
        assert_eq!(
            (classes.len(), types.len()),
            (FAMILIES.len(), FAMILIES.len())
        );
        let files: Vec<_> = gguf_names().collect();
        let distinct: HashSet<_> = files.iter().collect();
        assert_eq!(files.len(), distinct.len());
        for name in files {
            assert_eq!(
                of_gguf(name).and_then(|family| family.gguf.name),
                Some(name)
            );
        }
    }
}
