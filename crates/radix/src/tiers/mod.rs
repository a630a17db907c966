//! KV tiers below memory, such as a disk: keys of blocks, the index of a tier, the cost model of loads.
//!
//! A *block* is [`BLOCK_TOKENS`] tokens of a path, at a multiple of that number. Its key covers everything that its
//! bytes depend on: the engine ([`Fingerprint`]), the namespace, and every token up to its end. Nothing here reads a
//! disk or a clock; the store and the simulation run the same [`BlockIndex`] and [`CostModel`].

mod cost;
mod image_keys;
mod index;
mod key;
mod order;
mod paths;

pub use cost::{CostModel, PrefillRate};
pub use image_keys::{ImageKeys, name_of_vectors};
pub use index::{BlockIndex, Stored, StoredBlock};
pub use key::{
    BLOCK_TOKENS, BlockKey, BlockPlace, Fingerprint, FingerprintParts, KeyChain, Keys, Secret,
    block_tokens,
};
pub use paths::Paths;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BlockKind {
    /// The block's keys and values in layers that keep all tokens.
    Kv,
    /// The block's keys and values in sliding-window layers.
    Window,
    /// The states after the block's last token.
    State,
}

impl BlockKind {
    pub const ALL: [Self; 3] = [Self::Kv, Self::Window, Self::State];

    /// The name in files and logs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kv => "kv",
            Self::Window => "window",
            Self::State => "state",
        }
    }

    /// The index in [`ALL`](Self::ALL).
    pub fn index(self) -> usize {
        self as usize
    }
}

/// The records that a sequence needs, in addition to the keys and values of every block, to resume after a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// The state after the block's last token.
    pub state: bool,
    /// The window size, if window records are needed; 0 without window pages.
    pub window_tokens: usize,
}

impl Needs {
    /// The blocks whose window records are needed to resume after block `end - 1`. The window of the next token
    /// includes that token itself, and so has one token fewer before it.
    pub fn window_blocks(&self, end: usize, block_tokens: usize) -> std::ops::Range<usize> {
        match self.window_tokens {
            0 => end..end,
            window => (end * block_tokens).saturating_sub(window - 1) / block_tokens..end,
        }
    }
}
