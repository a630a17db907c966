//! What a model is, from its `config.json`: sizes, biases, windows, rotation.
//!
//! Keys, and the values of absent ones, follow the classes of `transformers` 5. Whatever would change the result and
//! is not implemented is refused; nothing is guessed.

pub(crate) mod deepseek;
pub mod experts;
pub(crate) mod gpt_oss;
pub mod latent;
pub(crate) mod limits;
pub mod recurrent;
mod windows;

use std::path::Path;

use self::experts::{ExpertsConfig, mlp_tensors};
use self::latent::LatentConfig;
use self::limits::{CONTEXT, HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, LAYERS, VOCAB};
use self::recurrent::RecurrentConfig;

use crate::error::LoadError;
use crate::kernels::dtype::{Dtype, MatrixRole};
use crate::kernels::shape::{AttentionShape, DecoderShape};
use crate::kernels::tensor_view::RowOrder;
use crate::model::json_file::JsonFile;
use crate::model::rope::{RopeConfig, refuse_partial, rotary_part, theta};
use crate::model::weights::TensorSpec;
use crate::state::pool::kv_layout::{KvLayout, LayerKv, PagedKv, Values};

/// Largest `config.json` read.
const MAX_FILE_BYTES: u64 = 4 << 20;

/// The families that the forward pass knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Architecture {
    /// Llama 2 and 3, and what copies them.
    Llama,
    /// Mistral: sliding window in every layer, or in none.
    Mistral,
    /// Mixtral: Mistral with experts in every layer.
    Mixtral,
    /// Qwen2 and Qwen2.5: bias on q, k and v.
    Qwen2,
    /// Qwen3: norm on each head of q and k.
    Qwen3,
    /// Qwen3 with experts.
    Qwen3Moe,
    /// Qwen3.5: gated delta nets, and attention in every fourth layer.
    Qwen35,
    /// Qwen3.5 with experts.
    Qwen35Moe,
    /// Qwen3-Next: what became Qwen3.5, with its inputs fused.
    Qwen3Next,
    /// LFM2: short convolutions, and attention in some layers.
    Lfm2,
    /// LFM2 with experts.
    Lfm2Moe,
    /// DeepSeek-V2: latent attention and experts.
    DeepseekV2,
    /// DeepSeek-V3: the same, with a correction of the router's choice.
    DeepseekV3,
    /// GLM-4.7-Flash and its like: DeepSeek-V3's layers.
    Glm4MoeLite,
    /// gpt-oss: attention sinks, experts with biases and clamped gates.
    GptOss,
}

impl Architecture {
    /// All of them.
    pub const ALL: [Self; 15] = [
        Self::Llama,
        Self::Mistral,
        Self::Mixtral,
        Self::Qwen2,
        Self::Qwen3,
        Self::Qwen3Moe,
        Self::Qwen35,
        Self::Qwen35Moe,
        Self::Qwen3Next,
        Self::Lfm2,
        Self::Lfm2Moe,
        Self::DeepseekV2,
        Self::DeepseekV3,
        Self::Glm4MoeLite,
        Self::GptOss,
    ];

    /// The name under `architectures` in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Llama => "LlamaForCausalLM",
            Self::Mistral => "MistralForCausalLM",
            Self::Mixtral => "MixtralForCausalLM",
            Self::Qwen2 => "Qwen2ForCausalLM",
            Self::Qwen3 => "Qwen3ForCausalLM",
            Self::Qwen3Moe => "Qwen3MoeForCausalLM",
            Self::Qwen35 => "Qwen3_5ForConditionalGeneration",
            Self::Qwen35Moe => "Qwen3_5MoeForConditionalGeneration",
            Self::Qwen3Next => "Qwen3NextForCausalLM",
            Self::Lfm2 => "Lfm2ForCausalLM",
            Self::Lfm2Moe => "Lfm2MoeForCausalLM",
            Self::DeepseekV2 => "DeepseekV2ForCausalLM",
            Self::DeepseekV3 => "DeepseekV3ForCausalLM",
            Self::Glm4MoeLite => "Glm4MoeLiteForCausalLM",
            Self::GptOss => "GptOssForCausalLM",
        }
    }

    /// The family of a name. Models that also see are run on text, and named as those that do not.
    fn named(name: &str) -> Option<Self> {
        let on_text = |known: Self| {
            let family = known.name().strip_suffix("ForConditionalGeneration");
            family.is_some_and(|family| name.strip_suffix("ForCausalLM") == Some(family))
        };
        let mut all = Self::ALL.into_iter();
        all.find(|known| known.name() == name || on_text(*known))
    }

    fn is_qwen(self) -> bool {
        match self {
            Self::Llama | Self::Mistral | Self::Mixtral | Self::Lfm2 | Self::Lfm2Moe => false,
            Self::DeepseekV2 | Self::DeepseekV3 | Self::Glm4MoeLite | Self::GptOss => false,
            Self::Qwen2 | Self::Qwen3 | Self::Qwen3Moe => true,
            Self::Qwen35 | Self::Qwen35Moe | Self::Qwen3Next => true,
        }
    }

    /// Whether every head of q and k is normed before the rotation.
    pub fn has_qk_norm(self) -> bool {
        match self {
            Self::Llama | Self::Mistral | Self::Mixtral | Self::Qwen2 => false,
            Self::DeepseekV2 | Self::DeepseekV3 | Self::Glm4MoeLite | Self::GptOss => false,
            Self::Qwen3 | Self::Qwen3Moe | Self::Lfm2 | Self::Lfm2Moe => true,
            Self::Qwen35 | Self::Qwen35Moe | Self::Qwen3Next => true,
        }
    }

    /// Whether attention is latent.
    pub fn is_latent(self) -> bool {
        matches!(
            self,
            Self::DeepseekV2 | Self::DeepseekV3 | Self::Glm4MoeLite
        )
    }
}

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
    /// Elements in a head, even. Where attention is latent, only those that are rotated.
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
    /// The first elements of a head, which rotate; even.
    pub rotary_dim: usize,
    /// Every query head has a score without a value.
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
    /// What the weights are meant to be stored and run in.
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
        let architecture = architecture(json)?;
        // Models that also see describe their decoder apart.
        let json = &json.with_nested("text_config")?;
        refuse_unsupported(json)?;
        let hidden_size = json.required_size("hidden_size", HIDDEN)?;
        let num_hidden_layers = json.required_size("num_hidden_layers", LAYERS)?;
        let num_attention_heads = json.required_size("num_attention_heads", HEADS)?;
        let latent = LatentConfig::from_json(json, architecture)?;
        let (num_key_value_heads, head_dim) = match &latent {
            Some(latent) => (1, latent.rotary_dim),
            None => (
                key_value_heads(json, architecture, num_attention_heads)?,
                head_dim(json, architecture, hidden_size, num_attention_heads)?,
            ),
        };
        let default_context = match architecture {
            Architecture::Llama | Architecture::DeepseekV2 => 2048,
            Architecture::DeepseekV3 => 4096,
            Architecture::Glm4MoeLite => 202_752,
            Architecture::Qwen2 | Architecture::Qwen3 | Architecture::Qwen3Moe => 32_768,
            Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => 32_768,
            Architecture::Lfm2 | Architecture::Lfm2Moe => 128_000,
            Architecture::Mistral | Architecture::Mixtral | Architecture::GptOss => 131_072,
        };
        let (default_eps, default_theta) = match architecture {
            Architecture::Mixtral | Architecture::Lfm2 | Architecture::Lfm2Moe => (1e-5, 1e6),
            Architecture::Glm4MoeLite => (1e-5, 1e4),
            Architecture::GptOss => (1e-5, 150_000.0),
            _ => (1e-6, 1e4),
        };
        let max_position_embeddings = json
            .size("max_position_embeddings", CONTEXT)?
            .unwrap_or(default_context);
        let default_special = |id| match architecture {
            _ if architecture.is_qwen() || architecture == Architecture::GptOss => None,
            Architecture::DeepseekV3 | Architecture::Glm4MoeLite => Some(id - 1),
            _ => Some(id),
        };
        let bos = json
            .token_ids("bos_token_id")?
            .and_then(|ids| ids.first().copied());
        let eos = json.token_ids("eos_token_id")?;
        Ok(Self {
            architecture,
            vocab_size: json.required_size("vocab_size", VOCAB)?,
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
            rotary_dim: rotary_dim(json, architecture, head_dim)?,
            sinks: architecture == Architecture::GptOss,
            windows: windows::read(json, architecture, num_hidden_layers)?,
            max_position_embeddings,
            rope: match architecture {
                Architecture::GptOss if RopeConfig::is_absent(json)? => {
                    gpt_oss::rope(theta(json)?.unwrap_or(default_theta))
                }
                _ => RopeConfig::from_json(json, default_theta, max_position_embeddings)?,
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

    /// Factor on every attention score: 1/sqrt of a query's elements, and with latent attention what YaRN adds to it.
    pub fn attention_scale(&self) -> f32 {
        let query = |dim: usize| (dim as f32).sqrt().recip();
        match &self.latent {
            Some(latent) => {
                let by_yarn = self.rope.score_factor() as f32;
                query(latent.plain_dim + latent.rotary_dim) * by_yarn
            }
            None => query(self.head_dim),
        }
    }

    /// Width of all query heads of a token as attention reads them, in elements.
    pub fn q_width(&self) -> usize {
        self.num_attention_heads
            * self
                .latent
                .as_ref()
                .map_or(self.head_dim, LatentConfig::key_dim)
    }

    /// Width of all key heads of a token, in elements; the values are as wide, or parts of the keys.
    pub fn kv_width(&self) -> usize {
        self.num_key_value_heads
            * self
                .latent
                .as_ref()
                .map_or(self.head_dim, LatentConfig::key_dim)
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
    pub fn kv_layout(&self, dtype: Dtype) -> KvLayout {
        let (key_dim, values) = match &self.latent {
            Some(latent) => (latent.key_dim(), Values::InKeys { dim: latent.rank }),
            None => (self.head_dim, Values::Own { dim: self.head_dim }),
        };
        let pages = PagedKv {
            heads: self.num_key_value_heads,
            key_dim,
            values,
            dtype: dtype.into(),
        };
        let layer = |layer| match self.states_in(layer) {
            Some(states) => LayerKv::State {
                bytes: states.state_bytes(self.hidden_size),
            },
            None => LayerKv::Pages(pages),
        };
        KvLayout::new((0..self.num_hidden_layers).map(layer).collect())
    }

    /// The computation of a layer that keeps a state.
    pub fn states_in(&self, layer: usize) -> Option<&RecurrentConfig> {
        self.recurrent.as_ref().filter(|states| states.is_in(layer))
    }

    /// Whether attention's result goes through a gate.
    pub fn gates_attention(&self) -> bool {
        self.recurrent
            .as_ref()
            .is_some_and(|config| config.gated_attention)
    }

    /// Every tensor of the model with its shape, in the order of the forward pass.
    pub fn tensors(&self) -> Vec<TensorSpec> {
        let hidden = self.hidden_size;
        let mut specs = vec![TensorSpec::new(
            "model.embed_tokens.weight",
            &[self.vocab_size, hidden],
        )];
        for layer in 0..self.num_hidden_layers {
            let name = |name: &str| format!("model.layers.{layer}.{name}");
            specs.push(TensorSpec::new(name("input_layernorm.weight"), &[hidden]));
            if let Some(states) = self.states_in(layer) {
                specs.extend(states.tensors(layer, hidden));
                self.push_feed_forward(layer, &mut specs);
                continue;
            }
            let attention = match &self.latent {
                Some(latent) => latent.tensors(self),
                None => self.attention_tensors(),
            };
            let attention = attention.into_iter();
            specs.extend(
                attention.map(|(part, shape)| {
                    TensorSpec::new(name(&format!("self_attn.{part}")), &shape)
                }),
            );
            self.push_feed_forward(layer, &mut specs);
        }
        specs.push(TensorSpec::new("model.norm.weight", &[hidden]));
        if !self.tie_word_embeddings {
            specs.push(TensorSpec::new(
                "lm_head.weight",
                &[self.vocab_size, hidden],
            ));
        }
        specs
    }

    /// The tensors of a layer after its attention.
    fn push_feed_forward(&self, layer: usize, specs: &mut Vec<TensorSpec>) {
        let (hidden, mlp) = (self.hidden_size, self.intermediate_size);
        let named = |name: &str, shape: &[usize]| {
            TensorSpec::new(format!("model.layers.{layer}.{name}"), shape)
        };
        specs.push(named("post_attention_layernorm.weight", &[hidden]));
        let shared = self.recurrent.as_ref().and_then(|own| own.shared_expert);
        let (module, width) = match self.experts.as_ref().filter(|all| all.are_in(layer)) {
            None => ("mlp", mlp),
            Some(experts) => {
                specs.extend(experts.tensors(layer, hidden, self.bias.mlp));
                let Some(width) = shared else { return };
                specs.push(named("mlp.shared_expert_gate.weight", &[1, hidden]));
                ("mlp.shared_expert", width)
            }
        };
        let bias = self.bias.mlp;
        specs.extend(mlp_tensors(
            &format!("model.layers.{layer}.{module}"),
            hidden,
            width,
            bias,
        ));
    }

    /// The tensors of a layer's attention, by their names in it.
    fn attention_tensors(&self) -> Vec<(String, Vec<usize>)> {
        let (hidden, q, kv) = (self.hidden_size, self.q_width(), self.kv_width());
        let mut specs = Vec::new();
        let mut push = |name: String, shape: &[usize]| specs.push((name, shape.to_vec()));
        let gate = ("gate_proj", q);
        let gate = self.gates_attention().then_some(gate);
        let parts = [("q_proj", q), ("k_proj", kv), ("v_proj", kv)];
        for (name, width) in parts.into_iter().chain(gate) {
            push(format!("{name}.weight"), &[width, hidden]);
            if self.bias.qkv {
                push(format!("{name}.bias"), &[width]);
            }
        }
        if self.qk_norm {
            push("q_norm.weight".to_owned(), &[self.head_dim]);
            push("k_norm.weight".to_owned(), &[self.head_dim]);
        }
        if self.sinks {
            push("sinks".to_owned(), &[self.num_attention_heads]);
        }
        push("o_proj.weight".to_owned(), &[hidden, q]);
        if self.bias.o {
            push("o_proj.bias".to_owned(), &[hidden]);
        }
        specs
    }

    /// The order of a tensor's rows in checkpoints.
    pub fn row_order(&self, tensor: &str) -> RowOrder {
        match &self.latent {
            Some(latent) => latent.row_order(tensor),
            None => RowOrder::AsNumbered,
        }
    }

    /// What a matrix is for.
    pub fn role(&self, tensor: &str) -> MatrixRole {
        let gives_logits = match self.tie_word_embeddings {
            true => "model.embed_tokens.weight",
            false => "lm_head.weight",
        };
        if tensor == gives_logits {
            return MatrixRole::Logits;
        }
        let is_router = |experts: &ExpertsConfig| {
            let end = format!(".{}.weight", experts.names.router);
            tensor.ends_with(&end) || tensor.ends_with(".shared_expert_gate.weight")
        };
        let keeps_states = recurrent::GATES.iter().any(|gate| tensor.ends_with(gate));
        match keeps_states || self.experts.as_ref().is_some_and(is_router) {
            true => MatrixRole::Router,
            false => MatrixRole::Inner,
        }
    }

    /// Number of weights.
    pub fn parameters(&self) -> u64 {
        self.tensors().iter().map(TensorSpec::elements).sum()
    }
}

fn architecture(json: &JsonFile) -> Result<Architecture, LoadError> {
    let names = json
        .texts("architectures")?
        .ok_or_else(|| json.error("architectures", "is missing, it names the model's class"))?;
    names
        .iter()
        .find_map(|name| Architecture::named(name))
        .ok_or_else(|| LoadError::UnknownArchitecture {
            file: json.file().to_owned(),
            found: names.join(", "),
            supported: Architecture::ALL.map(Architecture::name).join(", "),
        })
}

fn refuse_unsupported(json: &JsonFile) -> Result<(), LoadError> {
    match json.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(other) => {
            Err(json.error("hidden_act", format!("is {other:?}, supported is \"silu\"")))
        }
    }
}

/// Only layers without experts have this width, so that models may not say it.
fn intermediate_size(json: &JsonFile, architecture: Architecture) -> Result<usize, LoadError> {
    match architecture {
        Architecture::Qwen3Moe => {
            let given = json.size("intermediate_size", INTERMEDIATE)?;
            Ok(given.unwrap_or(6144))
        }
        Architecture::Qwen3Next => {
            let given = json.size("intermediate_size", INTERMEDIATE)?;
            Ok(given.unwrap_or(5632))
        }
        Architecture::Qwen35Moe => Ok(json.size("intermediate_size", INTERMEDIATE)?.unwrap_or(0)),
        Architecture::Lfm2 => adjusted_width(json),
        Architecture::Lfm2Moe => {
            let given = json.size("intermediate_size", INTERMEDIATE)?;
            Ok(given.unwrap_or(7168))
        }
        _ => json.required_size("intermediate_size", INTERMEDIATE),
    }
}

/// LFM2 gives the width of an MLP without gates: two thirds of it, stretched and rounded up.
fn adjusted_width(json: &JsonFile) -> Result<usize, LoadError> {
    let given = match json.size("block_ff_dim", INTERMEDIATE)? {
        None => json.required_size("intermediate_size", INTERMEDIATE)?,
        Some(width) => width,
    };
    if !json.flag("block_auto_adjust_ff_dim")?.unwrap_or(true) {
        return Ok(given);
    }
    let thirds = 2 * given / 3;
    let key = "block_ffn_dim_multiplier";
    let width = match json.has(key) && json.value(key).is_none() {
        true => thirds,
        false => {
            let factor = json.number(key, 0.0..=1024.0)?.unwrap_or(1.0);
            let multiple = json.size("block_multiple_of", INTERMEDIATE)?.unwrap_or(256);
            ((factor * thirds as f64) as usize).next_multiple_of(multiple)
        }
    };
    match INTERMEDIATE.contains(&width) {
        true => Ok(width),
        false => {
            let reason = format!(
                "makes an MLP of width {width}, expected 1 to {}",
                INTERMEDIATE.end()
            );
            Err(json.error("intermediate_size", reason))
        }
    }
}

fn eps_key(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::Lfm2 | Architecture::Lfm2Moe => "norm_eps",
        _ => "rms_norm_eps",
    }
}

fn ties_embeddings(json: &JsonFile, architecture: Architecture) -> Result<bool, LoadError> {
    let is_lfm2 = matches!(architecture, Architecture::Lfm2 | Architecture::Lfm2Moe);
    if let Some(ties) = json.flag("tie_embedding")?.filter(|_| is_lfm2) {
        return Ok(ties);
    }
    Ok(json.flag("tie_word_embeddings")?.unwrap_or(is_lfm2))
}

/// The whole head, or in the families of Qwen3.5 the part that is configured, rounded down.
fn rotary_dim(
    json: &JsonFile,
    architecture: Architecture,
    head_dim: usize,
) -> Result<usize, LoadError> {
    match architecture {
        Architecture::Qwen35 | Architecture::Qwen35Moe | Architecture::Qwen3Next => {
            let part = rotary_part(json)?.unwrap_or(0.25);
            let dim = (head_dim as f64 * part) as usize;
            match dim.is_multiple_of(2) {
                true => Ok(dim),
                false => {
                    let reason = format!(
                        "is {part}: {dim} elements of a head of {head_dim}, expected an even number"
                    );
                    Err(json.error("partial_rotary_factor", reason))
                }
            }
        }
        _ => refuse_partial(json).map(|()| head_dim),
    }
}

fn key_value_heads(
    json: &JsonFile,
    architecture: Architecture,
    heads: usize,
) -> Result<usize, LoadError> {
    let absent = match architecture {
        Architecture::Mistral | Architecture::Mixtral | Architecture::GptOss
            if !json.has("num_key_value_heads") =>
        {
            8
        }
        Architecture::Qwen2 | Architecture::Qwen3 if !json.has("num_key_value_heads") => 32,
        Architecture::Qwen3Moe | Architecture::Qwen35 if !json.has("num_key_value_heads") => 4,
        Architecture::Qwen35Moe | Architecture::Qwen3Next if !json.has("num_key_value_heads") => 2,
        Architecture::Lfm2 | Architecture::Lfm2Moe if !json.has("num_key_value_heads") => 8,
        _ => heads,
    };
    let kv_heads = json.size("num_key_value_heads", HEADS)?.unwrap_or(absent);
    limits::check_kv_heads(kv_heads, ("num_attention_heads", heads))
        .map_err(|reason| json.error("num_key_value_heads", reason))?;
    Ok(kv_heads)
}

fn head_dim(
    json: &JsonFile,
    architecture: Architecture,
    hidden: usize,
    heads: usize,
) -> Result<usize, LoadError> {
    let head_dim = match json.size("head_dim", HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None if architecture == Architecture::Qwen3 && !json.has("head_dim") => 128,
        None if has_wide_heads(architecture) && !json.has("head_dim") => 256,
        None if architecture == Architecture::GptOss && !json.has("head_dim") => 64,
        None => limits::even_head_dim(hidden, ("num_attention_heads", heads))
            .map_err(|reason| json.error("hidden_size", format!("{reason}: set head_dim")))?,
    };
    limits::check_head_dim(head_dim).map_err(|reason| json.error("head_dim", reason))?;
    Ok(head_dim)
}

fn has_wide_heads(architecture: Architecture) -> bool {
    let wide = [
        Architecture::Qwen35,
        Architecture::Qwen35Moe,
        Architecture::Qwen3Next,
    ];
    wide.contains(&architecture)
}

fn bias(json: &JsonFile, architecture: Architecture) -> Result<BiasConfig, LoadError> {
    let attention = json.flag("attention_bias")?.unwrap_or(false);
    let mlp = json.flag("mlp_bias")?.unwrap_or(false);
    Ok(match architecture {
        Architecture::Llama | Architecture::DeepseekV2 => BiasConfig {
            qkv: attention,
            o: attention,
            mlp,
        },
        Architecture::Mistral
        | Architecture::Mixtral
        | Architecture::Lfm2
        | Architecture::Lfm2Moe => BiasConfig {
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
        | Architecture::Glm4MoeLite => BiasConfig {
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
