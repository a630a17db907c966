//! The record of a model family: everything in which its files and its layers differ from those of others.
//!
//! Each family's own file holds its record, [`crate::model::families`] the table of them all. One reader walks the
//! record for `config.json` and another for GGUF. A family whose files differ by more than numbers has functions in its
//! record.

use std::fmt;
use std::ptr;

use crate::error::LoadError;
use crate::kernels::Gate;
use crate::kernels::routing::Routing;
use crate::model::config::ModelConfig;
use crate::model::config::experts::{ExpertNames, ExpertsConfig};
use crate::model::config::gemma::GemmaRules;
use crate::model::config::latent::LatentDefaults;
use crate::model::config::recurrent::RecurrentConfig;
use crate::model::config::scales::{Scales, Widths};
use crate::model::gguf::keys::Keys;
use crate::model::json_file::JsonFile;
use crate::model::layer_spec::{BlockNorms, LayerSpec, QkNorm};
use crate::model::rope::{self, RopeConfig, RopeContext};

/// A family that the forward pass knows; two are equal if their records are the same one.
#[derive(Clone, Copy)]
pub struct Architecture(pub(crate) &'static Family);

impl Architecture {
    /// The name under `architectures` in `config.json`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    pub(crate) fn family(self) -> &'static Family {
        self.0
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

/// What sets a family apart.
pub(crate) struct Family {
    /// Its class under `architectures` in `config.json`.
    pub name: &'static str,
    /// Its `model_type` there.
    pub model_type: &'static str,
    /// The classes of vision-language models whose decoder it may be, chosen by `model_type`.
    pub decoder_of: &'static [&'static str],
    pub defaults: Defaults,
    /// Width of the MLP of layers without experts.
    pub intermediate: Intermediate,
    pub windows: Windows,
    /// The usual interval of layers without RoPE, in a family that has such layers.
    pub no_rope_interval: Option<usize>,
    /// The default part of a head that rotates, in a family whose files may say another one.
    pub partial_rotary: Option<f64>,
    pub attention_bias: AttentionBias,
    /// `mlp_bias` counts.
    pub mlp_bias: bool,
    pub qk_norm: QkNorm,
    /// Where the norms of blocks are.
    pub norms: BlockNorms,
    /// Every query head has an attention sink.
    pub sinks: bool,
    pub latent: Option<LatentDefaults>,
    /// The part that only Gemma's families have.
    pub gemma: Option<GemmaRules>,
    pub keys: KeyNames,
    /// Parts of names in its checkpoints, and ours.
    pub tensor_names: &'static [(&'static str, &'static str)],
    /// Files hold queries, keys and values in one matrix, and gate and up in another.
    pub fused: bool,
    /// The experts of a `config.json`, by the number of layers.
    pub experts: fn(&JsonFile, usize) -> Result<Option<ExpertsConfig>, LoadError>,
    /// The layers with states of a `config.json`, by the number of layers.
    pub states: fn(&JsonFile, usize) -> Result<Option<RecurrentConfig>, LoadError>,
    pub rope: fn(&JsonFile, &RopeContext) -> Result<RopeConfig, LoadError>,
    /// The factors of a `config.json`.
    pub scales: fn(&JsonFile, &Widths) -> Result<Scales, LoadError>,
    pub layer: fn(&ModelConfig, usize) -> LayerSpec,
    pub gguf: GgufFamily,
    /// The part that no CUDA kernel computes; `None` where kernels compute every layer.
    pub lacks_on_cuda: Option<&'static str>,
}

impl Family {
    /// Llama's record with another name and other layers, and the defaults that most classes share.
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
            intermediate: Intermediate::Required,
            windows: Windows::NONE,
            no_rope_interval: None,
            partial_rotary: None,
            attention_bias: AttentionBias::Key { absent: false },
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
            scales: |_, _| Ok(Scales::NONE),
            layer,
            gguf: GgufFamily::named(None),
            lacks_on_cuda: None,
        }
    }
}

/// Values of keys that a `config.json` leaves out. Without a default, the key is required or follows from others.
pub(crate) struct Defaults {
    pub vocab_size: Option<usize>,
    pub heads: Option<usize>,
    pub kv_heads: Option<usize>,
    pub head_dim: Option<usize>,
    /// Positions, in tokens.
    pub context: usize,
    pub eps: f64,
    /// Base of the rotation.
    pub theta: f64,
    /// The output projection is the embedding.
    pub ties_embeddings: bool,
    /// Token that begins a text.
    pub bos: Option<u32>,
    /// Token that ends a text.
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

/// Names of keys in `config.json` that differ between families.
pub(crate) struct KeyNames {
    pub eps: &'static str,
    /// Read before `tie_word_embeddings`.
    pub ties_embeddings: Option<&'static str>,
    /// The number of experts; `None` where it has either of the two usual names.
    pub experts: Option<&'static str>,
    /// Experts of a token.
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

/// Width of the MLP of layers without experts.
#[derive(Clone, Copy)]
pub(crate) enum Intermediate {
    Required,
    /// 0 where every layer has experts.
    Default(usize),
    Read(fn(&JsonFile) -> Result<usize, LoadError>),
}

/// Which attention projections add a bias.
#[derive(Clone, Copy)]
pub(crate) enum AttentionBias {
    Never,
    /// All of them, if `attention_bias` says so.
    Key {
        absent: bool,
    },
    /// Those to queries, keys and values.
    Qkv,
}

/// Sliding windows in `config.json`.
pub(crate) struct Windows {
    pub slides: Slides,
    /// `sliding_window` where the key is absent, in tokens.
    pub absent: Option<usize>,
    /// `null` is refused.
    pub required: bool,
    pub layers: WindowLayers,
    /// The last layer has none, whatever the file says of it.
    pub last_is_full: bool,
}

impl Windows {
    pub const NONE: Self = Self {
        slides: Slides::Never,
        absent: None,
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

/// Whether a configured window counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Slides {
    Never,
    Always,
    /// If `use_sliding_window` says so.
    ByKey,
}

/// The layers with a window. All but `All` read `layer_types` first.
#[derive(Clone, Copy)]
pub(crate) enum WindowLayers {
    All,
    /// All but the last of each period.
    Period(usize),
    /// The same, of the length in `sliding_window_pattern`.
    PeriodKey(usize),
    /// From `max_window_layers` on.
    From(usize),
    /// Those without RoPE.
    Unrotated,
}

/// What sets a family's GGUF files apart.
pub(crate) struct GgufFamily {
    /// `general.architecture`; `None` where its files have another family's.
    pub name: Option<&'static str>,
    /// The family that a file of this name has, by its experts, if it is another one.
    pub by_experts: fn(Option<&ExpertsConfig>) -> Option<&'static Family>,
    /// The keys of numbers that it reads; others must not change anything.
    pub numbers: &'static [&'static str],
    /// Names within a layer that differ from the usual ones: ours, the file's.
    pub names: &'static [(&'static str, &'static str)],
    /// Other names of the file, where it does not have the usual one: the usual one, the other.
    pub other_names: &'static [(&'static str, &'static str)],
    /// The rows of query and key projections are pairs that are rotated together, also in layers without RoPE; ours
    /// keep the halves of a head apart.
    pub paired_rows: bool,
    pub windows: GgufWindows,
    pub experts: Option<GgufExperts>,
    /// The layers with states, by the number of layers.
    pub states: fn(&Keys<'_>, usize) -> Result<Option<RecurrentConfig>, LoadError>,
    /// YaRN's `mscale` and `mscale_all_dim`, of `yarn_log_multiplier`.
    pub yarn_weights: fn(f64) -> Option<(f64, f64)>,
    /// YaRN rounds the blend's ends to whole dimensions; no key says it.
    pub yarn_truncates: bool,
    /// `rope.scaling.finetuned` says whether positions rotate at all.
    pub says_whether_rotated: bool,
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
            yarn_weights: |_| None,
            yarn_truncates: true,
            says_whether_rotated: false,
        }
    }
}

/// Sliding windows of GGUF files.
#[derive(Clone, Copy)]
pub(crate) enum GgufWindows {
    /// No key says which layers have one.
    Refused,
    /// In every layer; zero where there is none. llama.cpp ignores them in these files.
    Everywhere,
    /// In the listed layers, or in all but the last of each period.
    Pattern {
        period: usize,
        /// The key is required, and not zero.
        required: bool,
        /// The window where no key says it.
        absent: Option<usize>,
    },
}

/// The experts of GGUF files.
pub(crate) struct GgufExperts {
    pub names: ExpertNames,
    /// The keys of numbers that it routes with; others must not change anything.
    pub numbers: &'static [&'static str],
    /// The default of `expert_weights_norm`.
    pub renormalises: bool,
    /// Makes the router's formula from a softmax over all experts.
    pub routing: fn(&Keys<'_>, Routing) -> Result<Routing, LoadError>,
    /// `expert_shared_count` times an expert's width is that of the shared one.
    pub has_shared: bool,
    /// Every router has corrections.
    pub corrected: bool,
    pub bias: bool,
    pub gate: Gate,
    pub scaled: bool,
}

impl GgufExperts {
    /// Experts of Qwen3-MoE.
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
