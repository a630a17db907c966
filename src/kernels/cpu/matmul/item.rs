//! A work item of a matrix product: some rows of some panels, multiplied by one thread.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::activations::RowGroups;
use super::super::ahead::Ahead;
use super::super::experts::rows::PICKED;
use super::super::format::Format;
use super::super::k_quants::{Q2K, Q3K, Q4K, Q5K, Q6K};
use super::super::matrix::Matrix;
use super::super::nibbles;
use super::super::panel::{MAX_PANELS, Sums};
use super::super::simd::{Isa, Kernel, Lanes};
use super::super::strips;
use super::super::tile;
#[cfg(target_arch = "x86_64")]
use super::amx;
use super::output::{Output, Panels, panels_of};
use super::tiles::{
    Block32Tile, Int8Tile, KQuantTile, NibbleTile, Operands, PlainTile, Rows, Tile,
};
use crate::blocks::BlockType;

pub struct Item<'a> {
    pub packed: RowGroups<'a>,
    pub weight: &'a Matrix,
    pub output: Output<'a>,
    pub panels: Range<usize>,
    pub groups: Range<usize>,
    /// The start of this thread's next item, unless it is unknown or begins at the following panels.
    pub next_start: Option<Start<'a>>,
}

#[derive(Clone, Copy)]
pub struct Start<'a> {
    pub weight: &'a Matrix,
    pub panel: usize,
    pub n_panels: usize,
}

impl<'a> Item<'a> {
    pub fn with_next(self, next_start: Option<Start<'a>>) -> Self {
        Self { next_start, ..self }
    }

    pub fn start(&self) -> Start<'a> {
        Start {
            weight: self.weight,
            panel: self.panels.start,
            n_panels: self.panels.len(),
        }
    }

    /// Runs the item. Each format is compiled separately: a single function would take the compiler many minutes.
    pub fn run(self, isa: Isa) {
        #[cfg(target_arch = "x86_64")]
        if self.packed.is_row_major() {
            return super::super::simd::dispatch(isa, amx::FromTiles(self));
        }
        match self.weight.format {
            Format::F32 => self.run_with::<PlainTile<tile::F32>>(isa),
            Format::F16 => self.run_with::<PlainTile<tile::F16>>(isa),
            Format::Bf16 => self.run_with::<PlainTile<tile::Bf16>>(isa),
            Format::ExactBf16 => self.run_with::<PlainTile<tile::WideBf16>>(isa),
            Format::Int8 => self.run_with::<Int8Tile>(isa),
            Format::Block32(_) => self.run_with::<Block32Tile>(isa),
            Format::Nibbles(header) if header.is_table() => {
                self.run_with::<NibbleTile<nibbles::TableCodes>>(isa);
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

pub struct TileItem<'a, T> {
    item: Item<'a>,
    tile: PhantomData<T>,
}

impl<T: Tile> Kernel for TileItem<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let item = self.item;
        item.check::<S>();
        let mut panel = item.panels.start;
        if T::has_strips::<S>() && item.groups.len() >= strips::LEAST_GROUPS {
            while panel < item.panels.end {
                let n = MAX_PANELS.min(item.panels.end - panel);
                item.multiply_in_strips::<S, T>(panel, n);
                panel += n;
            }
        }
        while panel < item.panels.end {
            let n = item.tile_panels::<S, T>(item.panels.end - panel);
            let next = item.next_tile::<S, T>(panel + n);
            for group in item.groups.clone() {
                item.multiply_group::<S, T>(group, (panel, n), &next);
            }
            panel += n;
        }
    }
}

/// The weights of the thread's next tile, which the preceding tiles prefetch in equal shares.
enum NextTile<'a> {
    /// The weights after a single panel, of any length.
    Stream,
    /// All words of a tile of several panels.
    Words { words: &'a [u32], share: usize },
}

impl NextTile<'_> {
    #[inline(always)]
    fn share(&self, index: usize) -> Ahead {
        match self {
            Self::Stream => Ahead::Stream,
            Self::Words { words, share } => {
                let words = words.chunks(*share).nth(index).unwrap_or_default();
                Ahead::Words(words.as_ptr(), words.len())
            }
        }
    }
}

impl<'a> Item<'a> {
    /// The `n` panels from `panel` on or, if gated, a set of gate panels and a set of up panels; and the number of
    /// sets.
    pub fn panels_from(&self, panel: usize, n: usize) -> ([Panels; 2], usize) {
        if self.output.write.is_gated() {
            (Panels::alternating(panel, n).into(), 2)
        } else {
            ([Panels::adjacent(panel, n); 2], 1)
        }
    }

    /// Number of panels of the next tile if `left` remain. Single-panel tiles are slow, so four panels make two tiles.
    #[inline(always)]
    fn tile_panels<S: Lanes, T: Tile>(&self, left: usize) -> usize {
        // One group is memory-bound, and one stream is faster than three.
        let is_single =
            S::REGISTERS_PER_VECTOR > 1 || self.packed.n_groups == 1 || T::MAX_PANELS == 1;
        match left {
            _ if is_single => left.min(1),
            4 => 2,
            _ => left.min(MAX_PANELS),
        }
    }

    #[inline(always)]
    pub fn put<S: Lanes>(&self, rows: Range<usize>, panels: [Panels; 2], sums: [&Sums; 2]) {
        if self.output.write.is_gated() {
            let (gates, ups) = ((panels[0], sums[0]), (panels[1], sums[1]));
            self.output.put_gated::<S>(rows, gates, ups);
        } else {
            self.output.put::<S>(rows, panels[0], sums[0])
        }
    }

    #[inline(always)]
    fn multiply_group<S: Lanes, T: Tile>(
        &self,
        group: usize,
        (panel, n): (usize, usize),
        next: &NextTile<'_>,
    ) {
        let rows = self.packed.rows_of(group);
        let (read, rows) = (
            self.rows_to_read(rows.clone()),
            self.packed.row_indices(rows),
        );
        let (panels, n_panels) = self.panels_from(panel, n);
        self.output.fetch::<S>(rows.clone(), panels[0]);
        let mut sums = [Sums::uninit(), Sums::uninit()];
        // A loop, so that the tiles are inlined only once.
        for (i, sums) in sums[..n_panels].iter_mut().enumerate() {
            let ahead = next.share(i * self.groups.len() + group - self.groups.start);
            self.tile::<S, T>(rows.len(), read, ahead, panels[i], sums);
        }
        self.put::<S>(rows, panels, [&sums[0], &sums[1]]);
    }

    pub fn after(&self, panel: usize) -> Start<'a> {
        let weight = self.weight;
        let end = match self.next_start {
            Some(next_start) if panel == self.panels.end => return next_start,
            Some(_) => self.panels.end,
            None => panels_of(weight, self.output.write),
        };
        Start {
            weight,
            panel,
            n_panels: end - panel,
        }
    }

    #[inline(always)]
    fn next_tile<S: Lanes, T: Tile>(&self, panel: usize) -> NextTile<'a> {
        if self.packed.n_groups == 1 {
            return NextTile::Stream;
        }
        let Start {
            weight,
            panel,
            n_panels,
        } = self.after(panel);
        let n = self.tile_panels::<S, T>(n_panels);
        let n_sets = self.panels_from(panel, n).1;
        let size = n_sets * weight.panel_words;
        let words = &weight.words()[panel * size..(panel + n) * size];
        let n_shares = n_sets * self.groups.len();
        NextTile::Words {
            words,
            share: words.len().div_ceil(n_shares).max(1),
        }
    }

    #[inline(always)]
    fn rows_to_read(&self, rows: Range<usize>) -> Rows {
        let RowGroups {
            words,
            row_words,
            picked,
            ..
        } = self.packed;
        match picked {
            None => Rows::Group(words[rows.start * row_words..rows.end * row_words].as_ptr()),
            Some(picked) => Rows::Picked {
                all: words.as_ptr(),
                picked: picked[rows].as_ptr(),
            },
        }
    }

    #[inline(always)]
    fn tile<S: Lanes, T: Tile>(
        &self,
        m: usize,
        rows: Rows,
        ahead: Ahead,
        panels: Panels,
        sums: &mut Sums,
    ) {
        let operands = self.operands(rows, panels, ahead);
        operands.by_rows::<S, T>(m, panels.n, sums);
    }

    #[inline(always)]
    fn check<S: Lanes>(&self) {
        let encoding = self.weight.format.encoding_with::<S>();
        assert_eq!(self.packed.encoding, encoding);
        assert_eq!(
            self.packed.row_words,
            encoding.row_words(self.weight.inputs)
        );
        assert!(self.packed.picked.is_none() || encoding == PICKED);
    }

    /// Does not check the shapes: `check` has validated the item.
    #[inline(always)]
    pub fn operands(&self, rows: Rows, panels: Panels, ahead: Ahead) -> Operands {
        let size = self.weight.panel_words;
        let inputs = self.weight.inputs;
        let all = panels.first * size..(panels.index(panels.n - 1) + 1) * size;
        Operands {
            rows,
            panels: self.weight.words()[all].as_ptr(),
            panel_stride: panels.step * size,
            format: self.weight.format,
            inputs,
            ahead,
        }
    }
}
