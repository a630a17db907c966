//! Launch of fill.cu: random weights.

use super::super::driver::{DevicePtr, DriverError, Grid, Kernel, Stream};
use super::super::pack::Modules;
use super::super::params::{Element, ElementType};

const THREADS: u32 = 256;
const ELEMENTS_PER_THREAD: u64 = 8;
/// Maximum thread blocks per multiprocessor; each block fills several parts of a large tensor.
const BLOCKS: u32 = 8;

/// Fills memory with the elements of [`RandomTensor`](crate::random::RandomTensor).
#[derive(Clone, Debug)]
pub struct FillRandom {
    kernel: Kernel,
    max_blocks: u32,
}

impl FillRandom {
    pub fn load(
        modules: &Modules,
        element: ElementType,
        multiprocessors: u32,
    ) -> Result<Self, DriverError> {
        let name = format!("fill_random_{}", element.suffix());
        Ok(Self {
            kernel: modules.kernel("fill.cu", &name)?,
            max_blocks: BLOCKS * multiprocessors,
        })
    }

    /// Fills `out` with the first `len` elements of a seed, integers of 24 bits times `unit`.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        out: DevicePtr<Element>,
        len: u64,
        seed: u64,
        unit: f32,
    ) -> Result<(), DriverError> {
        if len == 0 {
            return Ok(());
        }
        let blocks = len.div_ceil(u64::from(THREADS) * ELEMENTS_PER_THREAD);
        let blocks = blocks.min(u64::from(self.max_blocks)) as u32;
        let grid = Grid::new([blocks, 1, 1], THREADS);
        // SAFETY: guaranteed by the caller; arguments as in fill.cu.
        unsafe { self.kernel.launch(stream, grid, &(out, len, seed, unit)) }
    }
}
