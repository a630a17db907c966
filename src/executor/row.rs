//! A row of the page table in use, as an executor knows it.

use std::sync::Arc;

use souffleur_base::ids::{SeqId, StateSlot};
use souffleur_state::pooling::PoolSum;
use souffleur_state::prompt_vectors::PromptVectors;

pub(super) struct Row {
    pub(super) seq: SeqId,
    /// Prompt, and output from before the row started.
    pub(super) tokens: Arc<[u32]>,
    pub(super) prompt_tokens: usize,
    /// The prompt is vectors.
    pub(super) has_vectors: bool,
    /// These, until the last of them is computed.
    pub(super) vectors: Option<Arc<PromptVectors>>,
    /// The states that the prompt's embedding is made of, until it is there.
    pub(super) pool: Option<PoolSum>,
    pub(super) n_pages: usize,
    /// Window pages of the row's window table, where layers have windows, and the index of the first mapped one.
    pub(super) n_windows: usize,
    pub(super) first_window: usize,
    /// Tokens that the steps launched since the row started sample.
    pub(super) sampled_tokens: usize,
    /// Positions whose K/V is stored once the steps launched so far have run: all below this.
    pub(super) computed: usize,
    /// The live state of its layers, where some keep one.
    pub(super) live: Option<StateSlot>,
    /// It rotates as long ones do.
    pub(super) is_long: bool,
}
