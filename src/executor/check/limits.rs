//! The limits that plan checks use: bounds on ids, positions and tokens.

use souffleur_state::pool::window_pool::WindowLimits;
use souffleur_state::prompt_images::BidirectionalLayers;

pub(crate) struct Limits {
    pub(crate) n_pages: usize,
    pub(crate) page_size: usize,
    pub(crate) row_pages: usize,
    pub(crate) vocab_size: usize,
    /// The most query tokens of a decode.
    pub(crate) max_room: u32,
    /// Size of a prompt embedding.
    pub(crate) hidden_size: usize,
    /// Values of a position of an image.
    pub(crate) image_width: usize,
    /// Number of state slots; `None` if no layer keeps a state.
    pub(crate) n_state_slots: Option<usize>,
    /// `None` if no layer has a sliding window.
    pub(crate) windows: Option<WindowLimits>,
    /// Sequence length above which a row uses the RoPE for long sequences; `None` if all lengths use the same RoPE.
    pub(crate) long_above: Option<usize>,
    /// The layers in which the vectors of an image attend to each other; `None` if attention is causal.
    pub(crate) bidirectional: Option<BidirectionalLayers>,
    /// Tokens of a block that is copied to or from the store; `None` without a store.
    pub(crate) block_tokens: Option<usize>,
}
