//! Activations laid out for a product: groups of rows, in the words of the weights' format.

use half::bf16;

use super::format::{Format, INT8_GROUP, INT8_STEPS, group_rows, n_groups};
use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};
use super::tensor::Shared;
use super::threads::ThreadPool;
use super::tile::max_rows;

/// Multiply-adds that encoding a value costs about.
const VALUE_COST: usize = 4;

/// Rows as a product reads them; kept for its memory.
#[derive(Default)]
pub struct PackedRows {
    words: Vec<u32>,
    rows: usize,
    row_words: usize,
    n_groups: usize,
}

impl PackedRows {
    /// Encodes `x: [rows, inputs]`.
    pub fn pack(
        &mut self,
        pool: &mut ThreadPool,
        isa: Isa,
        format: Format,
        x: &[f32],
        inputs: usize,
    ) {
        self.rows = x.len() / inputs;
        assert_eq!(
            x.len(),
            self.rows * inputs,
            "activations of {inputs} inputs"
        );
        self.row_words = format.row_words(inputs);
        self.n_groups = n_groups(self.rows, dispatch(isa, GroupRows));
        let len = self.rows * self.row_words;
        if self.words.len() < len {
            self.words.resize(len, 0);
        }
        let (rows, row_words, n_groups) = (self.rows, self.row_words, self.n_groups);
        let words = Shared::new(&mut self.words);
        pool.for_each(n_groups, x.len() * VALUE_COST, &|group| {
            let range = group_rows(group, n_groups, rows);
            // SAFETY: each group is written by one item.
            let out = unsafe { words.part(range.start * row_words, range.len() * row_words) };
            let x = &x[range.start * inputs..range.end * inputs];
            dispatch(
                isa,
                PackGroup {
                    format,
                    x,
                    inputs,
                    out,
                },
            );
        });
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of groups.
    pub fn n_groups(&self) -> usize {
        self.n_groups
    }

    /// The rows of a group, and their words.
    pub fn group(&self, group: usize) -> (std::ops::Range<usize>, &[u32]) {
        let rows = group_rows(group, self.n_groups, self.rows);
        let words = rows.start * self.row_words..rows.end * self.row_words;
        (rows, &self.words[words])
    }
}

struct GroupRows;

impl Kernel for GroupRows {
    type Output = usize;

    #[inline(always)]
    fn run<S: Lanes>(self) -> usize {
        max_rows::<S>()
    }
}

/// One group to encode.
struct PackGroup<'a> {
    format: Format,
    x: &'a [f32],
    inputs: usize,
    out: &'a mut [u32],
}

impl Kernel for PackGroup<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Lanes>(self) {
        let rows = self.x.len() / self.inputs;
        let by_row = self.x.chunks_exact(self.inputs).enumerate();
        match self.format {
            Format::F32 | Format::F16 => by_row.for_each(|(m, x)| {
                for (out, x) in self.out[m..].iter_mut().step_by(rows).zip(x) {
                    *out = x.to_bits();
                }
            }),
            Format::Bf16 => self.pack_pairs::<S>(rows),
            Format::Int8 => by_row.for_each(|(m, x)| pack_quads(x, m, rows, self.out)),
        }
    }
}

impl PackGroup<'_> {
    /// Rounds rows to pairs of bf16: word `s` of row `m` goes to `out[s * rows + m]`.
    #[inline(always)]
    fn pack_pairs<S: Lanes>(self, rows: usize) {
        let Self { x, inputs, out, .. } = self;
        for first in (0..inputs).step_by(2 * LANES) {
            let len = (2 * LANES).min(inputs - first);
            // SAFETY: the arrays hold what is read and written; `dispatch` detected the instruction set.
            unsafe {
                let mut words = [S::splat_word(0); LANES];
                for m in 0..rows {
                    words[m] = pairs::<S>(&x[m * inputs + first..][..len]);
                }
                let columns = match rows {
                    1 => words,
                    _ => S::transpose(words),
                };
                let n_columns = if rows == 1 { 1 } else { LANES };
                // A column is stored whole, and the next one or the next pass over what is too much of it.
                let store = |to: *mut u32| {
                    for i in 0..n_columns {
                        S::store_words(to.wrapping_add(i * rows), columns[i]);
                    }
                };
                let out = &mut out[first / 2 * rows..];
                if out.len() >= LANES * rows + LANES {
                    store(out.as_mut_ptr());
                    continue;
                }
                let mut stored = [0u32; LANES * LANES + LANES];
                store(stored.as_mut_ptr());
                let n_words = len.div_ceil(2) * rows;
                out[..n_words].copy_from_slice(&stored[..n_words]);
            }
        }
    }
}

/// Rounds at most thirty-two values to sixteen pairs of bf16; missing ones are zero.
///
/// # Safety
/// The instruction set of `S` was detected.
#[inline(always)]
unsafe fn pairs<S: Lanes>(x: &[f32]) -> S::W {
    let mut padded = [0f32; 2 * LANES];
    let x = match x.len() {
        len if len == 2 * LANES => x,
        len => {
            padded[..len].copy_from_slice(x);
            &padded
        }
    };
    let mut narrow = [bf16::ZERO; 2 * LANES];
    // SAFETY: both hold twice sixteen values.
    unsafe {
        let (from, to) = (x.as_ptr(), narrow.as_mut_ptr());
        S::store_bf16(to, S::load(from));
        S::store_bf16(to.wrapping_add(LANES), S::load(from.wrapping_add(LANES)));
        S::load_words(narrow.as_ptr().cast())
    }
}

/// Quantises a row, each group of inputs by its largest magnitude; see [`super::format`] for the layout.
#[inline(always)]
fn pack_quads(x: &[f32], m: usize, rows: usize, out: &mut [u32]) {
    let group_words = (INT8_STEPS + 2) * rows;
    for (x, out) in x.chunks(INT8_GROUP).zip(out.chunks_exact_mut(group_words)) {
        let mut padded = [0f32; INT8_GROUP];
        padded[..x.len()].copy_from_slice(x);
        let (scale, quantised) = quantise(&padded);
        let sum: i32 = quantised.iter().map(|q| i32::from(*q)).sum();
        out[m] = scale.to_bits();
        out[rows + m] = (-128 * sum) as u32;
        let steps = out[2 * rows + m..].iter_mut().step_by(rows);
        for (out, quad) in steps.zip(quantised.chunks_exact(4)) {
            *out = u32::from_le_bytes([quad[0] as u8, quad[1] as u8, quad[2] as u8, quad[3] as u8]);
        }
    }
}

/// Returns `(scale, q)` with `q` in -127..=127 and `scale * q` nearest to `x`; NaN and infinity give a NaN scale, so
/// that what is computed from them shows it.
#[inline(always)]
pub fn quantise(x: &[f32; INT8_GROUP]) -> (f32, [i8; INT8_GROUP]) {
    let mut lanes = [0f32; LANES];
    let mut sum = [0f32; LANES];
    for chunk in x.chunks_exact(LANES) {
        for i in 0..LANES {
            let magnitude = chunk[i].abs();
            lanes[i] = if magnitude > lanes[i] {
                magnitude
            } else {
                lanes[i]
            };
            // Anything that is not finite leaves a NaN here, which a maximum would drop.
            sum[i] += chunk[i] * 0.0;
        }
    }
    let max = lanes.into_iter().fold(0.0, f32::max) + sum.into_iter().sum::<f32>();
    let inverse = if max > 0.0 { 127.0 / max } else { 0.0 };
    let mut quantised = [0i8; INT8_GROUP];
    for i in 0..INT8_GROUP {
        // Adding 1.5 * 2^23 rounds half to even, and leaves the integer in the low bits.
        quantised[i] = (x[i] * inverse + 12_582_912.0).to_bits() as i8;
    }
    (max / 127.0, quantised)
}
