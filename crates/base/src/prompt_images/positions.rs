//! Rotary positions of sequences with images (M-RoPE): a function of the prompt's images alone.
//!
//! A rotary position has three components: time, row and column. They are equal in text, and differ in images. After an
//! image, text continues from the largest component. Hence a rotary position after images is the token's index minus a
//! constant, in the output too.
//!
//! Source: Qwen2-VL, arXiv 2409.12191, section 2.1; `get_rope_index` of Qwen3-VL and Qwen3.5 in transformers 5.

use super::{ImageSpan, PromptImages};

impl PromptImages {
    /// The rotary position of the token at `index` of the sequence: time, row and column. They are equal outside of
    /// images, and never greater than `index`.
    pub fn rotary_position(&self, index: u32) -> [u32; 3] {
        let after = self
            .spans()
            .partition_point(|span| span.positions.start <= index);
        match after.checked_sub(1) {
            None => [index; 3],
            Some(last) => self.spans()[last].rotary_position(index),
        }
    }
}

impl ImageSpan {
    /// As [`PromptImages::rotary_position`], for an index at or after the image's start, and before the next image.
    fn rotary_position(&self, index: u32) -> [u32; 3] {
        let plain = index - self.shortened;
        if index < self.pads.start {
            return [plain; 3];
        }
        if index >= self.pads.end {
            return [plain - self.grid.shortening(); 3];
        }
        let first = self.pads.start - self.shortened;
        let cell = self.n_vectors_before(index);
        let columns = self.grid.columns;
        [first, first + cell / columns, first + cell % columns]
    }
}
