//! The files of a tower: every tensor is found and checked before anything is loaded.

use std::path::Path;

use rustc_hash::FxHashMap;

use super::names::Names;
use super::parts::{self, Part, Scope, Source};
use super::{TowerConfig, TowerFamily};
use crate::gguf::Gguf;
use crate::weights::{Entry, TensorSpec, Weights};
use souffleur_base::error::LoadError;
use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_kernels::tensor_view::{RowOrder, Stored, TensorView};

/// A tower whose files are open and checked: every tensor is present in the right shape.
pub struct TowerCheckpoint {
    pub config: TowerConfig,
    /// The element type of the file's matrices.
    pub dtype: Dtype,
    pub(super) source: Source,
    weights: Weights,
    specs: FxHashMap<Part, TensorSpec>,
}

impl TowerCheckpoint {
    /// Opens the tower in a model's folder. `None` if the configuration has no tower, or the folder has only the text
    /// model's weights.
    ///
    /// # Errors
    /// As [`TowerConfig::read`]; [`LoadError::MissingTensor`], [`LoadError::WrongShape`].
    pub fn open_folder(dir: &Path) -> Result<Option<Self>, LoadError> {
        let Some(config) = TowerConfig::read(dir)? else {
            return Ok(None);
        };
        let weights = Weights::open(dir)?;
        let names = Names::of(config.family, Source::Safetensors);
        let has_tower = |name: &str| names.towers.iter().any(|prefix| name.starts_with(prefix));
        if !weights.names().any(has_tower) {
            return Ok(None);
        }
        let patch = Part::new(Scope::Tower, "patch", "weight");
        let stem = parts::projector_stems(&config)[0];
        let linear = Part::new(Scope::Projector, stem, "weight");
        let tower = found(&weights, names.towers, |prefix| {
            names.name(patch, prefix, "")
        });
        let projector = found(&weights, names.projectors, |prefix| {
            names.name(linear, "", prefix)
        });
        let dtype = weights.dtype(&names.name(patch, tower, projector));
        let prefixes = (tower, projector);
        Self::checked(config, dtype, (Source::Safetensors, prefixes), weights).map(Some)
    }

    /// Opens a GGUF file with a tower and its projector (mmproj).
    ///
    /// # Errors
    /// As [`TowerConfig::from_gguf`]; [`LoadError::MissingTensor`], [`LoadError::WrongShape`]; [`LoadError::Format`]
    /// for an element type without kernels.
    pub fn open_mmproj(file: &Path) -> Result<Self, LoadError> {
        let gguf = Gguf::open(file)?;
        let config = TowerConfig::from_gguf(&gguf)?;
        let dtype = Some(gguf.dtype());
        let weights = weights_of(gguf);
        Self::checked(config, dtype, (Source::Gguf, ("v.", "mm.")), weights)
    }

    fn checked(
        config: TowerConfig,
        dtype: Option<Dtype>,
        (source, (tower, projector)): (Source, (&str, &str)),
        weights: Weights,
    ) -> Result<Self, LoadError> {
        let names = Names::of(config.family, source);
        let mut specs = FxHashMap::default();
        for (part, shape) in parts::parts(&config, source) {
            let spec = TensorSpec::new(names.name(part, tower, projector), &shape);
            weights.tensor(&spec.name, &spec.shape)?;
            specs.insert(part, spec);
        }
        Ok(Self {
            config,
            dtype: dtype.unwrap_or(Dtype::F32),
            source,
            weights,
            specs,
        })
    }

    /// Bytes of the loaded weights: matrices take `dtype` or are quantised; norms, biases and positions take f32.
    /// Quantised matrices of a GGUF file are counted in `dtype`.
    pub fn weights_bytes(&self, dtype: Dtype, quantization: Option<Quantization>) -> u64 {
        self.config.weights_bytes(dtype, quantization)
    }

    /// # Panics
    /// If the tower has no such tensor.
    pub(super) fn view(&self, part: Part) -> Result<TensorView<'_>, LoadError> {
        let spec = self.spec(part);
        let view = self.weights.tensor(&spec.name, &spec.shape)?;
        Ok(TensorView {
            order: self.order(part),
            ..view
        })
    }

    /// Releases the pages of a tensor that was loaded.
    pub(super) fn release(&self, part: Part) {
        self.weights.release(&self.spec(part).name);
    }

    fn spec(&self, part: Part) -> &TensorSpec {
        let spec = self.specs.get(&part);
        spec.unwrap_or_else(|| panic!("the list of tensors must have {part:?}"))
    }

    /// In llama.cpp's files, Pixtral's heads have the two elements of each RoPE pair adjacent.
    fn order(&self, part: Part) -> RowOrder {
        let head_dim = self.config.head_dim;
        match (self.source, self.config.family, part.stem) {
            (Source::Gguf, TowerFamily::Pixtral, "q" | "k") => RowOrder::Pairs {
                head_dim,
                rotary_dim: head_dim,
            },
            _ => RowOrder::AsNumbered,
        }
    }
}

/// The first prefix with which the weights contain the name; the first prefix if none does.
fn found<'a>(weights: &Weights, prefixes: &[&'a str], name: impl Fn(&str) -> String) -> &'a str {
    let mut all = prefixes.iter();
    let found = all.find(|prefix| weights.stored(&name(prefix)).is_some());
    found.unwrap_or(&prefixes[0])
}

/// All tensors of a GGUF file, under their names there.
fn weights_of(gguf: Gguf) -> Weights {
    let names: Vec<String> = gguf.tensors().map(|info| info.name.clone()).collect();
    let tensors = names.iter().filter_map(|name| gguf.tensor(name));
    let entries = tensors.map(|tensor| {
        let info = tensor.info;
        let entry = Entry {
            file: tensor.file_index,
            stored: stored(info.element.id).ok_or_else(|| info.element.name.to_owned()),
            shape: info.shape.clone(),
            range: info.bytes.clone(),
            order: RowOrder::AsNumbered,
        };
        (info.name.clone(), entry)
    });
    let entries: FxHashMap<String, Entry> = entries.collect();
    let types: Vec<(&str, usize)> = gguf
        .tensors()
        .map(|info| (info.element.name, info.bytes.len()))
        .collect();
    let searched = gguf.path().to_owned();
    Weights::new(&searched, gguf.into_files(), entries, types)
}

/// `None` for types without kernels.
fn stored(id: u32) -> Option<Stored> {
    match id {
        0 => Some(Stored::Plain(Dtype::F32)),
        1 => Some(Stored::Plain(Dtype::F16)),
        30 => Some(Stored::Plain(Dtype::BF16)),
        _ => BlockType::from_gguf_id(id).map(Stored::Blocks),
    }
}
