//! A model's shape, from its `config.json`: sizes, biases, windows, rotation.
//!
//! Keys, and the values of absent ones, follow the classes of `transformers` 5. Unsupported keys that would change the
//! result are refused; nothing is guessed.

mod architecture;
pub(crate) mod deepseek;
mod expert_families;
pub mod experts;
pub(crate) mod gemma;
pub mod gemma4;
pub(crate) mod gpt_oss;
pub mod latent;
mod layers;
pub(crate) mod limits;
pub(crate) mod ministral3;
pub mod recurrent;
pub(crate) mod scales;
mod sizes;
mod tensors;
pub(crate) mod windows;

use std::path::Path;

pub use self::architecture::Architecture;
use self::experts::ExpertsConfig;
use self::gemma::GemmaConfig;
use self::gemma4::Gemma4Config;
use self::latent::LatentConfig;
use self::limits::{CONTEXT, HEADS, HIDDEN, LAYERS, VOCAB};
use self::recurrent::{RecurrentConfig, Written};
use self::scales::Scales;
use self::sizes::{
    eps_key, head_dim, intermediate_size, key_value_heads, rotary_dim, ties_embeddings,
};

use crate::error::LoadError;
use crate::kernels::Gate;
use crate::kernels::dtype::Dtype;
use crate::kernels::rope::PositionScale;
use crate::kernels::shape::{AttentionShape, DecoderShape};
use crate::kv_layout::{KvDtype, KvLayout, LayerKv, PagedKv, Values};
use crate::model::json_file::JsonFile;
use crate::model::rope::{RopeConfig, RopeScaling, theta};

/// Largest `config.json` read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// Which projections add a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BiasConfig {
    /// The q, k and v projections; with latent attention those to low ranks.
    pub qkv: bool,
    /// The attention's output projection.
    pub o: bool,
    /// The gate, up and down projections.
    pub mlp: bool,
}

/// A model's configuration, checked: all sizes are positive and small enough that their products fit `usize`.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// The family.
    pub architecture: Architecture,
    /// Number of token ids.
    pub vocab_size: usize,
    /// Width of the residual stream, in elements.
    pub hidden_size: usize,
    /// Width of the MLP of layers without experts, in elements.
    pub intermediate_size: usize,
    /// The experts of the other layers.
    pub experts: Option<ExpertsConfig>,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Query heads in each layer.
    pub num_attention_heads: usize,
    /// Key and value heads in each layer; divides `num_attention_heads`. One where attention is latent.
    pub num_key_value_heads: usize,
    /// Elements in a head, even. Where attention is latent, only the rotated ones.
    pub head_dim: usize,
    /// The shape of attention where that is latent.
    pub latent: Option<LatentConfig>,
    /// Added to the mean square in every norm.
    pub rms_norm_eps: f32,
    /// The output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Which projections add a bias.
    pub bias: BiasConfig,
    /// Every head of q and k is normed before the rotation.
    pub qk_norm: bool,
    /// The layers that keep a state instead of keys and values.
    pub recurrent: Option<RecurrentConfig>,
    /// Rotary dimensions: the first elements of a head; even.
    pub rotary_dim: usize,
    /// For each layer: whether RoPE rotates its queries and keys.
    pub rotated: Vec<bool>,
    /// Factor on embeddings.
    pub embedding_scale: Option<f32>,
    /// Factor on a block's output before the residual add.
    pub residual_scale: Option<f32>,
    /// Factor on attention's scores, instead of 1/sqrt of a query's elements.
    pub score_scale: Option<f32>,
    /// The divisor of logits.
    pub logits_divisor: Option<f32>,
    /// Factor on queries, by their positions.
    pub query_scale: Option<PositionScale>,
    /// The parts that only the families of Gemma have.
    pub gemma: Option<GemmaConfig>,
    /// Every query head has an attention sink: a score without a value.
    pub sinks: bool,
    /// For each layer: how many tokens a query sees, itself included; `None` for all of them.
    pub windows: Vec<Option<usize>>,
    /// Positions that the file claims, in tokens; see [`Self::context_tokens`].
    pub max_position_embeddings: usize,
    /// How positions rotate q and k.
    pub rope: RopeConfig,
    /// Token that begins a text.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a text.
    pub eos_token_ids: Vec<u32>,
    /// The type that the weights are meant to be stored and run in.
    pub dtype: Option<Dtype>,
}

impl ModelConfig {
    /// Reads `config.json` in a model's folder.
    ///
    /// # Errors
    /// [`LoadError::Io`], [`LoadError::Format`] naming key, value and limit, [`LoadError::UnknownArchitecture`].
    pub fn read(dir: &Path) -> Result<Self, LoadError> {
        Self::from_json(&JsonFile::read(&dir.join("config.json"), MAX_FILE_BYTES)?)
    }

    /// Parses the content of a `config.json`; `file` is for the errors.
    ///
    /// # Errors
    /// Like [`Self::read`].
    pub fn parse(file: &Path, text: &[u8]) -> Result<Self, LoadError> {
        Self::from_json(&JsonFile::parse(file, text)?)
    }

    fn from_json(json: &JsonFile) -> Result<Self, LoadError> {
        let architecture = Architecture::read(json)?;
        // Vision-language models describe their decoder separately.
        let json = &json.with_nested("text_config")?;
        refuse_unsupported(json, architecture)?;
        let hidden_size = json.required_size("hidden_size", HIDDEN)?;
        let num_hidden_layers = json.required_size("num_hidden_layers", LAYERS)?;
        let num_attention_heads = match json.size("num_attention_heads", HEADS)? {
            None if architecture.is_gemma() => gemma::HEADS,
            _ => json.required_size("num_attention_heads", HEADS)?,
        };
        let latent = LatentConfig::from_json(json, architecture)?;
        let (num_key_value_heads, head_dim) = match &latent {
            Some(latent) => (1, latent.rotary_dim),
            None => (
                key_value_heads(json, architecture, num_attention_heads)?,
                head_dim(json, architecture, hidden_size, num_attention_heads)?,
            ),
        };
        let default_context = match architecture {
            Architecture::Llama | Architecture::DeepseekV2 | Architecture::Granite => 2048,
            Architecture::DeepseekV3 | Architecture::Phi3 => 4096,
            Architecture::Ministral3 => 262_144,
            Architecture::Glm4MoeLite => 202_752,
            Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen3Moe => 32_768,
            Architecture::SmolLm3 => 32_768,
            Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => 32_768,
            Architecture::Lfm2 | Architecture::Lfm2Moe => 128_000,
            Architecture::Mistral | Architecture::Mixtral | Architecture::GptOss => 131_072,
            Architecture::Gemma2 => 8192,
            Architecture::Gemma3 | Architecture::Gemma4 => 131_072,
        };
        let (default_eps, default_theta) = match architecture {
            Architecture::Mixtral | Architecture::Lfm2 | Architecture::Lfm2Moe => (1e-5, 1e6),
            Architecture::Glm4MoeLite | Architecture::Phi3 | Architecture::Ministral3 => {
                (1e-5, 1e4)
            }
            Architecture::SmolLm3 => (1e-6, 2e6),
            Architecture::GptOss => (1e-5, 150_000.0),
            _ => (1e-6, 1e4),
        };
        let max_position_embeddings = json
            .size("max_position_embeddings", CONTEXT)?
            .unwrap_or(default_context);
        let default_special = |id| match architecture {
            _ if architecture.is_qwen() || architecture == Architecture::GptOss => None,
            Architecture::DeepseekV3 | Architecture::Glm4MoeLite => Some(id - 1),
            // The end comes before the beginning.
            _ if architecture.is_gemma() => Some(3 - id),
            Architecture::SmolLm3 => Some(127_999 + id),
            Architecture::Phi3 if id == 2 => Some(32_000),
            _ => Some(id),
        };
        let bos = json
            .token_ids("bos_token_id")?
            .and_then(|ids| ids.first().copied());
        let eos = json.token_ids("eos_token_id")?;
        let windows = windows::read(json, architecture, num_hidden_layers)?;
        let rotary_dim = rotary_dim(json, architecture, head_dim)?;
        let scales = Scales::from_json(json, architecture, max_position_embeddings)?;
        let original_context = (architecture == Architecture::Phi3).then_some(4096);
        Ok(Self {
            architecture,
            vocab_size: match json.size("vocab_size", VOCAB)? {
                None if architecture.is_gemma() => gemma::vocab_size(architecture),
                _ => json.required_size("vocab_size", VOCAB)?,
            },
            hidden_size,
            intermediate_size: intermediate_size(json, architecture)?,
            experts: ExpertsConfig::from_json(json, architecture, num_hidden_layers)?,
            num_hidden_layers,
            num_attention_heads,
            num_key_value_heads,
            head_dim,
            latent,
            rms_norm_eps: json
                .number(eps_key(architecture), 0.0..=1.0)?
                .unwrap_or(default_eps) as f32,
            tie_word_embeddings: ties_embeddings(json, architecture)?,
            bias: bias(json, architecture)?,
            qk_norm: architecture.has_qk_norm(),
            recurrent: RecurrentConfig::from_json(json, architecture, num_hidden_layers)?,
            rotary_dim,
            embedding_scale: if architecture.is_gemma() {
                Some(gemma::embedding_scale(hidden_size))
            } else {
                scales.embedding
            },
            score_scale: if architecture.is_gemma() {
                Some(gemma::score_scale(json, architecture)?)
            } else {
                scales.scores
            },
            gemma: GemmaConfig::from_json(json, architecture, max_position_embeddings)?
                .map(|gemma| match architecture {
                    Architecture::Gemma4 => {
                        let heads = (num_attention_heads, num_key_value_heads);
                        let fourth = Gemma4Config::from_json(json, &windows, heads)?;
                        Ok(GemmaConfig {
                            fourth: Some(fourth),
                            ..gemma
                        })
                    }
                    _ => Ok(gemma),
                })
                .transpose()?,
            rotated: windows::rotated(json, architecture, num_hidden_layers)?,
            residual_scale: scales.residual,
            logits_divisor: scales.logits_divisor,
            query_scale: scales.queries,
            sinks: architecture == Architecture::GptOss,
            windows,
            max_position_embeddings,
            rope: match architecture {
                Architecture::GptOss if RopeConfig::is_absent(json)? => {
                    gpt_oss::rope(theta(json)?.unwrap_or(default_theta))
                }
                Architecture::Gemma3 | Architecture::Gemma4 => {
                    gemma::full_rope(json, architecture, max_position_embeddings)?
                }
                Architecture::Ministral3 if RopeConfig::is_absent(json)? => ministral3::rope(),
                _ => {
                    let contexts = (max_position_embeddings, original_context);
                    let rope = RopeConfig::from_json(json, default_theta, contexts)?;
                    rope.check_pairs(json, rotary_dim)?;
                    refuse_rope(json, architecture, &rope)?;
                    rope
                }
            },
            bos_token_id: if json.has("bos_token_id") {
                bos
            } else {
                default_special(1)
            },
            eos_token_ids: match eos {
                Some(ids) => ids,
                None if json.has("eos_token_id") => Vec::new(),
                None => default_special(2).into_iter().collect(),
            },
            dtype: dtype(json)?,
        })
    }

    /// Longest sequence that the rotation is made for, in tokens.
    pub fn context_tokens(&self) -> usize {
        self.rope
            .extended_positions()
            .unwrap_or(0)
            .max(self.max_position_embeddings)
    }

    /// Factor on every attention score: the family's, or 1/sqrt of a query's elements; with latent attention, times
    /// YaRN's factor.
    pub fn attention_scale(&self) -> f32 {
        let query = |dim: usize| (dim as f32).sqrt().recip();
        if let Some(scale) = self.score_scale {
            return scale;
        }
        match &self.latent {
            Some(latent) => {
                let by_yarn = self.rope.score_factor() as f32;
                query(latent.plain_dim + latent.rotary_dim) * by_yarn
            }
            None => query(self.head_dim),
        }
    }

    /// Width of all query heads of a token as attention reads them, in elements; in the layers where they are the widest.
    pub fn q_width(&self) -> usize {
        let (_, dims) = self.kinds_of_heads();
        self.num_attention_heads * dims.into_iter().fold(0, usize::max)
    }

    /// Width of all key heads of a token, in elements; the values are as wide, or parts of the keys. In the layers where
    /// they are the widest.
    pub fn kv_width(&self) -> usize {
        let (heads, dims) = self.kinds_of_heads();
        (heads[0] * dims[0]).max(heads[1] * dims[1])
    }

    /// The sizes that a backend makes room for.
    pub fn shape(&self) -> DecoderShape {
        DecoderShape {
            hidden: self.hidden_size,
            intermediate: self.intermediate_size,
            vocab: self.vocab_size,
            attention: AttentionShape {
                n_heads: self.num_attention_heads,
                n_kv_heads: self.num_key_value_heads,
                head_dim: self.head_dim,
            },
        }
    }

    /// The memory that each layer keeps of a sequence, with elements of `dtype`.
    pub fn kv_layout(&self, dtype: impl Into<KvDtype>) -> KvLayout {
        let dtype = dtype.into();
        let pages = |layer| {
            let (heads, key_dim) = self.heads_in(layer);
            let values = match &self.latent {
                Some(latent) => Values::InKeys { dim: latent.rank },
                None => Values::Own { dim: key_dim },
            };
            PagedKv {
                heads,
                key_dim,
                values,
                labels: 0,
                dtype,
            }
        };
        let layer = |layer| match (self.states_in(layer), self.kv_source(layer)) {
            (Some(states), _) => LayerKv::State {
                bytes: states.state_bytes(self.hidden_size),
                heads: states.state_heads(),
            },
            (None, source) if source != layer => LayerKv::Shared(source),
            _ => LayerKv::Pages(pages(layer)),
        };
        KvLayout::new((0..self.num_hidden_layers).map(layer).collect())
    }

    /// The computation of a layer that keeps a state.
    pub fn states_in(&self, layer: usize) -> Option<&RecurrentConfig> {
        self.recurrent.as_ref().filter(|states| states.is_in(layer))
    }

    /// The gate of layers without experts.
    pub fn gate(&self) -> Gate {
        match self.gemma {
            Some(_) => gemma::GATE,
            None => Gate::Silu,
        }
    }

    /// Whether norm weights are stored minus one.
    pub fn writes_norms_from_one(&self) -> bool {
        let states = self.recurrent.as_ref().map(|states| states.written);
        states == Some(Written::FromOne)
            || self
                .gemma
                .as_ref()
                .is_some_and(|gemma| gemma.norms_from_one)
    }

    /// Whether a gate multiplies attention's result.
    pub fn gates_attention(&self) -> bool {
        self.recurrent
            .as_ref()
            .is_some_and(|config| config.gated_attention)
    }
}

/// Phi-3 has one way to reach longer contexts.
fn refuse_rope(
    json: &JsonFile,
    architecture: Architecture,
    rope: &RopeConfig,
) -> Result<(), LoadError> {
    let is_known = matches!(
        rope.scaling,
        RopeScaling::Default | RopeScaling::LongRope(_)
    );
    if !(architecture == Architecture::Phi3 && !is_known) {
        Ok(())
    } else {
        Err(json.error(
            "rope_scaling",
            "is not one of Phi-3's, supported are default and longrope",
        ))
    }
}

fn refuse_unsupported(json: &JsonFile, architecture: Architecture) -> Result<(), LoadError> {
    match json.text("hidden_act")? {
        _ if architecture.is_gemma() => Ok(()),
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => {
            Err(json.error("hidden_act", format!("is {other:?}, supported is \"silu\"")))
        }
    }
}

fn bias(json: &JsonFile, architecture: Architecture) -> Result<BiasConfig, LoadError> {
    let attention = json.flag("attention_bias")?.unwrap_or(false);
    let mlp = json.flag("mlp_bias")?.unwrap_or(false);
    Ok(match architecture {
        Architecture::Llama
        | Architecture::DeepseekV2
        | Architecture::Granite
        | Architecture::SmolLm3 => BiasConfig {
            qkv: attention,
            o: attention,
            mlp,
        },
        Architecture::Mistral
        | Architecture::Mixtral
        | Architecture::Lfm2
        | Architecture::Lfm2Moe
        | Architecture::Phi3
        | Architecture::Ministral3 => BiasConfig {
            qkv: false,
            o: false,
            mlp: false,
        },
        Architecture::GptOss => {
            let bias = json.flag("attention_bias")?.unwrap_or(true);
            BiasConfig {
                qkv: bias,
                o: bias,
                mlp: false,
            }
        }
        Architecture::Qwen2 => BiasConfig {
            qkv: true,
            o: false,
            mlp: false,
        },
        Architecture::Qwen3
        | Architecture::Qwen3Moe
        | Architecture::Qwen35
        | Architecture::Qwen35Moe
        | Architecture::Qwen3Next
        | Architecture::DeepseekV3
        | Architecture::Glm4MoeLite
        | Architecture::Gemma2
        | Architecture::Gemma3
        | Architecture::Gemma4 => BiasConfig {
            qkv: attention,
            o: attention,
            mlp: false,
        },
    })
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
    let known = Dtype::from_name(name.strip_prefix("torch.").unwrap_or(name));
    known.map(Some).ok_or_else(|| {
        json.error(
            key,
            format!("is {name:?}, supported are float32, float16 and bfloat16"),
        )
    })
}

#[cfg(test)]
mod tests;
