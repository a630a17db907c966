//! The KV pool and the page table.
//!
//! A token's K/V lies at slot `page * page_size + offset`; page 0 is the dummy page and holds nothing.

use std::ops::Range;

use super::element::Storage;
use crate::ids::{PageId, RowId};
use crate::kernels::dtype::Dtype;

/// Keys and values of all layers, for each layer `[2, n_kv_heads, n_slots, head_dim]`: a head's keys of neighbouring
/// slots lie side by side, so that reading a sequence is one stream for each head. Slot 0, of the dummy page, stays zero.
pub struct KvPool {
    layers: Vec<Storage>,
}

impl KvPool {
    /// Allocates the pool for `kv_width` elements of keys in a slot; the system commits memory on first use.
    pub fn new(dtype: Dtype, n_layers: usize, n_slots: usize, kv_width: usize) -> Self {
        Self {
            layers: (0..n_layers)
                .map(|_| Storage::zeros(dtype, n_slots * 2 * kv_width))
                .collect(),
        }
    }

    /// Keys and values of a layer.
    pub fn layer(&self, layer: usize) -> &Storage {
        &self.layers[layer]
    }

    /// Keys and values of a layer, to write.
    pub fn layer_mut(&mut self, layer: usize) -> &mut Storage {
        &mut self.layers[layer]
    }
}

/// The pages of each row, in sequence order.
pub struct PageTable {
    page_tokens: usize,
    rows: Vec<Vec<PageId>>,
}

impl PageTable {
    /// Returns a table of empty rows for `page_size` tokens in a page.
    pub fn new(n_rows: usize, page_size: usize) -> Self {
        Self {
            page_tokens: page_size,
            rows: vec![Vec::new(); n_rows],
        }
    }

    /// Tokens in a page.
    pub fn page_size(&self) -> usize {
        self.page_tokens
    }

    /// Number of rows, row 0 among them.
    pub fn n_rows(&self) -> usize {
        self.rows.len()
    }

    /// The pages of a row.
    pub fn row(&self, row: RowId) -> &[PageId] {
        &self.rows[row.index()]
    }

    /// The pages of a row, to edit.
    pub fn row_mut(&mut self, row: RowId) -> &mut Vec<PageId> {
        &mut self.rows[row.index()]
    }

    /// Slot of a token of a row.
    ///
    /// # Panics
    /// If the row has no page there.
    #[inline]
    pub fn slot(&self, row: RowId, position: usize) -> usize {
        let page = self.rows[row.index()][position / self.page_tokens];
        page.index() * self.page_tokens + position % self.page_tokens
    }

    /// Calls `each` with the positions of a row and their slots, ascending; one division for all.
    ///
    /// # Panics
    /// If the row has no page there.
    #[inline(always)]
    pub fn for_slots(
        &self,
        row: RowId,
        positions: Range<usize>,
        mut each: impl FnMut(usize, usize),
    ) {
        let pages = &self.rows[row.index()];
        let (mut position, mut page) = (positions.start, positions.start / self.page_tokens);
        while position < positions.end {
            let offset = position - page * self.page_tokens;
            let first = pages[page].index() * self.page_tokens + offset;
            let n = (self.page_tokens - offset).min(positions.end - position);
            for i in 0..n {
                each(position + i, first + i);
            }
            (position, page) = (position + n, page + 1);
        }
    }
}
