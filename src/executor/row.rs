//! The executor's record of one row of the page table.

use std::ops::Range;
use std::sync::Arc;

use souffleur_base::ids::{SeqId, StateSlot};
use souffleur_state::pooling::PoolSum;
use souffleur_state::prompt_images::{BidirectionalLayers, PromptImages};
use souffleur_state::prompt_vectors::PromptVectors;

pub(super) struct Row {
    pub(super) seq: SeqId,
    /// The prompt, and the output sampled before the row started.
    pub(super) tokens: Arc<[u32]>,
    pub(super) prompt_tokens: usize,
    /// Whether the request has prompt embeddings in place of prompt tokens.
    pub(super) has_prompt_embeds: bool,
    /// The prompt embeddings, until the step that computes the last of them is launched.
    pub(super) prompt_embeds: Option<Arc<PromptVectors>>,
    /// The images of the prompt, at whose positions `tokens` has keys.
    pub(super) images: Option<RowImages>,
    /// The pooled hidden states of an embedding request, until its embedding is complete.
    pub(super) pool: Option<PoolSum>,
    pub(super) n_pages: usize,
    /// Number of the row's sliding-window pages; `first_window` is the index of the first mapped page.
    pub(super) n_windows: usize,
    pub(super) first_window: usize,
    /// Number of tokens sampled by the steps launched since the row started.
    pub(super) sampled_tokens: usize,
    /// Whether the Scheduler may have planned steps of the row without its exact position.
    pub(super) may_have_drafts: bool,
    /// Tokens beyond the first that the row's last step has accepted. The plan of the next step does not know them.
    pub(super) surplus: usize,
    /// The K/V of positions below this is stored once the steps launched so far have run.
    pub(super) computed: usize,
    /// The slot of the row's recurrent state, if layers keep one.
    pub(super) live: Option<StateSlot>,
    /// Whether the sequence uses the RoPE of long sequences.
    pub(super) is_long: bool,
}

pub(super) struct RowImages {
    pub(super) table: Arc<PromptImages>,
    /// The positions that attend to each other; none if attention is causal.
    pub(super) runs: Vec<Range<u32>>,
    /// The row's tokens, with true ids in place of keys.
    inputs: Arc<[u32]>,
    has_vectors: bool,
}

impl RowImages {
    pub(super) fn new(
        table: &Arc<PromptImages>,
        tokens: &[u32],
        bidirectional: Option<BidirectionalLayers>,
    ) -> Self {
        Self {
            table: table.clone(),
            runs: bidirectional.map_or_else(Vec::new, |_| table.runs()),
            inputs: table.inputs(tokens),
            has_vectors: true,
        }
    }

    /// Drops the vectors of a row whose prompt is computed.
    pub(super) fn drop_vectors(&mut self) {
        if std::mem::take(&mut self.has_vectors) {
            self.table = Arc::new(self.table.without_vectors());
        }
    }
}

impl Row {
    /// The ids to look up at positions of `tokens`.
    pub(super) fn inputs(&self, positions: Range<usize>) -> &[u32] {
        let inputs = self.images.as_ref().map(|images| &images.inputs);
        &inputs.unwrap_or(&self.tokens)[positions]
    }

    /// Positions before this must come from the cache: they belong to images without vectors.
    pub(super) fn cached_until(&self) -> usize {
        let images = self.images.as_ref();
        images.map_or(0, |images| images.table.cached_until() as usize)
    }
}
