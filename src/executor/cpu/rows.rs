//! What the executor remembers of a sequence.

use std::sync::Arc;

use crate::executor::RowStart;
use crate::ids::SeqId;
use crate::state::sampling::RowSampler;

/// One row of the page table in use.
pub(super) struct Row {
    pub(super) seq: SeqId,
    /// Prompt, and output from before the row started.
    pub(super) tokens: Arc<[u32]>,
    pub(super) prompt_tokens: usize,
    /// Tokens sampled since the row started.
    pub(super) sampled_tokens: usize,
    /// The last of them; means nothing while there is none.
    pub(super) last_sampled: u32,
    /// Positions whose K/V is stored: all below this.
    pub(super) computed: usize,
    pub(super) sampler: RowSampler,
}

impl Row {
    /// Begins a row of which `computed` positions are cached.
    pub(super) fn new(
        start: &RowStart,
        computed: usize,
        vocab_size: usize,
        eos_ids: &[u32],
    ) -> Self {
        let prompt_tokens = start.prompt_tokens as usize;
        let (prompt, output) = start.tokens.split_at(prompt_tokens);
        let sampler = RowSampler::new(start.sampling.clone(), vocab_size, eos_ids, prompt, output);
        Self {
            seq: start.seq,
            tokens: start.tokens.clone(),
            prompt_tokens,
            sampled_tokens: 0,
            last_sampled: 0,
            computed,
            sampler,
        }
    }
}
