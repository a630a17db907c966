//! Model configuration from GGUF metadata and tensors.
//!
//! Produces the same [`ModelConfig`] as a `config.json`. Biases, tied embeddings and the vocabulary's size are derived
//! from the tensors present. Unsupported keys that would change the result are rejected.

use super::Gguf;
use super::experts::experts;
use super::gemma::Gemma4Sizes;
use super::keys::{KV_HEADS, Keys};
use super::latent::latent;
use super::names::{self, EMBEDDING};
use super::recurrent;
use super::rope::rope;
use super::{gemma, scales, vocabulary, windows};
use crate::config::gemma::{GemmaRules, embedding_scale};
use crate::config::latent::LatentConfig;
use crate::config::limits::{
    CONTEXT, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, VOCAB, check_head_dim, check_kv_heads,
    default_head_dim,
};
use crate::config::scales::Scales;
use crate::config::{Architecture, BiasConfig, ModelConfig, deepstack};
use crate::families;
use crate::family::{AttentionBias, Family, MlpWidth};
use crate::rope::MropeSections;
use souffleur_base::error::LoadError;
use souffleur_gguf::Metadata;

/// Numeric keys of models with unsupported features, and the values without effect; other values are rejected.
const NUMBERS: [(&str, &[f64]); 13] = [
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

/// Flags of models with unsupported features, and the only accepted values.
const FLAGS: [(&str, bool); 2] = [("attention.causal", true), ("use_parallel_residual", false)];

pub(super) fn read(gguf: &Gguf) -> Result<ModelConfig, LoadError> {
    let metadata = gguf.metadata();
    let (keys, family) = family(metadata)?;
    refuse_unsupported(&keys, family)?;
    let num_hidden_layers = recurrent::layers(&keys)?;
    let experts = experts(gguf, &keys, family.gguf.experts.as_ref(), num_hidden_layers)?;
    let family = (family.gguf.by_experts)(experts.as_ref()).unwrap_or(family);
    let hidden_size = keys.required("embedding_length", HIDDEN)?;
    let windows = windows::read(&keys, family.gguf.windows, num_hidden_layers)?;
    let recurrent = (family.gguf.states)(&keys, num_hidden_layers)?;
    let sizes = (hidden_size, windows.as_slice(), recurrent.is_some());
    let heads = Heads::read(gguf, &keys, family, sizes)?;
    let max_position_embeddings = keys.required("context_length", CONTEXT)?;
    let vocab_size = vocab_size(gguf)?;
    let scales = scales::read(&keys, family.gguf.numbers, max_position_embeddings)?;
    let scales = match &family.gemma {
        Some(rules) => gemma_scales(rules, hidden_size, num_hidden_layers, &heads),
        None => scales,
    };
    let rope_dims = (heads.widest_rotary(), max_position_embeddings);
    Ok(ModelConfig {
        architecture: Architecture(family),
        vocab_size,
        hidden_size,
        intermediate_size: intermediate_size(&keys, family, heads.gemma4.as_ref())?,
        experts,
        num_hidden_layers,
        num_attention_heads: heads.queries,
        num_key_value_heads: heads.kv_heads,
        head_dim: heads.dim,
        rms_norm_eps: eps(&keys)?,
        tie_word_embeddings: gguf.tensor(names::OUTPUT).is_none(),
        bias: bias(gguf, family),
        qk_norm: family.qk_norm,
        recurrent,
        rotary_dim: heads.rotary_dim,
        embedding_scale: scales.embedding,
        score_scale: scales.scores,
        rope: rope(gguf, &keys, &family.gguf, rope_dims)?,
        mrope: MropeSections::from_gguf(&keys, family.mrope)?,
        deepstack: deepstack::from_gguf(&keys, family, num_hidden_layers)?,
        gemma: gemma::read(&keys, family)?
            .map(|gemma| gemma::with_gemma4(gemma, heads.gemma4.map(|sizes| sizes.config))),
        latent: heads.latent,
        rotated: windows::rotated(family, num_hidden_layers),
        residual_scale: scales.residual,
        logits_divisor: scales.logits_divisor,
        query_scale: scales.queries,
        sinks: family.sinks,
        windows,
        max_position_embeddings,
        bos_token_id: metadata.token_id("tokenizer.ggml.bos_token_id")?,
        eos_token_ids: vocabulary::end_token_ids(metadata, vocab_size)?,
        dtype: Some(gguf.dtype()),
    })
}

struct Heads {
    queries: usize,
    kv_heads: usize,
    dim: usize,
    rotary_dim: usize,
    latent: Option<LatentConfig>,
    gemma4: Option<Gemma4Sizes>,
}

impl Heads {
    fn read(
        gguf: &Gguf,
        keys: &Keys<'_>,
        family: &Family,
        (hidden, windows, has_states): (usize, &[Option<usize>], bool),
    ) -> Result<Self, LoadError> {
        const HEAD_COUNT: &str = "attention.head_count";
        let queries = keys.required(HEAD_COUNT, HEADS)?;
        let latent = family.latent.as_ref().map(|_| latent(gguf, keys));
        let latent = latent.transpose()?;
        let is_gemma4 = family.gemma.as_ref().is_some_and(|rules| rules.is_gemma4);
        let gemma4 = if is_gemma4 {
            Some(gemma::read_gemma4(gguf, keys, windows, queries)?)
        } else {
            None
        };
        let kv_heads = match (&latent, &gemma4) {
            (Some(_), _) => 1,
            (None, Some(sizes)) => sizes.kv_heads,
            (None, None) if has_states => recurrent::kv_heads(keys)?.unwrap_or(queries),
            (None, None) => keys.size(KV_HEADS, HEADS)?.unwrap_or(queries),
        };
        check_kv_heads(kv_heads, (&keys.key(HEAD_COUNT), queries))
            .map_err(|reason| keys.error(KV_HEADS, reason))?;
        let (dim, rotary_dim) = match (&latent, &gemma4) {
            (Some(latent), _) => (latent.rotary_dim, latent.rotary_dim),
            (None, Some(sizes)) => (sizes.head_dim, sizes.head_dim),
            (None, None) => head_dims(keys, family, hidden, queries)?,
        };
        Ok(Self {
            queries,
            kv_heads,
            dim,
            rotary_dim,
            latent,
            gemma4,
        })
    }

    /// Rotated elements of the widest heads.
    fn widest_rotary(&self) -> usize {
        let wide = self.gemma4.as_ref().map(|sizes| sizes.config.full_head_dim);
        wide.unwrap_or(self.rotary_dim)
    }
}

/// Gemma's factors, for which GGUF has no keys.
fn gemma_scales(rules: &GemmaRules, hidden: usize, layers: usize, heads: &Heads) -> Scales {
    let scores = gemma::score_scale(rules, layers, hidden, (heads.queries, heads.dim));
    Scales {
        embedding: Some(embedding_scale(hidden)),
        scores: Some(scores),
        ..Scales::NONE
    }
}

fn intermediate_size(
    keys: &Keys<'_>,
    family: &Family,
    gemma4: Option<&Gemma4Sizes>,
) -> Result<usize, LoadError> {
    match (family.intermediate, gemma4) {
        // All layers have experts.
        (MlpWidth::Default(0), _) => Ok(0),
        (_, Some(sizes)) => Ok(sizes.intermediate_size),
        _ => keys.required("feed_forward_length", INTERMEDIATE),
    }
}

fn eps(keys: &Keys<'_>) -> Result<f32, LoadError> {
    const KEY: &str = "attention.layer_norm_rms_epsilon";
    let eps = keys.number(KEY, 0.0..=1.0)?;
    let eps = eps.ok_or_else(|| keys.error(KEY, "is missing: convert the model again"))?;
    Ok(eps as f32)
}

fn family(metadata: Metadata<'_>) -> Result<(Keys<'_>, &'static Family), LoadError> {
    const KEY: &str = "general.architecture";
    let name = metadata.text(KEY)?.ok_or_else(|| {
        metadata.error(
            KEY,
            "is missing: set --model-path to the file of a model, not of a vocabulary or an adapter",
        )
    })?;
    if let Some(kind) = metadata
        .text("general.type")?
        .filter(|kind| *kind != "model")
    {
        let reason = format!(
            "is {kind:?}, expected \"model\": set --model-path to the file of the model itself"
        );
        return Err(metadata.error("general.type", reason));
    }
    let family = families::of_gguf(name).ok_or_else(|| LoadError::UnknownArchitecture {
        file: metadata.file().to_owned(),
        found: name.chars().take(80).collect(),
        supported: families::gguf_names().collect::<Vec<_>>().join(", "),
    })?;
    let keys = Keys {
        metadata,
        architecture: name,
    };
    Ok((keys, family))
}

fn refuse_unsupported(keys: &Keys<'_>, family: &Family) -> Result<(), LoadError> {
    for (name, supported) in FLAGS {
        let flag = keys.metadata.flag(&keys.key(name))?;
        if let Some(flag) = flag.filter(|flag| *flag != supported) {
            let reason = format!("is {flag}, supported: {supported}; use another model");
            return Err(keys.error(name, reason));
        }
    }
    let is_read = |name: &str| family.gguf.numbers.contains(&name);
    for (name, without_effect) in NUMBERS.into_iter().filter(|(name, _)| !is_read(name)) {
        let value = keys.number(name, f64::MIN..=f64::MAX)?;
        if let Some(value) = value.filter(|value| !without_effect.contains(value)) {
            return Err(keys.error(
                name,
                format!("is {value}, which is not supported: use another model"),
            ));
        }
    }
    Ok(())
}

/// The head size, which keys and values share, and the number of elements with RoPE: all, or in some families only the
/// first ones.
fn head_dims(
    keys: &Keys<'_>,
    family: &Family,
    hidden: usize,
    heads: usize,
) -> Result<(usize, usize), LoadError> {
    let head_dim = match keys.size("attention.key_length", HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None => default_head_dim(hidden, (&keys.key("attention.head_count"), heads))
            .map_err(|reason| keys.error("embedding_length", reason))?,
    };
    check_head_dim(head_dim).map_err(|reason| keys.error("attention.key_length", reason))?;
    const ROTARY: &str = "rope.dimension_count";
    let partial = family.partial_rotary.is_some();
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
            let reason =
                format!("is {size}, supported: {head_dim}, the size of a head; use another model");
            return Err(keys.error(name, reason));
        }
    }
    Ok((head_dim, rotary_dim))
}

/// Number of rows of the embedding, since the key `vocab_size` is often absent.
fn vocab_size(gguf: &Gguf) -> Result<usize, LoadError> {
    let metadata = gguf.metadata();
    let missing = || {
        let reason = "is not in the file: set --model-path to the file of a whole model, not of a vocabulary or an \
                      adapter";
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

/// The projections that have biases in the first layer.
fn bias(gguf: &Gguf, family: &Family) -> BiasConfig {
    let any = |parts: &[&str]| {
        let mut names = parts.iter().map(|part| format!("blk.0.{part}.bias"));
        names.any(|name| gguf.tensor(&name).is_some())
    };
    BiasConfig {
        qkv: matches!(family.attention_bias, AttentionBias::Qkv)
            || any(&["attn_q", "attn_k", "attn_v", "attn_qkv"]),
        o: any(&["attn_output"]),
        mlp: any(&["ffn_gate", "ffn_up", "ffn_down"]),
    }
}
