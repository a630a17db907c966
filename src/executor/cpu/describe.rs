//! Describes a model's weights, KV layout and matrices for the memory plan, before memory is allocated.

use std::path::Path;

use crate::memory_plan::VisionBytes;
use rustc_hash::FxHashMap;
use souffleur_base::error::{ConfigError, LoadError};
use souffleur_base::kv_layout::{KvDtype, KvLayout};
use souffleur_kernels::cpu::{FormatRule, WeightProduct};
use souffleur_kernels::dtype::{Dtype, Quantization};
use souffleur_kernels::shard::Rank;
use souffleur_kernels::tensor_view::Stored;
use souffleur_model::config::ModelConfig;
use souffleur_model::loader::{Checkpoint, LoadFormat};
use souffleur_model::ranks::{self, Part};
use souffleur_model::sparsity::{LayersToLabel, ModelSparsity, SparsityWish};
use souffleur_model::weights::TensorSpec;

/// A model and the memory that it needs.
#[derive(Clone, Debug)]
pub struct CpuDescription {
    pub config: ModelConfig,
    pub dtype: Dtype,
    pub kv_dtype: KvDtype,
    pub weights_bytes: u64,
    /// Bytes of the weights on a device that decodes quantised blocks, as it has no kernels for them.
    pub decoded_weights_bytes: u64,
    /// The memory that each layer keeps of a sequence.
    pub kv_layout: KvLayout,
    pub matrices: Vec<LoadedMatrix>,
    /// The element type or the quantisation scheme of most weights in the files, such as `BF16`, `Q4_K` or `gptq`.
    pub stored_as: String,
    /// The memory of the model's vision tower, and of images; 0 unless the caller loads a tower.
    pub vision: VisionBytes,
}

/// A model on ranks, and the memory that each needs.
#[derive(Clone, Debug)]
pub struct OnRanks {
    /// The configuration of the part of a rank. Those of the others have the same sizes.
    pub config: ModelConfig,
    /// Approximate bytes of the weights of each rank, in rank order.
    pub weights_bytes: Vec<u64>,
    /// As [`CpuDescription::decoded_weights_bytes`], likewise.
    pub decoded_weights_bytes: Vec<u64>,
    /// The memory that each layer keeps of a sequence, on each rank.
    pub kv_layout: KvLayout,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadedMatrix {
    pub name: String,
    /// Outputs times inputs.
    pub elements: u64,
    /// Minimum bytes that a product reads of the matrix, without padding.
    pub bytes: u64,
    /// Like `bytes`, on a device that decodes quantised blocks.
    pub decoded_bytes: u64,
    pub product: WeightProduct,
    /// The number of consecutive inputs that share a scale, which ranks cannot divide; 1 without scales.
    pub inputs_per_scale: usize,
}

/// The elements of all weights, and those that a rank has.
struct Share {
    elements: u128,
    of_rank: u128,
}

impl Share {
    /// The rank's part of all weights' bytes, in proportion to its elements.
    fn of(&self, bytes: u64) -> u64 {
        (u128::from(bytes) * self.of_rank / self.elements.max(1)) as u64
    }
}

impl CpuDescription {
    pub fn with_kv(mut self, dtype: Option<KvDtype>) -> Self {
        if let Some(dtype) = dtype {
            self.kv_dtype = dtype;
            self.kv_layout = self.config.kv_layout(dtype);
        }
        self
    }

    /// The memory that the model needs on `count` ranks.
    ///
    /// # Errors
    /// If the ranks cannot share heads, widths or blocks: names the key or the tensor.
    pub fn on_ranks(&self, count: usize) -> Result<OnRanks, ConfigError> {
        let first = Rank::new(0, count).filter(|rank| *rank != Rank::ONLY);
        let Some(first) = first else {
            return Ok(OnRanks {
                config: self.config.clone(),
                weights_bytes: vec![self.weights_bytes],
                decoded_weights_bytes: vec![self.decoded_weights_bytes],
                kv_layout: self.kv_layout.clone(),
            });
        };
        let config = ranks::of_rank(&self.config, first)?;
        let shares = Rank::all(count).map(|rank| self.share_of(rank));
        let shares: Vec<Share> = shares.collect::<Result<_, _>>()?;
        let of = |bytes: u64| -> Vec<u64> { shares.iter().map(|share| share.of(bytes)).collect() };
        Ok(OnRanks {
            weights_bytes: of(self.weights_bytes),
            decoded_weights_bytes: of(self.decoded_weights_bytes),
            kv_layout: config.kv_layout(self.kv_dtype),
            config,
        })
    }

    fn share_of(&self, rank: Rank) -> Result<Share, ConfigError> {
        let sizes = self.matrices.iter();
        let sizes = sizes.map(|matrix| (matrix.name.as_str(), matrix.inputs_per_scale));
        let sizes: FxHashMap<&str, usize> = sizes.collect();
        let (mut elements, mut of_rank) = (0_u128, 0_u128);
        for spec in self.config.tensors() {
            let inputs_per_scale = sizes.get(spec.name.as_str()).copied().unwrap_or(1);
            let cut = ranks::cut(&self.config, &spec);
            let part =
                Part::of(&spec, (&cut, rank), inputs_per_scale).map_err(|reason| ConfigError {
                    key: "tp_size".to_owned(),
                    reason,
                })?;
            let shape = part.map_or_else(|| spec.shape.clone(), |part| part.shape());
            elements += u128::from(spec.elements());
            of_rank += shape.iter().product::<usize>() as u128;
        }
        Ok(Share { elements, of_rank })
    }

    pub fn sparsify(&mut self, wish: &SparsityWish) -> Result<ModelSparsity, LoadError> {
        let sparsity = wish.read(LayersToLabel {
            layout: &self.kv_layout,
            windows: &self.config.windows,
            n_heads: self.config.num_attention_heads,
        })?;
        self.kv_layout = sparsity.label(std::mem::take(&mut self.kv_layout));
        Ok(sparsity)
    }
}

/// Describes the model in a folder, with KV in the weights' data type. Checks every tensor's name, shape and dtype.
///
/// # Errors
/// Any [`LoadError`] but [`LoadError::Memory`].
pub fn describe(
    dir: &Path,
    dtype: Option<Dtype>,
    quantization: Option<Quantization>,
    load_format: LoadFormat,
) -> Result<CpuDescription, LoadError> {
    let checkpoint = Checkpoint::open(dir, dtype, load_format)?;
    Ok(describe_checkpoint(checkpoint, quantization))
}

/// Describes an opened model, with KV in the weights' data type.
pub fn describe_checkpoint(
    checkpoint: Checkpoint,
    quantization: Option<Quantization>,
) -> CpuDescription {
    CpuDescription {
        dtype: checkpoint.dtype,
        kv_dtype: checkpoint.dtype.into(),
        weights_bytes: weights_bytes(&checkpoint, checkpoint.dtype, quantization),
        decoded_weights_bytes: checkpoint.weights_bytes(quantization, |_, _| None),
        kv_layout: checkpoint.kv_layout(),
        matrices: matrices(&checkpoint, quantization),
        stored_as: stored_as(&checkpoint),
        vision: VisionBytes::default(),
        config: checkpoint.config,
    }
}

/// The name of the scheme without its details, or else the type that takes most bytes in the files.
fn stored_as(checkpoint: &Checkpoint) -> String {
    if let Some(scheme) = checkpoint.scheme() {
        let scheme = scheme.to_string();
        let name = scheme.split(',').next();
        return name.unwrap_or_default().to_owned();
    }
    let most = checkpoint.types().first();
    most.map_or_else(
        || checkpoint.dtype.name().to_owned(),
        |count| count.name.clone(),
    )
}

/// The matrices of a model, in the order of [`ModelConfig::tensors`].
pub fn matrices(checkpoint: &Checkpoint, quantization: Option<Quantization>) -> Vec<LoadedMatrix> {
    let rule = FormatRule::new(checkpoint.dtype, quantization);
    let in_blocks = |block, shape| rule.bytes_of_blocks(block, shape);
    let matrix = |spec: TensorSpec| {
        let &[outputs, inputs] = spec.shape.as_slice() else {
            return None;
        };
        let stored = checkpoint.stored(&spec.name);
        let stored = stored.unwrap_or(Stored::Plain(checkpoint.dtype));
        let rule = rule.of(checkpoint.config.role(&spec.name));
        let decoded_bytes = checkpoint.tensor_bytes(&spec, quantization, |_, _| None);
        let bytes = match stored {
            Stored::Blocks(block) if rule.keeps(block) => {
                (outputs * block.row_bytes(inputs)) as u64
            }
            _ => {
                let in_panels = checkpoint.tensor_bytes(&spec, quantization, in_blocks);
                in_panels.min(decoded_bytes)
            }
        };
        Some(LoadedMatrix {
            elements: spec.elements(),
            bytes,
            decoded_bytes,
            product: rule.product(stored),
            inputs_per_scale: checkpoint.inputs_per_scale(&spec.name, quantization),
            name: spec.name,
        })
    };
    let tensors = checkpoint.config.tensors().into_iter();
    tensors.filter_map(matrix).collect()
}

/// Bytes of the loaded weights of a model that computes in `dtype`.
fn weights_bytes(checkpoint: &Checkpoint, dtype: Dtype, quantization: Option<Quantization>) -> u64 {
    let rule = FormatRule::new(dtype, quantization);
    let in_blocks = |block, shape| rule.bytes_of_blocks(block, shape);
    checkpoint.weights_bytes(quantization, in_blocks)
}

/// Bytes by which block-quantised weights grow in float32, which expands them for exact products; 0 for other types.
pub fn widening_bytes(checkpoint: &Checkpoint, quantization: Option<Quantization>) -> u64 {
    match checkpoint.dtype {
        Dtype::F32 => {
            let [wide, packed] = [Dtype::F32, Dtype::BF16]
                .map(|dtype| weights_bytes(checkpoint, dtype, quantization));
            wide.saturating_sub(packed)
        }
        Dtype::F16 | Dtype::BF16 => 0,
    }
}
