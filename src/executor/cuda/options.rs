//! Options of the CUDA executor, and checks of their sizes.

use std::sync::Arc;

use crate::memory_plan::MemoryPlan;
use souffleur_base::error::LoadError;
use souffleur_kernels::cuda::gemm::GemmWish;
use souffleur_kernels::cuda::params::ElementType;
use souffleur_kernels::cuda::sampling::MAX_VOCAB;
use souffleur_kernels::dtype::Dtype;
use souffleur_model::loader::LoadFormat;

/// Maximum number of rows of logits computed at once, unless graphs need more.
const LOGIT_ROWS: usize = 64;

#[derive(Clone, Debug)]
pub struct CudaOptions {
    /// Element type of matrices, activations and KV; see [`element_of`].
    pub element: ElementType,
    pub load_format: LoadFormat,
    pub n_pages: usize,
    pub page_size: usize,
    /// Rows that can be granted, ids `1..=max_rows`.
    pub max_rows: usize,
    /// Longest sequence, in tokens.
    pub context_tokens: usize,
    /// Maximum number of query tokens in a step.
    pub step_tokens: usize,
    pub gemm: GemmWish,
    /// Maximum number of rows of a decode step that runs as a CUDA graph; 0 disables graphs.
    pub graph_rows: usize,
    pub plan: Option<MemoryPlan>,
    /// Tokens that end an output: none is sampled before a request's `min_new_tokens`.
    pub eos_token_ids: Arc<[u32]>,
}

impl CudaOptions {
    pub fn logit_rows(&self) -> usize {
        LOGIT_ROWS.max(self.graph_rows.min(self.max_rows))
    }

    /// If a step reads at most this many tokens, its last layer runs only for them.
    pub(super) fn read_rows(&self) -> usize {
        self.logit_rows().min(self.max_rows)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DtypeOrigin {
    /// The checkpoint's own type.
    Stored,
    /// The type that the user requested.
    Requested,
}

/// The element type in which CUDA kernels compute for a model of type `dtype`.
///
/// There are no kernels for float16. A float16 checkpoint runs in bfloat16, which has a larger range and three bits
/// less precision.
///
/// # Errors
/// [`LoadError::Device`] for float16 that the user requested.
pub fn element_of(dtype: Dtype, origin: DtypeOrigin) -> Result<ElementType, LoadError> {
    match dtype {
        Dtype::F32 => Ok(ElementType::F32),
        Dtype::BF16 => Ok(ElementType::Bf16),
        Dtype::F16 if origin == DtypeOrigin::Requested => Err(LoadError::Device(
            "there are no float16 kernels for CUDA: use --dtype bfloat16 or float32".to_owned(),
        )),
        Dtype::F16 => Ok(ElementType::Bf16),
    }
}

/// Refuses sizes that the executor does not support; the error names the size that is too small or too large.
pub(super) fn check_options(options: &CudaOptions, vocab_size: usize) -> Result<(), LoadError> {
    let sizes = [
        ("n_pages", options.n_pages),
        ("page_size", options.page_size),
        ("max_rows", options.max_rows),
        ("context_tokens", options.context_tokens),
        ("step_tokens", options.step_tokens),
    ];
    if let Some((name, _)) = sizes.into_iter().find(|size| size.1 == 0) {
        return Err(LoadError::Device(format!(
            "{name} is 0, expected at least 1"
        )));
    }
    let slots = (options.n_pages as u64 + 1).checked_mul(options.page_size as u64);
    if slots.is_none_or(|slots| slots > u64::from(u32::MAX)) {
        return Err(LoadError::Device(format!(
            "a KV pool of {} pages of {} tokens is too large: at most {} tokens (32-bit ids) are supported; lower \
             max_total_tokens",
            options.n_pages,
            options.page_size,
            u32::MAX
        )));
    }
    if vocab_size > MAX_VOCAB {
        return Err(LoadError::Device(format!(
            "the vocabulary has {vocab_size} tokens, but the CUDA kernels for sampling support at most {MAX_VOCAB}: \
             use --device cpu"
        )));
    }
    Ok(())
}
