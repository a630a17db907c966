//! Parses `config.json`, as the record of the model's family directs.

use std::ops::RangeInclusive;
use std::path::Path;

use super::experts::{ExpertsConfig, count_key};
use super::full_heads::LayerHeads;
use super::gemma::GemmaConfig;
use super::gemma4::Gemma4Config;
use super::latent::LatentConfig;
use super::limits::{CONTEXT, HEADS, HIDDEN, LAYERS, VOCAB, check_experts};
use super::scales::Widths;
use super::sizes::{head_dim, intermediate_size, key_value_heads, rotary_dim};
use super::tying::Tying;
use super::{Architecture, BiasConfig, ModelConfig, deepstack, windows};
use crate::families;
use crate::family::{AttentionBias, Defaults, Family};
use crate::json_file::JsonFile;
use crate::rope::{MropeSections, RopeContext};
use souffleur_base::error::LoadError;
use souffleur_kernels::dtype::Dtype;

pub(super) const MAX_FILE_BYTES: u64 = 4 << 20;

impl ModelConfig {
    /// Reads `config.json` in a model's folder.
    ///
    /// # Errors
    /// [`LoadError::Io`], [`LoadError::Format`] naming key, value and limit, [`LoadError::UnknownArchitecture`].
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        Self::from_json(&JsonFile::read(&dir.join("config.json"), MAX_FILE_BYTES)?)
    }

    /// Parses the text of a `config.json`. Errors name `file`.
    ///
    /// # Errors
    /// Like [`Self::read`].
    pub fn parse(file: &Path, text: &[u8]) -> Result<Self, LoadError> {
        Self::from_json(&JsonFile::parse(file, text)?)
    }

    fn from_json(json: &JsonFile) -> Result<Self, LoadError> {
        let family = families::of_json(json)?;
        let tying = Tying::from_json(json, family)?;
        // Vision-language models nest their decoder's configuration.
        let json = &json.with_nested("text_config")?;
        refuse_other_gates(json, family)?;
        let hidden_size = json.required_size("hidden_size", HIDDEN)?;
        let num_hidden_layers = json.required_size("num_hidden_layers", LAYERS)?;
        let heads = Heads::read(json, family, hidden_size)?;
        let max_position_embeddings = json
            .size("max_position_embeddings", CONTEXT)?
            .unwrap_or(family.defaults.context);
        let (bos_token_id, eos_token_ids) = special_tokens(json, &family.defaults)?;
        let windows = windows::read(json, family, num_hidden_layers)?;
        let rotary_dim = rotary_dim(json, family, heads.dim)?;
        let widths = Widths {
            hidden: hidden_size,
            max_positions: max_position_embeddings,
        };
        let scales = (family.scales)(json, &widths)?;
        let rope = RopeContext {
            theta: family.defaults.theta,
            max_positions: max_position_embeddings,
            rotary_dim,
        };
        Ok(Self {
            architecture: Architecture(family),
            vocab_size: size_or(json, "vocab_size", VOCAB, family.defaults.vocab_size)?,
            hidden_size,
            intermediate_size: intermediate_size(json, family)?,
            experts: experts(json, family, num_hidden_layers)?,
            num_hidden_layers,
            num_attention_heads: heads.queries,
            num_key_value_heads: heads.keys,
            head_dim: heads.dim,
            rms_norm_eps: json
                .number(family.keys.eps, 0.0..=1.0)?
                .unwrap_or(family.defaults.eps) as f32,
            tie_word_embeddings: tying.ties,
            bias: bias(json, family)?,
            qk_norm: family.qk_norm,
            recurrent: (family.states)(json, num_hidden_layers)?,
            rotary_dim,
            gemma: gemma(json, family, (&windows, &heads), max_position_embeddings)?,
            rotated: windows::rotated(json, family, num_hidden_layers)?,
            latent: heads.latent,
            embedding_scale: scales.embedding,
            score_scale: scales.scores,
            residual_scale: scales.residual,
            logits_divisor: scales.logits_divisor,
            query_scale: scales.queries,
            sinks: family.sinks,
            windows,
            max_position_embeddings,
            rope: (family.rope)(json, &rope)?,
            mrope: MropeSections::from_json(json, family.mrope)?,
            deepstack: deepstack::from_json(json, family, num_hidden_layers)?,
            bos_token_id,
            eos_token_ids,
            dtype: dtype(json)?,
        })
    }
}

struct Heads {
    queries: usize,
    keys: usize,
    dim: usize,
    latent: Option<LatentConfig>,
}

impl Heads {
    fn read(json: &JsonFile, family: &Family, hidden: usize) -> Result<Self, LoadError> {
        let queries = size_or(json, "num_attention_heads", HEADS, family.defaults.heads)?;
        let latent = family.latent.as_ref();
        let latent = latent.map(|defaults| LatentConfig::from_json(json, defaults));
        let latent = latent.transpose()?;
        let (keys, dim) = match &latent {
            Some(latent) => (1, latent.rotary_dim),
            None => (
                key_value_heads(json, family, queries)?,
                head_dim(json, family, hidden, queries)?,
            ),
        };
        Ok(Self {
            queries,
            keys,
            dim,
            latent,
        })
    }
}

/// Required unless the family has a default.
fn size_or(
    json: &JsonFile,
    key: &str,
    limits: RangeInclusive<usize>,
    default: Option<usize>,
) -> Result<usize, LoadError> {
    match (json.size(key, limits.clone())?, default) {
        (None, Some(default)) => Ok(default),
        _ => json.required_size(key, limits),
    }
}

/// BOS and EOS. A key that is `null` means that there is no such token.
fn special_tokens(
    json: &JsonFile,
    defaults: &Defaults,
) -> Result<(Option<u32>, Vec<u32>), LoadError> {
    let bos = json.token_ids("bos_token_id")?;
    let eos = json.token_ids("eos_token_id")?;
    let bos = if json.has("bos_token_id") {
        bos.and_then(|ids| ids.first().copied())
    } else {
        defaults.bos
    };
    let eos = match eos {
        Some(ids) => ids,
        None if json.has("eos_token_id") => Vec::new(),
        None => defaults.eos.into_iter().collect(),
    };
    Ok((bos, eos))
}

/// `None` if no layer has experts.
fn experts(
    json: &JsonFile,
    family: &Family,
    layers: usize,
) -> Result<Option<ExpertsConfig>, LoadError> {
    let read = (family.experts)(json, layers)?;
    let Some(experts) = read.filter(|experts| experts.layers.contains(&true)) else {
        return Ok(None);
    };
    let count_key = family.keys.experts.unwrap_or_else(|| count_key(json));
    let used = (family.keys.experts_used, experts.routing.n_used);
    check_experts(used, (count_key, experts.count()), layers)
        .map_err(|(key, reason)| json.error(key, reason))?;
    Ok(Some(experts))
}

fn gemma(
    json: &JsonFile,
    family: &Family,
    (windows, heads): (&[Option<usize>], &Heads),
    max_positions: usize,
) -> Result<Option<GemmaConfig>, LoadError> {
    let Some(rules) = &family.gemma else {
        return Ok(None);
    };
    let mut gemma = GemmaConfig::from_json(json, rules, max_positions)?;
    if rules.is_gemma4 {
        let usual = LayerHeads {
            queries: heads.queries,
            kv: heads.keys,
            dim: heads.dim,
        };
        gemma.gemma4 = Some(Gemma4Config::from_json(json, windows, usual)?);
    }
    Ok(Some(gemma))
}

fn refuse_other_gates(json: &JsonFile, family: &Family) -> Result<(), LoadError> {
    match json.text("hidden_act")? {
        _ if family.gemma.is_some() => Ok(()),
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => Err(json.error("hidden_act", format!("is {other:?}, supported: \"silu\""))),
    }
}

fn bias(json: &JsonFile, family: &Family) -> Result<BiasConfig, LoadError> {
    let attention = json.flag("attention_bias")?;
    let mlp = json.flag("mlp_bias")?.unwrap_or(false) && family.mlp_bias;
    let (qkv, o) = match family.attention_bias {
        AttentionBias::Never => (false, false),
        AttentionBias::Qkv => (true, false),
        AttentionBias::Key { default } => {
            let bias = attention.unwrap_or(default);
            (bias, bias)
        }
    };
    Ok(BiasConfig { qkv, o, mlp })
}

fn dtype(json: &JsonFile) -> Result<Option<Dtype>, LoadError> {
    let key = if json.value("dtype").is_some() {
        "dtype"
    } else {
        "torch_dtype"
    };
    let Some(name) = json.text(key)? else {
        return Ok(None);
    };
    let found = Dtype::from_name(name.strip_prefix("torch.").unwrap_or(name));
    found.map(Some).ok_or_else(|| {
        json.error(
            key,
            format!("is {name:?}, supported: float32, float16 and bfloat16"),
        )
    })
}
