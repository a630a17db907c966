//! SIMD: sixteen f32 lanes with the same semantics on every instruction set.
//!
//! Kernels are written once against [`Lanes`] and compiled for each instruction set by [`dispatch`] or
//! [`dispatch_integers`]. The lane structure, and with it the order of every sum, is the same everywhere. Instruction
//! sets differ in whether `mul_add` rounds once (AVX2 and AVX-512, which agree bit for bit) or twice (portable, if the
//! compilation target has no FMA), and in how the two products of a bf16 pair are rounded (`dot_pairs`).

mod isa;
pub(super) mod lanes;
pub(super) mod unaligned;

pub use self::isa::{ISA_VARIABLE, Isa};
pub(super) use self::lanes::MAGIC;
pub use self::lanes::{EIGHT, FOUR, Kernel, LANES, Lanes};
pub(super) use self::unaligned::{read, write};
use super::portable::Portable;
#[cfg(target_arch = "x86_64")]
use super::x86;

/// Runs a kernel with the lanes of `isa`, without VNNI; see `dispatch_integers`.
///
/// # Panics
/// If this machine lacks `isa`.
pub fn dispatch<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    isa.assert_present();
    match isa.of_floats() {
        Isa::Portable => kernel.run::<Portable>(),
        // SAFETY: the features of each were detected above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::run_avx2(kernel) },
        // SAFETY: as before.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::run_avx512(kernel) },
        // SAFETY: as before.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Bf16 | Isa::Amx => unsafe { x86::run_avx512_bf16(kernel) },
        _ => unreachable!("this machine does not support {}", isa.name()),
    }
}

/// Runs a kernel dominated by integer products. Kernels are compiled for VNNI only through this, and for bf16 products
/// only through [`dispatch`]: compiling all kernels for both would lengthen the build.
///
/// # Panics
/// If this machine lacks `isa`.
pub fn dispatch_integers<K: Kernel>(isa: Isa, kernel: K) -> K::Output {
    isa.assert_present();
    match isa {
        Isa::Portable => kernel.run::<Portable>(),
        // SAFETY: the features of each were detected above.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { x86::run_avx2(kernel) },
        // SAFETY: as before; tests may have the same instructions in another encoding.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2Vnni => unsafe {
            #[cfg(test)]
            if !is_x86_feature_detected!("avxvnni") {
                return x86::run_avx2_evex_vnni(kernel);
            }
            x86::run_avx2_vnni(kernel)
        },
        // SAFETY: as before.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { x86::run_avx512(kernel) },
        // SAFETY: as before.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512Vnni | Isa::Avx512Bf16 | Isa::Amx => unsafe { x86::run_avx512_vnni(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("this machine does not support {}", isa.name()),
    }
}

#[cfg(test)]
mod tests;
