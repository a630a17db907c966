//! Matrix products with AMX tiles: up to 32 rows with two panels at once, in bf16 and int8.
//!
//! The steps of a panel are stored as AMX tiles, and so are the words of contiguous rows
//! ([`Encoding::Bf16Rows`](super::super::format::Encoding::Bf16Rows)). A sum does not depend on other rows or panels: a
//! tile of one row is multiplied like a tile of sixteen.

use std::ops::Range;

use super::super::ahead::LINE_WORDS;
use super::super::format::{Format, TILE_PAIRS};
use super::super::panel::{INT8_GROUP, INT8_STEPS, MAX_ROWS, PANEL, SUMS, Sums};
use super::super::simd::{Kernel, Lanes, read};
use super::super::x86::amx::{Bf16Pairs, ByteQuads, Dot, Step, TILE_ROWS, Tiles};
use super::item::Item;

const BLOCK_ROWS: usize = 2 * TILE_ROWS;
const BLOCK_PANELS: usize = 2;
const BLOCK_GROUPS: usize = BLOCK_ROWS / MAX_ROWS;
const TILE_WORDS: usize = TILE_ROWS * LINE_WORDS;
/// Words of a row for [`INT8_GROUP`] inputs, including the header.
const INT8_ROW: usize = INT8_STEPS + 2;
/// Words of a panel for [`INT8_GROUP`] inputs, including the header.
const INT8_PANEL: usize = (INT8_STEPS + 1) * PANEL;
/// Prefetch distance of a single stream of weights: 2 KiB. 8 and 32 KiB were a fifth slower with one row.
const STREAM_WORDS: usize = 512;

pub(super) struct FromTiles<'a>(pub Item<'a>);

/// The sums of a block: two adjacent panels in the first element; if gated, gate in the first and up in the second.
type BlockSums = [[Sums; BLOCK_GROUPS]; 2];

struct Block<'a> {
    rows: *const u32,
    counts: [usize; 2],
    row_words: usize,
    panels: *const u32,
    n_panels: usize,
    panel_words: usize,
    inputs: usize,
    /// Pointer and number of words to prefetch meanwhile.
    ahead: (*const u32, usize),
    /// Destination of each panel's sums, with a row stride of [`SUMS`] values.
    sums: [*mut f32; BLOCK_PANELS],
    tiles: &'a Tiles,
}

impl Kernel for FromTiles<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let item = self.0;
        let rows = item.rows();
        let is_single = rows.len() <= MAX_ROWS;
        let max_panels = if is_single { 1 } else { BLOCK_PANELS };
        let is_gated = item.output.write.is_gated();
        let mut counts = [0; 2];
        let mut tiles = None;
        let mut panel = item.panels.start;
        while panel < item.panels.end {
            let n = if is_gated {
                1
            } else {
                max_panels.min(item.panels.end - panel)
            };
            for start in rows.clone().step_by(BLOCK_ROWS) {
                let block = start..rows.end.min(start + BLOCK_ROWS);
                let first = block.len().min(TILE_ROWS);
                let needed = [first, block.len() - first];
                if counts != needed {
                    // Nothing else on this thread uses tiles while it runs an item.
                    drop(tiles.take());
                    // SAFETY: `Isa::Amx` was detected.
                    tiles = Some(unsafe { Tiles::configure(needed) });
                    counts = needed;
                }
                if let Some(tiles) = &tiles {
                    let share = (block.start - rows.start, block.len(), rows.len());
                    item.multiply_block::<S>(tiles, (counts, block), (panel, n), share);
                }
            }
            panel += n;
        }
    }
}

impl Item<'_> {
    fn rows(&self) -> Range<usize> {
        let first = self.packed.group(self.groups.start).0.start;
        let end = self.packed.group(self.groups.end - 1).0.end;
        first - self.packed.first..end - self.packed.first
    }

    /// Multiplies a block of rows with `n` panels, and writes the sums to the output. `share` is the block's part of
    /// the item's rows: first, count, total.
    #[inline(always)]
    fn multiply_block<S: Lanes>(
        &self,
        tiles: &Tiles,
        (counts, rows): ([usize; 2], Range<usize>),
        (panel, n): (usize, usize),
        share: (usize, usize, usize),
    ) {
        let (panels, n_panels) = self.panels_from(panel, n);
        let panel_words = self.weight.panel_words;
        let first = panels[0].index(0) * panel_words;
        let all = n * n_panels;
        let words = &self.weight.words()[first..first + all * panel_words];
        let row_words = self.packed.row_words;
        let x = &self.packed.words[rows.start * row_words..rows.end * row_words];
        let mut sums: BlockSums = [const { [const { Sums::uninit() }; BLOCK_GROUPS] }; 2];
        let base = sums.each_mut().map(|sums| sums.as_mut_ptr().cast::<f32>());
        let to = match n_panels {
            1 => [base[0], base[0].wrapping_add(PANEL)],
            _ => base,
        };
        let at_once = if rows.len() <= MAX_ROWS { 1 } else { all };
        for done in (0..all).step_by(at_once) {
            let block = Block {
                rows: x.as_ptr(),
                counts,
                row_words,
                panels: words[done * panel_words..].as_ptr(),
                n_panels: at_once,
                panel_words,
                inputs: self.weight.inputs,
                ahead: self.words_ahead(first + all * panel_words, share),
                sums: [to[done], to[(done + 1).min(1)]],
                tiles,
            };
            // SAFETY: the slices hold the rows and panels, the sums whole blocks; `dispatch` detected the instructions.
            unsafe {
                match self.weight.format {
                    Format::Bf16 => block.by_shape::<S, Bf16Product>(),
                    _ => block.by_shape::<S, Int8Product>(),
                }
            }
        }
        let start = self.packed.first + rows.start;
        for (group, first) in (0..rows.len()).step_by(MAX_ROWS).enumerate() {
            let rows = start + first..start + rows.len().min(first + MAX_ROWS);
            self.put::<S>(rows, panels, [&sums[0][group], &sums[1][group]]);
        }
    }

    /// Pointer and number of words of a share of the weights that this thread probably multiplies next, to prefetch.
    #[inline(always)]
    fn words_ahead(
        &self,
        first: usize,
        (start, len, total): (usize, usize, usize),
    ) -> (*const u32, usize) {
        let words = BLOCK_PANELS * self.weight.panel_words;
        if total <= MAX_ROWS || first + words > self.weight.words().len() {
            return (std::ptr::null(), 0);
        }
        let part = words * start / total;
        (
            self.weight.words()[first + part..].as_ptr(),
            words * len / total,
        )
    }
}

trait BlockProduct {
    /// # Safety
    /// The block's pointers are valid for `ROWS` tiles of rows and `PANELS` panels; the instruction set of `S` was
    /// detected.
    unsafe fn multiply<S: Lanes, const ROWS: usize, const PANELS: usize>(block: &Block<'_>);
}

impl Block<'_> {
    /// # Safety
    /// The pointers are valid; the instruction set of `S` was detected.
    #[inline(always)]
    unsafe fn by_shape<S: Lanes, P: BlockProduct>(&self) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (self.counts[1] > 0, self.n_panels > 1) {
                (false, false) => P::multiply::<S, 1, 1>(self),
                (false, true) => P::multiply::<S, 1, 2>(self),
                (true, false) => P::multiply::<S, 2, 1>(self),
                (true, true) => P::multiply::<S, 2, 2>(self),
            }
        }
    }

    #[inline(always)]
    fn step<const ROWS: usize, const PANELS: usize>(
        &self,
        row_word: usize,
        panel_word: usize,
    ) -> Step<ROWS, PANELS> {
        Step {
            rows: std::array::from_fn(|i| {
                self.rows
                    .wrapping_add(i * TILE_ROWS * self.row_words + row_word)
            }),
            row_bytes: self.row_words * size_of::<u32>(),
            panels: std::array::from_fn(|n| {
                self.panels.wrapping_add(n * self.panel_words + panel_word)
            }),
        }
    }

    /// Prefetches later weights, a share in each of `n_steps` steps: those of the next blocks, or of this stream.
    #[inline(always)]
    fn fetch<S: Lanes>(&self, step: usize, n_steps: usize) {
        let (from, n_lines) = match self.ahead {
            (_, 0) => {
                let stream = self.panels.wrapping_add(step * TILE_WORDS + STREAM_WORDS);
                (stream, TILE_ROWS)
            }
            (from, words) => {
                let lines = words / LINE_WORDS;
                let first = step * lines / n_steps;
                let end = (step + 1) * lines / n_steps;
                (from.wrapping_add(first * LINE_WORDS), end - first)
            }
        };
        for line in 0..n_lines {
            // SAFETY: only a hint; the item's caller detected the instruction set.
            unsafe { S::prefetch(from.wrapping_add(line * LINE_WORDS)) };
        }
    }

    /// Writes the sums of all tiles; `to` has a destination per panel, `stride` is the distance of rows in words.
    ///
    /// # Safety
    /// The destinations are valid for the rows.
    #[inline(always)]
    unsafe fn store<const ROWS: usize, const PANELS: usize>(
        &self,
        to: [*mut u32; BLOCK_PANELS],
        stride: usize,
    ) {
        for rows in 0..ROWS {
            for (panel, to) in to.into_iter().enumerate().take(PANELS) {
                let to = to.wrapping_add(rows * TILE_ROWS * stride);
                // SAFETY: guaranteed by the caller.
                unsafe {
                    let bytes = stride * size_of::<u32>();
                    self.tiles.store(rows == 1, panel, to, bytes);
                }
            }
        }
    }
}

struct Bf16Product;

impl BlockProduct for Bf16Product {
    #[inline(always)]
    unsafe fn multiply<S: Lanes, const ROWS: usize, const PANELS: usize>(block: &Block<'_>) {
        let pairs = block.inputs.div_ceil(2);
        let (whole, rest) = (pairs / TILE_PAIRS, pairs % TILE_PAIRS);
        block.tiles.clear();
        // SAFETY: guaranteed by the caller; rows are padded to whole tiles.
        unsafe {
            for step in 0..whole {
                block.fetch::<S>(step, whole);
                let operands = block.step::<ROWS, PANELS>(step * TILE_PAIRS, step * TILE_WORDS);
                Bf16Pairs::add(block.tiles, operands);
            }
            if rest > 0 {
                let operands = block.step::<ROWS, PANELS>(whole * TILE_PAIRS, whole * TILE_WORDS);
                // The last panel may be the end of the memory: zeros replace the missing steps.
                let mut padded = [[0u32; TILE_WORDS]; PANELS];
                for (padded, panel) in padded.iter_mut().zip(operands.panels) {
                    for line in 0..rest {
                        let from = panel.wrapping_add(line * LINE_WORDS);
                        let to = padded[line * LINE_WORDS..].as_mut_ptr();
                        S::store_words(to, S::load_words(from));
                    }
                }
                let panels = padded.each_ref().map(|padded| padded.as_ptr());
                Bf16Pairs::add(block.tiles, Step { panels, ..operands });
            }
            block.store::<ROWS, PANELS>(block.sums.map(<*mut f32>::cast), SUMS);
        }
    }
}

struct Int8Product;

impl BlockProduct for Int8Product {
    #[inline(always)]
    unsafe fn multiply<S: Lanes, const ROWS: usize, const PANELS: usize>(block: &Block<'_>) {
        const TILES: usize = INT8_STEPS / TILE_ROWS;
        const STRIDE: usize = BLOCK_PANELS * PANEL;
        let n_rows = block.counts[0] + block.counts[1];
        let groups = block.inputs.div_ceil(INT8_GROUP);
        let mut products = [0u32; BLOCK_ROWS * STRIDE];
        let to = products.as_mut_ptr();
        // SAFETY: guaranteed by the caller; both headers are before the operands.
        unsafe {
            for row in 0..n_rows {
                for to in &block.sums[..PANELS] {
                    S::store(to.wrapping_add(row * SUMS), S::splat(0.0));
                }
            }
            for group in 0..groups {
                block.tiles.clear();
                for tile in 0..TILES {
                    block.fetch::<S>(group * TILES + tile, groups * TILES);
                    let row_word = group * INT8_ROW + 2 + tile * TILE_ROWS;
                    let panel_word = group * INT8_PANEL + PANEL + tile * TILE_WORDS;
                    ByteQuads::add(
                        block.tiles,
                        block.step::<ROWS, PANELS>(row_word, panel_word),
                    );
                }
                block.store::<ROWS, PANELS>([to, to.wrapping_add(PANEL)], STRIDE);
                let headers = block.step::<1, PANELS>(group * INT8_ROW, group * INT8_PANEL);
                for row in 0..n_rows {
                    let header = headers.rows[0].wrapping_add(row * block.row_words);
                    let row_scale = S::splat(f32::from_bits(read(header)));
                    let correction = S::splat_word(read(header.wrapping_add(1)));
                    for n in 0..PANELS {
                        let exact = S::load_words(to.wrapping_add(row * STRIDE + n * PANEL));
                        let exact = S::words_to_f32(S::add_words(exact, correction));
                        let scale = S::mul(S::load(headers.panels[n].cast()), row_scale);
                        let sum = block.sums[n].wrapping_add(row * SUMS);
                        S::store(sum, S::mul_add(exact, scale, S::load(sum)));
                    }
                }
            }
        }
    }
}
