//! The record of a model family: how its files and layers differ from Llama's.
//!
//! [`crate::families`] lists the records. `crate::config` and `crate::gguf` read files by the record, and call its
//! functions where a family differs in more than names and numbers.

use std::fmt;
use std::ptr;

use crate::config::ModelConfig;
use crate::config::experts::{ExpertNames, ExpertsConfig};
use crate::config::gemma::GemmaRules;
use crate::config::latent::LatentDefaults;
use crate::config::recurrent::RecurrentConfig;
use crate::config::scales::{Scales, Widths};
use crate::gguf::keys::Keys;
use crate::json_file::JsonFile;
use crate::layer_spec::{BlockNorms, LayerSpec, QkNorm};
use crate::rope::{self, MropeSections, RopeConfig, RopeContext};
use souffleur_base::error::LoadError;
use souffleur_kernels::Gate;
use souffleur_kernels::routing::Routing;

/// A model family. Two families are equal if their records are the same object.
#[derive(Clone, Copy)]
pub struct Architecture(pub(crate) &'static Family);

impl Architecture {
    /// The class under `architectures` in `config.json`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The family's name: `general.architecture` of GGUF files, or `model_type` if such files have another family's name.
    pub fn short_name(self) -> &'static str {
        self.0.gguf.name.unwrap_or(self.0.model_type)
    }

    pub(crate) fn family(self) -> &'static Family {
        self.0
    }

    pub fn missing_on_cuda(self) -> Option<&'static str> {
        self.family().missing_on_cuda
    }
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.0, other.0)
    }
}

impl Eq for Architecture {}

impl fmt::Debug for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

pub(crate) struct Family {
    pub name: &'static str,
    pub model_type: &'static str,
    /// Vision-language classes whose decoder may be of this family, chosen by `model_type`.
    pub decoder_of: &'static [&'static str],
    pub defaults: Defaults,
    pub intermediate: MlpWidth,
    pub windows: Windows,
    /// Default interval of layers without RoPE, if the family has such layers.
    pub no_rope_interval: Option<usize>,
    /// Default of `partial_rotary_factor`, if the family reads it.
    pub partial_rotary: Option<f64>,
    pub attention_bias: AttentionBias,
    /// Whether `mlp_bias` is read.
    pub mlp_bias: bool,
    pub qk_norm: QkNorm,
    pub norms: BlockNorms,
    pub sinks: bool,
    pub latent: Option<LatentDefaults>,
    pub gemma: Option<GemmaRules>,
    pub keys: KeyNames,
    /// Parts of tensor names: in checkpoints, and the internal equivalent.
    pub tensor_names: &'static [(&'static str, &'static str)],
    /// Whether checkpoints fuse q, k and v, and gate and up.
    pub fused: bool,
    pub experts: fn(&JsonFile, usize) -> Result<Option<ExpertsConfig>, LoadError>,
    /// The recurrent layers, from `config.json` and the number of layers.
    pub states: fn(&JsonFile, usize) -> Result<Option<RecurrentConfig>, LoadError>,
    pub rope: fn(&JsonFile, &RopeContext) -> Result<RopeConfig, LoadError>,
    /// The sections of M-RoPE if the file has none; `None` if the family has no M-RoPE.
    pub mrope: Option<MropeSections>,
    /// Whether images may have further vectors for the outputs of the first layers (DeepStack).
    pub deepstack: bool,
    pub scales: fn(&JsonFile, &Widths) -> Result<Scales, LoadError>,
    pub layer: fn(&ModelConfig, usize) -> LayerSpec,
    pub gguf: GgufFamily,
    /// The feature without CUDA kernels; `None` if all layers are supported.
    pub missing_on_cuda: Option<&'static str>,
}

impl Family {
    /// Llama's record with a different name and layers, and the defaults that most classes share.
    pub const fn new(
        name: &'static str,
        model_type: &'static str,
        layer: fn(&ModelConfig, usize) -> LayerSpec,
    ) -> Self {
        Self {
            name,
            model_type,
            decoder_of: &[],
            defaults: Defaults::LLAMA,
            intermediate: MlpWidth::Required,
            windows: Windows::NONE,
            no_rope_interval: None,
            partial_rotary: None,
            attention_bias: AttentionBias::Key { default: false },
            mlp_bias: false,
            qk_norm: QkNorm::None,
            norms: BlockNorms::Before,
            sinks: false,
            latent: None,
            gemma: None,
            keys: KeyNames::USUAL,
            tensor_names: &[],
            fused: false,
            experts: |_, _| Ok(None),
            states: |_, _| Ok(None),
            rope: rope::of_all_layers,
            mrope: None,
            deepstack: false,
            scales: |_, _| Ok(Scales::NONE),
            layer,
            gguf: GgufFamily::named(None),
            missing_on_cuda: None,
        }
    }
}

/// Defaults of `config.json`. Without a default, a key is required or derived from others.
pub(crate) struct Defaults {
    pub vocab_size: Option<usize>,
    pub heads: Option<usize>,
    pub kv_heads: Option<usize>,
    pub head_dim: Option<usize>,
    /// Context length, in tokens.
    pub context: usize,
    pub eps: f64,
    pub theta: f64,
    pub ties_embeddings: bool,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
}

impl Defaults {
    pub const LLAMA: Self = Self {
        vocab_size: None,
        heads: None,
        kv_heads: None,
        head_dim: None,
        context: 2048,
        eps: 1e-6,
        theta: 1e4,
        ties_embeddings: false,
        bos: Some(1),
        eos: Some(2),
    };
}

pub(crate) struct KeyNames {
    pub eps: &'static str,
    /// A key that is read before `tie_word_embeddings`.
    pub ties_embeddings: Option<&'static str>,
    /// Key of the number of experts; `None` for either of the two usual keys.
    pub experts: Option<&'static str>,
    /// Key of the number of experts per token.
    pub experts_used: &'static str,
}

impl KeyNames {
    pub const USUAL: Self = Self {
        eps: "rms_norm_eps",
        ties_embeddings: None,
        experts: None,
        experts_used: "num_experts_per_tok",
    };
}

/// The source of an MLP's width.
#[derive(Clone, Copy)]
pub(crate) enum MlpWidth {
    Required,
    /// Default of `intermediate_size`; 0 if every layer has experts.
    Default(usize),
    Read(fn(&JsonFile) -> Result<usize, LoadError>),
}

#[derive(Clone, Copy)]
pub(crate) enum AttentionBias {
    Never,
    /// All projections have biases if `attention_bias` is true.
    Key {
        default: bool,
    },
    /// Only queries, keys and values have biases.
    Qkv,
}

pub(crate) struct Windows {
    pub slides: Slides,
    /// Default of `sliding_window`, in tokens.
    pub default: Option<usize>,
    /// Whether `null` is rejected.
    pub required: bool,
    pub layers: WindowLayers,
    /// Whether the last layer never has a window.
    pub last_is_full: bool,
}

impl Windows {
    pub const NONE: Self = Self {
        slides: Slides::Never,
        default: None,
        required: false,
        layers: WindowLayers::All,
        last_is_full: false,
    };
    /// A window in every layer, if the file has one.
    pub const EVERYWHERE: Self = Self {
        slides: Slides::Always,
        ..Self::NONE
    };
}

/// Whether a configured window is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slides {
    Never,
    Always,
    /// If `use_sliding_window` is true.
    ByKey,
}

/// Which layers have the window. All variants but `All` read `layer_types` first.
#[derive(Clone, Copy)]
pub(crate) enum WindowLayers {
    All,
    /// All but the last of each period.
    Period(usize),
    /// As `Period`, but `sliding_window_pattern` overrides the length of the period.
    PeriodKey(usize),
    /// The layers from `max_window_layers` on.
    From(usize),
    WithoutRope,
}

pub(crate) struct GgufFamily {
    /// `general.architecture`; `None` if the family's files have the name of another family.
    pub name: Option<&'static str>,
    /// Returns another family with the same `name` if a file's experts show that the file belongs to that family.
    pub by_experts: fn(Option<&ExpertsConfig>) -> Option<&'static Family>,
    /// Numeric keys that the family reads; others must have a value without effect.
    pub numbers: &'static [&'static str],
    /// Tensor names within a layer that differ from the usual ones: the internal name, the file's name.
    pub names: &'static [(&'static str, &'static str)],
    /// Alternative tensor names: the usual name, the alternative.
    pub other_names: &'static [(&'static str, &'static str)],
    /// Whether rows of query and key projections are interleaved rotary pairs, also in layers without RoPE. The kernels
    /// expect the first elements of all pairs before the second elements.
    pub paired_rows: bool,
    pub windows: GgufWindows,
    pub experts: Option<GgufExperts>,
    /// The recurrent layers, from metadata and the number of layers.
    pub states: fn(&Keys<'_>, usize) -> Result<Option<RecurrentConfig>, LoadError>,
    /// YaRN's `mscale` and `mscale_all_dim`, from `yarn_log_multiplier`.
    pub yarn_mscales: fn(f64) -> Option<(f64, f64)>,
    /// Whether YaRN rounds the ends of its ramp to whole dimensions. GGUF has no key for this.
    pub yarn_truncates: bool,
    /// Whether `rope.scaling.finetuned` can disable RoPE.
    pub reads_finetuned: bool,
}

impl GgufFamily {
    pub const fn named(name: Option<&'static str>) -> Self {
        Self {
            name,
            by_experts: |_| None,
            numbers: &[],
            names: &[],
            other_names: &[],
            paired_rows: false,
            windows: GgufWindows::Refused,
            experts: None,
            states: |_, _| Ok(None),
            yarn_mscales: |_| None,
            yarn_truncates: true,
            reads_finetuned: false,
        }
    }
}

#[derive(Clone, Copy)]
pub(crate) enum GgufWindows {
    /// Files with a window are rejected: no key names its layers.
    Refused,
    /// A window in every layer; 0 means no window. llama.cpp ignores windows in these files.
    Everywhere,
    /// A window in the listed layers, or in all but the last of each period.
    Pattern {
        period: usize,
        /// Whether the key is required and non-zero.
        required: bool,
        default: Option<usize>,
    },
}

pub(crate) struct GgufExperts {
    pub names: ExpertNames,
    /// Numeric keys of the router; others must have a value without effect.
    pub numbers: &'static [&'static str],
    /// The default of `expert_weights_norm`.
    pub renormalises: bool,
    /// Adapts the router's formula, given a softmax over all experts.
    pub routing: fn(&Keys<'_>, Routing) -> Result<Routing, LoadError>,
    /// Whether the shared expert's width is `expert_shared_count` times an expert's.
    pub has_shared: bool,
    /// Whether routers have correction biases.
    pub corrected: bool,
    pub bias: bool,
    pub gate: Gate,
    pub scaled: bool,
}

impl GgufExperts {
    pub const PLAIN: Self = Self {
        names: ExpertNames::QWEN,
        numbers: &[],
        renormalises: true,
        routing: |_, softmax| Ok(softmax),
        has_shared: false,
        corrected: false,
        bias: false,
        gate: Gate::Silu,
        scaled: false,
    };
}
