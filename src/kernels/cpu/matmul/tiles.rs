//! Dispatch to the micro-kernel of each weight format, monomorphised over the rows of a group and the panels of a tile.

use std::marker::PhantomData;
use std::ops::Range;

use super::super::ahead::Ahead;
use super::super::block32;
use super::super::format::Format;
use super::super::k_quants::{self, KQuant};
use super::super::nibbles::{self, Codes};
use super::super::panel::{INT8_GROUP, MAX_PANELS, Sums};
use super::super::simd::{Isa, Lanes, dispatch, dispatch_integers};
use super::super::strips::{GroupPart, WidenedWeights};
use super::super::tile::{self, Plain};
use super::item::TileItem;

/// The activations of a tile, up to [`tile::max_rows`] rows.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    /// A packed group, whose rows' words are interleaved.
    Group(*const u32),
    /// Rows of `all` (each contiguous), selected by the indices `picked`.
    Picked { all: *const u32, picked: *const u32 },
}

impl Rows {
    #[inline(always)]
    fn group(self) -> *const u32 {
        match self {
            Self::Group(words) => words,
            Self::Picked { .. } => unreachable!("this format does not support picked rows"),
        }
    }
}

/// The operands of a tile: some rows, and panels at equal distances.
#[derive(Clone, Copy)]
pub(super) struct Operands {
    pub rows: Rows,
    pub panels: *const u32,
    pub panel_stride: usize,
    pub format: Format,
    pub inputs: usize,
    pub ahead: Ahead,
}

impl Operands {
    #[inline(always)]
    pub fn by_rows<S: Lanes, T: Tile>(&self, m: usize, n: usize, sums: &mut Sums) {
        let max = tile::max_rows::<S>();
        match m {
            1 => self.by_panels::<S, T, 1>(n, sums),
            2 => self.by_panels::<S, T, 2>(n, sums),
            3 if max >= 3 => self.by_panels::<S, T, 3>(n, sums),
            4 if max >= 4 => self.by_panels::<S, T, 4>(n, sums),
            5 if max >= 5 => self.by_panels::<S, T, 5>(n, sums),
            6 if max >= 6 => self.by_panels::<S, T, 6>(n, sums),
            7 if max >= 7 => self.by_panels::<S, T, 7>(n, sums),
            8 if max >= 8 => self.by_panels::<S, T, 8>(n, sums),
            _ => unreachable!("a group has 1 to {max} rows, not {m}"),
        }
    }

    #[inline(always)]
    fn by_panels<S: Lanes, T: Tile, const M: usize>(&self, n: usize, sums: &mut Sums) {
        // SAFETY: the pointers were taken from slices of M rows and n panels of `inputs` inputs; `dispatch` detected
        // the instruction set.
        unsafe {
            match n {
                1 => T::run::<S, M, 1>(self, sums),
                2 if S::REGISTERS_PER_VECTOR == 1 && T::MAX_PANELS > 1 => {
                    T::run::<S, M, 2>(self, sums)
                }
                MAX_PANELS if S::REGISTERS_PER_VECTOR == 1 && T::MAX_PANELS > 1 => {
                    T::run::<S, M, MAX_PANELS>(self, sums)
                }
                _ => unreachable!("tiles have 1 to {} panels, not {n}", T::MAX_PANELS),
            }
        }
    }

    #[inline(always)]
    fn panels<const N: usize>(&self) -> [*const u32; N] {
        std::array::from_fn(|n| self.panels.wrapping_add(n * self.panel_stride))
    }
}

pub(super) trait Tile: Sized + 'static {
    const MAX_PANELS: usize = MAX_PANELS;

    /// Runs an item, compiled with integer dot products; float formats override it.
    fn run_item(isa: Isa, item: TileItem<'_, Self>) {
        dispatch_integers(isa, item);
    }

    /// Whether products of many rows use [strips](super::super::strips), after [`Self::widen`] has widened the weights to
    /// f32.
    fn has_strips<S: Lanes>() -> bool {
        false
    }

    /// Widens some inputs of the operands' panels to f32, and multiplies the item's first group of rows with them.
    ///
    /// # Safety
    /// As [`Self::run`]; `inputs` begins and ends at whole steps of the format, and is the range of inputs in `first`.
    unsafe fn widen<S: Lanes, const N: usize>(
        _operands: &Operands,
        _inputs: Range<usize>,
        _strips: &mut WidenedWeights,
        _first: GroupPart<'_>,
    ) {
        unreachable!("this format has no strips");
    }

    /// # Safety
    /// The operands are valid for M rows and N panels; the instruction set of `S` was detected.
    unsafe fn run<S: Lanes, const M: usize, const N: usize>(operands: &Operands, sums: &mut Sums);
}

pub(super) struct PlainTile<F>(PhantomData<F>);

impl<F: FormatOf> Tile for PlainTile<F> {
    fn run_item(isa: Isa, item: TileItem<'_, Self>) {
        dispatch(isa, item);
    }

    fn has_strips<S: Lanes>() -> bool {
        S::STRIPS
    }

    #[inline(always)]
    unsafe fn widen<S: Lanes, const N: usize>(
        operands: &Operands,
        inputs: Range<usize>,
        strips: &mut WidenedWeights,
        first: GroupPart<'_>,
    ) {
        let panels = operands.panels::<N>();
        // SAFETY: guaranteed by the caller.
        unsafe {
            match F::FORMAT {
                Format::Bf16 => {
                    strips.fill_and_multiply::<S, tile::WideBf16, N>(panels, inputs, first);
                }
                _ => strips.fill_and_multiply::<S, F, N>(panels, inputs, first),
            }
        }
    }

    #[inline(always)]
    unsafe fn run<S: Lanes, const M: usize, const N: usize>(operands: &Operands, sums: &mut Sums) {
        let Operands {
            rows,
            inputs,
            ahead,
            ..
        } = *operands;
        let row_words = F::FORMAT.encoding_with::<S>().row_words(inputs);
        let panels = operands.panels();
        // SAFETY: guaranteed by the caller; a step of wide rows is two words.
        unsafe {
            if F::FORMAT == Format::Bf16 && !S::BF16_PAIRS {
                let (rows, steps) = (tile::InterleavedRows(rows.group()), row_words / 2);
                tile::plain::<S, tile::WideBf16, _, M, N>(rows, panels, steps, ahead, sums);
                return;
            }
            let steps = row_words / F::ROW_WORDS;
            if let (Format::Bf16, Rows::Picked { all, picked }) = (F::FORMAT, rows) {
                let rows = tile::SeparateRows::<M>::picked(all, row_words, picked);
                tile::plain::<S, F, _, M, N>(rows, panels, steps, ahead, sums);
                return;
            }
            let rows = tile::InterleavedRows(rows.group());
            tile::plain::<S, F, _, M, N>(rows, panels, steps, ahead, sums);
        }
    }
}

pub(super) struct Int8Tile;

impl Tile for Int8Tile {
    #[inline(always)]
    unsafe fn run<S: Lanes, const M: usize, const N: usize>(operands: &Operands, sums: &mut Sums) {
        let Operands {
            rows,
            inputs,
            ahead,
            ..
        } = *operands;
        let groups = inputs.div_ceil(INT8_GROUP);
        // SAFETY: guaranteed by the caller.
        unsafe { tile::int8::<S, M, N>(rows.group(), operands.panels(), groups, ahead, sums) };
    }
}

pub(super) struct Block32Tile;

impl Tile for Block32Tile {
    #[inline(always)]
    unsafe fn run<S: Lanes, const M: usize, const N: usize>(operands: &Operands, sums: &mut Sums) {
        let Operands {
            rows,
            inputs,
            ahead,
            ..
        } = *operands;
        let pairs = inputs.div_ceil(block32::TWO_BLOCKS);
        // SAFETY: guaranteed by the caller.
        unsafe { block32::tile::<S, M, N>(rows.group(), operands.panels(), pairs, ahead, sums) };
    }
}

pub(super) struct NibbleTile<C>(PhantomData<C>);

impl<C: Codes> Tile for NibbleTile<C> {
    const MAX_PANELS: usize = 1;

    #[inline(always)]
    unsafe fn run<S: Lanes, const M: usize, const N: usize>(operands: &Operands, sums: &mut Sums) {
        let Operands {
            rows,
            panels,
            format,
            inputs,
            ahead,
            ..
        } = *operands;
        let Format::Nibbles(header) = format else {
            unreachable!("{format:?} is not a nibble format");
        };
        let pairs = inputs.div_ceil(block32::TWO_BLOCKS);
        // SAFETY: guaranteed by the caller.
        unsafe { nibbles::tile::<S, C, M>(rows.group(), panels, (pairs, header), ahead, sums) };
    }
}

pub(super) struct KQuantTile<F>(PhantomData<F>);

impl<F: KQuant> Tile for KQuantTile<F> {
    const MAX_PANELS: usize = 1;

    #[inline(always)]
    unsafe fn run<S: Lanes, const M: usize, const N: usize>(operands: &Operands, sums: &mut Sums) {
        let Operands {
            rows,
            panels,
            inputs,
            ahead,
            ..
        } = *operands;
        let blocks = inputs.div_ceil(k_quants::SUPER_BLOCK);
        // SAFETY: guaranteed by the caller.
        unsafe { k_quants::tile::<S, F, M>(rows.group(), panels, blocks, ahead, sums) };
    }
}

pub(super) trait FormatOf: Plain {
    const FORMAT: Format;
}

impl FormatOf for tile::F32 {
    const FORMAT: Format = Format::F32;
}

impl FormatOf for tile::F16 {
    const FORMAT: Format = Format::F16;
}

// Multiplies bf16 weights, widened to f32, with f32 activations. `Bf16` also uses it, with rounded activations, where
// `Lanes::BF16_PAIRS` is false.
impl FormatOf for tile::WideBf16 {
    const FORMAT: Format = Format::ExactBf16;
}

impl FormatOf for tile::Bf16 {
    const FORMAT: Format = Format::Bf16;
}
