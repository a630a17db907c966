//! Matrix products, our own and cuBLASLt's.

use souffleur::kernels::cuda::driver::DevicePtr;
use souffleur::kernels::cuda::gemm::{GemmWish, Products};
use souffleur::kernels::cuda::params::{ElementType, GemmParams, GemmWrite};

use super::{ELEMENTS, Elements, Gpu, relative};
use crate::gpu;

/// Elements of a result that are computed on the host.
const SAMPLES: usize = 4000;

/// Rows, outputs, inputs.
const SHAPES: [[usize; 3]; 12] = [
    [1, 48, 64],
    [5, 33, 40],
    [8, 4096, 128],
    [11, 130, 256],
    [16, 4100, 64],
    [17, 100, 72],
    [40, 256, 1024],
    [64, 300, 520],
    [100, 260, 2048],
    [150, 513, 96],
    [3, 20, 7],
    [70, 65, 33],
];
/// The same, where there is a real GPU.
const LARGE_SHAPES: [[usize; 3]; 7] = [
    [1, 6144, 4096],
    [8, 28_672, 4096],
    [16, 4096, 14_336],
    [32, 6144, 4096],
    [128, 28_672, 4096],
    [333, 4096, 14_336],
    [2048, 6144, 4096],
];

fn check_all(gpu: &mut Gpu, products: &mut Products, element: ElementType) {
    let large = LARGE_SHAPES.iter().filter(|_| gpu::is_thorough());
    for shape in SHAPES.iter().chain(large) {
        for write in [GemmWrite::Store, GemmWrite::StoreF32, GemmWrite::AddF32] {
            for bias in [false, true] {
                check(gpu, products, element, (*shape, write, bias));
            }
        }
    }
}

fn check(
    gpu: &mut Gpu,
    products: &mut Products,
    element: ElementType,
    (shape, write, bias): ([usize; 3], GemmWrite, bool),
) {
    let [m, n, k] = shape;
    let name = products.name();
    let what = format!("{name} {element:?} {shape:?}, {write:?}, bias {bias}");
    let (x, w) = (
        gpu.elements(element, m * k, 1.0),
        gpu.elements(element, n * k, 1.0),
    );
    let biases = gpu.numbers(n, 1.0);
    let bias_list = gpu.upload(&biases);
    let out_element = match write {
        GemmWrite::Store => element,
        GemmWrite::StoreF32 | GemmWrite::AddF32 => ElementType::F32,
    };
    let out = gpu.output(out_element, m * n);
    let before = gpu.numbers(m * n, 1.0);
    if write == GemmWrite::AddF32 {
        gpu.write(&out, bytemuck::cast_slice(&before));
    }
    let params = GemmParams {
        out: out.ptr(),
        x: x.ptr(),
        w: w.ptr(),
        bias: if bias {
            bias_list.ptr()
        } else {
            DevicePtr::NULL
        },
        partials: DevicePtr::NULL,
        m: m as u32,
        n: n as u32,
        k: k as u32,
        write,
        n_splits: 1,
    };
    // SAFETY: see the module `twins`.
    unsafe { products.multiply(&gpu.stream, &params) }.unwrap();
    let got = gpu.read(&out, &what);
    for (row, column) in places(gpu, m, n) {
        let mut expected = dot(&x, &w, k, row, column);
        if bias {
            expected += f64::from(biases[column]);
        }
        if write == GemmWrite::AddF32 {
            expected += f64::from(before[row * n + column]);
        }
        // Sums of k products that are a third on average, in another order.
        let absolute = 1e-6 * k as f64;
        let off = (got[row * n + column] - expected).abs();
        let is_close = off <= absolute + relative(out_element) * expected.abs();
        assert!(
            is_close,
            "{what}: [{row}, {column}] is off by {off} from {expected}"
        );
    }
    assert!(got.iter().all(|value| value.is_finite()), "{what}");
}

fn places(gpu: &mut Gpu, m: usize, n: usize) -> Vec<(usize, usize)> {
    let all = m * n;
    match all <= SAMPLES {
        true => (0..all).map(|place| (place / n, place % n)).collect(),
        false => (0..SAMPLES)
            .map(|_| (gpu.below(m as u32) as usize, gpu.below(n as u32) as usize))
            .collect(),
    }
}

fn dot(x: &Elements, w: &Elements, k: usize, row: usize, column: usize) -> f64 {
    let x = &x.values[row * k..(row + 1) * k];
    let w = &w.values[column * k..(column + 1) * k];
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

#[test]
fn products_are_right() {
    let mut gpu = Gpu::new();
    for element in ELEMENTS {
        let mut products =
            Products::new(&gpu.device, &gpu.modules, element, GemmWish::Own).unwrap();
        check_all(&mut gpu, &mut products, element);
        // NVIDIA's library multiplies on NVIDIA's devices only, and is not what sanitizers are to look at.
        if !gpu::is_thorough() {
            continue;
        }
        match Products::new(&gpu.device, &gpu.modules, element, GemmWish::CublasLt) {
            Ok(mut products) => check_all(&mut gpu, &mut products, element),
            Err(reason) => eprintln!("not present: cuBLASLt: {reason}"),
        }
    }
}
