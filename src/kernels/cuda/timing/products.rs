//! Benchmark of matrix products, by our own kernels and by cuBLASLt.

use super::Timing;
use super::lab::Lab;
use crate::cuda::driver::DriverError;
use crate::cuda::gemm::{GemmWish, Products};
use crate::cuda::params::{ElementType, GemmWrite};

/// Matrix products of Llama-3.1-8B, in a layer and for logits: name, outputs, inputs, write mode.
const LLAMA: [(&str, u32, u32, GemmWrite); 5] = [
    ("qkv", 6144, 4096, GemmWrite::Store),
    ("o", 4096, 4096, GemmWrite::AddF32),
    ("gate and up", 28_672, 4096, GemmWrite::Store),
    ("down", 4096, 14_336, GemmWrite::AddF32),
    ("vocabulary", 128_256, 4096, GemmWrite::StoreF32),
];
const TINY: [(&str, u32, u32, GemmWrite); 2] = [
    ("qkv", 96, 64, GemmWrite::Store),
    ("o", 64, 64, GemmWrite::AddF32),
];
const ROWS: [u32; 7] = [1, 8, 16, 32, 64, 128, 512];
/// Rows of a prefill, which has no product with the output matrix.
const MANY_ROWS: u32 = 4096;

pub(super) fn measure(lab: &mut Lab, report: &mut dyn FnMut(Timing)) -> Result<(), DriverError> {
    for wish in [GemmWish::Own, GemmWish::CublasLt] {
        let element = ElementType::Bf16;
        let mut products = match Products::new(&lab.device, &lab.modules, element, wish) {
            Ok(products) => products,
            Err(reason) if wish == GemmWish::CublasLt => {
                tracing::warn!(%reason, "cuBLASLt cannot be loaded: skipping its benchmark");
                continue;
            }
            Err(error) => return Err(error),
        };
        for (name, n, k, write) in lab.sized(&LLAMA[..], &TINY[..]) {
            let many = (*write != GemmWrite::StoreF32).then_some(lab.sized(MANY_ROWS, 130));
            let rows = lab.sized(&ROWS[..], &[1, 20]);
            for m in rows.iter().copied().chain(many) {
                let seconds = lab.time_product(&mut products, element, [m, *n, *k], *write)?;
                report(timing(products.name(), name, [m, *n, *k], *write, seconds));
            }
        }
    }
    Ok(())
}

fn timing(library: &str, name: &str, shape: [u32; 3], write: GemmWrite, seconds: f64) -> Timing {
    let [m, n, k] = shape.map(u64::from);
    let out_bytes = match write {
        GemmWrite::Store => 2,
        GemmWrite::StoreF32 => 4,
        GemmWrite::AddF32 => 8,
    };
    Timing {
        name: format!("product {name}, {m} rows, {n} x {k}, {library}"),
        seconds,
        bytes: 2 * (n * k + m * k) + out_bytes * m * n,
        flop: 2 * m * n * k,
    }
}
