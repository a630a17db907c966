//! Argmax and sampling over rows of logits, compiled for the CPU backend's instruction set.

use souffleur_kernels::cpu::LOGIT_COST;
use souffleur_kernels::cpu::Tensor;
use souffleur_kernels::cpu::{CpuBackend, Isa, Kernel, Lanes, dispatch};
use souffleur_state::sampling::{DrawScratch, Peak, RowSampler, Sampled, TokenMask};

const PART_LOGITS: usize = 16 << 10;

/// A part of a row of logits, and its argmax.
#[derive(Clone, Copy)]
pub(super) struct Part {
    row: usize,
    first: usize,
    peak: Peak,
}

/// Finds the largest of the first `vocab_size` logits in each of `rows`, on all threads, and appends them to `peaks` in
/// the order of `rows`. `parts` is scratch memory.
pub(super) fn argmax(
    backend: &mut CpuBackend,
    logits: &Tensor,
    vocab_size: usize,
    rows: &[usize],
    parts: &mut Vec<Part>,
    peaks: &mut Vec<Peak>,
) {
    let parts_of = |&row: &usize| {
        let firsts = (0..vocab_size).step_by(PART_LOGITS);
        firsts.map(move |first| Part {
            row,
            first,
            peak: Peak::default(),
        })
    };
    parts.clear();
    parts.extend(rows.iter().flat_map(parts_of));
    let (isa, cost) = (backend.isa(), rows.len() * vocab_size * LOGIT_COST);
    backend.for_each_of(parts, cost, &|part: &mut Part| {
        let end = vocab_size.min(part.first + PART_LOGITS);
        let logits = &logits.row(part.row)[part.first..end];
        part.peak = dispatch(isa, PeakOf(logits, part.first));
    });
    let of_rows = parts.chunks(vocab_size.div_ceil(PART_LOGITS));
    peaks.extend(of_rows.map(|parts| {
        let found = parts.iter().map(|part| part.peak);
        found.fold(Peak::default(), Peak::merge)
    }));
}

struct PeakOf<'a>(&'a [f32], usize);

impl Kernel for PeakOf<'_> {
    type Output = Peak;

    #[inline(always)]
    fn run<S: Lanes>(self) -> Peak {
        Peak::of(self.0, self.1)
    }
}

/// A row's sampler, for the token after this many tokens that are not recorded yet.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a>(pub(super) &'a RowSampler, pub(super) u64);

/// Chooses a token like [`RowSampler::choose_ahead`], compiled for `isa`. The result is the same for all instruction sets.
pub(super) fn choose(
    isa: Isa,
    sampler: Ahead<'_>,
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
    sampler: Ahead<'a>,
    logits: &'a mut [f32],
    mask: Option<&'a TokenMask>,
    scratch: &'a mut DrawScratch,
}

impl Kernel for Choose<'_> {
    type Output = Sampled;

    #[inline(always)]
    fn run<S: Lanes>(self) -> Sampled {
        let Ahead(sampler, ahead) = self.sampler;
        sampler.choose_ahead(self.logits, self.mask, ahead, self.scratch)
    }
}
