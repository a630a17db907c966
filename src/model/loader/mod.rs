//! Loads a model's weights from its files onto a device.
//!
//! [`Checkpoint::open`] checks everything that is possible without allocation; [`Loader`] then loads tensors into a
//! backend one by one and reports progress.
//!
//! Weights are packed at every start, in parallel, from mapped files, whose pages are released tensor by tensor. Packed
//! weights are not cached: 1.2 GB take 0.3 to 0.9 s on two cores.

pub mod heads;
mod read;
mod tying;
mod vectors;

use std::path::Path;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use self::read::Read;
use crate::config::ModelConfig;
use crate::config::tying::Tying;
use crate::gguf::{self, Gguf};
use crate::location::ModelLocation;
use crate::ranks::{self, Part};
use crate::weights::{Converted, MatrixSource, Scheme, Target, TensorSpec, TypeCount, Weights};
use souffleur_base::error::{ConfigError, LoadError};
use souffleur_base::kv_layout::{KvDtype, KvLayout};
use souffleur_kernels::blocks::BlockType;
use souffleur_kernels::dtype::{Dtype, MatrixRole, Quantization};
use souffleur_kernels::random::RandomTensor;
use souffleur_kernels::rope::Rope;
use souffleur_kernels::shard::{Rank, Shard};
use souffleur_kernels::tensor_view::{RowOrder, Stored, TensorView};
use souffleur_kernels::{Backend, Expert, Gate, Linear};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadFormat {
    /// The safetensors in the model's folder, or the GGUF file.
    #[default]
    Auto,
    /// Random weights in the configured shapes. A folder needs no file but `config.json`.
    Dummy,
}

/// Receives the bytes read so far and the total bytes.
pub type LoadProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// A model whose files are open and checked: every tensor is present in the right shape, or will be random.
pub struct Checkpoint {
    pub config: ModelConfig,
    pub dtype: Dtype,
    /// `None` for random weights.
    weights: Option<Weights>,
    /// The types of tensors whose files are absent, by name; empty for other checkpoints.
    types: FxHashMap<String, Stored>,
    /// The tensors of which a rank has only a part, by name; empty for a whole model.
    parts: FxHashMap<String, Part>,
}

impl Checkpoint {
    /// Opens a folder or a GGUF file. `dtype` is by default [`Gguf::dtype`] for a GGUF file, the configured type for
    /// random weights of a folder, and the embedding's type otherwise.
    ///
    /// # Errors
    /// Any [`LoadError`] except [`LoadError::Memory`].
    pub fn open(
        path: &Path,
        dtype: Option<Dtype>,
        load_format: LoadFormat,
    ) -> Result<Self, LoadError> {
        let (config, suggested, weights) = match ModelLocation::existing(path)? {
            ModelLocation::Folder(dir) => open_folder(&dir, load_format)?,
            ModelLocation::Gguf(file) => open_gguf(&file, load_format)?,
        };
        Ok(Self {
            config,
            dtype: dtype.or(suggested).unwrap_or(Dtype::F32),
            weights,
            types: FxHashMap::default(),
            parts: FxHashMap::default(),
        })
    }

    pub fn without_files(config: ModelConfig, dtype: Dtype) -> Self {
        Self {
            config,
            dtype,
            weights: None,
            types: FxHashMap::default(),
            parts: FxHashMap::default(),
        }
    }

    /// Declares the types in which a file would store the tensors. Only estimates of sizes use them: if the checkpoint
    /// is loaded, its weights are random and in `dtype`.
    pub fn with_types(self, stored: impl Fn(&ModelConfig, &TensorSpec) -> Stored) -> Self {
        let tensors = self.config.tensors().into_iter();
        let types = tensors.map(|spec| {
            let stored = stored(&self.config, &spec);
            (spec.name, stored)
        });
        Self {
            types: types.collect(),
            ..self
        }
    }

    /// Restricts the checkpoint to the part of the model that `rank` has: `config` describes this part, and only this
    /// part of each tensor is loaded. Inputs that share a scale, in the files or after `quantization`, stay on one
    /// rank.
    ///
    /// # Errors
    /// If the ranks cannot share heads, widths or blocks: names the key or tensor that does not divide.
    pub fn of_rank(
        mut self,
        rank: Rank,
        quantization: Option<Quantization>,
    ) -> Result<Self, ConfigError> {
        let config = ranks::of_rank(&self.config, rank)?;
        for spec in self.config.tensors() {
            let inputs_per_scale = self.inputs_per_scale(&spec.name, quantization);
            let cut = ranks::cut(&self.config, &spec);
            let part = Part::of(&spec, (&cut, rank), inputs_per_scale);
            let part = part.map_err(|reason| ConfigError {
                key: "tp_size".to_owned(),
                reason,
            })?;
            self.parts.extend(part.map(|part| (spec.name, part)));
        }
        self.config = config;
        Ok(self)
    }

    /// The number of consecutive inputs of a matrix that share a scale; 1 without scales.
    pub fn inputs_per_scale(&self, tensor: &str, quantization: Option<Quantization>) -> usize {
        let stored = match self.stored(tensor) {
            Some(Stored::Blocks(block)) => block.inputs(),
            Some(Stored::Plain(_)) | None => 1,
        };
        let role = self.config.role(tensor);
        match (role, quantization) {
            (MatrixRole::Router, _) | (_, None) => stored,
            (_, Some(quantization)) => stored.max(quantization.inputs(role)),
        }
    }

    /// The dimension along which ranks divide stacked matrices: outputs (some matrices may be whole), or inputs of all.
    fn shard(&self, matrices: &[(&str, usize)]) -> Shard {
        let parts = matrices
            .iter()
            .filter_map(|(name, _)| self.parts.get(*name));
        let shard = parts
            .map(|part| part.shard)
            .find(|shard| *shard != Shard::Whole);
        shard.unwrap_or_default()
    }

    /// The unsharded shape of a tensor whose part on this rank has `shape`.
    fn whole_shape<const N: usize>(&self, tensor: &str, shape: [usize; N]) -> [usize; N] {
        let whole = self.parts.get(tensor).map(|part| part.whole.as_slice());
        whole.map_or(shape, |whole| {
            whole
                .try_into()
                .expect("a layer must ask for as many dimensions as the tensor has")
        })
    }

    /// Element types of the weights, in descending order of bytes; empty for random weights.
    pub fn types(&self) -> &[TypeCount] {
        self.weights.as_ref().map_or(&[], Weights::types)
    }

    /// Quantisation scheme of safetensors; `None` for plain matrices and for GGUF blocks.
    pub fn scheme(&self) -> Option<Scheme> {
        self.weights.as_ref()?.scheme()
    }

    pub fn kv_layout(&self) -> KvLayout {
        self.kv_layout_in(None)
    }

    /// The KV layout in `dtype`, by default in the type of the weights.
    pub fn kv_layout_in(&self, dtype: Option<KvDtype>) -> KvLayout {
        self.config.kv_layout(dtype.unwrap_or(self.dtype.into()))
    }

    /// Bytes of the loaded weights: matrices in `dtype` or quantised, norms and biases in f32. `kept` returns the bytes
    /// of a matrix `[outputs, inputs]` that stays in blocks, or `None` if it is decoded.
    pub fn weights_bytes(
        &self,
        quantization: Option<Quantization>,
        kept: impl Fn(BlockType, [usize; 2]) -> Option<u64>,
    ) -> u64 {
        let tensors = self.config.tensors();
        let bytes = |spec| self.tensor_bytes(spec, quantization, &kept);
        tensors.iter().map(bytes).sum()
    }

    /// Bytes of one tensor, counted like [`Self::weights_bytes`].
    pub fn tensor_bytes(
        &self,
        spec: &TensorSpec,
        quantization: Option<Quantization>,
        kept: impl Fn(BlockType, [usize; 2]) -> Option<u64>,
    ) -> u64 {
        let in_blocks = |spec: &TensorSpec, shape: [usize; 2]| match self.stored(&spec.name)? {
            Stored::Blocks(block) => kept(block, shape),
            Stored::Plain(_) => None,
        };
        let stays = |spec: &TensorSpec, quantization: Quantization| {
            let is_in_blocks = matches!(self.stored(&spec.name), Some(Stored::Blocks(_)));
            is_in_blocks && quantization.keeps_blocks()
        };
        let part = self.parts.get(&spec.name).map(Part::shape);
        let shape = part.as_ref().unwrap_or(&spec.shape);
        let &[outputs, inputs] = shape.as_slice() else {
            return shape.iter().map(|&size| size as u64).product::<u64>() * 4;
        };
        let role = self.config.role(&spec.name);
        let quantization = quantization.filter(|quantization| !stays(spec, *quantization));
        let block_bytes = match (role, quantization) {
            (MatrixRole::Router, _) | (_, Some(Quantization::Int8)) => None,
            (_, Some(Quantization::Int4)) => {
                kept(Quantization::superblocks(role), [outputs, inputs])
            }
            (_, None) => in_blocks(spec, [outputs, inputs]),
        };
        let plain_bytes = || role.bytes(self.dtype, quantization, [outputs as u64, inputs as u64]);
        block_bytes.unwrap_or_else(plain_bytes)
    }

    pub fn stored(&self, name: &str) -> Option<Stored> {
        match &self.weights {
            Some(weights) => weights.stored(name),
            None => self.types.get(name).copied(),
        }
    }

    /// Bytes of all tensors in the files, or of random weights. Tensors that ranks divide count in full.
    fn stored_bytes(&self) -> u64 {
        let elements = |spec: &TensorSpec| match self.parts.get(&spec.name) {
            Some(part) => part.whole.iter().map(|&size| size as u64).product(),
            None => spec.elements(),
        };
        let stored = |spec: &TensorSpec| match &self.weights {
            Some(weights) => weights.bytes_of(&spec.name).unwrap_or(0) as u64,
            None => elements(spec) * self.dtype.bytes() as u64,
        };
        self.config.tensors().iter().map(stored).sum()
    }
}

/// Configuration, element type suggested by the files, and weights unless random.
type OpenedModel = (ModelConfig, Option<Dtype>, Option<Weights>);

fn open_folder(dir: &Path, load_format: LoadFormat) -> Result<OpenedModel, LoadError> {
    let mut config = ModelConfig::read(dir)?;
    let (dtype, weights) = match load_format {
        LoadFormat::Auto => {
            let weights = Weights::open(dir)?;
            let scheme = Scheme::read(dir, weights.has_codes())?;
            let mut weights = weights.quantised(scheme);
            weights.rename_tensors(&config)?;
            let table = [config.vocab_size, config.hidden_size];
            config.tie_word_embeddings = tying::is_tied(Tying::read(dir)?, &weights, table);
            if let Some(experts) = &config.experts {
                weights.name_experts(experts, config.hidden_size)?;
            }
            weights.check(&config.tensors())?;
            (weights.dtype("model.embed_tokens.weight"), Some(weights))
        }
        LoadFormat::Dummy => (config.dtype, None),
    };
    Ok((config, dtype, weights))
}

fn open_gguf(file: &Path, load_format: LoadFormat) -> Result<OpenedModel, LoadError> {
    let gguf = Gguf::open(file)?;
    let config = gguf::config(&gguf)?;
    let dtype = Some(gguf.dtype());
    let weights = match load_format {
        LoadFormat::Auto => Some(gguf::weights(gguf, &config)?),
        LoadFormat::Dummy => None,
    };
    Ok((config, dtype, weights))
}

pub struct Loader<'a, B: Backend> {
    checkpoint: &'a Checkpoint,
    backend: &'a mut B,
    progress: LoadProgress<'a>,
    done_bytes: u64,
    total_bytes: u64,
}

impl<'a, B: Backend> Loader<'a, B> {
    pub fn new(checkpoint: &'a Checkpoint, backend: &'a mut B, progress: LoadProgress<'a>) -> Self {
        let total_bytes = checkpoint.stored_bytes();
        Self {
            checkpoint,
            backend,
            progress,
            done_bytes: 0,
            total_bytes,
        }
    }

    pub fn config(&self) -> &'a ModelConfig {
        &self.checkpoint.config
    }

    /// Loads matrices `(name, outputs)` with `inputs` columns, and stacks their rows.
    pub fn matrix(
        &mut self,
        parts: &[(&str, usize)],
        inputs: usize,
    ) -> Result<B::Matrix, LoadError> {
        let Some(weights) = &self.checkpoint.weights else {
            return Ok(self.random_matrix(parts, inputs));
        };
        let whole = |part: &(&str, usize)| self.checkpoint.whole_shape(part.0, [part.1, inputs]);
        let shapes: Vec<[usize; 2]> = parts.iter().map(whole).collect();
        let sources = parts.iter().zip(&shapes);
        let sources = sources.map(|((name, _), shape)| weights.matrix(name, shape));
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let roles = self.roles(parts);
        let converted = sources.iter().zip(&roles);
        let converted = converted.map(|(source, role)| source.converted(self.target(*role)));
        let converted: Vec<Option<Converted<'_>>> = converted.collect();
        let views = sources.iter().zip(&converted);
        let read = views
            .map(|(source, converted)| view_of(source, converted.as_ref()))
            .zip(parts)
            .map(|(view, (name, _))| self.read(view, name));
        let read: Vec<Read<'_>> = read.collect();
        let views: Vec<TensorView<'_>> = read.iter().map(Read::view).collect();
        let matrix = self.backend.matrix(&views, &roles);
        parts.iter().for_each(|(name, _)| weights.release(name));
        self.report(sources.iter().map(MatrixSource::file_bytes).sum());
        let shard = self.checkpoint.shard(parts);
        Ok(self.backend.mark_sharded(matrix, shard))
    }

    /// The type to which matrices without native kernels are converted.
    fn target(&self, role: MatrixRole) -> Target {
        Target {
            dtype: self.checkpoint.dtype,
            keeps_blocks: self.backend.keeps_blocks(BlockType::Affine4, role),
        }
    }

    /// Sets the row order of the family's checkpoints, unless the view has a special order already.
    fn ordered<'v>(&self, view: TensorView<'v>, name: &str) -> TensorView<'v> {
        match view.order {
            RowOrder::AsNumbered => TensorView {
                order: self.config().row_order(name),
                ..view
            },
            _ => view,
        }
    }

    /// Puts the rows of a whole tensor in order, and reads the rank's part of it.
    fn read<'v>(&self, whole: TensorView<'v>, name: &str) -> Read<'v> {
        let part = self.checkpoint.parts.get(name);
        Read::part(self.ordered(whole, name), part)
    }

    fn roles(&self, parts: &[(&str, usize)]) -> Vec<MatrixRole> {
        let roles = parts.iter().map(|(name, _)| self.config().role(name));
        roles.collect()
    }

    fn random_matrix(&mut self, parts: &[(&str, usize)], inputs: usize) -> B::Matrix {
        let dtype = self.checkpoint.dtype;
        let tensor = |&(name, outputs): &(&str, usize)| {
            let whole = self.checkpoint.whole_shape(name, [outputs, inputs]);
            RandomTensor::new(name, &whole, dtype)
        };
        let tensors: Vec<RandomTensor> = parts.iter().map(tensor).collect();
        let elements: usize = tensors.iter().map(RandomTensor::elements).sum();
        let roles = self.roles(parts);
        let is_divided = |(name, _): &(&str, usize)| self.checkpoint.parts.contains_key(*name);
        let matrix = if parts.iter().any(is_divided) {
            let bytes: Vec<Vec<u8>> = tensors.iter().map(RandomTensor::bytes).collect();
            let views = tensors.iter().zip(&bytes).zip(parts);
            let read = views.map(|((tensor, bytes), (name, _))| {
                Read::part(tensor.view(bytes), self.checkpoint.parts.get(*name))
            });
            let read: Vec<Read<'_>> = read.collect();
            let views: Vec<TensorView<'_>> = read.iter().map(Read::view).collect();
            self.backend.matrix(&views, &roles)
        } else {
            self.backend.random_matrix(&tensors, &roles)
        };
        self.report(elements * dtype.bytes());
        let shard = self.checkpoint.shard(parts);
        self.backend.mark_sharded(matrix, shard)
    }

    /// Loads projections `(name, outputs)`, stacked: `{name}.weight` and, with a bias, `{name}.bias`.
    pub fn linear(
        &mut self,
        parts: &[(String, usize)],
        inputs: usize,
        bias: bool,
    ) -> Result<Linear<B>, LoadError> {
        let named = |suffix: &str| -> Vec<(String, usize)> {
            parts
                .iter()
                .map(|(name, outputs)| (format!("{name}.{suffix}"), *outputs))
                .collect()
        };
        let (weights, biases) = (named("weight"), named("bias"));
        Ok(Linear {
            weight: self.matrix(&borrowed(&weights), inputs)?,
            bias: if bias {
                Some(self.vector(&borrowed(&biases))?)
            } else {
                None
            },
        })
    }

    pub fn experts(&mut self, experts: Vec<Expert<B>>, gate: Gate) -> B::Experts {
        self.backend.experts(experts, gate)
    }

    pub fn rope(&mut self) -> B::Rope {
        let config = self.config();
        let wide = config.gemma4().map(|gemma4| gemma4.full_head_dim);
        let dim = wide.unwrap_or(config.rotary_dim);
        let mut rope = config.rope.frequencies(dim);
        let n_pairs = rope.inv_freq.len();
        rope.axes = config.mrope.map(|sections| sections.axes(n_pairs));
        self.backend.rope(&rope)
    }

    /// `None` if window layers have the same RoPE as the others.
    pub fn window_rope(&mut self) -> Option<B::Rope> {
        let config = self.config();
        let rope = config.gemma.as_ref()?.window_rope.as_ref()?;
        Some(self.backend.rope(&rope.frequencies(config.rotary_dim)))
    }

    /// RoPE that changes nothing, if some layers have no RoPE.
    pub fn no_rope(&mut self) -> Option<B::Rope> {
        let has_some = self.config().rotated.contains(&false);
        has_some.then(|| self.backend.rope(&Rope::none()))
    }

    /// Factor on embeddings. Gemma rounds the factor to the model's element type.
    pub fn embedding_scale(&self) -> Option<f32> {
        let scale = self.config().embedding_scale?;
        match self.config().gemma {
            Some(_) => Some(self.rounded(scale)),
            None => Some(scale),
        }
    }

    /// Rounds to the model's element type.
    pub fn rounded(&self, number: f32) -> f32 {
        self.checkpoint.dtype.rounded(number)
    }

    fn report(&mut self, bytes: usize) {
        self.done_bytes += bytes as u64;
        (self.progress)(self.done_bytes, self.total_bytes);
    }
}

fn view_of<'a>(source: &MatrixSource<'a>, converted: Option<&'a Converted<'_>>) -> TensorView<'a> {
    match (source, converted) {
        (MatrixSource::Plain(view), _) => *view,
        (_, Some(converted)) => converted.view(),
        (MatrixSource::Quantised(_), None) => {
            unreachable!("quantised matrices must be converted")
        }
    }
}

fn borrowed(parts: &[(String, usize)]) -> Vec<(&str, usize)> {
    parts
        .iter()
        .map(|(name, size)| (name.as_str(), *size))
        .collect()
}
