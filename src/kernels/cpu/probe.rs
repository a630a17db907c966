//! Measures this machine's peak rates: memory bandwidth, and multiply-adds per second.
//!
//! A benchmark computes its lower bounds of time from these rates, so each is the best of a few passes. They vary
//! with other load on the machine; measure them together with the runs to which the bounds apply.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use super::simd::{Isa, Kernel, LANES, Lanes, dispatch, dispatch_integers};

/// Bytes per iteration of the read loop.
const BLOCK_BYTES: usize = READ_CHAINS * LANES * size_of::<f32>();
/// Independent sums, so that loads hide the latency of an addition.
const READ_CHAINS: usize = 8;
const READS_PER_PASS: usize = 2;
const READ_PASSES: usize = 7;
/// Takes ten to twenty milliseconds at 100 to 200 GFLOP/s.
const F32_OPS_PER_PASS: usize = 1 << 31;
const ARITHMETIC_PASSES: usize = 5;
/// Independent sums of dot products: enough for a latency of six cycles at two per cycle.
const CHAINS: usize = 12;

/// Memory to read, with all pages faulted in.
pub struct ReadProbe {
    memory: MmapMut,
}

impl ReadProbe {
    /// Allocates `bytes` bytes (whole blocks of 512, at least one), in huge pages if available. `bytes` must far exceed
    /// the last-level cache.
    ///
    /// # Errors
    /// If the system refuses the memory.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let bytes = bytes.max(BLOCK_BYTES).next_multiple_of(BLOCK_BYTES);
        let mut memory = MmapMut::map_anon(bytes)?;
        #[cfg(target_os = "linux")]
        // A failure (no huge pages) means that small pages are measured.
        let _ = memory.advise(memmap2::Advice::HugePage);
        bytemuck::cast_slice_mut::<u8, f32>(&mut memory).fill(1.0);
        Ok(Self { memory })
    }

    /// Reads the memory with `threads` threads, each its own part.
    pub fn bytes_per_second(&self, threads: usize) -> f64 {
        let threads = threads.clamp(1, self.memory.len() / BLOCK_BYTES);
        let part = (self.memory.len() / threads).next_multiple_of(BLOCK_BYTES);
        let isa = Isa::detect();
        best_rate(threads, READ_PASSES, |thread| {
            let start = (thread * part).min(self.memory.len());
            let end = (start + part).min(self.memory.len());
            for _ in 0..READS_PER_PASS {
                black_box(sum(isa, black_box(&self.memory[start..end])));
            }
            READS_PER_PASS * (end - start)
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// `a * b + c` on f32, with the widest vectors that the kernels use.
    F32,
    /// `vdpbf16ps`: products of bf16 pairs, added in f32.
    Bf16Dot,
    /// `vpdpbusd`: products of int8 quadruples, added in int32.
    Int8Dot,
    /// `vpmaddwd`: products of int16 pairs, added in int32; for int8 that was widened.
    Int8Shorts,
    /// `tdpbf16ps` of AMX: products of bf16 pairs of whole tiles, added in f32.
    Bf16Tiles,
    /// `tdpbsud` of AMX: products of int8 quadruples of whole tiles, added in int32.
    Int8Tiles,
}

impl Arithmetic {
    pub const ALL: [Self; 6] = [
        Self::F32,
        Self::Bf16Dot,
        Self::Int8Dot,
        Self::Int8Shorts,
        Self::Bf16Tiles,
        Self::Int8Tiles,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32 FMA",
            Self::Bf16Dot => "vdpbf16ps",
            Self::Int8Dot => "vpdpbusd",
            Self::Int8Shorts => "vpmaddwd",
            Self::Bf16Tiles => "tdpbf16ps",
            Self::Int8Tiles => "tdpbsud",
        }
    }

    pub fn is_present(self) -> bool {
        match self {
            Self::F32 => true,
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Dot => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
            }
            Self::Int8Dot => with_vnni().is_some(),
            Self::Int8Shorts => without_vnni().is_some(),
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Tiles | Self::Int8Tiles => super::x86::amx::has_amx(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Returns the operations per second of `threads` threads together, a multiplication and an addition counted as
    /// two; `None` if the CPU lacks the instruction. All operands stay in registers.
    pub fn ops_per_second(self, threads: usize) -> Option<f64> {
        if !self.is_present() {
            return None;
        }
        let pass = |_| self.pass(F32_OPS_PER_PASS);
        Some(best_rate(threads.max(1), ARITHMETIC_PASSES, pass))
    }

    /// Runs as many instructions as `f32_ops` f32 operations take (for tiles: as many operations). Returns the number
    /// of operations; 0 if the CPU lacks the instruction.
    pub(super) fn pass(self, f32_ops: usize) -> usize {
        if !self.is_present() {
            return 0;
        }
        let rounds = f32_ops / (2 * LANES * CHAINS);
        let vectors = rounds * CHAINS;
        match self {
            Self::F32 => {
                black_box(dispatch(Isa::detect(), MulAdds { rounds }));
                vectors * 2 * LANES
            }
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Dot => {
                // SAFETY: the instruction was detected above.
                black_box(unsafe { x86::bf16_dots(rounds) });
                vectors * 2 * LANES * 2
            }
            Self::Int8Dot => {
                let isa = with_vnni().unwrap_or(Isa::Portable);
                black_box(dispatch_integers(isa, Quads { rounds }));
                vectors * 2 * LANES * 4
            }
            Self::Int8Shorts => {
                let isa = without_vnni().unwrap_or(Isa::Portable);
                black_box(dispatch_integers(isa, Shorts { rounds }));
                vectors * 2 * LANES * 2
            }
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Tiles | Self::Int8Tiles => {
                let rounds = f32_ops / x86::TILE_OPS;
                // SAFETY: the instructions were detected above; a thread of a probe has no other tiles.
                unsafe { x86::tile_dots(rounds, self == Self::Int8Tiles) };
                let bytes = if self == Self::Int8Tiles { 2 } else { 1 };
                rounds * x86::TILE_OPS * bytes
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => 0,
        }
    }
}

fn with_vnni() -> Option<Isa> {
    let of = |isa: &Isa| matches!(isa, Isa::Avx2Vnni | Isa::Avx512Vnni);
    Isa::available().into_iter().rfind(of)
}

fn without_vnni() -> Option<Isa> {
    let of = |isa: &Isa| matches!(isa, Isa::Avx2 | Isa::Avx512);
    Isa::available().into_iter().rfind(of)
}

/// Units per second of all threads in the best pass, from the first thread's start to the last thread's end. `work`
/// does one thread's share of a pass and returns its number of units; the first pass is not timed.
fn best_rate(threads: usize, passes: usize, work: impl Fn(usize) -> usize + Sync) -> f64 {
    let barrier = Barrier::new(threads);
    let run = |thread: usize| -> Vec<(Instant, Instant, usize)> {
        work(thread);
        let pass = |_| {
            barrier.wait();
            let began = Instant::now();
            let units = work(thread);
            (began, Instant::now(), units)
        };
        (0..passes).map(pass).collect()
    };
    let timed: Vec<Vec<_>> = std::thread::scope(|scope| {
        let run = &run;
        let started: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || run(thread)))
            .collect();
        let joined = started.into_iter().map(|thread| thread.join());
        joined
            .map(|passes| passes.expect("a probe thread panicked"))
            .collect()
    });
    let rates = (0..passes).map(|pass| {
        let passes = || timed.iter().map(|thread| thread[pass]);
        let began = passes().map(|(began, ..)| began).min();
        let ended = passes().map(|(_, ended, _)| ended).max();
        let took = began.zip(ended).map(|(began, ended)| ended - began);
        let took = took.unwrap_or_default().max(Duration::from_nanos(1));
        let units: usize = passes().map(|(.., units)| units).sum();
        units as f64 / took.as_secs_f64()
    });
    rates.fold(0.0, f64::max)
}

fn sum(isa: Isa, memory: &[u8]) -> f32 {
    dispatch(isa, Sum(memory))
}

struct Sum<'a>(&'a [u8]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Lanes>(self) -> f32 {
        // SAFETY: every load is inside a block of the slice and needs no alignment; `dispatch` detected the
        // instruction set.
        unsafe {
            let mut sums = [S::splat(0.0); READ_CHAINS];
            for block in self.0.chunks_exact(BLOCK_BYTES) {
                let first = block.as_ptr().cast::<f32>();
                for chain in 0..READ_CHAINS {
                    let read = S::load(first.wrapping_add(chain * LANES));
                    sums[chain] = S::add(sums[chain], read);
                }
            }
            sums.into_iter().map(|sum| S::sum(sum)).sum()
        }
    }
}

/// `rounds` times [`CHAINS`] vectors of `a * b + c`.
struct MulAdds {
    rounds: usize,
}

impl Kernel for MulAdds {
    type Output = f32;

    #[inline(always)]
    fn run<S: Lanes>(self) -> f32 {
        // With sixteen registers, twelve chains of two registers would be spilled.
        match S::REGISTERS_PER_VECTOR {
            1 => mul_adds::<S, CHAINS>(self.rounds),
            2 => mul_adds::<S, { CHAINS / 2 }>(self.rounds * 2),
            _ => mul_adds::<S, { CHAINS / 4 }>(self.rounds * 4),
        }
    }
}

#[inline(always)]
fn mul_adds<S: Lanes, const N: usize>(rounds: usize) -> f32 {
    // SAFETY: only lane arithmetic; `dispatch` detected the instruction set.
    unsafe {
        let (half, one) = (S::splat(black_box(0.5)), S::splat(black_box(1.0)));
        let mut sums = [S::splat(0.0); N];
        for _ in 0..rounds {
            for chain in 0..N {
                sums[chain] = S::mul_add(sums[chain], half, one);
            }
        }
        sums.into_iter().map(|sum| S::sum(sum)).sum()
    }
}

/// `rounds` times [`CHAINS`] vectors of dot products of four bytes: each multiplies a sum's own bytes by ones, since
/// products of constants might be computed only once.
struct Quads {
    rounds: usize,
}

/// As [`Quads`], with dot products of two i16.
struct Shorts {
    rounds: usize,
}

impl Kernel for Quads {
    type Output = u32;

    #[inline(always)]
    fn run<S: Lanes>(self) -> u32 {
        dots::<S, true>(self.rounds)
    }
}

impl Kernel for Shorts {
    type Output = u32;

    #[inline(always)]
    fn run<S: Lanes>(self) -> u32 {
        dots::<S, false>(self.rounds)
    }
}

/// Runs as many chains of sums as registers allow; returns the total of the first lanes of all chains.
#[inline(always)]
fn dots<S: Lanes, const QUADS: bool>(rounds: usize) -> u32 {
    match S::REGISTERS_PER_VECTOR {
        1 => chains::<S, CHAINS, QUADS>(rounds),
        2 => chains::<S, { CHAINS / 2 }, QUADS>(rounds * 2),
        _ => chains::<S, { CHAINS / 4 }, QUADS>(rounds * 4),
    }
}

#[inline(always)]
fn chains<S: Lanes, const N: usize, const QUADS: bool>(rounds: usize) -> u32 {
    const ONES: [u32; 2] = [0x0001_0001, 0x0101_0101];
    // SAFETY: only lane arithmetic and a vector on the stack; `dispatch_integers` detected the instruction set.
    unsafe {
        let ones = S::splat_word(black_box(ONES[usize::from(QUADS)]));
        let mut sums = [S::splat_word(0); N];
        for sum in &mut sums {
            *sum = S::splat_word(black_box(1));
        }
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = if QUADS {
                    S::dot_quads(*sum, *sum, ones)
                } else {
                    S::dot_shorts(*sum, *sum, ones)
                };
            }
        }
        let mut total = 0u32;
        for sum in sums {
            let mut lanes = [0u32; LANES];
            S::store_words(lanes.as_mut_ptr(), sum);
            total = total.wrapping_add(lanes[0]);
        }
        total
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use crate::cpu::probe::CHAINS;
    use crate::cpu::simd::LANES;
    use crate::cpu::x86::amx::{TILE_ROWS, Tiles};

    /// Operations of a round of [`tile_dots`] with bf16: four products of tiles.
    pub const TILE_OPS: usize = 4 * TILE_ROWS * LANES * TILE_ROWS * 2 * 2;

    /// `rounds` times four products of whole tiles, of pairs of bf16 or of bytes.
    ///
    /// # Safety
    /// The machine has AMX, and this thread has no tiles.
    pub unsafe fn tile_dots(rounds: usize, of_bytes: bool) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            let tiles = Tiles::configure([TILE_ROWS; 2]);
            for _ in 0..rounds {
                if !of_bytes {
                    tiles.multiply_pairs()
                } else {
                    tiles.multiply_quads()
                }
            }
        }
    }

    const BF16_ONE: i16 = 0x3f80;

    /// `rounds` times [`CHAINS`] products of 32 bf16 pairs of ones; returns the sum in a lane of a chain.
    #[target_feature(enable = "avx512f,avx512bf16")]
    pub fn bf16_dots(rounds: usize) -> f32 {
        let ones = _mm512_set1_epi16(black_box(BF16_ONE));
        // SAFETY: both types are 64 bytes without invalid values.
        let ones: __m512bh = unsafe { std::mem::transmute(ones) };
        let mut sums = [_mm512_setzero_ps(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbf16_ps(*sum, ones, ones);
            }
        }
        let all = sums.into_iter().map(|sum| _mm512_reduce_add_ps(sum));
        all.sum::<f32>() / (LANES * CHAINS) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_once() {
        let probe = ReadProbe::new(1 << 20).expect("1 MiB can be allocated");
        for isa in Isa::available() {
            assert_eq!(sum(isa, &probe.memory), (1 << 18) as f32, "{isa:?}");
        }
    }

    #[test]
    fn every_instruction_computes_the_counted_operations() {
        for isa in Isa::available() {
            let lanes = (LANES * CHAINS) as f32;
            let per_lane = dispatch(isa, MulAdds { rounds: 1 }) / lanes;
            let chains = [1.0, 1.0 + 0.5, 1.0 + 0.5 + 0.25 + 0.125];
            // If half or a quarter of the chains run, each runs two or four rounds, and its lanes are 1.5 or 1.875.
            let expected = [chains[0], chains[1] / 2.0, chains[2] / 4.0];
            assert!(expected.contains(&per_lane), "{isa:?}: {per_lane}");
            // Each round adds a sum's own bytes or shorts, times ones, to the sum.
            let after = |rounds: usize, parts: fn(u32) -> i32| {
                (0..rounds).fold(1u32, |sum, _| sum.wrapping_add(parts(sum) as u32))
            };
            let expected =
                |parts| [1, 2, 4].map(|n| after(6 * n, parts).wrapping_mul((CHAINS / n) as u32));
            let bytes = |sum: u32| -> i32 {
                let bytes = sum.to_le_bytes();
                bytes.into_iter().map(|byte| i32::from(byte as i8)).sum()
            };
            let quads = dispatch_integers(isa, Quads { rounds: 6 });
            assert!(expected(bytes).contains(&quads), "{isa:?}: {quads}");
            let halves = |sum: u32| i32::from(sum as i16) + i32::from((sum >> 16) as i16);
            let shorts = dispatch_integers(isa, Shorts { rounds: 6 });
            assert!(expected(halves).contains(&shorts), "{isa:?}: {shorts}");
        }
        #[cfg(target_arch = "x86_64")]
        {
            if Arithmetic::Bf16Dot.is_present() {
                // SAFETY: the instruction was just detected.
                assert_eq!(unsafe { x86::bf16_dots(10) }, 20.0);
            }
        }
    }

    #[test]
    fn present_instructions_have_rates() {
        let probe = ReadProbe::new(1).expect("a block can be allocated");
        for threads in [0, 1, 3] {
            assert!(probe.bytes_per_second(threads) > 0.0, "{threads} threads");
        }
        for arithmetic in Arithmetic::ALL {
            let rate = arithmetic.ops_per_second(2);
            assert_eq!(rate.is_some(), arithmetic.is_present(), "{arithmetic:?}");
            assert!(rate.is_none_or(|rate| rate > 0.0 && rate.is_finite()));
        }
    }

    #[test]
    fn a_rate_is_positive_and_zero_without_work() {
        let rate = best_rate(3, 2, |_| {
            std::thread::yield_now();
            1000
        });
        assert!(rate > 0.0 && rate.is_finite());
        assert_eq!(best_rate(2, 1, |_| 0), 0.0);
    }
}
