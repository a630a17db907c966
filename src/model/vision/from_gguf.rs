//! Reads a tower's configuration from the metadata of a GGUF file, as written by llama.cpp (mmproj).

use super::from_json::{EPSILONS, IMAGES, MERGES, PATCHES};
use super::{TowerConfig, TowerFamily};
use crate::config::limits::{HEADS, HIDDEN, INTERMEDIATE, LAYERS};
use crate::gguf::Gguf;
use crate::gguf::keys::Keys;
use souffleur_base::error::LoadError;
use souffleur_kernels::vision::Activation;

pub(super) const ARCHITECTURE: &str = "clip";
const MERGE: &str = "vision.spatial_merge_size";
const SCALE: &str = "vision.projector.scale_factor";
const DEEPSTACK: &str = "vision.is_deepstack_layers";

impl TowerFamily {
    /// The projector's name in files.
    pub fn projector_type(self) -> &'static str {
        let mut families = FAMILIES.iter();
        let found = families.find(|(_, family)| *family == self);
        found.map_or("", |(name, _)| *name)
    }
}

/// The projectors' names in files.
const FAMILIES: [(&str, TowerFamily); 5] = [
    ("qwen3vl_merger", TowerFamily::Qwen),
    ("gemma3", TowerFamily::Gemma3),
    ("gemma4v", TowerFamily::Gemma4),
    ("pixtral", TowerFamily::Pixtral),
    ("lfm2", TowerFamily::Lfm2),
];

pub(super) fn read(gguf: &Gguf) -> Result<TowerConfig, LoadError> {
    let metadata = gguf.metadata();
    let architecture = metadata.text("general.architecture")?.unwrap_or_default();
    if architecture != ARCHITECTURE {
        let reason = format!(
            "is {architecture:?}, expected {ARCHITECTURE:?}: this file has no vision tower, use the mmproj file of the \
             model"
        );
        return Err(metadata.error("general.architecture", reason));
    }
    let keys = Keys {
        metadata,
        architecture: ARCHITECTURE,
    };
    File { gguf, keys }.read()
}

struct File<'a> {
    gguf: &'a Gguf,
    keys: Keys<'a>,
}

impl File<'_> {
    fn read(&self) -> Result<TowerConfig, LoadError> {
        let base = self.base(self.family()?)?;
        match base.family {
            TowerFamily::Qwen => self.qwen(base),
            TowerFamily::Gemma3 => self.gemma3(base),
            TowerFamily::Gemma4 => self.gemma4(base),
            TowerFamily::Pixtral => self.pixtral(base),
            TowerFamily::Lfm2 => self.lfm2(base),
        }
    }

    fn family(&self) -> Result<TowerFamily, LoadError> {
        const OF_VISION: &str = "vision.projector_type";
        // Files with an audio encoder too have a type for each.
        let (key, name) = match self.keys.text(OF_VISION)? {
            Some(name) => (OF_VISION, name),
            None => {
                const KEY: &str = "projector_type";
                (KEY, self.keys.text(KEY)?.unwrap_or_default())
            }
        };
        let found = FAMILIES.iter().find(|(known, _)| *known == name);
        found.map(|(_, family)| *family).ok_or_else(|| {
            let supported = FAMILIES.map(|(name, _)| name).join(", ");
            let reason = format!("is {name:?}, supported: {supported}");
            self.keys.error(key, reason)
        })
    }

    fn base(&self, family: TowerFamily) -> Result<TowerConfig, LoadError> {
        const N_HEADS: &str = "vision.attention.head_count";
        let hidden = self.keys.required("vision.embedding_length", HIDDEN)?;
        let n_heads = self.keys.required(N_HEADS, HEADS)?;
        let head_dim = hidden / n_heads;
        let rotates = matches!(
            family,
            TowerFamily::Qwen | TowerFamily::Gemma4 | TowerFamily::Pixtral
        );
        if !hidden.is_multiple_of(n_heads) || rotates && !head_dim.is_multiple_of(4) {
            let reason = format!(
                "is {n_heads}, which does not divide {hidden}, the width, into heads of a multiple of 4 elements"
            );
            return Err(self.keys.error(N_HEADS, reason));
        }
        let eps = self
            .keys
            .number("vision.attention.layer_norm_epsilon", EPSILONS)?;
        let text_width = self.keys.required("vision.projection_dim", HIDDEN)?;
        Ok(TowerConfig {
            family,
            hidden,
            intermediate: self
                .keys
                .required("vision.feed_forward_length", INTERMEDIATE)?,
            n_layers: self.keys.required("vision.block_count", LAYERS)?,
            n_heads,
            head_dim,
            patch: self.keys.required("vision.patch_size", PATCHES)?,
            frames: 1,
            merge: 1,
            positions: 0,
            eps: eps.unwrap_or(1e-6) as f32,
            activation: Activation::GeluTanh,
            theta: 10_000.0,
            projector_width: text_width,
            projector_eps: eps.unwrap_or(1e-6) as f32,
            projector_activation: Activation::GeluErf,
            projector_bias: false,
            projector_norm: true,
            clips: false,
            standardizes: false,
            text_width,
            deepstack: Vec::new(),
        })
    }

    fn has(&self, tensor: &str) -> bool {
        self.gguf.tensor(tensor).is_some()
    }

    /// A size of a tensor's shape, outermost dimension first.
    fn size_of(&self, tensor: &str, dimension: usize) -> Option<usize> {
        let shape = &self.gguf.tensor(tensor)?.info.shape;
        shape.get(dimension).copied()
    }

    /// The side of the square of learned positions; 0, which no tensor has, if they are no square.
    fn side(&self) -> usize {
        let positions = self.size_of("v.position_embd.weight", 0).unwrap_or(0);
        let side = positions.isqrt();
        if side * side == positions { side } else { 0 }
    }

    fn qwen(&self, base: TowerConfig) -> Result<TowerConfig, LoadError> {
        // There may be fewer flags than layers.
        let key = self.keys.key(DEEPSTACK);
        let flags = self.keys.metadata.flags(&key)?.unwrap_or_default();
        let flagged = flags.iter().zip(0..).filter(|(flag, _)| **flag);
        let deepstack: Vec<usize> = flagged.map(|(_, layer)| layer).collect();
        if let Some(last) = deepstack.last().filter(|last| **last >= base.n_layers) {
            let reason = format!(
                "names layer {last}, expected layers below {}, the tower's depth",
                base.n_layers
            );
            return Err(self.keys.error(DEEPSTACK, reason));
        }
        let merge = self.keys.size(MERGE, MERGES)?.unwrap_or(2);
        Ok(TowerConfig {
            frames: 2,
            merge,
            positions: self.side(),
            projector_width: base.hidden * merge * merge,
            projector_bias: true,
            deepstack,
            ..base
        })
    }

    fn gemma3(&self, base: TowerConfig) -> Result<TowerConfig, LoadError> {
        const SIZE: &str = "vision.image_size";
        let side = self.keys.required(SIZE, IMAGES)? / base.patch;
        let merge = self.keys.size(SCALE, MERGES)?.unwrap_or(4);
        if side == 0 || !side.is_multiple_of(merge) {
            let reason = format!("makes {side} patches a side, expected a multiple of {merge}");
            return Err(self.keys.error(SIZE, reason));
        }
        Ok(TowerConfig {
            merge,
            positions: side,
            ..base
        })
    }

    fn gemma4(&self, base: TowerConfig) -> Result<TowerConfig, LoadError> {
        let positions = self.size_of("v.position_embd.weight", 1);
        Ok(TowerConfig {
            merge: self.keys.size(SCALE, MERGES)?.unwrap_or(3),
            positions: positions.unwrap_or(0),
            theta: 100.0,
            clips: self.has("v.blk.0.attn_q.input_min"),
            standardizes: self.has("v.std_bias"),
            ..base
        })
    }

    fn pixtral(&self, base: TowerConfig) -> Result<TowerConfig, LoadError> {
        let is_silu = self.keys.metadata.flag(&self.keys.key("use_silu"))?;
        // Pixtral-12B has neither, and a vector for each patch.
        let joins = self.has("mm.input_norm.weight") || self.has("mm.patch_merger.weight");
        let merge = self.keys.size(MERGE, MERGES)?.unwrap_or(2);
        Ok(TowerConfig {
            merge: if joins { merge } else { 1 },
            projector_norm: joins,
            activation: match is_silu {
                Some(true) => Activation::Silu,
                Some(false) | None => Activation::GeluErf,
            },
            projector_bias: self.has("mm.1.bias"),
            ..base
        })
    }

    fn lfm2(&self, base: TowerConfig) -> Result<TowerConfig, LoadError> {
        let width = self.size_of("mm.1.weight", 0);
        Ok(TowerConfig {
            merge: self.keys.size(SCALE, MERGES)?.unwrap_or(2),
            positions: self.side(),
            projector_width: width.unwrap_or(base.projector_width),
            // The default of torch, which no key changes.
            projector_eps: 1e-5,
            projector_bias: self.has("mm.1.bias"),
            projector_norm: self.has("mm.input_norm.weight"),
            ..base
        })
    }
}
