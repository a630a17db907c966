//! Products of activations with weight matrices.
//!
//! The weights' panels are divided among the threads, those of a node of memory among its own; each thread multiplies a few
//! panels with all rows before it goes on, so that weights come from memory once. [`super::tile`] holds the inner loops and
//! the order of the sums.

#[cfg(target_arch = "x86_64")]
mod amx;
mod experts;
mod heads;
mod output;
mod tiles;

use std::marker::PhantomData;

use smallvec::{SmallVec, smallvec};

pub use self::experts::{ExpertProduct, ItemRun, add_experts, multiply_experts};
pub use self::heads::{HeadsProduct, multiply_heads};
use self::output::{Output, Panels};
pub use self::output::{Weighted, Write};
use self::tiles::{Block32Tile, Int8Tile, KQuantTile, NibbleTile, Operands, PlainTile, Tile};
use super::activations::{PackedRows, RowGroups};
use super::format::{Format, group_rows};
use super::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
use super::matrix::Matrix;
use super::nibbles;
use super::nodes::PerNode;
use super::simd::{Isa, Kernel, Lanes};
use super::stack::Stack;
use super::strips::{self, Widened};
use super::tensor::Shared;
use super::threads::ThreadPool;
use super::tile::{self, Ahead, MAX_PANELS, Sums};
use crate::kernels::blocks::BlockType;

/// Bytes of weights in an item when one group of rows is multiplied: long enough a stream, short enough to balance threads.
const STREAM_BYTES: usize = 128 << 10;

/// Least groups of rows in a block.
const LEAST_BLOCK_GROUPS: usize = 8;
/// Most groups of rows in a block, of which an item multiplies all. A thread goes on with the same block, which it has
/// had in the kernels before: smaller items cost nothing, and the last one keeps the other threads waiting for less.
const BLOCK_GROUPS: usize = 16;
/// Most bytes of a block: what stays near beside the panels of an item.
const BLOCK_BYTES: usize = 512 << 10;

/// The same for tiles of AMX, which multiply so fast that they else wait for weights.
const TILES_BLOCK_BYTES: usize = 1 << 20;
const TILES_BLOCK_GROUPS: usize = 64;
/// Panels of an item with tiles of AMX, or pairs of them.
const TILES_PANELS: usize = 4;

/// A product to compute: `x weight^T + bias`, and what to do with it.
///
/// # Shapes
/// `x: [rows, inputs]`, `bias: [outputs]`, `out: [rows, outputs]`; gated half as many outputs.
pub struct Product<'a> {
    /// Activations, in each encoding that the weights need.
    pub x: &'a [PackedRows],
    /// Weights.
    pub weight: &'a Stack,
    /// Added to each row.
    pub bias: Option<&'a [f32]>,
    /// Where it goes.
    pub out: &'a mut [f32],
    /// How it goes there.
    pub write: Write,
}

/// Computes a product on all threads.
///
/// # Panics
/// If the shapes or encodings do not fit each other.
pub fn matmul(pool: &mut ThreadPool, isa: Isa, product: Product<'_>) {
    let Product {
        x,
        weight,
        bias,
        out,
        write,
    } = product;
    let rows = x[0].rows();
    if rows == 0 {
        return;
    }
    let columns = write.columns(weight.outputs);
    assert!(
        !write.is_gated() || weight.alternates(),
        "gates beside what they let through"
    );
    assert_eq!(out.len(), rows * columns, "{rows} rows of {columns}");
    assert!(
        bias.is_none_or(|b| b.len() == weight.outputs),
        "bias of {} outputs",
        weight.outputs
    );
    let out = Shared::new(out);
    let sections = weight.sections().iter().map(|section| {
        let output = Output {
            panels: section.panels(),
            bias,
            out,
            columns,
            write,
            weighted: None,
        };
        let rows = rows_for(x, section, isa).groups();
        Section::new(
            rows,
            section,
            output,
            threads_of(pool, weight, section.node),
        )
    });
    let sections: SmallVec<[Section<'_>; 8]> = sections.collect();
    let mut dealt: PerNode<usize> = smallvec![0; weight.n_nodes()];
    for section in &sections {
        dealt[section.weight.node] += section.n_items();
    }
    let cost = rows * weight.inputs * weight.outputs;
    pool.for_each_dealt(&dealt, cost, &|index| {
        let mut before = 0;
        for section in &sections {
            let end = before + section.n_items();
            if index < end {
                section.item(index - before).run(isa);
                return;
            }
            before = end;
        }
    });
}

/// The threads that a node's part of a weight is divided among.
fn threads_of(pool: &ThreadPool, weight: &Stack, node: usize) -> usize {
    match weight.n_nodes() == pool.nodes().count() {
        true => pool.nodes().threads(node).len(),
        false => pool.n_threads(),
    }
}

/// The rows in the encoding that a matrix reads.
fn rows_for<'a>(x: &'a [PackedRows], weight: &Matrix, isa: Isa) -> &'a PackedRows {
    let wanted = (weight.inputs, weight.format.encoding(isa));
    let found = x.iter().find(|x| (x.inputs(), x.encoding()) == wanted);
    found.expect("activations as the weights")
}

/// The product with one matrix of a stack, cut into items.
struct Section<'a> {
    packed: RowGroups<'a>,
    weight: &'a Matrix,
    output: Output<'a>,
    /// Panels; gated, pairs of them.
    panels: usize,
    /// Panels of an item.
    stride: usize,
    n_spans: usize,
    n_blocks: usize,
}

impl<'a> Section<'a> {
    fn new(
        packed: RowGroups<'a>,
        weight: &'a Matrix,
        output: Output<'a>,
        n_threads: usize,
    ) -> Self {
        let panels = panels_of(weight, output.write);
        let stride = item_panels(weight, panels, packed, n_threads);
        Self::with_stride(packed, weight, output, stride)
    }

    /// Cut into items of `stride` panels.
    fn with_stride(
        packed: RowGroups<'a>,
        weight: &'a Matrix,
        output: Output<'a>,
        stride: usize,
    ) -> Self {
        let panels = panels_of(weight, output.write);
        Self {
            packed,
            weight,
            output,
            panels,
            stride,
            n_spans: panels.div_ceil(stride),
            n_blocks: packed.n_groups.div_ceil(block_groups(packed)),
        }
    }

    fn n_items(&self) -> usize {
        self.n_spans * self.n_blocks
    }

    /// All rows of some panels.
    fn span(&self, panels: std::ops::Range<usize>) -> Item<'a> {
        Item {
            packed: self.packed,
            weight: self.weight,
            output: self.output,
            panels,
            groups: 0..self.packed.n_groups,
        }
    }

    /// Where a span begins. None of tiles has a single panel, which is slow, if the one before can leave it another.
    fn cut(&self, span: usize) -> usize {
        let at = span * self.stride;
        let leaves_one = span > 0 && at + 1 == self.panels && self.stride == MAX_PANELS;
        match leaves_one && !self.packed.may_meet_strips() {
            true => at - 1,
            false => at.min(self.panels),
        }
    }

    fn item(&self, index: usize) -> Item<'a> {
        let n_groups = self.packed.n_groups;
        let (block, span) = (index / self.n_spans, index % self.n_spans);
        let panels = match n_groups {
            1 => group_rows(span, self.n_spans, self.panels),
            // Whole tiles, but for the last.
            _ => self.cut(span)..self.cut(span + 1),
        };
        Item {
            packed: self.packed,
            weight: self.weight,
            output: self.output,
            panels,
            groups: group_rows(block, self.n_blocks, n_groups),
        }
    }
}

/// Panels of a matrix; gated, pairs of them.
fn panels_of(weight: &Matrix, write: Write) -> usize {
    match write.is_gated() {
        true => weight.panels().len() / 2,
        false => weight.panels().len(),
    }
}

/// Groups of rows in a block: enough to multiply with weights faster than they come from memory.
fn block_groups(packed: RowGroups<'_>) -> usize {
    if packed.may_meet_strips() {
        return strips::MOST_GROUPS;
    }
    let group_bytes = tile::MAX_ROWS * packed.row_words * size_of::<u32>();
    if packed.stands_by_rows() {
        return (TILES_BLOCK_BYTES / group_bytes).clamp(LEAST_BLOCK_GROUPS, TILES_BLOCK_GROUPS);
    }
    (BLOCK_BYTES / group_bytes).clamp(LEAST_BLOCK_GROUPS, BLOCK_GROUPS)
}

/// Number of panels in an item.
fn item_panels(weight: &Matrix, panels: usize, packed: RowGroups<'_>, threads: usize) -> usize {
    let even = panels.div_ceil(4 * threads).max(1);
    match packed.n_groups {
        _ if packed.n_groups > 1 && packed.stands_by_rows() => {
            even.next_multiple_of(2).min(TILES_PANELS)
        }
        1 => even.min((STREAM_BYTES / (4 * weight.panel_words())).max(1)),
        _ if packed.may_meet_strips() => even.min(MAX_PANELS),
        // Two panels take hardly longer than one.
        _ => even.clamp(2, MAX_PANELS),
    }
}

/// Some rows of some panels of a product.
struct Item<'a> {
    packed: RowGroups<'a>,
    weight: &'a Matrix,
    output: Output<'a>,
    panels: std::ops::Range<usize>,
    /// Groups of rows.
    groups: std::ops::Range<usize>,
}

impl Item<'_> {
    /// Runs it, compiled for each format by itself: all in one function takes a compiler many minutes.
    fn run(self, isa: Isa) {
        #[cfg(target_arch = "x86_64")]
        if self.packed.stands_by_rows() {
            return super::simd::dispatch(isa, amx::FromTiles(self));
        }
        match self.weight.format {
            Format::F32 => self.run_with::<PlainTile<tile::F32>>(isa),
            Format::F16 => self.run_with::<PlainTile<tile::F16>>(isa),
            Format::Bf16 => self.run_with::<PlainTile<tile::Bf16>>(isa),
            Format::ExactBf16 => self.run_with::<PlainTile<tile::WideBf16>>(isa),
            Format::Int8 => self.run_with::<Int8Tile>(isa),
            Format::Block32(_) => self.run_with::<Block32Tile>(isa),
            Format::Nibbles(header) if header.is_table() => {
                self.run_with::<NibbleTile<nibbles::Looked>>(isa);
            }
            Format::Nibbles(_) => self.run_with::<NibbleTile<nibbles::Plain>>(isa),
            Format::KQuant(BlockType::Q2K) => self.run_with::<KQuantTile<Q2K>>(isa),
            Format::KQuant(BlockType::Q3K) => self.run_with::<KQuantTile<Q3K>>(isa),
            Format::KQuant(BlockType::Q4K) => self.run_with::<KQuantTile<Q4K>>(isa),
            Format::KQuant(BlockType::Q5K) => self.run_with::<KQuantTile<Q5K>>(isa),
            Format::KQuant(_) => self.run_with::<KQuantTile<Q6K>>(isa),
        }
    }

    fn run_with<T: Tile>(self, isa: Isa) {
        let (item, tile) = (self, PhantomData::<T>);
        T::run_item(isa, TileItem { item, tile });
    }
}

/// An item and its inner loop.
struct TileItem<'a, T> {
    item: Item<'a>,
    tile: PhantomData<T>,
}

impl<T: Tile> Kernel for TileItem<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let item = self.item;
        // One group waits for memory, which one stream reads faster than three.
        let many = S::REGISTERS == 1 && item.packed.n_groups > 1 && T::MAX_PANELS > 1;
        let mut panel = item.panels.start;
        if T::has_strips::<S>() && item.groups.len() >= strips::LEAST_GROUPS {
            while item.panels.end - panel >= MAX_PANELS {
                item.in_strips::<S, T>(panel);
                panel += MAX_PANELS;
            }
        }
        while panel < item.panels.end {
            let n = match item.panels.end - panel {
                left if many => tile_panels(left),
                _ => 1,
            };
            for group in item.groups.clone() {
                item.group::<S, T>(group, panel, n);
            }
            panel += n;
        }
    }
}

/// Panels of the next tile of so many: no tile has a single one, which is slow, unless that is all.
fn tile_panels(left: usize) -> usize {
    match left {
        4 => 2,
        _ => left.min(MAX_PANELS),
    }
}

impl Item<'_> {
    /// Multiplies all groups with [`MAX_PANELS`] panels, or as many pairs of them, from strips.
    #[inline(always)]
    fn in_strips<S: Lanes, T: Tile>(&self, panel: usize) {
        let (panels, n_panels) = self.panels_from(panel, MAX_PANELS);
        let inputs = self.packed.row_words;
        let mut widened = Widened::uninit();
        let mut sums = [[const { Sums::uninit() }; strips::MOST_GROUPS]; 2];
        for first_group in self.groups.clone().step_by(strips::MOST_GROUPS) {
            let groups = first_group..self.groups.end.min(first_group + strips::MOST_GROUPS);
            for (i, (sums, panels_now)) in sums.iter_mut().zip(&panels[..n_panels]).enumerate() {
                let panels_next = match i + 1 < n_panels {
                    true => panels[i + 1],
                    false if groups.end < self.groups.end => panels[0],
                    false => self.panels_from(panel + MAX_PANELS, MAX_PANELS).0[0],
                };
                for first in (0..inputs).step_by(strips::PART) {
                    let part = first..inputs.min(first + strips::PART);
                    let next = match part.end < inputs {
                        true => (*panels_now, part.end),
                        false => (panels_next, 0),
                    };
                    let operands = self.operands::<S>(&[], *panels_now, Ahead::Nothing);
                    // SAFETY: the panels have all inputs, a whole number of steps; `dispatch` detected the instruction set.
                    unsafe { T::widen::<S>(&operands, part.clone(), &mut widened) };
                    for (group, sums) in groups.clone().zip(sums.iter_mut()) {
                        let (rows, words) = self.packed.group(group);
                        self.fetch_part::<S>(next, group - groups.start, groups.len());
                        if part.end == inputs {
                            self.output.fetch::<S>(rows.clone(), *panels_now);
                        }
                        let words = words[first * rows.len()..part.end * rows.len()].as_ptr();
                        // SAFETY: the rows have these words, and `sums` those of the parts before; as before.
                        unsafe {
                            let rows = (words, rows.len());
                            widened.multiply::<S>(rows, part.len(), first == 0, sums);
                        }
                    }
                }
            }
            for (i, group) in groups.enumerate() {
                let (rows, _) = self.packed.group(group);
                self.put::<S>(rows, panels, [&sums[0][i], &sums[1][i]]);
            }
        }
    }

    /// Brings the share of a group of the weights near that strips are made of next, from an input of some panels on.
    #[inline(always)]
    fn fetch_part<S: Lanes>(
        &self,
        (panels, first): (Panels, usize),
        group: usize,
        n_groups: usize,
    ) {
        let inputs = self.packed.row_words;
        let words = self.weight.panel_words();
        if panels.index(panels.n - 1) >= self.weight.panels().len() {
            return;
        }
        let lines = strips::PART.min(inputs) * (words / inputs) / tile::LINE_WORDS;
        for n in 0..panels.n {
            let start = panels.index(n) * words + first * (words / inputs);
            for line in group * lines / n_groups..(group + 1) * lines / n_groups {
                let line = start + line * tile::LINE_WORDS;
                // SAFETY: only a hint; the instruction set was detected by whoever runs the item.
                unsafe { S::prefetch(self.weight.words().as_ptr().wrapping_add(line)) };
            }
        }
    }

    /// The `n` panels from one on; gated, those of the gates and of what they let through. And how many of both there are.
    fn panels_from(&self, panel: usize, n: usize) -> ([Panels; 2], usize) {
        match self.output.write.is_gated() {
            true => (Panels::alternating(panel, n).into(), 2),
            false => ([Panels::side_by_side(panel, n); 2], 1),
        }
    }

    /// Puts the sums of a group's rows where they belong.
    #[inline(always)]
    fn put<S: Lanes>(&self, rows: std::ops::Range<usize>, panels: [Panels; 2], sums: [&Sums; 2]) {
        match self.output.write.is_gated() {
            true => {
                let (gates, ups) = ((panels[0], sums[0]), (panels[1], sums[1]));
                self.output.put_gated::<S>(rows, gates, ups);
            }
            false => self.output.put::<S>(rows, panels[0], sums[0]),
        }
    }

    #[inline(always)]
    fn group<S: Lanes, T: Tile>(&self, group: usize, panel: usize, n: usize) {
        let (rows, words) = self.packed.group(group);
        let (panels, n_panels) = self.panels_from(panel, n);
        let next = n_panels * (panel + n);
        self.output.fetch::<S>(rows.clone(), panels[0]);
        let mut sums = [Sums::uninit(), Sums::uninit()];
        // A loop, so that the tiles are in the program once.
        for (i, sums) in sums[..n_panels].iter_mut().enumerate() {
            let ahead = self.ahead(group, next + i * n, n);
            self.tile::<S, T>(rows.len(), words, ahead, panels[i], sums);
        }
        self.put::<S>(rows, panels, [&sums[0], &sums[1]]);
    }

    /// The weights that this thread multiplies next, `n` panels from `panel` on: the part that belongs to `group`.
    fn ahead(&self, group: usize, panel: usize, n: usize) -> Ahead {
        if self.packed.n_groups == 1 {
            return Ahead::Stream;
        }
        if panel + n > self.weight.panels().len() {
            return Ahead::Nothing;
        }
        let words = n * self.weight.panel_words();
        let part = words.div_ceil(self.groups.len());
        let start = panel * self.weight.panel_words() + (group - self.groups.start) * part;
        Ahead::Words(self.weight.words().as_ptr().wrapping_add(start), part)
    }

    /// Multiplies `m` rows, of a group, with a tile's panels.
    #[inline(always)]
    fn tile<S: Lanes, T: Tile>(
        &self,
        m: usize,
        words: &[u32],
        ahead: Ahead,
        panels: Panels,
        sums: &mut Sums,
    ) {
        assert_eq!(words.len(), m * self.packed.row_words);
        let operands = self.operands::<S>(words, panels, ahead);
        operands.by_rows::<S, T>(m, panels.n, sums);
    }

    /// Some rows and panels, whose encodings fit each other.
    #[inline(always)]
    fn operands<S: Lanes>(&self, words: &[u32], panels: Panels, ahead: Ahead) -> Operands {
        let size = self.weight.panel_words();
        let inputs = self.weight.inputs;
        let encoding = self.weight.format.encoding_with::<S>();
        assert_eq!(self.packed.encoding, encoding);
        assert_eq!(self.packed.row_words, encoding.row_words(inputs));
        let all = panels.first * size..(panels.index(panels.n - 1) + 1) * size;
        Operands {
            rows: words.as_ptr(),
            panels: self.weight.words()[all].as_ptr(),
            panel_stride: panels.step * size,
            format: self.weight.format,
            inputs,
            ahead,
        }
    }
}

#[cfg(test)]
pub mod tests;
