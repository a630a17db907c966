//! Logits at every position of a prompt, for comparison with other implementations.

use std::path::Path;

use crate::error::LoadError;
use crate::executor::cpu::{CpuExecutor, CpuOptions};
use crate::model::weights::Dtype;

/// Tokens in a chunk of the prompt.
const CHUNK_TOKENS: usize = 512;

/// Runs each prompt through the model in `dir` on the CPU; `on_logits(prompt, position, logits)` sees every position
/// in order.
///
/// # Errors
/// [`LoadError`] when the model cannot be loaded, or a token is not in its vocabulary.
pub fn logits(
    dir: &Path,
    dtype: Option<Dtype>,
    threads: usize,
    prompts: &[Vec<u32>],
    on_logits: &mut dyn FnMut(usize, usize, &[f32]),
) -> Result<(), LoadError> {
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    let options = CpuOptions {
        dtype,
        threads,
        n_pages: longest.max(1),
        page_size: 1,
        max_rows: 1,
        isa: None,
    };
    let mut executor = CpuExecutor::load(dir, &options, &mut |_, _| {})?;
    for (index, prompt) in prompts.iter().enumerate() {
        let seen = executor.score(prompt, CHUNK_TOKENS, &mut |position, logits| {
            on_logits(index, position, logits);
        });
        seen.map_err(|error| LoadError::Format {
            file: dir.to_owned(),
            reason: format!("prompt {index}: {error}"),
        })?;
    }
    Ok(())
}
