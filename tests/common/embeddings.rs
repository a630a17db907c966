//! Reads the embeddings of tokens from a checkpoint, for tests that send prompt embeddings.

use std::path::Path;
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use souffleur_request::PromptVectors;

/// The embedding of each token in f32, which represents every stored element exactly.
pub fn embeddings(folder: &Path, tokens: &[u32]) -> Arc<PromptVectors> {
    let (table, width) = matrix(folder, "embed_tokens.weight").expect("token embeddings");
    let rows = tokens.iter().map(|token| *token as usize * width);
    let values = rows.flat_map(|first| table[first..first + width].iter().copied());
    let vectors = PromptVectors::new(width, values.collect());
    Arc::new(vectors.expect("checkpoints hold finite numbers"))
}

/// The elements of the matrix whose name has this suffix, row by row, and the row length.
pub fn matrix(folder: &Path, suffix: &str) -> Option<(Vec<f32>, usize)> {
    let files = std::fs::read_dir(folder).expect("a folder");
    let files = files.map(|file| file.expect("the folder can be listed").path());
    let is_checkpoint = |file: &std::path::PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("model") && name.ends_with(".safetensors")
    };
    files.filter(is_checkpoint).find_map(|file| {
        let bytes = std::fs::read(&file).expect("the file can be read");
        let tensors = SafeTensors::deserialize(&bytes).expect("the file is in safetensors format");
        let name = tensors
            .names()
            .into_iter()
            .find(|name| name.ends_with(suffix))?;
        let matrix = tensors.tensor(name).expect("the tensor is listed");
        Some((elements(&matrix), matrix.shape()[1]))
    })
}

fn elements(matrix: &TensorView<'_>) -> Vec<f32> {
    let data = matrix.data();
    match matrix.dtype() {
        Dtype::F32 => data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f32::from_le_bytes(*bytes))
            .collect(),
        Dtype::BF16 => data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| bf16::from_le_bytes(*bytes).to_f32())
            .collect(),
        Dtype::F16 => data
            .as_chunks()
            .0
            .iter()
            .map(|bytes| f16::from_le_bytes(*bytes).to_f32())
            .collect(),
        other => panic!("the matrix has the unsupported type {other:?}"),
    }
}
