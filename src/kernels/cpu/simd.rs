//! Sixteen f32 lanes with one meaning on every instruction set.
//!
//! Kernels are written once against [`Lanes`] and compiled for each instruction set by [`dispatch`]. The lane
//! structure, and with it the order of every sum, is the same everywhere; instruction sets differ in whether
//! `mul_add` rounds once (AVX2 and AVX-512, which agree bit for bit) or twice (portable), and in how the two products
//! of a bf16 pair are rounded (`dot_pairs`).

use half::{bf16, f16};

/// Number of f32 lanes of every vector.
pub const LANES: usize = 16;

/// Environment variable that forces an instruction set, to test or to compare; no key of the configuration.
pub const ISA_VARIABLE: &str = "SOUFFLEUR_CPU_ISA";

/// An instruction set that kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// What the compilation target guarantees.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 as above, with BF16 dot products and VNNI.
    Avx512Bf16,
}

impl Isa {
    /// Every instruction set that kernels are compiled for, slowest first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Avx512Bf16];

    /// Returns the best instruction set of this machine.
    pub fn detect() -> Self {
        *Self::available()
            .last()
            .expect("the portable path is always there")
    }

    /// Returns the instruction set that the variable [`ISA_VARIABLE`] names, or the best of this machine without it.
    ///
    /// # Errors
    /// When the name is unknown or the machine lacks what it names.
    pub fn chosen() -> Result<Self, String> {
        let Some(name) = std::env::var_os(ISA_VARIABLE) else {
            return Ok(Self::detect());
        };
        let available = Self::available();
        let found = available.iter().find(|isa| name == isa.name());
        found.copied().ok_or_else(|| {
            let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
            format!(
                "{ISA_VARIABLE} is {name:?}, this machine has {}",
                names.join(", ")
            )
        })
    }

    /// Returns what this machine can run, slowest first.
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|isa| isa.is_present())
            .collect()
    }

    /// The name in logs and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Avx512Bf16 => "avx512_bf16",
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn is_present(self) -> bool {
        let avx2 = || {
            is_x86_feature_detected!("avx2")
                && is_x86_feature_detected!("fma")
                && is_x86_feature_detected!("f16c")
        };
        let avx512 = || {
            is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
        };
        match self {
            Self::Portable => true,
            Self::Avx2 => avx2(),
            Self::Avx512 => avx2() && avx512(),
            Self::Avx512Bf16 => {
                avx2()
                    && avx512()
                    && is_x86_feature_detected!("avx512bf16")
                    && is_x86_feature_detected!("avx512vnni")
            }
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_present(self) -> bool {
        self == Self::Portable
    }
}

/// Work that is compiled once for each instruction set. `run` must be `#[inline(always)]`.
pub trait Kernel {
    /// What it returns.
    type Output;

    /// Does the work with lanes of `S`.
    fn run<S: Lanes>(self) -> Self::Output;
}

/// Runs a kernel with the lanes of `isa`.
///
/// # Panics
/// If this machine lacks `isa`.
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    match isa {
        Isa::Portable => kernel.run::<Portable>(),
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => {
            assert!(isa.is_present(), "avx2 is missing on this machine");
            // SAFETY: the features were detected on the line above.
            unsafe { super::x86::run_avx2(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => {
            assert!(isa.is_present(), "avx512 is missing on this machine");
            // SAFETY: the features were detected on the line above.
            unsafe { super::x86::run_avx512(kernel) }
        }
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 => {
            assert!(isa.is_present(), "avx512_bf16 is missing on this machine");
            // SAFETY: the features were detected on the line above.
            unsafe { super::x86::run_avx512_bf16(kernel) }
        }
        #[cfg(not(target_arch = "x86_64"))]
        Isa::Avx2 | Isa::Avx512 | Isa::Avx512Bf16 => {
            panic!("{} is missing on this machine", isa.name())
        }
    }
}

/// Sixteen f32 lanes.
///
/// # Safety
/// Every method must only run where the instruction set was detected ([`dispatch`] sees to it). Pointers must be
/// valid for sixteen elements; no alignment is asked for.
pub trait Lanes: Copy + 'static {
    /// Sixteen values.
    type V: Copy;
    /// Sixteen 32-bit words: pairs of bf16 (the first in the low half) or quads of bytes.
    type W: Copy;

    /// Machine registers that sixteen values take; there are 32 on AVX-512, 16 elsewhere.
    const REGISTERS: usize;

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::V;
    /// Reads sixteen f32.
    unsafe fn load(p: *const f32) -> Self::V;
    /// Reads and widens sixteen bf16.
    unsafe fn load_bf16(p: *const bf16) -> Self::V;
    /// Reads and widens sixteen f16.
    unsafe fn load_f16(p: *const f16) -> Self::V;
    /// Writes sixteen f32.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// `a + b`.
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a > b ? a : b`: `b` if either is NaN.
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    /// `a < b ? a : b`: `b` if either is NaN.
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Adds `bits(n) << 23` to the bits of `v`: multiplies by 2^k where the low bits of `n` hold k.
    unsafe fn scale_by_pow2(v: Self::V, n: Self::V) -> Self::V;

    /// Writes sixteen values rounded to the nearest bf16, ties to even.
    unsafe fn store_bf16(p: *mut bf16, v: Self::V);

    /// All words `word`.
    unsafe fn splat_word(word: u32) -> Self::W;
    /// Reads sixteen words.
    unsafe fn load_words(p: *const u32) -> Self::W;
    /// Adds to each lane the products of a pair: of the first elements and of the second ones.
    unsafe fn dot_pairs(acc: Self::V, a: Self::W, b: Self::W) -> Self::V;
    /// Adds to each word, an i32, the four products of the signed bytes of `a` with the unsigned bytes of `b`.
    unsafe fn dot_quads(acc: Self::W, a: Self::W, b: Self::W) -> Self::W;
    /// Words as i32, converted.
    unsafe fn words_to_f32(words: Self::W) -> Self::V;

    /// Sum of the lanes: lane i with i+8, then i+4, i+2, i+1.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        let mut a = [0f32; LANES];
        // SAFETY: `a` holds sixteen values; the instruction set is the caller's promise.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        for width in [8, 4, 2, 1] {
            for i in 0..width {
                a[i] += a[i + width];
            }
        }
        a[0]
    }

    /// Largest lane.
    #[inline(always)]
    unsafe fn max_lane(v: Self::V) -> f32 {
        let mut a = [0f32; LANES];
        // SAFETY: as in `sum`.
        unsafe { Self::store(a.as_mut_ptr(), v) };
        a.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }

    /// e^x within two units in the last place; x is clamped to [-87.3, 88.3], NaN stays NaN.
    ///
    /// # Source
    /// The usual reduction x = n ln 2 + r with a degree-6 polynomial in r (Cephes `expf` coefficients).
    #[inline(always)]
    unsafe fn exp(x: Self::V) -> Self::V {
        // 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
        const MAGIC: f32 = 12_582_912.0;
        // SAFETY: only lane arithmetic; the instruction set is the caller's promise.
        unsafe {
            let x = Self::min(Self::splat(88.3), Self::max(Self::splat(-87.3), x));
            let shifted =
                Self::mul_add(x, Self::splat(std::f32::consts::LOG2_E), Self::splat(MAGIC));
            let n = Self::sub(shifted, Self::splat(MAGIC));
            let r = Self::mul_add(n, Self::splat(-0.693_359_4), x);
            let r = Self::mul_add(n, Self::splat(2.121_944_4e-4), r);
            let mut p = Self::splat(1.987_569_2e-4);
            for c in [
                1.398_2e-3,
                8.333_452e-3,
                4.166_579_6e-2,
                1.666_666_5e-1,
                0.5,
            ] {
                p = Self::mul_add(p, r, Self::splat(c));
            }
            let p = Self::add(Self::mul_add(Self::mul(r, r), p, r), Self::splat(1.0));
            Self::scale_by_pow2(p, shifted)
        }
    }
}

/// A value at any alignment. Reading one compiles to a plain unaligned load in every profile; the library's
/// `read_unaligned`, and with it the load intrinsics, carry checks in debug builds that keep tiles out of registers.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T>(T);

/// Reads a value at any alignment.
///
/// # Safety
/// `p` is valid for reading a `T`.
#[inline(always)]
pub(super) unsafe fn read<T: Copy, P>(p: *const P) -> T {
    // SAFETY: the caller's promise; `Unaligned` asks for no alignment.
    unsafe { (*p.cast::<Unaligned<T>>()).0 }
}

/// Writes a value at any alignment.
///
/// # Safety
/// `p` is valid for writing a `T`.
#[inline(always)]
pub(super) unsafe fn write<T: Copy, P>(p: *mut P, value: T) {
    // SAFETY: the caller's promise; `Unaligned` asks for no alignment.
    unsafe { (*p.cast::<Unaligned<T>>()).0 = value };
}

/// Lanes as a plain array, for any target.
#[derive(Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    let mut out = [0f32; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

#[inline(always)]
fn zip_words(a: [u32; LANES], b: [u32; LANES], f: impl Fn(u32, u32) -> f32) -> [f32; LANES] {
    let mut out = [0f32; LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Lanes for Portable {
    type V = [f32; LANES];
    type W = [u32; LANES];

    const REGISTERS: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self::V {
        // SAFETY: the caller's pointer is valid for sixteen values.
        unsafe { read(p) }
    }

    #[inline(always)]
    unsafe fn load_bf16(p: *const bf16) -> Self::V {
        // SAFETY: the caller's pointer is valid for sixteen values; bf16 is a transparent u16.
        let raw: [u16; LANES] = unsafe { read(p) };
        let mut out = [0f32; LANES];
        for i in 0..LANES {
            out[i] = f32::from_bits(u32::from(raw[i]) << 16);
        }
        out
    }

    #[inline(always)]
    unsafe fn load_f16(p: *const f16) -> Self::V {
        // SAFETY: the caller's pointer is valid for sixteen values.
        let raw: [f16; LANES] = unsafe { read(p) };
        raw.map(f16::to_f32)
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: Self::V) {
        // SAFETY: the caller's pointer is valid for sixteen values.
        unsafe { write(p, v) };
    }

    #[inline(always)]
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        let mut out = [0f32; LANES];
        for i in 0..LANES {
            // Without hardware FMA `f32::mul_add` is a library call.
            out[i] = if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
                a[i].mul_add(b[i], c[i])
            } else {
                a[i] * b[i] + c[i]
            };
        }
        out
    }

    #[inline(always)]
    unsafe fn scale_by_pow2(v: Self::V, n: Self::V) -> Self::V {
        zip(v, n, |v, n| {
            f32::from_bits(v.to_bits().wrapping_add(n.to_bits() << 23))
        })
    }

    #[inline(always)]
    unsafe fn store_bf16(p: *mut bf16, v: Self::V) {
        let narrow = v.map(|x| bf16::from_f32(x).to_bits());
        // SAFETY: the caller's pointer is valid for sixteen values.
        unsafe { write(p, narrow) };
    }

    #[inline(always)]
    unsafe fn splat_word(word: u32) -> Self::W {
        [word; LANES]
    }

    #[inline(always)]
    unsafe fn load_words(p: *const u32) -> Self::W {
        // SAFETY: the caller's pointer is valid for sixteen words.
        unsafe { read(p) }
    }

    #[inline(always)]
    unsafe fn dot_pairs(acc: Self::V, a: Self::W, b: Self::W) -> Self::V {
        let low = |word: u32| f32::from_bits(word << 16);
        let high = |word: u32| f32::from_bits(word & 0xffff_0000);
        // Products of two bf16 are exact in f32, so only the sums round.
        let first = zip_words(a, b, |a, b| low(a) * low(b));
        let second = zip_words(a, b, |a, b| high(a) * high(b));
        zip(zip(acc, first, |a, b| a + b), second, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn dot_quads(acc: Self::W, a: Self::W, b: Self::W) -> Self::W {
        let mut out = acc;
        for i in 0..LANES {
            for byte in 0..4 {
                let a = i32::from((a[i] >> (8 * byte)) as u8 as i8);
                let b = ((b[i] >> (8 * byte)) & 0xff) as i32;
                out[i] = out[i].wrapping_add((a * b) as u32);
            }
        }
        out
    }

    #[inline(always)]
    unsafe fn words_to_f32(words: Self::W) -> Self::V {
        words.map(|word| word as i32 as f32)
    }
}

#[cfg(test)]
#[allow(unsafe_code)]
mod tests {
    use super::*;

    struct Exp([f32; LANES]);

    impl Kernel for Exp {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Lanes>(self) -> [f32; LANES] {
            let mut out = [0.0; LANES];
            // SAFETY: both arrays hold sixteen values; `dispatch` detected the instruction set.
            unsafe { S::store(out.as_mut_ptr(), S::exp(S::load(self.0.as_ptr()))) };
            out
        }
    }

    #[test]
    fn exp_is_right_to_two_units_in_the_last_place() {
        for isa in Isa::available() {
            for step in 0..20_000 {
                let x: [f32; LANES] =
                    std::array::from_fn(|i| -87.0 + (step * LANES + i) as f32 * 5.4e-4);
                for (x, got) in x.into_iter().zip(dispatch(isa, Exp(x))) {
                    let expected = f64::from(x).exp();
                    let error = (f64::from(got) - expected).abs() / expected;
                    assert!(
                        error < 2.4e-7,
                        "{isa:?}: exp({x}) is {got}, expected {expected}, error {error}"
                    );
                }
            }
        }
    }

    #[test]
    fn exp_keeps_nan_and_stays_finite_elsewhere() {
        for isa in Isa::available() {
            let mut x = [0.0; LANES];
            x[..4].copy_from_slice(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1e30]);
            let got = dispatch(isa, Exp(x));
            assert!(got[0].is_nan(), "{isa:?}");
            assert!(got[1].is_finite() && got[1] > 1e38, "{isa:?}: {}", got[1]);
            assert!(
                got[2..4].iter().all(|y| (0.0..2e-38).contains(y)),
                "{isa:?}: {got:?}"
            );
            assert!(got[4..].iter().all(|y| *y == 1.0), "{isa:?}: {got:?}");
        }
    }
}
