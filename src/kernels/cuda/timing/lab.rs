//! Benchmark fixture: operands of timed kernels, timing on the device, and the GPU's peak rates.

use serde::Serialize;

use super::Extent;
use crate::cuda::driver::{Device, DeviceBuffer, DevicePtr, DriverError, Event, Priority, Stream};
use crate::cuda::gemm::{GemmWish, Products};
use crate::cuda::launch::FillRandom;
use crate::cuda::pack::Modules;
use crate::cuda::params::{Element, ElementType, GemmParams, GemmWrite};

/// Larger than the cache of any GPU.
const ROTATED_BYTES: usize = 512 << 20;
const MAX_COPIES: usize = 64;
const GRAPH_SECONDS: f64 = 4e-3;
const MAX_LAUNCHES: usize = 256;
const ROUNDS: usize = 5;
const LEAST_COPY_BYTES: usize = 1 << 20;
const MOST_COPY_BYTES: usize = 2 << 30;
const LEAST_SIDE: u32 = 128;
const MOST_SIDE: u32 = 8192;
/// Inputs of the product that measures read bandwidth.
const READ_INPUTS: u32 = 4096;
/// Long enough that startup and tail don't matter.
const LONG_ENOUGH_S: f64 = 5e-4;
/// Operands are uniform in [-1, 1]: random integers in `-STEPS..STEPS`, times `WIDTH / STEPS`.
const WIDTH: f32 = 1.0;
const STEPS: f32 = 8_388_608.0;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// Bytes read and written by a device-to-device copy.
    pub copy_bytes_per_s: f64,
    /// Bytes of weights read by a product of one row.
    pub read_bytes_per_s: f64,
    /// Rate of a large matrix product.
    pub flop_per_s: f64,
    /// `cublaslt` or `own`.
    pub product: &'static str,
}

impl Rates {
    /// The higher of the copy rate and the read rate, which often differ.
    pub fn bytes_per_s(&self) -> f64 {
        self.copy_bytes_per_s.max(self.read_bytes_per_s)
    }
}

/// Contiguous copies of an operand; consecutive launches use different copies.
pub(super) struct Copies {
    buffer: DeviceBuffer<u8>,
    bytes: usize,
    n: usize,
}

impl Copies {
    pub(super) fn at<T>(&self, nth: usize) -> DevicePtr<T> {
        self.buffer.at(nth % self.n * self.bytes).cast()
    }
}

pub(super) struct Lab {
    pub(super) device: Device,
    pub(super) modules: Modules,
    pub(super) stream: Stream,
    pub(super) extent: Extent,
    begin: Event,
    end: Event,
    fill: [FillRandom; 2],
}

impl Lab {
    pub(super) fn new(
        device: &Device,
        modules: &Modules,
        extent: Extent,
    ) -> Result<Self, DriverError> {
        let multiprocessors = device.info().multiprocessors;
        let fill = |element| FillRandom::load(modules, element, multiprocessors);
        Ok(Self {
            fill: [fill(ElementType::F32)?, fill(ElementType::Bf16)?],
            device: device.clone(),
            modules: modules.clone(),
            stream: device.stream(Priority::High)?,
            begin: device.timed_event()?,
            end: device.timed_event()?,
            extent,
        })
    }

    pub(super) fn multiprocessors(&self) -> u32 {
        self.device.info().multiprocessors
    }

    /// `full` on a GPU, `tiny` in a smoke test.
    pub(super) fn sized<T>(&self, full: T, tiny: T) -> T {
        match self.extent {
            Extent::Full => full,
            Extent::Tiny => tiny,
        }
    }

    pub(super) fn rates(&self, element: ElementType) -> Result<Rates, DriverError> {
        let wish = GemmWish::Auto;
        let mut products = Products::new(&self.device, &self.modules, element, wish)?;
        Ok(Rates {
            copy_bytes_per_s: self.copy_rate()?,
            read_bytes_per_s: self.read_rate(element)?,
            flop_per_s: self.product_rate(&mut products, element)?,
            product: products.name(),
        })
    }

    /// Doubles the size of a copy until bandwidth dominates its time.
    fn copy_rate(&self) -> Result<f64, DriverError> {
        let mut bytes = LEAST_COPY_BYTES;
        loop {
            let [from, to] = [self.device.alloc::<u8>(bytes)?, self.device.alloc(bytes)?];
            self.stream.fill(&from, 0..bytes, 1u8)?;
            let seconds = self.time(|stream, _| stream.copy(&to, 0, &from, 0..bytes))?;
            if seconds > LONG_ENOUGH_S || bytes >= MOST_COPY_BYTES {
                return Ok(2.0 * bytes as f64 / seconds);
            }
            bytes *= 2;
        }
    }

    /// Enlarges the weights of our own product of one row until reading dominates.
    fn read_rate(&self, element: ElementType) -> Result<f64, DriverError> {
        let wish = GemmWish::Own;
        let mut products = Products::new(&self.device, &self.modules, element, wish)?;
        let mut outputs = LEAST_SIDE;
        loop {
            let shape = [1, outputs, READ_INPUTS];
            let seconds = self.time_product(&mut products, element, shape, GemmWrite::Store)?;
            let bytes = outputs as usize * READ_INPUTS as usize * element.bytes();
            if seconds > LONG_ENOUGH_S || bytes >= MOST_COPY_BYTES {
                return Ok(bytes as f64 / seconds);
            }
            outputs *= 2;
        }
    }

    /// Doubles the sides of square matrix products until computing dominates.
    fn product_rate(
        &self,
        products: &mut Products,
        element: ElementType,
    ) -> Result<f64, DriverError> {
        let mut side = LEAST_SIDE;
        loop {
            let shape = [side; 3];
            let seconds = self.time_product(products, element, shape, GemmWrite::Store)?;
            if seconds > LONG_ENOUGH_S || side >= MOST_SIDE {
                return Ok(2.0 * f64::from(side).powi(3) / seconds);
            }
            side *= 2;
        }
    }

    pub(super) fn time_product(
        &self,
        products: &mut Products,
        element: ElementType,
        [m, n, k]: [u32; 3],
        write: GemmWrite,
    ) -> Result<f64, DriverError> {
        let elements = |rows: u32, width: u32| rows as usize * width as usize;
        let x = self.elements(element, elements(m, k))?;
        let w = self.elements(element, elements(n, k))?;
        // Large enough for every write mode.
        let out = self.elements(ElementType::F32, elements(m, n))?;
        self.time(|stream, nth| {
            let params = GemmParams {
                out: out.at(nth),
                x: x.at(nth),
                w: w.at(nth),
                bias: DevicePtr::NULL,
                partials: DevicePtr::NULL,
                m,
                n,
                k,
                write,
                n_splits: 1,
            };
            // SAFETY: operands of the shapes given; they live until the time is read.
            unsafe { products.multiply(stream, &params) }
        })
    }

    pub(super) fn elements(&self, element: ElementType, len: usize) -> Result<Copies, DriverError> {
        self.copies(element, len, WIDTH)
    }

    pub(super) fn copies(
        &self,
        element: ElementType,
        len: usize,
        width: f32,
    ) -> Result<Copies, DriverError> {
        let bytes = (len * element.bytes()).next_multiple_of(256);
        let rotated = self.sized(ROTATED_BYTES, bytes);
        let n = (rotated / bytes).clamp(1, MAX_COPIES);
        let buffer = self.device.alloc(n * bytes)?;
        let fill = match element {
            ElementType::F32 => &self.fill[0],
            ElementType::Bf16 => &self.fill[1],
        };
        let all = (n * bytes / element.bytes()) as u64;
        let start: DevicePtr<Element> = buffer.ptr().cast();
        // SAFETY: the buffer has `all` elements; it is freed after its users were waited for.
        unsafe { fill.launch(&self.stream, start, all, bytes as u64, width / STEPS) }?;
        Ok(Copies { buffer, bytes, n })
    }

    pub(super) fn upload<T: bytemuck::Pod>(
        &self,
        list: &[T],
    ) -> Result<DeviceBuffer<T>, DriverError> {
        let buffer = self.device.alloc(list.len())?;
        self.stream.write(&buffer, 0, list)?;
        Ok(buffer)
    }

    /// Device seconds of `launch`, the median of some rounds; the second argument of `launch` counts the launches.
    pub(super) fn time(
        &self,
        mut launch: impl FnMut(&Stream, usize) -> Result<(), DriverError>,
    ) -> Result<f64, DriverError> {
        let stream = &self.stream;
        // Operands filled by kernels must be complete: products may read weights before earlier launches have ended.
        stream.synchronize()?;
        // The first launch loads code and chooses algorithms; the second estimates the duration.
        launch(stream, 0)?;
        let once = self.elapsed(|| launch(stream, 1))?;
        let wanted = (GRAPH_SECONDS / once.max(1e-7)).ceil() as usize;
        let n = wanted.clamp(1, self.sized(MAX_LAUNCHES, 2));
        let graph = stream.capture(|| (0..n).try_for_each(|nth| launch(stream, nth)))?;
        graph.upload(stream)?;
        let rounds = 0..self.sized(ROUNDS, 1);
        let times = rounds.map(|_| {
            // SAFETY: the recorded work uses operands that the caller keeps until this returns.
            self.elapsed(|| unsafe { graph.launch(stream) })
        });
        let mut times = times.collect::<Result<Vec<f64>, _>>()?;
        times.sort_by(f64::total_cmp);
        Ok(times[times.len() / 2] / n as f64)
    }

    fn elapsed(&self, work: impl FnOnce() -> Result<(), DriverError>) -> Result<f64, DriverError> {
        self.stream.record(&self.begin)?;
        work()?;
        self.stream.record(&self.end)?;
        self.stream.synchronize()?;
        Ok(f64::from(self.end.ms_since(&self.begin)?) / 1e3)
    }
}
