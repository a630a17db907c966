//! The limits that plan checks use: bounds on ids, positions and tokens.

use crate::state::pool::window_pool::WindowLimits;

pub(in crate::executor) struct Limits {
    pub(in crate::executor) n_pages: usize,
    pub(in crate::executor) page_size: usize,
    pub(in crate::executor) row_pages: usize,
    pub(in crate::executor) vocab_size: usize,
    /// Values in a vector that replaces a token's embedding.
    pub(in crate::executor) hidden_size: usize,
    /// States that can be granted; `None` where no layer keeps one.
    pub(in crate::executor) n_state_slots: Option<usize>,
    /// Window pages that can be granted; `None` where no layer has a window.
    pub(in crate::executor) windows: Option<WindowLimits>,
    /// The length above which a row rotates as long ones do; `None` where all rotate alike.
    pub(in crate::executor) long_above: Option<usize>,
    /// Tokens of the blocks that are copied to and from a store; `None` without one.
    pub(in crate::executor) block_tokens: Option<usize>,
}
