//! Parallel sampling over rows of logits, SIMD-dispatched.

use super::simd::{Kernel, Lanes, dispatch};
use super::tensor::{Shared, Tensor};
use super::{CpuBackend, Isa};
use crate::state::sampling::{DrawScratch, Peak, RowSampler, Sampled, TokenMask};

/// Logits of one row in an item of [`CpuBackend::peaks`].
const PART: usize = 16 << 10;
/// Approximate cost of reading a logit, in multiply-adds.
const LOGIT_COST: usize = 8;

/// Reads a row: a lane, the row's index and logits, and the place of the result.
pub type ReadRow<'a, L, R> = &'a (dyn Fn(&mut L, usize, &mut [f32], &mut R) + Sync);

impl CpuBackend {
    /// Number of threads that compute.
    pub fn n_threads(&self) -> usize {
        self.pool.n_threads()
    }

    /// Finds the argmax of each of these rows of logits, up to `vocab_size`; `peaks` gets one for each, in order.
    pub fn peaks(
        &mut self,
        logits: &Tensor,
        vocab_size: usize,
        rows: &[usize],
        peaks: &mut Vec<Peak>,
    ) {
        let n_parts = vocab_size.div_ceil(PART);
        let n_items = rows.len() * n_parts;
        peaks.clear();
        peaks.resize(n_items, Peak::default());
        let found = Shared::new(peaks);
        let (isa, cost) = (self.isa, rows.len() * vocab_size * LOGIT_COST);
        self.pool.for_each(n_items, cost, &|item| {
            let (row, first) = (rows[item / n_parts], item % n_parts * PART);
            let logits = &logits.row(row)[first..vocab_size.min(first + PART)];
            // SAFETY: each item has its own place.
            let place = &mut unsafe { found.part(item, 1) }[0];
            *place = dispatch(isa, PeakOf(logits, first));
        });
        for row in 0..rows.len() {
            let parts = &peaks[row * n_parts..(row + 1) * n_parts];
            peaks[row] = parts.iter().copied().fold(Peak::default(), Peak::merge);
        }
        peaks.truncate(rows.len());
    }

    /// Calls `read` once for each of the first rows of logits, as many as there are places in `found`, on any thread:
    /// with one of `lanes`, which no other call holds meanwhile, the row's index and logits, and its place.
    ///
    /// # Panics
    /// If there are more places than rows, or no lane.
    pub fn read_rows<L: Send, R: Send>(
        &mut self,
        logits: &mut Tensor,
        lanes: &mut [L],
        found: &mut [R],
        read: ReadRow<'_, L, R>,
    ) {
        let (n_rows, width) = (found.len(), logits.width());
        let (logits, found) = (Shared::new(logits.values_mut()), Shared::new(found));
        let cost = n_rows * width * LOGIT_COST;
        self.pool.for_each_with(lanes, n_rows, cost, &|lane, row| {
            // SAFETY: each row and each place is one item's.
            let (logits, place) = unsafe { (logits.part(row * width, width), found.part(row, 1)) };
            read(lane, row, logits, &mut place[0]);
        });
    }

    /// Calls `each` once for each item, on any thread. `cost` is about how many multiply-adds that takes.
    pub fn for_each_of<T: Send>(
        &mut self,
        items: &mut [T],
        cost: usize,
        each: &(dyn Fn(&mut T) + Sync),
    ) {
        let n_items = items.len();
        let items = Shared::new(items);
        self.pool.for_each(n_items, cost, &|index| {
            // SAFETY: each item is one call's.
            each(&mut unsafe { items.part(index, 1) }[0]);
        });
    }

    /// The instruction set of this backend.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

struct PeakOf<'a>(&'a [f32], usize);

impl Kernel for PeakOf<'_> {
    type Output = Peak;

    #[inline(always)]
    fn run<S: Lanes>(self) -> Peak {
        Peak::of(self.0, self.1)
    }
}

/// Chooses a token like [`RowSampler::choose`], compiled for `isa`. The result is the same for all of them.
pub fn choose(
    isa: Isa,
    sampler: &RowSampler,
    logits: &mut [f32],
    mask: Option<&TokenMask>,
    scratch: &mut DrawScratch,
) -> Sampled {
    dispatch(
        isa,
        Choose {
            sampler,
            logits,
            mask,
            scratch,
        },
    )
}

struct Choose<'a> {
    sampler: &'a RowSampler,
    logits: &'a mut [f32],
    mask: Option<&'a TokenMask>,
    scratch: &'a mut DrawScratch,
}

impl Kernel for Choose<'_> {
    type Output = Sampled;

    #[inline(always)]
    fn run<S: Lanes>(self) -> Sampled {
        self.sampler.choose(self.logits, self.mask, self.scratch)
    }
}
