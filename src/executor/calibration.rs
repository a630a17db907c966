//! Calibrates double sparsity: ranks a model's key channels by their importance over the tokens of a text.

use std::path::PathBuf;

use crate::cpu::{CpuDescription, CpuExecutor, CpuOptions, describe};
use souffleur_base::error::LoadError;
use souffleur_kernels::cpu::calibration::{Calibration, ChannelSums};
use souffleur_kernels::cpu::recall::Recall;
use souffleur_kernels::dtype::{Dtype, Quantization};
pub use souffleur_model::json_file::load_error;
use souffleur_model::loader::LoadFormat;
use souffleur_model::sparsity::{ChannelRanks, ChannelType, LayersToLabel, SparsityWish, write};

const CHUNK_TOKENS: usize = 512;
/// Recall is measured on every 61st query only: each measurement sorts all earlier tokens.
const RECALL_EVERY: usize = 61;

#[derive(Clone, Debug)]
pub struct CalibrationRequest {
    pub model: PathBuf,
    /// `None` for the checkpoint's data type.
    pub dtype: Option<Dtype>,
    pub quantization: Option<Quantization>,
    pub load_format: LoadFormat,
    pub threads: usize,
    pub tokens: Vec<u32>,
    /// Tokens of each piece of the text, at most the model's context length; each piece starts with an empty context.
    pub piece_tokens: usize,
    /// Channel file to write (`ds_channel_config_path`).
    pub output: PathBuf,
    pub recall: Option<RecallRequest>,
}

/// The selection of tokens whose recall is measured.
#[derive(Clone, Copy, Debug)]
pub struct RecallRequest {
    /// Key channels in a token's label, at most all of them; `None` for the engine's default.
    pub channels: Option<usize>,
    /// Tokens to select, including the query's own.
    pub tokens: usize,
}

#[derive(Clone, Debug)]
pub struct CalibrationResult {
    pub n_layers: usize,
    /// The recall of each ranking: the share of the tokens with the highest exact scores that the labels also select.
    /// Measured on the first piece of the text, and with queries that see at least twice as many tokens as they select.
    pub recall: Vec<(ChannelType, f64)>,
}

/// Runs the text through the model on the CPU, and writes the ranking of the key channels to a file.
///
/// # Errors
/// [`LoadError`] when the model cannot be loaded or does not support double sparsity, when the text holds a token
/// beyond the vocabulary, and when the file cannot be written.
pub fn calibrate(request: &CalibrationRequest) -> Result<CalibrationResult, LoadError> {
    let dir = &request.model;
    let described = describe(
        dir,
        request.dtype,
        request.quantization,
        request.load_format,
    )?;
    let label_sizes = layers(&described).labels(Some(1))?;
    let piece_tokens = request
        .piece_tokens
        .min(described.config.context_tokens())
        .max(1);
    let pieces: Vec<&[u32]> = request.tokens.chunks(piece_tokens).collect();
    let longest = pieces.first().map_or(0, |piece| piece.len());
    let options = CpuOptions {
        dtype: request.dtype,
        quantization: request.quantization,
        load_format: request.load_format,
        ..CpuOptions::for_one_row(longest.max(1), request.threads)
    };
    let mut executor = CpuExecutor::load(dir, &options, &mut |_, _| {})?;
    let sums = executor
        .calibrate(&pieces, CHUNK_TOKENS)
        .map_err(|error| load_error(dir, format!("failed to calibrate: {error}")))?;
    let label_sizes = label_sizes.iter().enumerate();
    let labelled = label_sizes.filter(|(_, size)| **size > 0);
    let ranks: Vec<ChannelRanks> = labelled
        .map(|(layer, _)| ranks(layer, &described, &sums))
        .collect();
    write(&request.output, &ranks)?;
    let mut recall = Vec::new();
    if let Some(wish) = request.recall {
        let first = &pieces[..pieces.len().min(1)];
        for ranked_by in ChannelType::ALL {
            let share = recall_of(&mut executor, first, (request, wish, ranked_by), &described)?;
            recall.extend(share.map(|share| (ranked_by, share)));
        }
    }
    Ok(CalibrationResult {
        n_layers: ranks.len(),
        recall,
    })
}

fn layers(described: &CpuDescription) -> LayersToLabel<'_> {
    LayersToLabel {
        layout: &described.kv_layout,
        windows: &described.config.windows,
        n_heads: described.config.num_attention_heads,
    }
}

fn ranks(layer: usize, described: &CpuDescription, sums: &Calibration) -> ChannelRanks {
    let pages = described.kv_layout.layers()[layer].pages();
    let n_heads = pages.map_or(1, |pages| pages.heads);
    let of_layer = sums.layers().get(layer).map_or(&[][..], Vec::as_slice);
    let of_heads = |value: fn(&ChannelSums) -> f64| {
        let heads = of_layer.chunks((of_layer.len() / n_heads).max(1));
        heads.map(|head| head.iter().map(value).collect()).collect()
    };
    ChannelRanks {
        layer,
        importance: [
            of_heads(|sums| sums.qk),
            of_heads(|sums| sums.q),
            of_heads(|sums| sums.k),
        ],
    }
}

/// Measures the recall of one ranking in the channel file at `request.output`.
fn recall_of(
    executor: &mut CpuExecutor,
    pieces: &[&[u32]],
    (request, wish, ranked_by): (&CalibrationRequest, RecallRequest, ChannelType),
    described: &CpuDescription,
) -> Result<Option<f64>, LoadError> {
    let all = described.kv_layout.layers().iter();
    let dims = all
        .filter_map(|layer| layer.pages())
        .map(|pages| pages.key_dim);
    let min_dim = dims.min().unwrap_or(1);
    let channels = wish.channels.map(|channels| channels.min(min_dim));
    let tokens = wish.tokens.max(2);
    let wish = SparsityWish {
        file: request.output.clone(),
        ranked_by,
        channels,
        tokens,
        threshold: 2 * tokens,
    };
    let rules = wish.read(layers(described))?.rules;
    executor
        .recall(pieces, CHUNK_TOKENS, Recall::new(rules, RECALL_EVERY))
        .map_err(|error| {
            let reason = format!("failed to measure the recall of the channels: {error}");
            load_error(&request.model, reason)
        })
}
