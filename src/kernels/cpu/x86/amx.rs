//! AMX tiles: registers of up to sixteen rows of 64 bytes, and their products.
//!
//! The compiler does not use tiles, so their content persists between the functions here. The functions are inline
//! assembly, because the intrinsics are unstable.
//!
//! Tiles 0 to 3 hold sums: of the first rows with both panels, then of the second rows. Tiles 4, 5: rows; 6, 7: panels.

use std::arch::asm;
use std::arch::x86_64::{__cpuid_count, _xgetbv};
use std::sync::OnceLock;

pub const TILE_ROWS: usize = 16;
pub const TILE_BYTES: usize = 64;

pub fn has_amx() -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| has_instructions() && is_permitted())
}

fn has_instructions() -> bool {
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const ALL: u32 = BF16 | TILE | INT8;
    /// The bits of tile configuration and tile data in XCR0.
    const STATES: u64 = 1 << 17 | 1 << 18;
    if !is_x86_feature_detected!("xsave") {
        return false;
    }
    // SAFETY: `_xgetbv` needs `xsave`, which was detected, and which the system enabled: `is_x86_feature_detected`
    // finds AVX only then.
    let enabled = is_x86_feature_detected!("avx") && unsafe { enabled_states() } & STATES == STATES;
    enabled && __cpuid_count(7, 0).edx & ALL == ALL
}

#[target_feature(enable = "xsave")]
unsafe fn enabled_states() -> u64 {
    // SAFETY: guaranteed by the caller.
    unsafe { _xgetbv(0) }
}

/// Requests permission to use tile state from Linux (`arch_prctl`).
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const REQUEST_PERMISSION: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a system call that changes only the permissions of this process.
    unsafe {
        asm!(
            "syscall",
            inout("rax") result,
            in("rdi") REQUEST_PERMISSION,
            in("rsi") TILE_DATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Returns false, since AMX is untested on other systems.
#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// Configured tiles, released on drop.
pub struct Tiles(());

/// The memory operand of `ldtilecfg`.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl Tiles {
    /// Configures tiles for these numbers of first and second rows, at most [`TILE_ROWS`] each; without second rows,
    /// only the first may be multiplied. Afterwards, all sums are zero.
    ///
    /// # Safety
    /// [`has_amx`] returned true; nothing else configures tiles on this thread while the result lives.
    #[inline(always)]
    pub unsafe fn configure(rows: [usize; 2]) -> Self {
        debug_assert!(rows[0] > 0 && rows.iter().all(|rows| *rows <= TILE_ROWS));
        let [first, second] = rows.map(|rows| rows.max(1) as u8);
        let panel = TILE_ROWS as u8;
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(TILE_BYTES as u16);
        config.rows[..8]
            .copy_from_slice(&[first, first, second, second, first, second, panel, panel]);
        // SAFETY: guaranteed by the caller; the configuration is valid.
        unsafe {
            asm!("ldtilecfg [{0}]", in(reg) &raw const config, options(nostack, readonly));
        }
        Self(())
    }

    #[inline(always)]
    pub fn clear(&self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                options(nostack, nomem),
            );
        }
    }

    #[inline(always)]
    pub fn multiply_pairs(&self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!(
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                options(nostack, nomem),
            );
        }
    }

    #[inline(always)]
    pub fn multiply_quads(&self) {
        // SAFETY: tiles are configured.
        unsafe {
            asm!(
                "tdpbsud tmm0, tmm4, tmm6",
                "tdpbsud tmm1, tmm4, tmm7",
                "tdpbsud tmm2, tmm5, tmm6",
                "tdpbsud tmm3, tmm5, tmm7",
                options(nostack, nomem),
            );
        }
    }

    /// Stores the sums of the first or second rows with a panel; `stride` is in bytes.
    ///
    /// # Safety
    /// `to` is valid for the rows, of [`TILE_BYTES`] each.
    #[inline(always)]
    pub unsafe fn store(&self, second_rows: bool, panel: usize, to: *mut u32, stride: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (second_rows, panel) {
                (false, 0) => {
                    asm!("tilestored [{0} + {1}], tmm0", in(reg) to, in(reg) stride, options(nostack))
                }
                (false, _) => {
                    asm!("tilestored [{0} + {1}], tmm1", in(reg) to, in(reg) stride, options(nostack))
                }
                (true, 0) => {
                    asm!("tilestored [{0} + {1}], tmm2", in(reg) to, in(reg) stride, options(nostack))
                }
                (true, _) => {
                    asm!("tilestored [{0} + {1}], tmm3", in(reg) to, in(reg) stride, options(nostack))
                }
            }
        }
    }
}

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: tiles are configured. Releasing them makes context switches cheaper.
        unsafe { asm!("tilerelease", options(nostack, nomem)) };
    }
}

#[derive(Clone, Copy)]
pub struct Step<const ROWS: usize, const PANELS: usize> {
    /// The first rows, then the second rows.
    pub rows: [*const u32; ROWS],
    pub row_bytes: usize,
    pub panels: [*const u32; PANELS],
}

pub trait Dot: 'static {
    /// # Safety
    /// The step's pointers are valid for whole tiles, with rows as `tiles` is configured.
    unsafe fn add<const ROWS: usize, const PANELS: usize>(tiles: &Tiles, step: Step<ROWS, PANELS>);
}

/// `tdpbf16ps`. In a step, the first elements of pairs are one chain of fused multiply-adds in ascending order from
/// zero, the second elements another; the total of both is added to the tile. Subnormal numbers count as zero.
pub struct Bf16Pairs;

/// `tdpbsud`: products of signed bytes of rows with unsigned bytes of panels.
pub struct ByteQuads;

macro_rules! add_step {
    ($dot:literal, $step:ident) => {{
        let Step {
            rows,
            row_bytes,
            panels,
        } = $step;
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (ROWS, PANELS) {
                (1, 1) => asm!(
                    "tileloadd tmm4, [{rows} + {row_bytes}]",
                    "tileloadd tmm6, [{panel} + {line}]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    rows = in(reg) rows[0],
                    row_bytes = in(reg) row_bytes,
                    panel = in(reg) panels[0],
                    line = in(reg) TILE_BYTES,
                    options(nostack, readonly),
                ),
                (1, _) => asm!(
                    "tileloadd tmm4, [{rows} + {row_bytes}]",
                    "tileloadd tmm6, [{panel} + {line}]",
                    "tileloadd tmm7, [{other} + {line}]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    rows = in(reg) rows[0],
                    row_bytes = in(reg) row_bytes,
                    panel = in(reg) panels[0],
                    other = in(reg) panels[PANELS - 1],
                    line = in(reg) TILE_BYTES,
                    options(nostack, readonly),
                ),
                (_, 1) => asm!(
                    "tileloadd tmm6, [{panel} + {line}]",
                    "tileloadd tmm4, [{rows} + {row_bytes}]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{more} + {row_bytes}]",
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    rows = in(reg) rows[0],
                    more = in(reg) rows[ROWS - 1],
                    row_bytes = in(reg) row_bytes,
                    panel = in(reg) panels[0],
                    line = in(reg) TILE_BYTES,
                    options(nostack, readonly),
                ),
                (_, _) => asm!(
                    "tileloadd tmm4, [{rows} + {row_bytes}]",
                    "tileloadd tmm6, [{panel} + {line}]",
                    "tileloadd tmm7, [{other} + {line}]",
                    concat!($dot, " tmm0, tmm4, tmm6"),
                    "tileloadd tmm5, [{more} + {row_bytes}]",
                    concat!($dot, " tmm1, tmm4, tmm7"),
                    concat!($dot, " tmm2, tmm5, tmm6"),
                    concat!($dot, " tmm3, tmm5, tmm7"),
                    rows = in(reg) rows[0],
                    more = in(reg) rows[ROWS - 1],
                    row_bytes = in(reg) row_bytes,
                    panel = in(reg) panels[0],
                    other = in(reg) panels[PANELS - 1],
                    line = in(reg) TILE_BYTES,
                    options(nostack, readonly),
                ),
            }
        }
    }};
}

impl Dot for Bf16Pairs {
    #[inline(always)]
    unsafe fn add<const ROWS: usize, const PANELS: usize>(_: &Tiles, step: Step<ROWS, PANELS>) {
        add_step!("tdpbf16ps", step);
    }
}

impl Dot for ByteQuads {
    #[inline(always)]
    unsafe fn add<const ROWS: usize, const PANELS: usize>(_: &Tiles, step: Step<ROWS, PANELS>) {
        add_step!("tdpbsud", step);
    }
}
