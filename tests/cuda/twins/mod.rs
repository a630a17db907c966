//! Compares each kernel with plain arithmetic on the host, through the launches that the executor uses: random inputs,
//! outputs poisoned with NaN, and a guard after each output that must stay unchanged.
//!
//! `kernels/cusim/tests` has more shapes; the tests here also run on a real GPU.

// Launches take addresses: buffers live until the results are read, and shapes are those of the buffers.
#![allow(unsafe_code)]

mod attention;
mod blocks;
mod products;
mod rows;
mod sampling;

use std::sync::OnceLock;

use half::bf16;
use souffleur_kernels::cuda::driver::{Device, DeviceBuffer, DevicePtr, Priority, Stream};
use souffleur_kernels::cuda::pack::Modules;
use souffleur_kernels::cuda::params::{Element, ElementType};

use crate::gpu;

/// The emulated device of all tests of this module.
const EMULATED: usize = 60;
/// Bytes after an output that no kernel may touch.
const GUARD_BYTES: usize = 256;
const POISON: u8 = 0xff;
/// Relative tolerances: for results rounded to bfloat16, and for f32 sums in another order.
const BF16_RELATIVE: f64 = 0.004;
const F32_RELATIVE: f64 = 2e-5;

pub struct Gpu {
    pub device: Device,
    pub modules: Modules,
    pub stream: Stream,
    random: fastrand::Rng,
    n_numbers: usize,
}

pub struct Elements {
    buffer: DeviceBuffer<u8>,
    pub values: Vec<f64>,
}

impl Elements {
    pub fn ptr(&self) -> DevicePtr<Element> {
        self.buffer.ptr().cast()
    }
}

pub struct Output {
    buffer: DeviceBuffer<u8>,
    len: usize,
    element: ElementType,
}

impl Output {
    pub fn ptr<T>(&self) -> DevicePtr<T> {
        self.buffer.ptr().cast()
    }
}

impl Gpu {
    /// A separate stream on one context for all tests of this module: sanitizers take most of their time for contexts
    /// and the loading of kernels.
    pub fn new() -> Self {
        static SHARED: OnceLock<(Device, Modules)> = OnceLock::new();
        let (device, modules) = SHARED.get_or_init(|| gpu::open(EMULATED)).clone();
        let stream = device.stream(Priority::High).unwrap();
        Self {
            device,
            modules,
            stream,
            random: fastrand::Rng::with_seed(20_261_121),
            n_numbers: 0,
        }
    }

    /// Number of random numbers generated so far.
    pub fn n_numbers(&self) -> usize {
        self.n_numbers
    }

    pub fn multiprocessors(&self) -> u32 {
        self.device.info().multiprocessors
    }

    pub fn below(&mut self, end: u32) -> u32 {
        self.random.u32(..end)
    }

    /// Uniform random numbers from `-width` to `width`.
    pub fn numbers(&mut self, len: usize, width: f32) -> Vec<f32> {
        self.n_numbers += len;
        (0..len)
            .map(|_| (self.random.f32() * 2.0 - 1.0) * width)
            .collect()
    }

    /// Uniform random elements from `-width` to `width`.
    pub fn elements(&mut self, element: ElementType, len: usize, width: f32) -> Elements {
        let numbers = self.numbers(len, width);
        self.elements_of(element, &numbers)
    }

    /// Converts numbers to elements of a type, and copies them to the device.
    pub fn elements_of(&self, element: ElementType, numbers: &[f32]) -> Elements {
        match element {
            ElementType::F32 => Elements {
                buffer: self.upload(bytemuck::cast_slice(numbers)),
                values: numbers.iter().map(|value| f64::from(*value)).collect(),
            },
            ElementType::Bf16 => {
                let rounded: Vec<bf16> = numbers.iter().copied().map(bf16::from_f32).collect();
                Elements {
                    buffer: self.upload(bytemuck::cast_slice(&rounded)),
                    values: rounded.iter().map(|value| value.to_f64()).collect(),
                }
            }
        }
    }

    /// Copies a list to the device; an empty list gets memory for one element.
    pub fn upload<T: bytemuck::Pod>(&self, list: &[T]) -> DeviceBuffer<T> {
        let buffer = self.device.alloc(list.len().max(1)).unwrap();
        self.stream.write(&buffer, 0, list).unwrap();
        buffer
    }

    /// Poisoned memory, followed by a guard.
    pub fn output(&self, element: ElementType, len: usize) -> Output {
        let bytes = len * element.bytes() + GUARD_BYTES;
        let buffer = self.device.alloc(bytes).unwrap();
        self.stream.fill(&buffer, 0..bytes, POISON).unwrap();
        Output {
            buffer,
            len,
            element,
        }
    }

    /// Overwrites the poison of an output that a kernel also reads.
    pub fn write(&self, output: &Output, bytes: &[u8]) {
        self.stream.write(&output.buffer, 0, bytes).unwrap();
    }

    /// The output of a kernel, after a check that the guard is intact.
    pub fn read(&self, output: &Output, what: &str) -> Vec<f64> {
        let bytes = self.stream.read(&output.buffer, 0..output.buffer.len());
        let bytes = bytes.unwrap_or_else(|error| panic!("{what}: {error}"));
        let (values, guard) = bytes.split_at(output.len * output.element.bytes());
        assert!(
            guard.iter().all(|byte| *byte == POISON),
            "{what}: the kernel wrote past its output"
        );
        match output.element {
            ElementType::F32 => values
                .chunks_exact(4)
                .map(|word| f64::from(bytemuck::pod_read_unaligned::<f32>(word)))
                .collect(),
            ElementType::Bf16 => values
                .chunks_exact(2)
                .map(|pair| bf16::from_le_bytes([pair[0], pair[1]]).to_f64())
                .collect(),
        }
    }
}

pub fn relative(element: ElementType) -> f64 {
    match element {
        ElementType::F32 => F32_RELATIVE,
        ElementType::Bf16 => BF16_RELATIVE,
    }
}

/// Panics at the first value that is further from the expected one than `absolute + relative * |expected|`.
pub fn assert_close(what: &str, got: &[f64], expected: &[f64], absolute: f64, relative: f64) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (index, (got, expected)) in got.iter().zip(expected).enumerate() {
        let off = (got - expected).abs();
        // Written so that NaN fails.
        let is_close = off <= absolute + relative * expected.abs();
        assert!(
            is_close,
            "{what}: element {index} is {got}, expected {expected}"
        );
    }
}

#[test]
fn all_tests_of_this_module_share_one_context() {
    if gpu::real().is_some() {
        eprintln!("skipped: only the emulated driver counts modules");
        return;
    }
    let loaded = |ordinal| souffleur_cusim::Device::new(ordinal).counts().n_modules;
    let _once = gpu::open(EMULATED + 1);
    let _twins = (Gpu::new(), Gpu::new());
    assert_eq!(loaded(EMULATED), loaded(EMULATED + 1));
}

pub const ELEMENTS: [ElementType; 2] = [ElementType::F32, ElementType::Bf16];
