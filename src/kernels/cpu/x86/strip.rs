//! Inner loop of strip products (`cpu/strips.rs`) in sixteen 256-bit registers.

use std::arch::asm;
use std::arch::x86_64::*;

use super::super::panel::SUMS;
use super::super::simd::unaligned::{read, write};
use super::super::strip_product::{STRIP_ROWS, StripProduct};

const REGISTERS: usize = 3;
const LANES: usize = 8;

/// See [`Lanes::multiply_strip`](super::super::simd::Lanes::multiply_strip).
///
/// # Safety
/// As [`Lanes::multiply_strip`](super::super::simd::Lanes::multiply_strip); the machine has AVX2 and FMA.
#[inline(always)]
pub unsafe fn multiply<const M: usize, const N: usize>(product: StripProduct) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        if M == STRIP_ROWS && N == REGISTERS {
            let mut acc = sums_before(product.begins, product.sums);
            four_rows(product, &mut acc);
            put_sums(&acc, product.sums);
            return;
        }
        let mut acc = sums_before::<M, N>(product.begins, product.sums);
        some_rows(product, &mut acc);
        put_sums(&acc, product.sums);
    }
}

type Acc<const M: usize, const N: usize> = [[__m256; N]; M];

/// Zeros if the product begins, else the sums in memory.
#[inline(always)]
unsafe fn sums_before<const M: usize, const N: usize>(begins: bool, sums: *const f32) -> Acc<M, N> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); N]; M];
        if !begins {
            for m in 0..M {
                for n in 0..N {
                    acc[m][n] = read(sums.wrapping_add(m * SUMS + n * LANES));
                }
            }
        }
        acc
    }
}

#[inline(always)]
unsafe fn put_sums<const M: usize, const N: usize>(acc: &Acc<M, N>, sums: *mut f32) {
    for m in 0..M {
        for n in 0..N {
            // SAFETY: guaranteed by the caller.
            unsafe { write(sums.wrapping_add(m * SUMS + n * LANES), acc[m][n]) };
        }
    }
}

#[inline(always)]
unsafe fn some_rows<const M: usize, const N: usize>(product: StripProduct, acc: &mut Acc<M, N>) {
    let (rows, strip) = (product.rows, product.strip);
    // SAFETY: guaranteed by the caller.
    unsafe {
        for input in 0..product.inputs {
            let mut weights = [_mm256_setzero_ps(); N];
            for n in 0..N {
                weights[n] = read(strip.wrapping_add(input * SUMS + n * LANES));
            }
            for m in 0..M {
                let x = _mm256_set1_ps(read(rows.wrapping_add(input * M + m)));
                for n in 0..N {
                    acc[m][n] = _mm256_fmadd_ps(x, weights[n], acc[m][n]);
                }
            }
        }
    }
}

/// Multiplies one input of four rows: its weights are in registers 12 to 14, the sums of the rows in 0 to 11.
macro_rules! four_products {
    ($input:literal) => {
        concat!(
            "vbroadcastss ymm15, dword ptr [{rows} + ",
            $input,
            " * 16]\n",
            "vfmadd231ps ymm0, ymm15, ymm12\n",
            "vfmadd231ps ymm1, ymm15, ymm13\n",
            "vfmadd231ps ymm2, ymm15, ymm14\n",
            "vbroadcastss ymm15, dword ptr [{rows} + ",
            $input,
            " * 16 + 4]\n",
            "vfmadd231ps ymm3, ymm15, ymm12\n",
            "vfmadd231ps ymm4, ymm15, ymm13\n",
            "vfmadd231ps ymm5, ymm15, ymm14\n",
            "vbroadcastss ymm15, dword ptr [{rows} + ",
            $input,
            " * 16 + 8]\n",
            "vfmadd231ps ymm6, ymm15, ymm12\n",
            "vfmadd231ps ymm7, ymm15, ymm13\n",
            "vfmadd231ps ymm8, ymm15, ymm14\n",
            "vbroadcastss ymm15, dword ptr [{rows} + ",
            $input,
            " * 16 + 12]\n",
            "vfmadd231ps ymm9, ymm15, ymm12\n",
            "vfmadd231ps ymm10, ymm15, ymm13\n",
            "vfmadd231ps ymm11, ymm15, ymm14\n",
        )
    };
}

macro_rules! one_input {
    ($at:literal) => {
        concat!(
            "vmovups ymm12, [{strip} + ",
            $at,
            " * {step}]\n",
            "vmovups ymm13, [{strip} + ",
            $at,
            " * {step} + 32]\n",
            "vmovups ymm14, [{strip} + ",
            $at,
            " * {step} + 64]\n",
            four_products!($at),
        )
    };
}

/// Widens eight words of half a panel, one bf16 of each, into a register and the strip.
macro_rules! one_half {
    ($half:literal, $register:literal, $pair:literal, $input:literal, $to:literal, $op:literal, $with:literal) => {
        concat!(
            "vmovups ",
            $register,
            ", [{",
            $half,
            "} + ",
            $pair,
            " * 64]\n",
            $op,
            " ",
            $register,
            ", ",
            $register,
            ", ",
            $with,
            "\n",
            "vmovups [{strip} + ",
            $input,
            " * {step} + ",
            $to,
            "], ",
            $register,
            "\n",
        )
    };
}

/// Multiplies one input and fills the strip with it: shifts up the lower bf16 of each word, or masks the upper one.
macro_rules! one_widened {
    ($pair:literal, $input:literal, $op:literal, $with:literal) => {
        concat!(
            one_half!("a", "ymm12", $pair, $input, "0", $op, $with),
            one_half!("b", "ymm13", $pair, $input, "32", $op, $with),
            one_half!("c", "ymm14", $pair, $input, "64", $op, $with),
            four_products!($input),
        )
    };
}

macro_rules! both_widened {
    ($pair:literal, $lower:literal, $upper:literal) => {
        concat!(
            one_widened!($pair, $lower, "vpslld", "16"),
            one_widened!($pair, $upper, "vpand", "[{upper}]"),
        )
    };
}

/// Adds the products of four rows with a wide strip. Their sums, the weights and one input take all sixteen registers;
/// a compiler reorders the loads and spills a sum for each input, which costs a third of the speed. With eight inputs
/// per iteration there are few enough iterations that the processor predicts the last one.
#[target_feature(enable = "avx2,fma")]
unsafe fn four_rows(product: StripProduct, acc: &mut Acc<STRIP_ROWS, REGISTERS>) {
    // SAFETY: reads four values of `rows` and 24 of `strip` for each input, as the caller guaranteed.
    unsafe {
        asm!(
            "test {eights}, {eights}",
            "jz 3f",
            "2:",
            "prefetcht0 [{ahead}]",
            one_input!(0),
            one_input!(1),
            one_input!(2),
            one_input!(3),
            one_input!(4),
            one_input!(5),
            one_input!(6),
            one_input!(7),
            "add {ahead}, 64",
            "add {rows}, 8 * 16",
            "add {strip}, 8 * {step}",
            "dec {eights}",
            "jnz 2b",
            "3:",
            "test {rest}, {rest}",
            "jz 5f",
            "4:",
            one_input!(0),
            "add {rows}, 16",
            "add {strip}, {step}",
            "dec {rest}",
            "jnz 4b",
            "5:",
            rows = inout(reg) product.rows => _,
            ahead = inout(reg) product.ahead => _,
            strip = inout(reg) product.strip => _,
            eights = inout(reg) product.inputs / 8 => _,
            rest = inout(reg) product.inputs % 8 => _,
            step = const SUMS * size_of::<f32>(),
            inout("ymm0") acc[0][0],
            inout("ymm1") acc[0][1],
            inout("ymm2") acc[0][2],
            inout("ymm3") acc[1][0],
            inout("ymm4") acc[1][1],
            inout("ymm5") acc[1][2],
            inout("ymm6") acc[2][0],
            inout("ymm7") acc[2][1],
            inout("ymm8") acc[2][2],
            inout("ymm9") acc[3][0],
            inout("ymm10") acc[3][1],
            inout("ymm11") acc[3][2],
            out("ymm12") _,
            out("ymm13") _,
            out("ymm14") _,
            out("ymm15") _,
            options(nostack, readonly),
        );
    }
}

/// See [`Lanes::widen_strip`](super::super::simd::Lanes::widen_strip).
///
/// # Safety
/// As [`Lanes::widen_strip`](super::super::simd::Lanes::widen_strip); the machine has AVX2 and FMA.
#[inline(always)]
pub unsafe fn widen(product: StripProduct, halves: [*const u32; 3]) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let mut acc = sums_before(product.begins, product.sums);
        widen_for_four_rows(product, halves, &mut acc);
        put_sums(&acc, product.sums);
    }
}

static UPPER: [u32; LANES] = [0xffff_0000; LANES];

/// Fills a wide strip and adds its products with four rows. The weights, which [`four_rows`] reads from the strip, are
/// widened and stored, mostly on ports of a core that do not multiply.
#[target_feature(enable = "avx2,fma")]
unsafe fn widen_for_four_rows(
    product: StripProduct,
    [a, b, c]: [*const u32; 3],
    acc: &mut Acc<STRIP_ROWS, REGISTERS>,
) {
    // SAFETY: for each input, reads four values of the rows and half of each word, and writes 24 values of the strip,
    // as the caller guaranteed.
    unsafe {
        asm!(
            "test {eights}, {eights}",
            "jz 3f",
            "2:",
            "prefetcht0 [{ahead}]",
            both_widened!("0", "0", "1"),
            both_widened!("1", "2", "3"),
            both_widened!("2", "4", "5"),
            both_widened!("3", "6", "7"),
            "add {ahead}, 64",
            "add {rows}, 8 * 16",
            "add {strip}, 8 * {step}",
            "add {a}, 4 * 64",
            "add {b}, 4 * 64",
            "add {c}, 4 * 64",
            "dec {eights}",
            "jnz 2b",
            "3:",
            "test {twos}, {twos}",
            "jz 5f",
            "4:",
            both_widened!("0", "0", "1"),
            "add {rows}, 2 * 16",
            "add {strip}, 2 * {step}",
            "add {a}, 64",
            "add {b}, 64",
            "add {c}, 64",
            "dec {twos}",
            "jnz 4b",
            "5:",
            rows = inout(reg) product.rows => _,
            ahead = inout(reg) product.ahead => _,
            strip = inout(reg) product.strip => _,
            a = inout(reg) a => _,
            b = inout(reg) b => _,
            c = inout(reg) c => _,
            eights = inout(reg) product.inputs / 8 => _,
            twos = inout(reg) product.inputs % 8 / 2 => _,
            upper = in(reg) UPPER.as_ptr(),
            step = const SUMS * size_of::<f32>(),
            inout("ymm0") acc[0][0],
            inout("ymm1") acc[0][1],
            inout("ymm2") acc[0][2],
            inout("ymm3") acc[1][0],
            inout("ymm4") acc[1][1],
            inout("ymm5") acc[1][2],
            inout("ymm6") acc[2][0],
            inout("ymm7") acc[2][1],
            inout("ymm8") acc[2][2],
            inout("ymm9") acc[3][0],
            inout("ymm10") acc[3][1],
            inout("ymm11") acc[3][2],
            out("ymm12") _,
            out("ymm13") _,
            out("ymm14") _,
            out("ymm15") _,
            options(nostack),
        );
    }
}
