//! Tests of the matrix products of the built-in kernels and of cuBLASLt.

use souffleur_kernels::cuda::driver::{DeviceBuffer, DevicePtr};
use souffleur_kernels::cuda::gemm::{GemmWish, Products};
use souffleur_kernels::cuda::params::{ElementType, GemmParams, GemmWrite};

use super::{ELEMENTS, Elements, Gpu, relative};
use crate::gpu;

/// The number of elements of a result that the host computes for comparison.
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
/// Further shapes, for a real GPU.
const LARGE_SHAPES: [[usize; 3]; 7] = [
    [1, 6144, 4096],
    [8, 28_672, 4096],
    [16, 4096, 14_336],
    [32, 6144, 4096],
    [128, 28_672, 4096],
    [333, 4096, 14_336],
    [2048, 6144, 4096],
];

const WRITES: [GemmWrite; 3] = [GemmWrite::Store, GemmWrite::StoreF32, GemmWrite::AddF32];

fn shapes() -> impl Iterator<Item = [usize; 3]> {
    let large = LARGE_SHAPES.into_iter().filter(|_| gpu::is_thorough());
    SHAPES.into_iter().chain(large)
}

/// Number of random numbers for a shape: x, w, biases, and the previous output.
fn n_numbers([m, n, k]: [usize; 3]) -> usize {
    m * k + n * k + n + m * n
}

/// The random numbers of a shape, shared by all types, libraries, writes and biases: one thread generates them, and the
/// largest matrices have a hundred million elements.
struct Numbers {
    shape: [usize; 3],
    x: Vec<f32>,
    w: Vec<f32>,
    biases: Vec<f32>,
    before: Vec<f32>,
    /// Row and column of each result that the host computes.
    places: Vec<(usize, usize)>,
}

/// The random numbers of a shape on the device, as elements of a type.
struct Operands<'a> {
    numbers: &'a Numbers,
    element: ElementType,
    x: Elements,
    w: Elements,
    bias_list: DeviceBuffer<f32>,
    /// The expected products at `places`, without a bias.
    products: Vec<f64>,
}

impl Numbers {
    fn new(gpu: &mut Gpu, shape: [usize; 3]) -> Self {
        let [m, n, k] = shape;
        Self {
            shape,
            x: gpu.numbers(m * k, 1.0),
            w: gpu.numbers(n * k, 1.0),
            biases: gpu.numbers(n, 1.0),
            before: gpu.numbers(m * n, 1.0),
            places: places(gpu, m, n),
        }
    }

    fn on_device(&self, gpu: &Gpu, element: ElementType) -> Operands<'_> {
        let k = self.shape[2];
        let (x, w) = (
            gpu.elements_of(element, &self.x),
            gpu.elements_of(element, &self.w),
        );
        let places = self.places.iter();
        Operands {
            products: places
                .map(|(row, column)| dot(&x, &w, k, *row, *column))
                .collect(),
            bias_list: gpu.upload(&self.biases),
            numbers: self,
            element,
            x,
            w,
        }
    }
}

impl Operands<'_> {
    fn check(&self, gpu: &Gpu, products: &mut Products, (write, bias): (GemmWrite, bool)) {
        let Numbers {
            shape,
            biases,
            before,
            places,
            ..
        } = self.numbers;
        let ([m, n, k], element) = (*shape, self.element);
        let name = products.name();
        let what = format!("{name} {element:?} {shape:?}, {write:?}, bias {bias}");
        let out_element = match write {
            GemmWrite::Store => element,
            GemmWrite::StoreF32 | GemmWrite::AddF32 => ElementType::F32,
        };
        let out = gpu.output(out_element, m * n);
        if write == GemmWrite::AddF32 {
            gpu.write(&out, bytemuck::cast_slice(before));
        }
        let params = GemmParams {
            out: out.ptr(),
            x: self.x.ptr(),
            w: self.w.ptr(),
            bias: if bias {
                self.bias_list.ptr()
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
        for ((row, column), product) in places.iter().zip(&self.products) {
            let mut expected = *product;
            if bias {
                expected += f64::from(biases[*column]);
            }
            if write == GemmWrite::AddF32 {
                expected += f64::from(before[row * n + column]);
            }
            // The device sums the k products in another order.
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
}

fn places(gpu: &mut Gpu, m: usize, n: usize) -> Vec<(usize, usize)> {
    let all = m * n;
    if all <= SAMPLES {
        (0..all).map(|place| (place / n, place % n)).collect()
    } else {
        (0..SAMPLES)
            .map(|_| (gpu.below(m as u32) as usize, gpu.below(n as u32) as usize))
            .collect()
    }
}

fn dot(x: &Elements, w: &Elements, k: usize, row: usize, column: usize) -> f64 {
    let x = &x.values[row * k..(row + 1) * k];
    let w = &w.values[column * k..(column + 1) * k];
    x.iter().zip(w).map(|(x, w)| x * w).sum()
}

/// The built-in products and, where the library can be loaded, cuBLASLt's.
fn libraries(gpu: &Gpu, element: ElementType) -> Vec<Products> {
    let load = |wish| Products::new(&gpu.device, &gpu.modules, element, wish);
    let mut libraries = vec![load(GemmWish::Own).unwrap()];
    // NVIDIA's library multiplies on NVIDIA's devices only, and sanitizers need not check it.
    if gpu::is_thorough() {
        match load(GemmWish::CublasLt) {
            Ok(cublaslt) => libraries.push(cublaslt),
            Err(reason) => eprintln!("not present: cuBLASLt: {reason}"),
        }
    }
    libraries
}

#[test]
fn products_are_close_to_the_hosts() {
    let mut gpu = Gpu::new();
    let mut all = ELEMENTS.map(|element| (element, libraries(&gpu, element)));
    for shape in shapes() {
        let numbers = Numbers::new(&mut gpu, shape);
        for (element, libraries) in &mut all {
            let operands = numbers.on_device(&gpu, *element);
            for products in libraries {
                for write in WRITES {
                    operands.check(&gpu, products, (write, false));
                    operands.check(&gpu, products, (write, true));
                }
            }
        }
    }
    let once: usize = shapes().map(n_numbers).sum();
    assert_eq!(gpu.n_numbers(), once, "each shape has one set of numbers");
}

/// One thread generates some hundred million numbers in a few seconds; ten billion exceeded the tests' time limit.
#[test]
fn all_shapes_need_less_than_half_a_billion_numbers() {
    let all = SHAPES.into_iter().chain(LARGE_SHAPES);
    let n_numbers: usize = all.map(n_numbers).sum();
    assert!(n_numbers < 500_000_000, "{n_numbers}");
}
