//! Encoding of a group of rows: what [`super::activations`] lays out for a product.

use std::ops::Range;

use super::activations::Activations;
use super::element::load_up_to;
use super::format::Encoding;
use super::quantise::{pack_blocks, pack_quads, pack_shorts, pack_super_blocks};
use super::rowwise::norm_scale;
use super::simd::{EIGHT, FOUR, Isa, Kernel, LANES, Lanes, dispatch};
use super::tile::MAX_ROWS;

/// Encodes rows as one group.
pub fn pack_group(
    isa: Isa,
    encoding: Encoding,
    source: Activations<'_>,
    rows: Range<usize>,
    out: &mut [u32],
) {
    dispatch(
        isa,
        PackGroup {
            encoding,
            source,
            rows,
            out,
        },
    );
}

/// One group to encode.
struct PackGroup<'a> {
    encoding: Encoding,
    source: Activations<'a>,
    rows: Range<usize>,
    out: &'a mut [u32],
}

impl Kernel for PackGroup<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let mut rows = [RowSource::EMPTY; MAX_ROWS];
        let n_rows = self.rows.len();
        for (row, index) in rows.iter_mut().zip(self.rows) {
            *row = RowSource::new::<S>(&self.source, index);
        }
        let (rows, inputs) = (&rows[..n_rows], self.source.inputs);
        // SAFETY: `dispatch` detected the instruction set.
        unsafe {
            match self.encoding {
                Encoding::F32 => pack_values::<S>(rows, inputs, self.out, Round::Not),
                Encoding::Bf16 => pack_pairs::<S>(rows, inputs, self.out),
                Encoding::WideBf16 => pack_values::<S>(rows, inputs, self.out, Round::ToBf16),
                Encoding::Int8 => pack_quads::<S>(rows, inputs, self.out),
                Encoding::Bf16Rows | Encoding::Int8Rows => {
                    let words = self.encoding.row_words(inputs);
                    for (row, out) in rows.chunks(1).zip(self.out.chunks_exact_mut(words)) {
                        match self.encoding {
                            Encoding::Bf16Rows => pack_pairs::<S>(row, inputs, out),
                            _ => pack_quads::<S>(row, inputs, out),
                        }
                    }
                }
                Encoding::WideInt8 => pack_shorts::<S>(rows, inputs, self.out),
                Encoding::A32 => pack_blocks::<S>(rows, inputs, self.out),
                Encoding::A256 => pack_super_blocks::<S>(rows, inputs, self.out),
            }
        }
    }
}

/// A row to encode, and what its values are multiplied with on the way.
#[derive(Clone, Copy)]
pub struct RowSource<'a> {
    x: &'a [f32],
    norm: Option<(&'a [f32], f32)>,
}

impl<'a> RowSource<'a> {
    const EMPTY: Self = Self { x: &[], norm: None };

    #[inline(always)]
    fn new<S: Lanes>(source: &Activations<'a>, index: usize) -> Self {
        let x = source.row(index);
        // A closure would be compiled without the instruction set.
        #[allow(clippy::manual_map)]
        let norm = match source.norm {
            Some((weight, eps)) => Some((weight, norm_scale::<S>(x, eps))),
            None => None,
        };
        Self { x, norm }
    }

    /// Sixteen values from `first` on; zeros behind the last.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    #[inline(always)]
    pub unsafe fn load<S: Lanes>(&self, first: usize) -> S::V {
        // SAFETY: both hold sixteen values from `first` on, if `x` does; the instruction set is the caller's promise.
        unsafe {
            if first + LANES <= self.x.len() {
                let x = S::load(self.x[first..].as_ptr());
                return match self.norm {
                    None => x,
                    Some((weight, scale)) => {
                        let weight = S::load(weight[first..][..LANES].as_ptr());
                        S::mul(S::mul(x, S::splat(scale)), weight)
                    }
                };
            }
            let values = first.min(self.x.len())..self.x.len();
            let x = load_up_to::<S>(&self.x[values.clone()]);
            match self.norm {
                None => x,
                Some((weight, scale)) => {
                    S::mul(S::mul(x, S::splat(scale)), load_up_to::<S>(&weight[values]))
                }
            }
        }
    }
}

/// Steps ahead of which the values of rows are asked for: picked rows begin far from each other, which no processor foresees.
const STEPS_AHEAD: usize = 8;

/// Asks for what rows are encoded from [`STEPS_AHEAD`] after the step of `values` that begins at `first`, and before the first
/// step for all until then. `out` is where the words of this step go, sixteen of each row.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn fetch_ahead<S: Lanes>(rows: &[RowSource<'_>], first: usize, values: usize, out: &[u32]) {
    let begin = match first {
        0 => 0,
        _ => first + STEPS_AHEAD * values,
    };
    for (m, row) in rows.iter().enumerate() {
        // SAFETY: only hints; the instruction set is the caller's promise.
        unsafe {
            for value in (begin..first + (STEPS_AHEAD + 1) * values).step_by(LANES) {
                S::prefetch(row.x.as_ptr().wrapping_add(value));
            }
            let word = (STEPS_AHEAD * rows.len() + m) * LANES;
            S::prefetch_write(out.as_ptr().wrapping_add(word));
        }
    }
}

/// Writes word `i` of row `m` to `out[i * rows + m]`, sixteen words of each row or as many as `out` takes. Words
/// behind them in `out` may be overwritten.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
pub unsafe fn scatter<S: Lanes>(words: [S::W; LANES], rows: usize, out: &mut [u32]) {
    // SAFETY: a column is stored whole, beyond its rows; `out`, or what stands in for it, has room for that behind the
    // last one.
    unsafe {
        if rows == EIGHT && out.len() >= LANES * EIGHT {
            let pairs = S::transpose_eight(std::array::from_fn(|i| words[i]));
            for (i, pair) in pairs.into_iter().enumerate() {
                S::store_words(out[i * LANES..].as_mut_ptr(), pair);
            }
            return;
        }
        if rows == FOUR && out.len() >= LANES * FOUR {
            let quads = S::transpose_four(std::array::from_fn(|i| words[i]));
            for (i, quad) in quads.into_iter().enumerate() {
                S::store_words(out[i * LANES..].as_mut_ptr(), quad);
            }
            return;
        }
        let columns = match rows {
            1 => words,
            _ => S::transpose(words),
        };
        let n_columns = if rows == 1 { 1 } else { LANES };
        let mut stored = [0u32; LANES * (LANES + 1)];
        let is_roomy = out.len() >= LANES * rows + LANES;
        let to = match is_roomy {
            true => out.as_mut_ptr(),
            false => stored.as_mut_ptr(),
        };
        for i in 0..n_columns {
            S::store_words(to.wrapping_add(i * rows), columns[i]);
        }
        if !is_roomy {
            let len = out.len().min(LANES * rows);
            out[..len].copy_from_slice(&stored[..len]);
        }
    }
}

/// How values that stay in f32 are rounded.
#[derive(Clone, Copy)]
enum Round {
    Not,
    ToBf16,
}

/// Packs values in f32: value `i` of row `m` goes to `out[i * rows + m]`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn pack_values<S: Lanes>(
    rows: &[RowSource<'_>],
    inputs: usize,
    out: &mut [u32],
    round: Round,
) {
    for first in (0..inputs).step_by(LANES) {
        let out = &mut out[first * rows.len()..];
        // SAFETY: the caller's promise.
        unsafe {
            fetch_ahead::<S>(rows, first, LANES, out);
            let mut words = [S::splat_word(0); LANES];
            for (words, row) in words.iter_mut().zip(rows) {
                let x = row.load::<S>(first);
                *words = S::to_words(match round {
                    Round::Not => x,
                    Round::ToBf16 => S::round_bf16(x),
                });
            }
            scatter::<S>(words, rows.len(), out);
        }
    }
}

/// Rounds to pairs of bf16: word `s` of row `m` goes to `out[s * rows + m]`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn pack_pairs<S: Lanes>(rows: &[RowSource<'_>], inputs: usize, out: &mut [u32]) {
    for first in (0..inputs).step_by(2 * LANES) {
        let out = &mut out[first / 2 * rows.len()..];
        // SAFETY: the caller's promise.
        unsafe {
            fetch_ahead::<S>(rows, first, 2 * LANES, out);
            let mut words = [S::splat_word(0); LANES];
            for (words, row) in words.iter_mut().zip(rows) {
                *words = S::pair_bf16(row.load::<S>(first), row.load::<S>(first + LANES));
            }
            scatter::<S>(words, rows.len(), out);
        }
    }
}
