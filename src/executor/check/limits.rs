//! The limits that plan checks use: bounds on ids, positions and tokens.

use souffleur_state::pool::window_pool::WindowLimits;

pub(crate) struct Limits {
    pub(crate) n_pages: usize,
    pub(crate) page_size: usize,
    pub(crate) row_pages: usize,
    pub(crate) vocab_size: usize,
    /// Values in a vector that replaces a token's embedding.
    pub(crate) hidden_size: usize,
    /// States that can be granted; `None` where no layer keeps one.
    pub(crate) n_state_slots: Option<usize>,
    /// Window pages that can be granted; `None` where no layer has a window.
    pub(crate) windows: Option<WindowLimits>,
    /// The length above which a row rotates as long ones do; `None` where all rotate alike.
    pub(crate) long_above: Option<usize>,
    /// Tokens of the blocks that are copied to and from a store; `None` without one.
    pub(crate) block_tokens: Option<usize>,
}
