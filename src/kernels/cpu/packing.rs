//! Encodes a group of activation rows in the layout of [`super::activations`].

use std::ops::Range;

use super::format::Encoding;
use super::panel::MAX_ROWS;
use super::quantise::{pack_blocks, pack_quads, pack_shorts, pack_super_blocks};
use super::row_source::{Activations, RowSource, scatter};
use super::simd::{EIGHT, FOUR, Isa, Kernel, LANES, Lanes, dispatch};

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
                Encoding::F32 => pack_words::<S, Exact>(rows, inputs, self.out),
                Encoding::Bf16 => pack_words::<S, Pairs>(rows, inputs, self.out),
                Encoding::WideBf16 => pack_words::<S, Rounded>(rows, inputs, self.out),
                Encoding::Int8 => pack_quads::<S>(rows, inputs, self.out),
                Encoding::Bf16Rows | Encoding::Int8Rows => {
                    let words = self.encoding.row_words(inputs);
                    for (row, out) in rows.chunks(1).zip(self.out.chunks_exact_mut(words)) {
                        match self.encoding {
                            Encoding::Bf16Rows => pack_words::<S, Pairs>(row, inputs, out),
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

/// Prefetch distance of the rows' values, in steps: the hardware prefetcher detects no stream if picked rows are apart.
const STEPS_AHEAD: usize = 8;

/// Prefetches the values of the step [`STEPS_AHEAD`] steps after the one at `first`, and at the first step also all
/// values before it. A step has `values` values; `out` is the destination of this step's words, sixteen of each row.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn fetch_ahead<S: Lanes>(
    rows: &[RowSource<'_>],
    first: usize,
    values: usize,
    out: *const u32,
) {
    let begin = match first {
        0 => 0,
        _ => first + STEPS_AHEAD * values,
    };
    for (m, row) in rows.iter().enumerate() {
        // SAFETY: only hints; the caller detected the instruction set.
        unsafe {
            for value in (begin..first + (STEPS_AHEAD + 1) * values).step_by(LANES) {
                S::prefetch(row.x.as_ptr().wrapping_add(value));
            }
            let word = (STEPS_AHEAD * rows.len() + m) * LANES;
            S::prefetch_write(out.wrapping_add(word));
        }
    }
}

/// An encoding of values as 32-bit words.
pub trait Words {
    const VALUES: usize;

    /// Encodes sixteen words from the value `first` on, with zeros after the row's last value.
    ///
    /// # Safety
    /// If `is_inside`, the row has the values of all sixteen words; the instruction set of `S` was detected.
    unsafe fn load<S: Lanes>(row: &RowSource<'_>, first: usize, is_inside: bool) -> S::W;

    /// Encodes sixteen values; their words are the first of the register.
    ///
    /// # Safety
    /// The instruction set of `S` was detected.
    unsafe fn of<S: Lanes>(values: S::V) -> S::W;
}

pub struct Exact;
pub struct Rounded;
pub struct Pairs;

impl Words for Exact {
    const VALUES: usize = LANES;

    #[inline(always)]
    unsafe fn load<S: Lanes>(row: &RowSource<'_>, first: usize, is_inside: bool) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::of::<S>(row.load_either::<S>(first, is_inside)) }
    }

    #[inline(always)]
    unsafe fn of<S: Lanes>(values: S::V) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe { S::to_words(values) }
    }
}

impl Words for Rounded {
    const VALUES: usize = LANES;

    #[inline(always)]
    unsafe fn load<S: Lanes>(row: &RowSource<'_>, first: usize, is_inside: bool) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe { Self::of::<S>(row.load_either::<S>(first, is_inside)) }
    }

    #[inline(always)]
    unsafe fn of<S: Lanes>(values: S::V) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe { S::to_words(S::round_bf16(values)) }
    }
}

impl Words for Pairs {
    const VALUES: usize = 2 * LANES;

    #[inline(always)]
    unsafe fn load<S: Lanes>(row: &RowSource<'_>, first: usize, is_inside: bool) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let low = row.load_either::<S>(first, is_inside);
            S::pair_bf16(low, row.load_either::<S>(first + LANES, is_inside))
        }
    }

    #[inline(always)]
    unsafe fn of<S: Lanes>(values: S::V) -> S::W {
        // SAFETY: guaranteed by the caller.
        unsafe { S::pair_bf16(values, S::splat(0.0)) }
    }
}

/// Encodes rows: word `i` of row `m` goes to `out[i * rows + m]`.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn pack_words<S: Lanes, W: Words>(rows: &[RowSource<'_>], inputs: usize, out: &mut [u32]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let done = match rows.len() {
            1 => pack_whole_steps::<S, W, 1>(rows, inputs, out),
            3..=FOUR => pack_whole_steps::<S, W, FOUR>(rows, inputs, out),
            5..=EIGHT => pack_whole_steps::<S, W, EIGHT>(rows, inputs, out),
            _ => 0,
        };
        for first in (done..inputs).step_by(W::VALUES) {
            let out = &mut out[first / W::VALUES * LANES * rows.len()..];
            fetch_ahead::<S>(rows, first, W::VALUES, out.as_ptr());
            let mut words = [S::splat_word(0); LANES];
            for (words, row) in words.iter_mut().zip(rows) {
                *words = W::load::<S>(row, first, false);
            }
            scatter::<S>(words, rows.len(), out);
        }
    }
}

/// Encodes whole steps of up to `M` rows as [`pack_words`] does. Returns the number of encoded inputs.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn pack_whole_steps<S: Lanes, W: Words, const M: usize>(
    rows: &[RowSource<'_>],
    inputs: usize,
    out: &mut [u32],
) -> usize {
    let (n, n_steps) = (rows.len(), inputs / W::VALUES);
    assert!(n <= M && out.len() >= n_steps * LANES * n);
    let mut sources = [rows[0]; M];
    sources[..n].copy_from_slice(rows);
    for step in 0..n_steps {
        let first = step * W::VALUES;
        let to = out.as_mut_ptr().wrapping_add(step * LANES * n);
        // SAFETY: the rows have whole steps, and `out` their words; the caller detected the instruction set.
        unsafe {
            fetch_ahead::<S>(rows, first, W::VALUES, to);
            // Counted loops over registers, which compilers unroll; other loops would keep them in memory.
            let mut words = [S::splat_word(0); M];
            for m in 0..M {
                words[m] = W::load::<S>(&sources[m], first, true);
            }
            put_columns::<S, M>(words, (n, LANES), to);
        }
    }
    n_steps * W::VALUES
}

/// Encodes sixteen values (a panel) of each row of a group, in the layout of [`pack_words`].
///
/// # Safety
/// The instruction set of `S` was detected.
///
/// # Panics
/// If `values` has fewer than sixteen values per row.
#[inline(always)]
pub unsafe fn pack_panel<S: Lanes, W: Words>(values: &[f32], rows: usize, out: &mut [u32]) {
    assert!(values.len() >= rows * LANES);
    let columns = LANES * LANES / W::VALUES;
    // SAFETY: the rows have sixteen values each, and `out` their words; the caller detected the instruction set.
    unsafe {
        match rows {
            3..=FOUR if out.len() == columns * rows => {
                let words = words_of_panel::<S, W, FOUR>(values, rows);
                put_columns::<S, FOUR>(words, (rows, columns), out.as_mut_ptr());
            }
            5..=EIGHT if out.len() == columns * rows => {
                let words = words_of_panel::<S, W, EIGHT>(values, rows);
                put_columns::<S, EIGHT>(words, (rows, columns), out.as_mut_ptr());
            }
            _ => {
                let mut words = [S::splat_word(0); LANES];
                for (words, values) in words.iter_mut().zip(values.chunks_exact(LANES)).take(rows) {
                    *words = W::of::<S>(S::load(values.as_ptr()));
                }
                scatter::<S>(words, rows, out);
            }
        }
    }
}

/// Encodes sixteen values of each of `n` rows; the last row is repeated up to `M` rows.
///
/// # Safety
/// Each row has sixteen values; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn words_of_panel<S: Lanes, W: Words, const M: usize>(
    values: &[f32],
    n: usize,
) -> [S::W; M] {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut words = [S::splat_word(0); M];
        for m in 0..M {
            let values = values.as_ptr().wrapping_add(m.min(n - 1) * LANES);
            words[m] = W::of::<S>(S::load(values));
        }
        words
    }
}

/// Stores the first `n_columns` columns of `n` rows contiguously, column by column; `n` exceeds half of `M`.
///
/// # Safety
/// `to` is valid for `n_columns * n` words; the instruction set of `S` was detected.
#[inline(always)]
unsafe fn put_columns<S: Lanes, const M: usize>(
    words: [S::W; M],
    (n, n_columns): (usize, usize),
    to: *mut u32,
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut columns = words;
        if M == 1 {
            return S::store_words(to, words[0]);
        }
        if M == EIGHT {
            let mut eight = [words[0]; EIGHT];
            for m in 0..EIGHT {
                eight[m] = words[m % M];
            }
            let transposed = S::transpose_eight(eight);
            for m in 0..M {
                columns[m] = transposed[m % EIGHT];
            }
        } else {
            let mut four = [words[0]; FOUR];
            for m in 0..FOUR {
                four[m] = words[m % M];
            }
            let transposed = S::transpose_four(four);
            for m in 0..M {
                columns[m] = transposed[m % FOUR];
            }
        }
        // Columns of a register.
        let at_once = LANES / M;
        let n_registers = n_columns / at_once;
        if n == M {
            for m in 0..M {
                if m < n_registers {
                    S::store_words(to.wrapping_add(m * LANES), columns[m]);
                }
            }
            return;
        }
        let mut stored = std::mem::MaybeUninit::<[u32; LANES]>::uninit();
        let from = stored.as_mut_ptr().cast::<u32>();
        for m in 0..M {
            if m < n_registers {
                S::store_words(from, columns[m]);
                for column in 0..at_once {
                    let index = m * at_once + column;
                    let (from, to) = (from.wrapping_add(column * M), to.wrapping_add(index * n));
                    if index + 1 < n_columns {
                        // Storing `M` rows of a column writes into the next column, which is stored later.
                        super::simd::write(to, from.cast::<[u32; M]>().read());
                        continue;
                    }
                    for i in 0..M {
                        if i < n {
                            super::simd::write(to.wrapping_add(i), from.wrapping_add(i).read());
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
