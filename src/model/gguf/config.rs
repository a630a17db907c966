//! The description of a model, from the metadata and the tensors of its file.
//!
//! The result is the same [`ModelConfig`] as that of a `config.json`. A file says less: biases, tied embeddings and the
//! size of the vocabulary follow from which tensors there are. Unsupported keys that would change the result are
//! refused.

use super::Gguf;
use super::Metadata;
use super::experts::experts;
use super::keys::Keys;
use super::latent::latent;
use super::names::{self, EMBEDDING};
use super::recurrent;
use super::rope::rope;
use super::{gemma, scales, vocabulary, windows};
use crate::error::LoadError;
use crate::model::config::gemma::{GemmaConfig, embedding_scale};
use crate::model::config::limits::{
    CONTEXT, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, VOCAB, check_head_dim, check_kv_heads,
    even_head_dim,
};
use crate::model::config::{Architecture, BiasConfig, ModelConfig};

/// Values of `general.architecture` and our families for them.
const ARCHITECTURES: [(&str, Architecture); 18] = [
    ("llama", Architecture::Llama),
    ("qwen2", Architecture::Qwen2),
    ("qwen3", Architecture::Qwen3),
    ("qwen3moe", Architecture::Qwen3Moe),
    ("qwen3next", Architecture::Qwen3Next),
    ("qwen35", Architecture::Qwen35),
    ("qwen35moe", Architecture::Qwen35Moe),
    ("lfm2", Architecture::Lfm2),
    ("lfm2moe", Architecture::Lfm2Moe),
    ("deepseek2", Architecture::DeepseekV3),
    ("gpt-oss", Architecture::GptOss),
    ("gemma2", Architecture::Gemma2),
    ("gemma3", Architecture::Gemma3),
    ("gemma4", Architecture::Gemma4),
    ("granite", Architecture::Granite),
    ("smollm3", Architecture::SmolLm3),
    ("phi3", Architecture::Phi3),
    ("mistral3", Architecture::Ministral3),
];
/// Numbers that other models of these architectures compute with, and the values that change nothing; others are refused.
const NEUTRAL: [(&str, &[f64]); 13] = [
    ("attention.scale", &[0.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("router_logit_softcapping", &[0.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    // Embedding models pool their outputs.
    ("pooling_type", &[0.0]),
];

/// Flags of other models of these architectures, and their required values where present.
const CHOICES: [(&str, bool); 2] = [("attention.causal", true), ("use_parallel_residual", false)];

/// Reads the configuration of an opened model.
pub(super) fn read(gguf: &Gguf) -> Result<ModelConfig, LoadError> {
    let metadata = gguf.metadata();
    let (keys, architecture) = architecture(metadata)?;
    refuse_unsupported(&keys, architecture)?;
    let num_hidden_layers = recurrent::layers(&keys)?;
    let experts = experts(gguf, &keys, architecture, num_hidden_layers)?;
    // Mixtral's files differ from Llama's in having experts.
    let architecture = match (architecture, &experts) {
        (Architecture::Llama, Some(_)) => Architecture::Mixtral,
        // DeepSeek-V3's differ from V2's in their router.
        (Architecture::DeepseekV3, Some(experts)) if !experts.is_sigmoid() => {
            Architecture::DeepseekV2
        }
        (architecture, _) => architecture,
    };
    let hidden_size = keys.required("embedding_length", HIDDEN)?;
    let num_attention_heads = keys.required("attention.head_count", HEADS)?;
    let latent = if architecture.is_latent() {
        Some(latent(gguf, &keys)?)
    } else {
        None
    };
    let recurrent = recurrent::read(&keys, architecture, num_hidden_layers)?;
    let windows = windows::read(&keys, architecture, num_hidden_layers)?;
    let fourth = match architecture {
        Architecture::Gemma4 => Some(gemma::read_fourth(
            gguf,
            &keys,
            &windows,
            num_attention_heads,
        )?),
        _ => None,
    };
    let num_key_value_heads = match (&latent, &recurrent) {
        _ if fourth.is_some() => fourth.as_ref().map(|own| own.kv_heads),
        (Some(_), _) => Some(1),
        (None, Some(_)) => recurrent::kv_heads(&keys)?,
        (None, None) => keys.size("attention.head_count_kv", HEADS)?,
    };
    let num_key_value_heads = num_key_value_heads.unwrap_or(num_attention_heads);
    let heads_key = keys.key("attention.head_count");
    check_kv_heads(num_key_value_heads, (&heads_key, num_attention_heads))
        .map_err(|reason| keys.error("attention.head_count_kv", reason))?;
    let (head_dim, rotary_dim) = match (&latent, &fourth) {
        (Some(latent), _) => (latent.rotary_dim, latent.rotary_dim),
        (None, Some(own)) => (own.head_dim, own.head_dim),
        (None, None) => head_dims(&keys, architecture, hidden_size, num_attention_heads)?,
    };
    let max_position_embeddings = keys.required("context_length", CONTEXT)?;
    let eps = keys.number("attention.layer_norm_rms_epsilon", 0.0..=1.0)?;
    let missing = || {
        keys.error(
            "attention.layer_norm_rms_epsilon",
            "is missing: convert the model again",
        )
    };
    let vocab_size = vocab_size(gguf)?;
    let scales = scales::read(&keys, architecture, max_position_embeddings)?;
    Ok(ModelConfig {
        architecture,
        vocab_size,
        hidden_size,
        intermediate_size: match &fourth {
            // All layers have experts.
            _ if architecture == Architecture::Qwen35Moe => 0,
            Some(own) => own.intermediate_size,
            _ => keys.required("feed_forward_length", INTERMEDIATE)?,
        },
        experts,
        num_hidden_layers,
        num_attention_heads,
        num_key_value_heads,
        head_dim,
        latent,
        rms_norm_eps: eps.ok_or_else(missing)? as f32,
        tie_word_embeddings: gguf.tensor(names::OUTPUT).is_none(),
        bias: bias(gguf, architecture),
        qk_norm: architecture.has_qk_norm(),
        recurrent,
        rotary_dim,
        embedding_scale: if architecture.is_gemma() {
            Some(embedding_scale(hidden_size))
        } else {
            scales.embedding
        },
        score_scale: if architecture.is_gemma() {
            let heads = (num_attention_heads, head_dim);
            Some(gemma::score_scale(
                architecture,
                num_hidden_layers,
                hidden_size,
                heads,
            ))
        } else {
            scales.scores
        },
        rope: {
            let wide = fourth.as_ref().map(|own| own.config.full_head_dim);
            let dim = wide.unwrap_or(rotary_dim);
            rope(gguf, &keys, dim, max_position_embeddings)?
        },
        gemma: gemma::read(&keys, architecture)?.map(|own| GemmaConfig {
            fourth: fourth.map(|own| own.config),
            ..own
        }),
        rotated: windows::rotated(architecture, num_hidden_layers),
        residual_scale: scales.residual,
        logits_divisor: scales.logits_divisor,
        query_scale: scales.queries,
        sinks: architecture == Architecture::GptOss,
        windows,
        max_position_embeddings,
        bos_token_id: metadata.token_id("tokenizer.ggml.bos_token_id")?,
        eos_token_ids: vocabulary::end_token_ids(metadata, vocab_size)?,
        dtype: Some(gguf.dtype()),
    })
}

fn architecture(metadata: Metadata<'_>) -> Result<(Keys<'_>, Architecture), LoadError> {
    const KEY: &str = "general.architecture";
    let name = metadata.text(KEY)?.ok_or_else(|| {
        metadata.error(
            KEY,
            "is missing: name a model file, not a vocabulary or an adapter",
        )
    })?;
    if let Some(kind) = metadata
        .text("general.type")?
        .filter(|kind| *kind != "model")
    {
        let reason = format!("is {kind:?}, expected \"model\": name the file of the model itself");
        return Err(metadata.error("general.type", reason));
    }
    let known = ARCHITECTURES.iter().find(|(known, _)| *known == name);
    let (_, architecture) = known.ok_or_else(|| LoadError::UnknownArchitecture {
        file: metadata.file().to_owned(),
        found: name.chars().take(80).collect(),
        supported: ARCHITECTURES.map(|(name, _)| name).join(", "),
    })?;
    let keys = Keys {
        metadata,
        architecture: name,
    };
    Ok((keys, *architecture))
}

fn refuse_unsupported(keys: &Keys<'_>, architecture: Architecture) -> Result<(), LoadError> {
    for (name, supported) in CHOICES {
        let choice = keys.metadata.flag(&keys.key(name))?;
        if let Some(choice) = choice.filter(|choice| *choice != supported) {
            let reason = format!("is {choice}, supported is {supported}: use another model");
            return Err(keys.error(name, reason));
        }
    }
    let (own, caps) = (scales::keys_of(architecture), gemma::caps(architecture));
    let is_read = |name: &str| own.contains(&name) || caps.contains(&name);
    for (name, neutral) in NEUTRAL.into_iter().filter(|(name, _)| !is_read(name)) {
        let value = keys.number(name, f64::MIN..=f64::MAX)?;
        if let Some(value) = value.filter(|value| !neutral.contains(value)) {
            return Err(keys.error(
                name,
                format!("is {value}, which is not supported: use another model"),
            ));
        }
    }
    Ok(())
}

/// The size of a head, which is the same for keys and values, and how much of it rotates: all, or in the families of
/// Qwen3.5 and in Phi-3 the first elements.
fn head_dims(
    keys: &Keys<'_>,
    architecture: Architecture,
    hidden: usize,
    heads: usize,
) -> Result<(usize, usize), LoadError> {
    let head_dim = match keys.size("attention.key_length", HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None => even_head_dim(hidden, (&keys.key("attention.head_count"), heads))
            .map_err(|reason| keys.error("embedding_length", reason))?,
    };
    check_head_dim(head_dim).map_err(|reason| keys.error("attention.key_length", reason))?;
    const ROTARY: &str = "rope.dimension_count";
    let partial = matches!(
        architecture,
        Architecture::Qwen35
            | Architecture::Qwen35Moe
            | Architecture::Qwen3Next
            | Architecture::Phi3
    );
    let rotary_dim = match keys.size(ROTARY, 0..=head_dim)?.filter(|_| partial) {
        None => head_dim,
        Some(dim) if dim.is_multiple_of(2) => dim,
        Some(dim) => {
            return Err(keys.error(ROTARY, format!("is {dim}, expected an even number")));
        }
    };
    for name in ["attention.value_length", ROTARY] {
        if partial && name == ROTARY {
            continue;
        }
        let size = keys.size(name, 0..=usize::MAX >> 1)?;
        if let Some(size) = size.filter(|size| *size != head_dim) {
            let reason = format!(
                "is {size}, supported is {head_dim}, the size of a head: use another model"
            );
            return Err(keys.error(name, reason));
        }
    }
    Ok((head_dim, rotary_dim))
}

/// The rows of the embedding: `vocab_size` is often absent.
fn vocab_size(gguf: &Gguf) -> Result<usize, LoadError> {
    let metadata = gguf.metadata();
    let missing = || {
        let reason =
            "is not in the file: name the file of a whole model, not of a vocabulary or an adapter";
        metadata.error(EMBEDDING, reason)
    };
    let embedding = gguf.tensor(EMBEDDING).ok_or_else(missing)?;
    let shape = &embedding.info.shape;
    let rows: usize = shape[..shape.len() - 1].iter().product();
    if VOCAB.contains(&rows) {
        Ok(rows)
    } else {
        let reason = format!("has {rows} rows, expected 1 to {} tokens", VOCAB.end());
        Err(metadata.error(EMBEDDING, reason))
    }
}

/// Biases are where the first layer has one of them; the others must be there too.
fn bias(gguf: &Gguf, architecture: Architecture) -> BiasConfig {
    let any = |parts: &[&str]| {
        let mut names = parts.iter().map(|part| format!("blk.0.{part}.bias"));
        names.any(|name| gguf.tensor(&name).is_some())
    };
    BiasConfig {
        qkv: architecture == Architecture::Qwen2
            || any(&["attn_q", "attn_k", "attn_v", "attn_qkv"]),
        o: any(&["attn_output"]),
        mlp: any(&["ffn_gate", "ffn_up", "ffn_down"]),
    }
}
