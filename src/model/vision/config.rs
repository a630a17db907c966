//! Sizes and options of a vision tower and its projector.

use std::path::Path;

use super::error::TowerError;
use super::{TowerGrid, from_gguf, from_json};
use crate::gguf::Gguf;
use crate::json_file::load_error;
use souffleur_base::error::LoadError;
use souffleur_kernels::vision::Activation;

/// The most patches of an image.
pub const MAX_PATCHES: usize = 1 << 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TowerFamily {
    /// Qwen3.5 and Qwen3-VL.
    Qwen,
    /// SigLIP with pooling.
    Gemma3,
    Gemma4,
    /// The tower of Mistral 3 and Ministral 3.
    Pixtral,
    /// SigLIP 2.
    Lfm2,
}

/// Validated: sizes are positive and their products fit `usize`.
#[derive(Clone, Debug, PartialEq)]
pub struct TowerConfig {
    pub family: TowerFamily,
    /// Hidden size: the width of a patch's vector between layers.
    pub hidden: usize,
    pub intermediate: usize,
    pub n_layers: usize,
    pub n_heads: usize,
    /// Elements of a head; a multiple of four if the tower uses RoPE.
    pub head_dim: usize,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Frames of a patch, which are equal for images.
    pub frames: usize,
    /// Side of the block of patches that becomes one vector.
    pub merge: usize,
    /// Side of the square of learned position embeddings; in Gemma 4, the number of embeddings of each axis; 0 if the
    /// tower has none.
    pub positions: usize,
    /// Epsilon of the norms in layers and after the last one.
    pub eps: f32,
    /// Activation of the MLPs.
    pub activation: Activation,
    /// Base of the rotary frequencies.
    pub theta: f32,
    /// Width between the projector's linear layers.
    pub projector_width: usize,
    /// Epsilon of the projector's norm.
    pub projector_eps: f32,
    pub projector_activation: Activation,
    pub projector_bias: bool,
    /// Whether the projector has a norm, and Pixtral's a product of the patches of a block. Only those of LFM2-VL and
    /// Pixtral-12B may lack it.
    pub projector_norm: bool,
    /// Whether inputs and outputs of the layers' matrices are clamped.
    pub clips: bool,
    /// Whether pooled patches are standardised, channel by channel.
    pub standardizes: bool,
    /// Width of the vectors: the text model's.
    pub text_width: usize,
    /// The layers, ascending, whose outputs become further vectors of each position (DeepStack).
    pub deepstack: Vec<usize>,
}

impl TowerConfig {
    /// Reads `vision_config` of a folder's `config.json`; `None` if the model has none.
    ///
    /// # Errors
    /// [`LoadError::Io`], [`LoadError::Format`] naming key, value and limit, also for towers that are not supported.
    pub fn read(dir: &Path) -> Result<Option<Self>, LoadError> {
        from_json::read(dir)
    }

    /// Reads the metadata of a GGUF file with a tower and its projector (mmproj).
    ///
    /// # Errors
    /// [`LoadError::Format`] naming key, value and limit, also for towers that are not supported.
    pub fn from_gguf(gguf: &Gguf) -> Result<Self, LoadError> {
        from_gguf::read(gguf)
    }

    /// The values of a patch.
    pub fn patch_dim(&self) -> usize {
        3 * self.frames * self.patch * self.patch
    }

    /// The values of a position: a vector in the place of the embedding, and those of the layers in `deepstack`.
    pub fn out_width(&self) -> usize {
        self.text_width * (1 + self.deepstack.len())
    }

    /// The vectors of an image.
    ///
    /// # Errors
    /// If the tower cannot encode an image of this size.
    pub fn n_vectors(&self, grid: TowerGrid) -> Result<usize, TowerError> {
        let TowerGrid { h, w } = grid;
        let too_large = |limit: String| TowerError::TooLarge { h, w, limit };
        if h.checked_mul(w).is_none_or(|patches| patches > MAX_PATCHES) {
            return Err(too_large(format!("{MAX_PATCHES} patches")));
        }
        let merge = self.merge;
        if h == 0 || w == 0 || !h.is_multiple_of(merge) || !w.is_multiple_of(merge) {
            return Err(TowerError::NotBlocks { h, w, merge });
        }
        match self.family {
            TowerFamily::Gemma3 if h != self.positions || w != self.positions => {
                let side = self.positions;
                Err(TowerError::WrongGrid { h, w, side })
            }
            TowerFamily::Gemma4 if h.max(w) > self.positions => {
                Err(too_large(format!("{} patches a side", self.positions)))
            }
            _ => Ok(h / merge * (w / merge)),
        }
    }

    /// Checks that vectors are as wide as the text model's embeddings. `source` is the file that the error names.
    ///
    /// # Errors
    /// [`LoadError::Format`] naming both widths.
    pub fn check_width(&self, source: &Path, hidden_size: usize) -> Result<(), LoadError> {
        if self.text_width == hidden_size {
            return Ok(());
        }
        let reason = format!(
            "the vision tower makes vectors of width {}, the text model's embeddings have width {hidden_size}: use the \
             tower of this model",
            self.text_width
        );
        Err(load_error(source, reason))
    }

    /// Checks that each position has as many further vectors as the text model adds. `source` is the file that the
    /// error names.
    ///
    /// # Errors
    /// [`LoadError::Format`] naming both numbers.
    pub fn check_deepstack(&self, source: &Path, n_sets: usize) -> Result<(), LoadError> {
        let n_made = self.deepstack.len();
        if n_made == n_sets {
            return Ok(());
        }
        let reason = format!(
            "the vision tower makes vectors for the outputs of {n_made} layers (deepstack), the text model takes them for \
             {n_sets}: use the tower of this model"
        );
        Err(load_error(source, reason))
    }

    /// The configuration as text: two towers with the same weights and different texts make different vectors.
    pub fn fingerprint(&self) -> String {
        format!("{self:?}")
    }

    /// Whether norms are LayerNorms and all linear layers have biases; else they are RMSNorms, without biases.
    pub(super) fn is_biased(&self) -> bool {
        match self.family {
            TowerFamily::Qwen | TowerFamily::Gemma3 | TowerFamily::Lfm2 => true,
            TowerFamily::Gemma4 | TowerFamily::Pixtral => false,
        }
    }

    pub(super) fn is_gated(&self) -> bool {
        !self.is_biased()
    }

    pub(super) fn rotates(&self) -> bool {
        match self.family {
            TowerFamily::Qwen | TowerFamily::Gemma4 | TowerFamily::Pixtral => true,
            TowerFamily::Gemma3 | TowerFamily::Lfm2 => false,
        }
    }

    /// Width of the queries of a patch.
    pub(super) fn attended(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// The side of the square of patches of which images have whole multiples in the order of patches; 1 if patches
    /// are in rows.
    pub(super) fn block(&self) -> usize {
        match self.family {
            TowerFamily::Qwen => self.merge,
            _ => 1,
        }
    }

    /// Learned positions, in all tables.
    pub(super) fn position_rows(&self) -> usize {
        match self.family {
            TowerFamily::Gemma4 => 2 * self.positions,
            _ => self.positions * self.positions,
        }
    }

    /// The values of a block of patches.
    pub(super) fn joined(&self) -> usize {
        self.merge * self.merge * self.hidden
    }

    /// The shapes of the projector's linear layers, `[outputs, inputs]`, in order.
    pub(super) fn projector_shapes(&self) -> Vec<[usize; 2]> {
        let (hidden, joined, inner, out) = (
            self.hidden,
            self.joined(),
            self.projector_width,
            self.text_width,
        );
        match self.family {
            TowerFamily::Qwen | TowerFamily::Lfm2 => vec![[inner, joined], [out, inner]],
            TowerFamily::Gemma3 | TowerFamily::Gemma4 => vec![[out, hidden]],
            TowerFamily::Pixtral if self.projector_norm => {
                vec![[hidden, joined], [inner, hidden], [out, inner]]
            }
            TowerFamily::Pixtral => vec![[inner, hidden], [out, inner]],
        }
    }
}
