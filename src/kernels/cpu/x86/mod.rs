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
use self::dots::{AvxVnni, MultiplyAdd, Plain, Vnni, VnniAndBf16};
use super::simd::lanes::Kernel;

/// Defines functions that run a kernel with some lanes and features, each in its own module: rustc makes one codegen
/// unit of the functions of a module, and one thread would otherwise optimise most of the crate.
macro_rules! compile {
    ($($(#[$attribute:meta])* $unit:ident::$run:ident: $lanes:ty, $features:literal;)*) => {$(
        $(#[$attribute])*
        mod $unit {
            use super::*;

            /// # Safety
            /// The machine must have the enabled features.
            #[target_feature(enable = $features)]
            pub unsafe fn $run<K: Kernel>(kernel: K) -> K::Output {
                kernel.run::<$lanes>()
            }
        }

        $(#[$attribute])*
        pub use self::$unit::$run;
    )*};
}

compile! {
    on_avx2::run_avx2: Avx2<MultiplyAdd>, "avx2,fma,f16c";
    on_avx2_vnni::run_avx2_vnni: Avx2<AvxVnni>, "avx2,fma,f16c,avxvnni";
    // AVX-VNNI's instructions in the encoding of AVX-512.
    #[cfg(test)]
    on_avx2_evex_vnni::run_avx2_evex_vnni: Avx2<EvexVnni>, "avx512f,avx512vl,avx512vnni,avx2,fma,f16c";
    on_avx512::run_avx512: Avx512<Plain>, "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c";
    on_avx512_vnni::run_avx512_vnni: Avx512<Vnni>, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";
    on_avx512_bf16::run_avx512_bf16:
        Avx512<VnniAndBf16>, "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c";
}
