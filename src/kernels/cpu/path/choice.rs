//! Chooses the kernel path of a machine from the measured rates of its instructions.

use super::super::probe::Arithmetic;
use super::super::simd::Isa;

/// A simpler path wins if its instruction is this many times as fast: a smaller gain is noise, or is lost in widening.
const MARGIN: f64 = 1.15;

/// A comparison of a path's own instruction (`with`) with an alternative path.
pub struct Comparison {
    path: Isa,
    pub with: Arithmetic,
    /// The instructions that do the same work on the alternative path; the fastest counts.
    pub without: &'static [Arithmetic],
    alternative: Isa,
}

/// Measures operations per second, or values proportional to them.
pub trait Rates {
    fn measure(&mut self, instructions: &[Arithmetic]) -> Vec<(Arithmetic, f64)>;
}

/// The comparisons for a machine, from the best path down. A path that the machine does not support is no alternative.
pub fn comparisons(available: &[Isa]) -> Vec<Comparison> {
    let all = [
        Comparison {
            path: Isa::Amx,
            with: Arithmetic::Bf16Tiles,
            without: &[Arithmetic::Bf16Dot, Arithmetic::F32],
            alternative: Isa::Avx512Bf16,
        },
        Comparison {
            path: Isa::Avx512Bf16,
            with: Arithmetic::Bf16Dot,
            without: &[Arithmetic::F32],
            alternative: Isa::Avx512Vnni,
        },
        Comparison {
            path: Isa::Avx512Vnni,
            with: Arithmetic::Int8Dot,
            without: &[Arithmetic::Int8Shorts],
            alternative: Isa::Avx512,
        },
        Comparison {
            path: Isa::Avx2Vnni,
            with: Arithmetic::Int8Dot,
            without: &[Arithmetic::Int8Shorts],
            alternative: Isa::Avx2,
        },
    ];
    let best = available.last().copied();
    let mut path = best;
    let mut selected = Vec::new();
    for comparison in all {
        if path == Some(comparison.path) && available.contains(&comparison.alternative) {
            path = Some(comparison.alternative);
            selected.push(comparison);
        }
    }
    selected
}

/// Starts with the best path by CPU flags, and moves to the alternative path while that is faster by [`MARGIN`]. A
/// path's own instruction loses if it has no rate.
pub fn decide(available: &[Isa], rates: &mut dyn Rates) -> Isa {
    let mut path = available.last().copied().unwrap_or(Isa::Portable);
    for comparison in comparisons(available) {
        let compared: Vec<_> = std::iter::once(comparison.with)
            .chain(comparison.without.iter().copied())
            .collect();
        let measured = rates.measure(&compared);
        let rate = |instruction: &Arithmetic| {
            let mut found = measured.iter().filter(|(of, _)| of == instruction);
            found.next().map_or(0.0, |(_, rate)| *rate)
        };
        let without = comparison.without.iter().map(rate).fold(0.0, f64::max);
        if without < MARGIN * rate(&comparison.with) {
            break;
        }
        path = comparison.alternative;
    }
    path
}
