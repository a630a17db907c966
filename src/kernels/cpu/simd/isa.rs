//! Instruction sets that kernels are compiled for, and their detection.

use std::ffi::OsStr;

/// Environment variable that forces an instruction set, for tests and comparisons.
pub const ISA_VARIABLE: &str = "SOUFFLEUR_CPU_ISA";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// The instructions that the compilation target guarantees.
    Portable,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 as above, with AVX-VNNI.
    Avx2Vnni,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 as above, with VNNI.
    Avx512Vnni,
    /// AVX-512 as above, with VNNI and BF16 dot products.
    Avx512Bf16,
    /// The same, with AMX: tiles of bf16 and of bytes.
    Amx,
}

impl Isa {
    /// Slowest first.
    pub const ALL: [Self; 7] = [
        Self::Portable,
        Self::Avx2,
        Self::Avx2Vnni,
        Self::Avx512,
        Self::Avx512Vnni,
        Self::Avx512Bf16,
        Self::Amx,
    ];

    /// The last instruction set in [`Self::ALL`] that this machine has, by CPU flags.
    pub fn detect() -> Self {
        *Self::available()
            .last()
            .expect("the portable path must be available")
    }

    /// # Errors
    /// An unknown name, or instructions that the machine lacks.
    pub fn named(name: &OsStr) -> Result<Self, String> {
        let available = Self::available();
        let found = available.iter().find(|isa| name == isa.name());
        found.copied().ok_or_else(|| {
            let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
            format!(
                "{ISA_VARIABLE} is {name:?}, which this machine does not support: use one of {}",
                names.join(", ")
            )
        })
    }

    /// Slowest first.
    pub fn available() -> Vec<Self> {
        Self::ALL
            .into_iter()
            .filter(|isa| isa.is_present())
            .collect()
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx2Vnni => "avx2_vnni",
            Self::Avx512 => "avx512",
            Self::Avx512Vnni => "avx512_vnni",
            Self::Avx512Bf16 => "avx512_bf16",
            Self::Amx => "amx",
        }
    }

    /// The instruction set that has the same float kernels: VNNI only adds integer products.
    pub fn of_floats(self) -> Self {
        match self {
            Self::Avx2Vnni => Self::Avx2,
            Self::Avx512Vnni => Self::Avx512,
            other => other,
        }
    }

    /// # Panics
    /// If this machine lacks it.
    pub(super) fn assert_present(self) {
        assert!(
            self.is_present(),
            "this machine does not support {}",
            self.name()
        );
    }

    #[cfg(target_arch = "x86_64")]
    fn is_present(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Avx2 => has_avx2(),
            Self::Avx2Vnni => has_avx2() && has_avx_vnni(),
            Self::Avx512 => has_avx512(),
            Self::Avx512Vnni => has_avx512() && is_x86_feature_detected!("avx512vnni"),
            Self::Avx512Bf16 => has_avx512_bf16(),
            Self::Amx => has_avx512_bf16() && super::super::x86::amx::has_amx(),
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn is_present(self) -> bool {
        self == Self::Portable
    }
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("fma")
        && is_x86_feature_detected!("f16c")
}

/// Unit tests accept the same instructions in the AVX-512 encoding, so that the path is tested on more machines.
#[cfg(target_arch = "x86_64")]
fn has_avx_vnni() -> bool {
    let is_emulated = cfg!(test) && has_avx512() && is_x86_feature_detected!("avx512vnni");
    is_x86_feature_detected!("avxvnni") || is_emulated
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    has_avx2()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
}

#[cfg(target_arch = "x86_64")]
fn has_avx512_bf16() -> bool {
    has_avx512() && is_x86_feature_detected!("avx512vnni") && is_x86_feature_detected!("avx512bf16")
}
