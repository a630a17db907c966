//! Activations laid out for a product: groups of rows, in the words of the weights' format.

use super::element::load_up_to;
use super::format::{Encoding, group_rows, n_groups};
use super::quantise::{pack_blocks, pack_quads, pack_shorts, pack_super_blocks};
use super::rowwise::norm_scale;
use super::simd::{EIGHT, FOUR, Isa, Kernel, LANES, Lanes, dispatch};
use super::strips::STRIP_ROWS;
use super::tensor::{Scratch, Shared, Tensor};
use super::threads::ThreadPool;
use super::tile::{MAX_ROWS, max_rows};

/// Multiply-adds that encoding a value costs about: most of it is waiting for what another thread or none has near.
const VALUE_COST: usize = 64;

/// The rows that are packed.
#[derive(Clone, Copy)]
pub struct Activations<'a> {
    /// Rows of `inputs` values.
    pub x: &'a [f32],
    /// Values of a row.
    pub inputs: usize,
    /// From the start of a row to that of the next one.
    pub stride: usize,
    /// Which rows, in this order; `None` for all.
    pub picked: Option<&'a [u32]>,
    /// Norms each row on the way: the norm's weight, and what is added to the mean square.
    pub norm: Option<(&'a [f32], f32)>,
}

impl<'a> Activations<'a> {
    /// All rows as they are.
    pub fn plain(x: &'a [f32], inputs: usize) -> Self {
        Self {
            x,
            inputs,
            stride: inputs,
            picked: None,
            norm: None,
        }
    }

    /// The `inputs` values from `first` on of rows of `width` values.
    ///
    /// # Panics
    /// If a row has not as many.
    pub fn columns(x: &'a [f32], width: usize, first: usize, inputs: usize) -> Self {
        assert!(
            first + inputs <= width,
            "{inputs} of {width} from {first} on"
        );
        Self {
            stride: width,
            ..Self::plain(x.get(first..).unwrap_or_default(), inputs)
        }
    }

    fn n_rows(&self) -> usize {
        // The last row may have nothing after its own values.
        let between = self.stride - self.inputs;
        let all = (self.x.len() + between) / self.stride;
        assert!(
            (self.x.len() + between) % self.stride <= between,
            "activations of {} inputs",
            self.inputs
        );
        self.picked.map_or(all, <[u32]>::len)
    }

    fn row(&self, row: usize) -> &'a [f32] {
        let row = self.picked.map_or(row, |picked| picked[row] as usize);
        &self.x[row * self.stride..][..self.inputs]
    }
}

/// Rows as a product reads them.
pub struct PackedRows {
    /// The words, as bits.
    words: Tensor,
    inputs: usize,
    encoding: Encoding,
    n_groups: usize,
}

impl PackedRows {
    /// Takes memory for rows; their content is arbitrary.
    pub fn uninit(
        scratch: &Scratch,
        isa: Isa,
        encoding: Encoding,
        rows: usize,
        inputs: usize,
    ) -> Self {
        Self {
            words: uninit_words(scratch, encoding, rows, inputs),
            inputs,
            encoding,
            n_groups: n_groups(rows, most_group_rows(isa)),
        }
    }

    /// Encodes rows.
    ///
    /// # Panics
    /// If the shapes do not fit each other.
    pub fn pack(
        (pool, isa): (&mut ThreadPool, Isa),
        scratch: &Scratch,
        encoding: Encoding,
        source: Activations<'_>,
    ) -> Self {
        let (rows, inputs) = (source.n_rows(), source.inputs);
        assert!(
            source.norm.is_none_or(|(weight, _)| weight.len() == inputs),
            "norm of rows of {inputs}"
        );
        let mut packed = Self::uninit(scratch, isa, encoding, rows, inputs);
        let (n_groups, row_words) = (packed.n_groups, packed.row_words());
        let words: &mut [u32] = bytemuck::cast_slice_mut(packed.words.values_mut());
        let words = Shared::new(words);
        pool.for_each_in_runs(n_groups, rows * inputs * VALUE_COST, &|group| {
            let rows = group_rows(group, n_groups, rows);
            // SAFETY: each group is written by one item.
            let out = unsafe { words.part(rows.start * row_words, rows.len() * row_words) };
            pack_group(isa, encoding, source, rows, out);
        });
        packed
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.words.rows()
    }

    /// Values of a row.
    pub fn inputs(&self) -> usize {
        self.inputs
    }

    /// How they are encoded.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Words of a row.
    pub fn row_words(&self) -> usize {
        self.words.width()
    }

    /// All of them, as a product takes them.
    pub fn groups(&self) -> RowGroups<'_> {
        RowGroups {
            words: bytemuck::cast_slice(self.words.values()),
            first: 0,
            rows: self.rows(),
            row_words: self.row_words(),
            encoding: self.encoding,
            n_groups: self.n_groups,
        }
    }

    /// The words of all groups, as bits, to write.
    pub fn words_mut(&mut self) -> &mut Tensor {
        &mut self.words
    }
}

/// Rows that are multiplied with the same weights, in groups: all of [`PackedRows`], or those of an expert.
#[derive(Clone, Copy)]
pub struct RowGroups<'a> {
    /// The words of these rows.
    pub words: &'a [u32],
    /// The number of the first one.
    pub first: usize,
    /// How many there are.
    pub rows: usize,
    /// Words of a row.
    pub row_words: usize,
    /// How they are encoded.
    pub encoding: Encoding,
    /// In how many groups they stand.
    pub n_groups: usize,
}

impl<'a> RowGroups<'a> {
    /// Whether rows stand one after the other, for tiles of AMX.
    pub fn stands_by_rows(&self) -> bool {
        matches!(self.encoding, Encoding::Bf16Rows | Encoding::Int8Rows)
    }

    /// Whether they are few enough to a group, and encoded, as strips of weights need it (`strips`).
    pub fn may_meet_strips(&self) -> bool {
        let is_f32 = matches!(self.encoding, Encoding::F32 | Encoding::WideBf16);
        is_f32 && self.rows <= self.n_groups * STRIP_ROWS
    }

    /// The rows of a group by their numbers, and their words.
    pub fn group(&self, group: usize) -> (std::ops::Range<usize>, &'a [u32]) {
        let rows = group_rows(group, self.n_groups, self.rows);
        let words = &self.words[rows.start * self.row_words..rows.end * self.row_words];
        (self.first + rows.start..self.first + rows.end, words)
    }
}

/// Encodes rows as one group.
pub fn pack_group(
    isa: Isa,
    encoding: Encoding,
    source: Activations<'_>,
    rows: std::ops::Range<usize>,
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

/// Memory for the words of rows; what pads them to whole tiles is zero, which a product that writes them leaves as it is.
pub fn uninit_words(scratch: &Scratch, encoding: Encoding, rows: usize, inputs: usize) -> Tensor {
    let row_words = encoding.row_words(inputs);
    let mut words = scratch.tensor(rows, row_words);
    if encoding == Encoding::Bf16Rows && row_words > inputs.div_ceil(2) {
        for row in words.values_mut().chunks_exact_mut(row_words) {
            row[inputs / 2..].fill(0.0);
        }
    }
    words
}

/// Most rows in a group on an instruction set.
pub fn most_group_rows(isa: Isa) -> usize {
    dispatch(isa, GroupRows)
}

#[cfg(test)]
impl PackedRows {
    /// The values of all rows as they are encoded, which int8 does not say without its weights.
    pub fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.rows() * self.inputs];
        for group in 0..self.n_groups {
            let (rows, words) = self.groups().group(group);
            let n = rows.len();
            for (m, row) in rows.enumerate() {
                let out = &mut values[row * self.inputs..][..self.inputs];
                for (i, out) in out.iter_mut().enumerate() {
                    *out = f32::from_bits(match self.encoding {
                        Encoding::F32 | Encoding::WideBf16 => words[i * n + m],
                        Encoding::Bf16 if i % 2 == 0 => words[i / 2 * n + m] << 16,
                        Encoding::Bf16 => words[i / 2 * n + m] & 0xffff_0000,
                        Encoding::Bf16Rows => {
                            let pair = words[m * self.row_words() + i / 2];
                            [pair << 16, pair & 0xffff_0000][i % 2]
                        }
                        Encoding::Int8
                        | Encoding::Int8Rows
                        | Encoding::WideInt8
                        | Encoding::A32
                        | Encoding::A256 => unreachable!("not asked for"),
                    });
                }
            }
        }
        values
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
    encoding: Encoding,
    source: Activations<'a>,
    rows: std::ops::Range<usize>,
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
