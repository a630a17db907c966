//! A matrix product with one matrix of a stack, cut into work items.

use std::ops::Range;

use super::super::activations::RowGroups;
use super::super::format::even_part;
use super::super::matrix::Matrix;
use super::super::panel::{MAX_PANELS, MAX_ROWS};
use super::super::strips;
use super::item::Item;
use super::output::{Output, panels_of};

/// Bytes of weights in an item if there is one group of rows: enough to stream, few enough to balance threads.
pub const STREAM_BYTES: usize = 128 << 10;

/// Minimum groups of rows in a block, even if they exceed the maximum bytes.
const LEAST_BLOCK_GROUPS: usize = 8;
/// Maximum groups of rows in a block; an item multiplies a whole block. A thread multiplies the same rows in each
/// kernel, so smaller items cost nothing, and threads wait less for the last item.
const BLOCK_GROUPS: usize = 16;
/// Maximum bytes of a block, which stays in cache together with the panels of an item.
const BLOCK_BYTES: usize = 512 << 10;

/// Maximum bytes and groups of a block for AMX tiles, which smaller blocks would make memory-bound.
const TILES_BLOCK_BYTES: usize = 1 << 20;
const TILES_BLOCK_GROUPS: usize = 64;
/// Panels of an item with AMX tiles, or pairs of them.
const TILES_PANELS: usize = 4;

pub struct Section<'a> {
    packed: RowGroups<'a>,
    pub weight: &'a Matrix,
    output: Output<'a>,
    /// Number of panels; if gated, of pairs of panels.
    pub panels: usize,
    span_panels: usize,
    n_spans: usize,
    n_blocks: usize,
}

impl<'a> Section<'a> {
    pub fn new(
        packed: RowGroups<'a>,
        weight: &'a Matrix,
        output: Output<'a>,
        n_threads: usize,
    ) -> Self {
        let panels = panels_of(weight, output.write);
        let span_panels = item_panels(weight, panels, packed, n_threads);
        Self::with_spans(packed, weight, output, span_panels)
    }

    pub fn with_spans(
        packed: RowGroups<'a>,
        weight: &'a Matrix,
        output: Output<'a>,
        span_panels: usize,
    ) -> Self {
        let panels = panels_of(weight, output.write);
        Self {
            packed,
            weight,
            output,
            panels,
            span_panels,
            n_spans: panels.div_ceil(span_panels),
            n_blocks: packed.n_groups.div_ceil(block_groups(packed)),
        }
    }

    /// Whether there are enough rows to multiply them from strips, if instruction set and format support that.
    pub fn uses_strips(&self) -> bool {
        self.packed.may_use_strips() && self.packed.n_groups >= strips::LEAST_GROUPS
    }

    pub fn n_items(&self) -> usize {
        self.n_spans * self.n_blocks
    }

    pub fn span(&self, panels: Range<usize>) -> Item<'a> {
        Item {
            packed: self.packed,
            weight: self.weight,
            output: self.output,
            panels,
            groups: 0..self.packed.n_groups,
            next_start: None,
        }
    }

    /// First panel of a span. A last span with a single panel would be slow, so it takes a panel of the previous span.
    fn first_panel(&self, span: usize) -> usize {
        let at = span * self.span_panels;
        let leaves_one = span > 0 && at + 1 == self.panels && self.span_panels == MAX_PANELS;
        if leaves_one && !self.packed.may_use_strips() {
            at - 1
        } else {
            at.min(self.panels)
        }
    }

    pub fn item(&self, index: usize) -> Item<'a> {
        let n_groups = self.packed.n_groups;
        let (block, span) = (index / self.n_spans, index % self.n_spans);
        let panels = match n_groups {
            1 => even_part(span, self.n_spans, self.panels),
            // Whole tiles, except the last.
            _ => self.first_panel(span)..self.first_panel(span + 1),
        };
        Item {
            packed: self.packed,
            weight: self.weight,
            output: self.output,
            panels,
            groups: even_part(block, self.n_blocks, n_groups),
            next_start: None,
        }
    }
}

fn block_groups(packed: RowGroups<'_>) -> usize {
    if packed.may_use_strips() {
        return strips::MOST_GROUPS;
    }
    let group_bytes = MAX_ROWS * packed.row_words * size_of::<u32>();
    if packed.is_row_major() {
        return (TILES_BLOCK_BYTES / group_bytes).clamp(LEAST_BLOCK_GROUPS, TILES_BLOCK_GROUPS);
    }
    (BLOCK_BYTES / group_bytes).clamp(LEAST_BLOCK_GROUPS, BLOCK_GROUPS)
}

fn item_panels(weight: &Matrix, panels: usize, packed: RowGroups<'_>, threads: usize) -> usize {
    let even_share = panels.div_ceil(4 * threads).max(1);
    match packed.n_groups {
        _ if packed.n_groups > 1 && packed.is_row_major() => {
            even_share.next_multiple_of(2).min(TILES_PANELS)
        }
        1 => even_share.min((STREAM_BYTES / (4 * weight.panel_words)).max(1)),
        _ if packed.may_use_strips() => even_share.min(MAX_PANELS),
        // Two panels take hardly longer than one.
        _ => even_share.clamp(2, MAX_PANELS),
    }
}
