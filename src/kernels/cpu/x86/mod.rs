//! x86 kernels, compiled once per instruction set.

pub mod amx;
mod avx2;
mod avx512;
mod dots;
mod moves;
mod strip;

use self::avx2::Avx2;
use self::avx512::Avx512;
#[cfg(test)]
use self::dots::EvexVnni;
use self::dots::{AvxVnni, Multiplied, Plain, Vnni, VnniAndBf16};
use super::simd::lanes::Kernel;

/// # Safety
/// The machine must have the enabled features.
#[target_feature(enable = "avx2,fma,f16c")]
pub unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2<Multiplied>>()
}

/// # Safety
/// The machine must have the enabled features.
#[target_feature(enable = "avx2,fma,f16c,avxvnni")]
pub unsafe fn run_avx2_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2<AvxVnni>>()
}

/// Runs a kernel as [`run_avx2_vnni`] does, with EVEX-encoded VNNI instructions (AVX-512 VNNI and VL).
///
/// # Safety
/// The machine must have AVX-512 F, VL and VNNI in addition to AVX2, FMA and F16C.
#[cfg(test)]
#[target_feature(enable = "avx512f,avx512vl,avx512vnni,avx2,fma,f16c")]
pub unsafe fn run_avx2_evex_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2<EvexVnni>>()
}

/// # Safety
/// The machine must have the enabled features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<Plain>>()
}

/// # Safety
/// The machine must have the enabled features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub unsafe fn run_avx512_vnni<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<Vnni>>()
}

/// # Safety
/// The machine must have the enabled features.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub unsafe fn run_avx512_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<VnniAndBf16>>()
}
