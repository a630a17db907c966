//! The best that this machine can do: how fast it reads memory, and how fast it multiplies and adds.
//!
//! The floors of a benchmark are made of these rates, so each is the best of a few passes: whatever else the machine
//! does can only lower a rate. Both move with the machine's other users; measure them beside what is compared.

use std::hint::black_box;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use memmap2::MmapMut;

use super::simd::{Isa, Kernel, LANES, Lanes, dispatch};

/// Bytes that one round of the read loop takes: eight vectors of sixteen floats.
const BLOCK_BYTES: usize = READ_CHAINS * LANES * size_of::<f32>();
/// Sums that are independent of each other, so that an addition's latency hides behind loads.
const READ_CHAINS: usize = 8;
/// How often a pass reads the buffer, and how many passes there are.
const READS_PER_PASS: usize = 2;
const READ_PASSES: usize = 7;
/// Ten to twenty milliseconds of 100 GFLOP/s.
const F32_OPS_PER_PASS: usize = 1 << 31;
const ARITHMETIC_PASSES: usize = 5;
/// Independent sums of dot products: enough for a latency of six cycles at two a cycle.
const CHAINS: usize = 12;

/// Memory to read, touched once so that every page is there.
pub struct ReadProbe {
    memory: MmapMut,
}

impl ReadProbe {
    /// Takes `bytes` bytes (whole blocks of 512, one at least), in huge pages where the system has them. Far more
    /// than the last cache holds, or the cache is measured.
    ///
    /// # Errors
    /// When the system refuses the memory.
    pub fn new(bytes: usize) -> std::io::Result<Self> {
        let bytes = bytes.max(BLOCK_BYTES).next_multiple_of(BLOCK_BYTES);
        let mut memory = MmapMut::map_anon(bytes)?;
        #[cfg(target_os = "linux")]
        // A kernel without huge pages refuses: small ones are measured then, as they would be used.
        let _ = memory.advise(memmap2::Advice::HugePage);
        bytemuck::cast_slice_mut::<u8, f32>(&mut memory).fill(1.0);
        Ok(Self { memory })
    }

    /// Returns the bytes per second that `threads` threads read together, each its own part.
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

/// Instructions that multiply and add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// `a * b + c` on f32, with the widest vectors that the kernels use.
    F32,
    /// `vdpbf16ps`: products of bf16 pairs, added in f32.
    Bf16Dot,
    /// `vpdpbusd`: products of int8 quadruples, added in int32.
    Int8Dot,
    /// `tdpbf16ps` of AMX: products of bf16 pairs of whole tiles, added in f32.
    Bf16Tiles,
    /// `tdpbsud` of AMX: products of int8 quadruples of whole tiles, added in int32.
    Int8Tiles,
}

impl Arithmetic {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::F32,
        Self::Bf16Dot,
        Self::Int8Dot,
        Self::Bf16Tiles,
        Self::Int8Tiles,
    ];

    /// The instruction that multiplies bf16 on an instruction set.
    pub fn of_bf16(isa: Isa) -> Self {
        match isa {
            Isa::Amx => Self::Bf16Tiles,
            _ => Self::Bf16Dot,
        }
    }

    /// The instruction that multiplies int8 on an instruction set.
    pub fn of_int8(isa: Isa) -> Self {
        match isa {
            Isa::Amx => Self::Int8Tiles,
            _ => Self::Int8Dot,
        }
    }

    /// The instruction's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32 FMA",
            Self::Bf16Dot => "vdpbf16ps",
            Self::Int8Dot => "vpdpbusd",
            Self::Bf16Tiles => "tdpbf16ps",
            Self::Int8Tiles => "tdpbsud",
        }
    }

    /// True if this machine has the instruction.
    pub fn is_present(self) -> bool {
        match self {
            Self::F32 => true,
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Dot => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bf16")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Int8Dot => {
                is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Tiles | Self::Int8Tiles => super::x86::amx::has_amx(),
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Returns the operations per second of `threads` threads together, a multiplication and an addition counted as
    /// two; `None` without the instruction. Everything stays in registers.
    pub fn ops_per_second(self, threads: usize) -> Option<f64> {
        if !self.is_present() {
            return None;
        }
        let rate = best_rate(threads.max(1), ARITHMETIC_PASSES, |_| match self {
            Self::F32 => {
                let rounds = F32_OPS_PER_PASS / (2 * LANES * CHAINS);
                black_box(dispatch(Isa::detect(), MulAdds { rounds }));
                rounds * 2 * LANES * CHAINS
            }
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Dot => {
                let rounds = F32_OPS_PER_PASS / (2 * LANES * CHAINS);
                // SAFETY: the instruction was detected above.
                black_box(unsafe { x86::bf16_dots(rounds) });
                rounds * 2 * LANES * 2 * CHAINS
            }
            #[cfg(target_arch = "x86_64")]
            Self::Int8Dot => {
                let rounds = F32_OPS_PER_PASS / (2 * LANES * CHAINS);
                // SAFETY: the instruction was detected above.
                black_box(unsafe { x86::int8_dots(rounds) });
                rounds * 2 * LANES * 4 * CHAINS
            }
            #[cfg(target_arch = "x86_64")]
            Self::Bf16Tiles | Self::Int8Tiles => {
                let rounds = F32_OPS_PER_PASS / x86::TILE_OPS;
                // SAFETY: the instructions were detected above; a thread of a probe has no other tiles.
                unsafe { x86::tile_dots(rounds, self == Self::Int8Tiles) };
                let bytes = if self == Self::Int8Tiles { 2 } else { 1 };
                rounds * x86::TILE_OPS * bytes
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => 0,
        });
        Some(rate)
    }
}

/// Units per second of the best pass, by all threads from the first one's start to the last one's end. `work` does
/// one thread's share of a pass and returns how many units that were; one pass before the first is not timed.
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
            .map(|passes| passes.expect("a probe does not panic"))
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

/// Adds up whole blocks of floats.
struct Sum<'a>(&'a [u8]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Lanes>(self) -> f32 {
        // SAFETY: every load lies inside a block of the slice and asks for no alignment; `dispatch` detected the
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
        // With sixteen registers, twelve chains of two would be spilled.
        match S::REGISTERS {
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

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use super::super::x86::amx::{TILE_ROWS, Tiles};
    use super::CHAINS;

    /// Operations of a round of [`tile_dots`] with bf16: four products of tiles.
    pub const TILE_OPS: usize = 4 * TILE_ROWS * super::LANES * TILE_ROWS * 2 * 2;

    /// `rounds` times four products of whole tiles, of pairs of bf16 or of bytes.
    ///
    /// # Safety
    /// The machine has AMX, and this thread has no tiles.
    pub unsafe fn tile_dots(rounds: usize, of_bytes: bool) {
        // SAFETY: the caller's promise.
        unsafe {
            let tiles = Tiles::configure([TILE_ROWS; 2]);
            for _ in 0..rounds {
                match of_bytes {
                    false => tiles.multiply_pairs(),
                    true => tiles.multiply_quads(),
                }
            }
        }
    }

    /// Ones in bf16.
    const BF16_ONE: i16 = 0x3f80;

    /// `rounds` times [`CHAINS`] products of 32 bf16 pairs of ones; returns what one chain and lane adds up to.
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
        all.sum::<f32>() / (super::LANES * CHAINS) as f32
    }

    /// `rounds` times [`CHAINS`] products of 64 int8 pairs of ones; returns what one chain and lane adds up to.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub fn int8_dots(rounds: usize) -> i32 {
        let ones = _mm512_set1_epi8(black_box(1));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, ones, ones);
            }
        }
        let all = sums.into_iter().map(|sum| _mm512_cvtsi512_si32(sum));
        all.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read_once() {
        let probe = ReadProbe::new(1 << 20).expect("a mebibyte is there");
        for isa in Isa::available() {
            assert_eq!(sum(isa, &probe.memory), (1 << 18) as f32, "{isa:?}");
        }
    }

    #[test]
    fn every_instruction_computes_what_is_counted() {
        for isa in Isa::available() {
            let lanes = (LANES * CHAINS) as f32;
            let per_lane = dispatch(isa, MulAdds { rounds: 1 }) / lanes;
            let chains = [1.0, 1.0 + 0.5, 1.0 + 0.5 + 0.25 + 0.125];
            // Fewer chains take as many more rounds: 1, 1.5 and 1.875 after 1, 2 and 4, of half and a quarter as many.
            let expected = [chains[0], chains[1] / 2.0, chains[2] / 4.0];
            assert!(expected.contains(&per_lane), "{isa:?}: {per_lane}");
        }
        #[cfg(target_arch = "x86_64")]
        {
            if Arithmetic::Bf16Dot.is_present() {
                // SAFETY: the instruction was just detected.
                assert_eq!(unsafe { x86::bf16_dots(10) }, 20.0);
            }
            if Arithmetic::Int8Dot.is_present() {
                // SAFETY: the instruction was just detected.
                assert_eq!(unsafe { x86::int8_dots(10) }, 40);
            }
        }
    }

    #[test]
    fn rates_are_there_for_what_is_present() {
        let probe = ReadProbe::new(1).expect("a block is there");
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
    fn a_rate_counts_the_units_of_all_threads() {
        let rate = best_rate(3, 2, |_| {
            std::thread::yield_now();
            1000
        });
        assert!(rate > 0.0 && rate.is_finite());
        assert_eq!(best_rate(2, 1, |_| 0), 0.0);
    }
}
