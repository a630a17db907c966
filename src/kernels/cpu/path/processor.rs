//! Identifies the processor by CPUID, and lists published instruction rates of known cores.
//!
//! Cycles per instruction are those of InstLatx64. For an FMA, a `vdpbf16ps` or a `vpdpbusd` of 512 bits, Zen 4 takes
//! one cycle and Zen 5 half a cycle (its mobile form one), so a `vdpbf16ps` does twice the work of an FMA. Golden Cove
//! takes two cycles for a `vdpbf16ps` of any width. An FMA or a `vpdpbusd` takes one cycle with one 512-bit unit and
//! half a cycle with two, which servers have: there `vdpbf16ps` does half the work of FMAs. A product of tiles takes
//! sixteen cycles (Intel's manual). Cooper Lake and Granite Rapids are not in those tables, so they are measured.

use super::super::probe::Arithmetic;
use super::choice::Rates;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    /// Such as `GenuineIntel`.
    pub vendor: String,
    pub family: u32,
    pub model: u32,
    pub stepping: u32,
}

impl Processor {
    #[cfg(target_arch = "x86_64")]
    pub fn this() -> Self {
        use std::arch::x86_64::__cpuid;

        let (names, signature) = (__cpuid(0), __cpuid(1).eax);
        let vendor = [names.ebx, names.edx, names.ecx].map(u32::to_le_bytes);
        Self::from_signature(&vendor.concat(), signature)
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn this() -> Self {
        Self::from_signature(std::env::consts::ARCH.as_bytes(), 0)
    }

    /// Decodes the vendor's name and the signature from `cpuid`.
    pub fn from_signature(vendor: &[u8], signature: u32) -> Self {
        let field = |from: u32, bits: u32| signature >> from & ((1 << bits) - 1);
        let (base, model) = (field(8, 4), field(4, 4));
        let has_extension = matches!(base, 6 | 15);
        let vendor = vendor.iter().filter(|byte| byte.is_ascii_alphanumeric());
        Self {
            vendor: vendor.map(|byte| char::from(*byte)).collect(),
            family: match base {
                15 => base + field(20, 8),
                base => base,
            },
            model: if has_extension {
                model | field(16, 4) << 4
            } else {
                model
            },
            stepping: field(0, 4),
        }
    }
}

/// Multiply-adds per cycle, by instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KnownCore {
    name: &'static str,
    f32_fma: f64,
    bf16_dot: f64,
    int8_dot: f64,
    int8_shorts: f64,
    bf16_tiles: f64,
}

const ZEN_4: KnownCore = KnownCore {
    name: "AMD Zen 4",
    f32_fma: 16.0,
    bf16_dot: 32.0,
    int8_dot: 64.0,
    int8_shorts: 32.0,
    bf16_tiles: 0.0,
};

const ZEN_5: KnownCore = KnownCore {
    name: "AMD Zen 5",
    f32_fma: 32.0,
    bf16_dot: 64.0,
    int8_dot: 128.0,
    int8_shorts: 64.0,
    bf16_tiles: 0.0,
};

const GOLDEN_COVE: KnownCore = KnownCore {
    name: "Intel Golden Cove (Xeon)",
    f32_fma: 32.0,
    bf16_dot: 16.0,
    int8_dot: 128.0,
    int8_shorts: 64.0,
    bf16_tiles: 512.0,
};

impl KnownCore {
    pub fn of(processor: &Processor) -> Option<Self> {
        match (processor.vendor.as_str(), processor.family) {
            ("AuthenticAMD", 0x19) => match processor.model {
                0x10..=0x1f | 0x60..=0xaf => Some(ZEN_4),
                _ => None,
            },
            ("AuthenticAMD", 0x1a) => match processor.model {
                0x00..=0x2f | 0x40..=0x4f | 0x60..=0x7f => Some(ZEN_5),
                _ => None,
            },
            // Sapphire Rapids and Emerald Rapids.
            ("GenuineIntel", 6) => match processor.model {
                0x8f | 0xcf => Some(GOLDEN_COVE),
                _ => None,
            },
            _ => None,
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }
}

impl Rates for KnownCore {
    fn measure(&mut self, instructions: &[Arithmetic]) -> Vec<(Arithmetic, f64)> {
        let rate = |instruction: &Arithmetic| match instruction {
            Arithmetic::F32 => self.f32_fma,
            Arithmetic::Bf16Dot => self.bf16_dot,
            Arithmetic::Int8Dot => self.int8_dot,
            Arithmetic::Int8Shorts => self.int8_shorts,
            Arithmetic::Bf16Tiles => self.bf16_tiles,
            Arithmetic::Int8Tiles => 2.0 * self.bf16_tiles,
        };
        instructions.iter().map(|of| (*of, rate(of))).collect()
    }
}
