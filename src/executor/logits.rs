//! Computes the logits at every position of a prompt, for comparison with other implementations.

use std::path::{Path, PathBuf};

use safetensors::tensor::TensorView;

use crate::cpu::{CpuExecutor, CpuOptions};
use souffleur_base::error::LoadError;
use souffleur_base::kv_layout::KvDtype;
use souffleur_kernels::dtype::{Dtype, Quantization};
pub use souffleur_model::json_file::load_error;

const CHUNK_TOKENS: usize = 512;

#[derive(Clone, Debug)]
pub struct LogitsRequest {
    pub model: PathBuf,
    /// `None` for the checkpoint's data type.
    pub dtype: Option<Dtype>,
    /// `None` for the data type of the weights.
    pub kv_dtype: Option<KvDtype>,
    pub quantization: Option<Quantization>,
    pub threads: usize,
    /// JSON: `{"prompts": [[token, ..], ..]}`.
    pub input: PathBuf,
    /// Safetensors to write: for prompt `i` the f32 tensor `logits.<i>` of shape `[tokens, vocabulary]`.
    pub output: PathBuf,
}

#[derive(serde::Deserialize)]
struct Input {
    prompts: Vec<Vec<u32>>,
}

/// Computes the logits of all prompts in a file and writes them into another.
///
/// # Errors
/// [`LoadError`] that names the file: a model file, the input or the output.
pub fn write_logits(request: &LogitsRequest) -> Result<(), LoadError> {
    let io = |file: &Path| {
        let file = file.to_owned();
        |source| LoadError::Io { file, source }
    };
    let text = std::fs::read(&request.input).map_err(io(&request.input))?;
    let input: Input = serde_json::from_slice(&text)
        .map_err(|error| load_error(&request.input, error.to_string()))?;
    let mut bytes: Vec<Vec<u8>> = vec![Vec::new(); input.prompts.len()];
    let on_logits = &mut |prompt: usize, _: usize, logits: &[f32]| {
        bytes[prompt].extend(logits.iter().flat_map(|logit| logit.to_le_bytes()));
    };
    logits(request, &input.prompts, on_logits)?;
    let mut tensors = Vec::with_capacity(bytes.len());
    for (index, (prompt, bytes)) in input.prompts.iter().zip(&bytes).enumerate() {
        let shape = vec![prompt.len(), bytes.len() / 4 / prompt.len()];
        let view = TensorView::new(safetensors::Dtype::F32, shape, bytes)
            .map_err(|error| load_error(&request.output, error.to_string()))?;
        tensors.push((format!("logits.{index}"), view));
    }
    safetensors::serialize_to_file(tensors, None, &request.output)
        .map_err(|error| load_error(&request.output, error.to_string()))
}

/// Runs each prompt through the requested model on the CPU, and calls `on_logits(prompt, position, logits)` for every
/// position in order. The request's input and output files are not used.
///
/// # Errors
/// [`LoadError`] when the model cannot be loaded, or a prompt is empty or holds a token beyond the vocabulary.
pub fn logits(
    request: &LogitsRequest,
    prompts: &[Vec<u32>],
    on_logits: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<(), LoadError> {
    let dir = &request.model;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let options = CpuOptions {
        dtype: request.dtype,
        kv_dtype: request.kv_dtype,
        quantization: request.quantization,
        ..CpuOptions::for_one_row(longest.max(1), request.threads)
    };
    let mut executor = CpuExecutor::load(dir, &options, &mut |_, _| {})?;
    for (index, prompt) in prompts.iter().enumerate() {
        let scored = executor.score(prompt, CHUNK_TOKENS, &mut |position, logits| {
            on_logits(index, position, logits);
        });
        scored.map_err(|error| {
            let reason = format!("failed to compute the logits of prompt {index}: {error}");
            load_error(dir, reason)
        })?;
    }
    Ok(())
}
