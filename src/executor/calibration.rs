//! Which channels of a model's keys matter, over the tokens of a text: a file for double sparsity.

use std::path::PathBuf;

use crate::error::LoadError;
use crate::executor::cpu::{CpuExecutor, CpuOptions, describe};
use crate::kernels::cpu::calibration::ChannelSums;
use crate::kernels::dtype::{Dtype, Quantization};
use crate::model::json_file::format_error;
use crate::model::loader::LoadFormat;
use crate::model::sparsity::{ChannelRanks, LayersToLabel, write};

/// Tokens in a step.
const CHUNK_TOKENS: usize = 512;

/// The model and the tokens that it is calibrated with.
#[derive(Clone, Debug)]
pub struct CalibrationRequest {
    /// The model's folder or GGUF file.
    pub model: PathBuf,
    /// Element type of matrices and KV; `None` for that of the file.
    pub dtype: Option<Dtype>,
    /// What matrices are quantised to.
    pub quantization: Option<Quantization>,
    /// Where weights come from.
    pub load_format: LoadFormat,
    /// Threads that compute.
    pub threads: usize,
    /// Pieces of text, each seen from its own beginning.
    pub texts: Vec<Vec<u32>>,
    /// File of channels to write.
    pub output: PathBuf,
}

/// Runs the texts through the model on the CPU and writes how its channels rank; returns the number of layers.
///
/// # Errors
/// [`LoadError`] when the model cannot be loaded or cannot be sparse, when a text is empty or holds a token beyond the
/// vocabulary, and when the file cannot be written.
pub fn calibrate(request: &CalibrationRequest) -> Result<usize, LoadError> {
    let dir = &request.model;
    let description = describe(
        dir,
        request.dtype,
        request.quantization,
        request.load_format,
    )?;
    let layers = LayersToLabel {
        layout: &description.kv_layout,
        windows: &description.config.windows,
        n_heads: description.config.num_attention_heads,
    };
    let labelled = layers.labels(1)?;
    let longest = request.texts.iter().map(Vec::len).max().unwrap_or(0);
    let options = CpuOptions {
        dtype: request.dtype,
        quantization: request.quantization,
        load_format: request.load_format,
        threads: request.threads,
        pin_threads: false,
        n_pages: longest.max(1),
        page_size: 1,
        max_rows: 1,
        n_state_slots: 1,
        isa: None,
        shared_prefix: true,
        eos_token_ids: [].into(),
        sparsity: None,
        kv_dtype: None,
    };
    let mut executor = CpuExecutor::load(dir, &options, &mut |_, _| {})?;
    let texts: Vec<&[u32]> = request.texts.iter().map(Vec::as_slice).collect();
    let sums = executor
        .calibrate(&texts, CHUNK_TOKENS)
        .map_err(|error| format_error(dir, format!("calibration: {error}")))?;
    let mut ranks = Vec::new();
    for (layer, _) in labelled
        .iter()
        .enumerate()
        .filter(|(_, labels)| **labels > 0)
    {
        let heads = description.kv_layout.layers()[layer]
            .pages()
            .map_or(1, |pages| pages.heads);
        let of_layer = sums.layers().get(layer).map_or(&[][..], Vec::as_slice);
        let of_heads = |value: fn(&ChannelSums) -> f64| {
            let heads = of_layer.chunks((of_layer.len() / heads).max(1));
            heads.map(|head| head.iter().map(value).collect()).collect()
        };
        ranks.push(ChannelRanks {
            layer,
            importance: [
                of_heads(|sums| sums.qk),
                of_heads(|sums| sums.q),
                of_heads(|sums| sums.k),
            ],
        });
    }
    write(&request.output, &ranks)?;
    Ok(ranks.len())
}
