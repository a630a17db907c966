//! Reads a tower's configuration from `config.json`. Keys and defaults are those of transformers 5.

use std::ops::RangeInclusive;
use std::path::Path;

use super::{TowerConfig, TowerFamily};
use crate::config::deepstack::{INDEXES, USUAL_INDEXES};
use crate::config::limits::{HEADS, HIDDEN, INTERMEDIATE, LAYERS};
use crate::json_file::JsonFile;
use souffleur_base::error::LoadError;
use souffleur_kernels::vision::Activation;

const MAX_FILE_BYTES: u64 = 4 << 20;

pub(super) const PATCHES: RangeInclusive<usize> = 1..=256;
pub(super) const MERGES: RangeInclusive<usize> = 1..=16;
pub(super) const IMAGES: RangeInclusive<usize> = 1..=1 << 14;
/// Learned positions of all places, or of an axis.
pub(super) const POSITIONS: RangeInclusive<usize> = 1..=1 << 16;
pub(super) const EPSILONS: RangeInclusive<f64> = 0.0..=1.0;
pub(super) const THETAS: RangeInclusive<f64> = 1.0..=1e9;

const SUPPORTED: &str =
    "qwen3_5, qwen3_5_moe, qwen3_vl, gemma3, gemma4, mistral3, llava and lfm2_vl";

pub(super) fn read(dir: &Path) -> Result<Option<TowerConfig>, LoadError> {
    let root = JsonFile::read(&dir.join("config.json"), MAX_FILE_BYTES)?;
    let Some(vision) = root.object("vision_config")? else {
        return Ok(None);
    };
    let kind = root.text("model_type")?.unwrap_or_default();
    let files = Files {
        root: &root,
        vision: &vision,
    };
    let config = match kind {
        "qwen3_5" | "qwen3_5_moe" => files.qwen(false),
        "qwen3_vl" => files.qwen(true),
        "gemma3" => files.gemma3(),
        "gemma4" => files.gemma4(),
        "mistral3" => files.pixtral(),
        "llava" => files.llava(),
        // The older name has a hyphen.
        "lfm2_vl" | "lfm2-vl" => files.lfm2(),
        other => {
            let reason = format!("is {other:?}, towers are supported of {SUPPORTED}");
            return Err(root.error("model_type", reason));
        }
    }?;
    Ok(Some(config))
}

/// The further vectors of a position are in the order of the layers.
fn check_deepstack(layers: &[usize], n_layers: usize) -> Result<(), String> {
    let is_ascending = layers.is_sorted_by(|before, after| before < after);
    if is_ascending && layers.last().is_none_or(|last| *last < n_layers) {
        return Ok(());
    }
    Err(format!(
        "is {layers:?}, expected ascending numbers of layers below {n_layers}, the tower's depth"
    ))
}

struct Files<'a> {
    root: &'a JsonFile,
    vision: &'a JsonFile,
}

/// Defaults of sizes: width, MLP width, layers, heads, side of a patch.
type Defaults = [usize; 5];

impl Files<'_> {
    fn size(
        &self,
        key: &str,
        limits: RangeInclusive<usize>,
        default: usize,
    ) -> Result<usize, LoadError> {
        Ok(self.vision.size(key, limits)?.unwrap_or(default))
    }

    fn number(
        &self,
        key: &str,
        limits: RangeInclusive<f64>,
        default: f64,
    ) -> Result<f32, LoadError> {
        Ok(self.vision.number(key, limits)?.unwrap_or(default) as f32)
    }

    /// The sizes that all towers have. The projector's width is that of the text model.
    fn base(
        &self,
        family: TowerFamily,
        [hidden, intermediate, layers, heads, patch]: Defaults,
    ) -> Result<TowerConfig, LoadError> {
        let (layers_key, heads_key, channels_key) = match family {
            TowerFamily::Qwen => ("depth", "num_heads", "in_channels"),
            _ => ("num_hidden_layers", "num_attention_heads", "num_channels"),
        };
        self.size(channels_key, 3..=3, 3)?;
        let hidden = self.size("hidden_size", HIDDEN, hidden)?;
        let n_heads = self.size(heads_key, HEADS, heads)?;
        if !hidden.is_multiple_of(n_heads) {
            let reason = format!("is {n_heads} and does not divide hidden_size, {hidden}");
            return Err(self.vision.error(heads_key, reason));
        }
        let text_width = self.text_width(family)?;
        Ok(TowerConfig {
            family,
            hidden,
            intermediate: self.size("intermediate_size", INTERMEDIATE, intermediate)?,
            n_layers: self.size(layers_key, LAYERS, layers)?,
            n_heads,
            head_dim: hidden / n_heads,
            patch: self.size("patch_size", PATCHES, patch)?,
            frames: 1,
            merge: 1,
            positions: 0,
            eps: 1e-6,
            activation: Activation::GeluTanh,
            theta: self.theta(family)?,
            projector_width: text_width,
            projector_eps: 1e-6,
            projector_activation: Activation::GeluErf,
            projector_bias: false,
            projector_norm: true,
            clips: false,
            standardizes: false,
            text_width,
            deepstack: Vec::new(),
        })
    }

    fn text_width(&self, family: TowerFamily) -> Result<usize, LoadError> {
        if family == TowerFamily::Qwen {
            return self.size("out_hidden_size", HIDDEN, 3584);
        }
        let text = self.root.object("text_config")?;
        let text = text.ok_or_else(|| self.root.error("text_config", "is missing"))?;
        match (text.size("hidden_size", HIDDEN)?, family) {
            (Some(width), _) => Ok(width),
            (None, TowerFamily::Gemma3) => Ok(2304),
            (None, _) => Err(text.error("hidden_size", "is missing")),
        }
    }

    fn theta(&self, family: TowerFamily) -> Result<f32, LoadError> {
        let usual = match family {
            TowerFamily::Gemma4 => 100.0,
            _ => 10_000.0,
        };
        let nested = self.vision.object("rope_parameters")?;
        let nested = match &nested {
            Some(rope) => rope.number("rope_theta", THETAS)?,
            None => None,
        };
        let theta = match nested {
            Some(theta) => theta,
            None => self.vision.number("rope_theta", THETAS)?.unwrap_or(usual),
        };
        Ok(theta as f32)
    }

    fn activation(json: &JsonFile, key: &str, usual: Activation) -> Result<Activation, LoadError> {
        match json.text(key)? {
            None => Ok(usual),
            Some("gelu_pytorch_tanh") => Ok(Activation::GeluTanh),
            Some("gelu") => Ok(Activation::GeluErf),
            Some("silu") => Ok(Activation::Silu),
            Some(other) => {
                let reason = format!("is {other:?}, supported: gelu_pytorch_tanh, gelu and silu");
                Err(json.error(key, reason))
            }
        }
    }

    /// The side of a square of this many positions.
    fn side(&self, key: &str, default: usize) -> Result<usize, LoadError> {
        let positions = self.size(key, POSITIONS, default)?;
        let side = positions.isqrt();
        if side * side == positions {
            Ok(side)
        } else {
            let reason = format!("is {positions}, expected the square of a whole number");
            Err(self.vision.error(key, reason))
        }
    }

    /// Only the output of the last layer is supported.
    fn check_feature_layer(&self) -> Result<(), LoadError> {
        const KEY: &str = "vision_feature_layer";
        match self.root.value(KEY) {
            Some(layer) if layer.as_i64() != Some(-1) => {
                Err(self.root.expected(KEY, layer, "-1, the last layer"))
            }
            Some(_) | None => Ok(()),
        }
    }

    fn qwen(&self, is_qwen3_vl: bool) -> Result<TowerConfig, LoadError> {
        let base = self.base(TowerFamily::Qwen, [1152, 4304, 27, 16, 16])?;
        let named = self.vision.numbers(INDEXES, "layers")?;
        let deepstack = match named {
            None if is_qwen3_vl => USUAL_INDEXES.to_vec(),
            named => named.unwrap_or_default(),
        };
        if !is_qwen3_vl && !deepstack.is_empty() {
            let reason = "names layers whose vectors go to layers of the text model, which is not supported: use a \
                          model without deepstack";
            return Err(self.vision.error(INDEXES, reason));
        }
        check_deepstack(&deepstack, base.n_layers)
            .map_err(|reason| self.vision.error(INDEXES, reason))?;
        let merge = self.size("spatial_merge_size", MERGES, 2)?;
        let config = TowerConfig {
            frames: self.size("temporal_patch_size", 1..=4, 2)?,
            merge,
            positions: self.side("num_position_embeddings", 2304)?,
            activation: Self::activation(self.vision, "hidden_act", Activation::GeluTanh)?,
            projector_width: base.hidden * merge * merge,
            projector_bias: true,
            deepstack,
            ..base
        };
        self.rotated(config, "num_heads")
    }

    fn gemma3(&self) -> Result<TowerConfig, LoadError> {
        const TOKENS: &str = "mm_tokens_per_image";
        let base = self.base(TowerFamily::Gemma3, [768, 3072, 12, 12, 16])?;
        let side = self.size("image_size", IMAGES, 224)? / base.patch;
        let tokens = self.root.size(TOKENS, POSITIONS)?.unwrap_or(256);
        let across = tokens.isqrt();
        if across * across != tokens || side == 0 || !side.is_multiple_of(across) {
            let reason = format!(
                "is {tokens}, expected the square of a divisor of {side}, the patches of a side of an image"
            );
            return Err(self.root.error(TOKENS, reason));
        }
        let eps = self.number("layer_norm_eps", EPSILONS, 1e-6)?;
        Ok(TowerConfig {
            merge: side / across,
            positions: side,
            eps,
            projector_eps: eps,
            activation: Self::activation(self.vision, "hidden_act", Activation::GeluTanh)?,
            ..base
        })
    }

    fn gemma4(&self) -> Result<TowerConfig, LoadError> {
        let base = self.base(TowerFamily::Gemma4, [768, 3072, 16, 12, 16])?;
        self.size(
            "num_key_value_heads",
            base.n_heads..=base.n_heads,
            base.n_heads,
        )?;
        if self.vision.flag("attention_bias")?.unwrap_or(false) {
            return Err(self
                .vision
                .error("attention_bias", "is true, supported: false"));
        }
        let eps = self.number("rms_norm_eps", EPSILONS, 1e-6)?;
        let config = TowerConfig {
            head_dim: self.size("head_dim", 4..=1 << 12, 64)?,
            merge: self.size("pooling_kernel_size", MERGES, 3)?,
            positions: self.size("position_embedding_size", POSITIONS, 10_240)?,
            eps,
            projector_eps: eps,
            activation: Self::activation(self.vision, "hidden_activation", Activation::GeluTanh)?,
            clips: self.vision.flag("use_clipped_linears")?.unwrap_or(false),
            standardizes: self.vision.flag("standardize")?.unwrap_or(false),
            ..base
        };
        self.rotated(config, "head_dim")
    }

    /// `usual` is the tower of classes without this key.
    fn check_pixtral(&self, usual: &str) -> Result<(), LoadError> {
        const KIND: &str = "model_type";
        match self.vision.text(KIND)?.unwrap_or(usual) {
            "pixtral" => Ok(()),
            kind => {
                let reason = format!("is {kind:?}, supported: \"pixtral\"");
                Err(self.vision.error(KIND, reason))
            }
        }
    }

    /// Pixtral-12B: the tower of Mistral 3, and LLaVA's projector, which neither normalises nor joins patches.
    fn llava(&self) -> Result<TowerConfig, LoadError> {
        const STRATEGY: &str = "vision_feature_select_strategy";
        const LAYER: &str = "vision_feature_layer";
        self.check_pixtral("clip_vision_model")?;
        // The defaults of both keys are for CLIP.
        if self.root.text(STRATEGY)? != Some("full") {
            return Err(self
                .root
                .error(STRATEGY, "must be \"full\": Pixtral has no class token"));
        }
        if self.root.value(LAYER).is_none() {
            return Err(self
                .root
                .error(LAYER, "is missing, expected -1, the last layer"));
        }
        let bias = self.root.flag("multimodal_projector_bias")?;
        Ok(TowerConfig {
            merge: 1,
            projector_bias: bias.unwrap_or(true),
            projector_norm: false,
            ..self.pixtral()?
        })
    }

    fn pixtral(&self) -> Result<TowerConfig, LoadError> {
        self.check_pixtral("pixtral")?;
        self.check_feature_layer()?;
        let base = self.base(TowerFamily::Pixtral, [1024, 4096, 24, 16, 16])?;
        let text = self.root.object("text_config")?;
        let text_eps = match &text {
            Some(text) => text.number("rms_norm_eps", EPSILONS)?,
            None => None,
        };
        let usual = Activation::GeluErf;
        let bias = self.root.flag("multimodal_projector_bias")?;
        let config = TowerConfig {
            merge: self.root.size("spatial_merge_size", MERGES)?.unwrap_or(2),
            eps: 1e-5,
            activation: Self::activation(self.vision, "hidden_act", usual)?,
            projector_eps: text_eps.unwrap_or(1e-5) as f32,
            projector_activation: Self::activation(self.root, "projector_hidden_act", usual)?,
            projector_bias: bias.unwrap_or(false),
            ..base
        };
        self.rotated(config, "num_attention_heads")
    }

    fn lfm2(&self) -> Result<TowerConfig, LoadError> {
        self.check_feature_layer()?;
        let base = self.base(TowerFamily::Lfm2, [768, 3072, 12, 12, 16])?;
        let width = self.root.size("projector_hidden_size", INTERMEDIATE)?;
        let (bias, norm) = (
            self.root.flag("projector_bias")?,
            self.root.flag("projector_use_layernorm")?,
        );
        let usual = Activation::GeluErf;
        Ok(TowerConfig {
            merge: self.root.size("downsample_factor", MERGES)?.unwrap_or(2),
            positions: self.side("num_patches", 256)?,
            eps: self.number("layer_norm_eps", EPSILONS, 1e-6)?,
            activation: Self::activation(self.vision, "hidden_act", Activation::GeluTanh)?,
            projector_width: width.unwrap_or(2560),
            // The default of torch, which no key changes.
            projector_eps: 1e-5,
            projector_activation: Self::activation(self.root, "projector_hidden_act", usual)?,
            projector_bias: bias.unwrap_or(true),
            projector_norm: norm.unwrap_or(true),
            ..base
        })
    }

    /// Checks that a head is pairs for two axes; the error names `key`.
    fn rotated(&self, config: TowerConfig, key: &str) -> Result<TowerConfig, LoadError> {
        if config.head_dim.is_multiple_of(4) {
            return Ok(config);
        }
        let reason = format!(
            "makes heads of {} elements, expected a multiple of 4: rows and columns rotate pairs",
            config.head_dim
        );
        Err(self.vision.error(key, reason))
    }
}
