//! Launch of activation.cu: the gated activation of an MLP.

use super::super::driver::{DevicePtr, DriverError, Grid, Kernel, Stream};
use super::super::pack::Modules;
use super::super::params::{Element, ElementType};

const THREADS: u32 = 256;
const ELEMENTS_PER_BLOCK: u32 = 2048;

#[derive(Clone, Debug)]
pub struct SiluMul(Kernel);

impl SiluMul {
    pub fn load(modules: &Modules, element: ElementType) -> Result<Self, DriverError> {
        let name = format!("silu_mul_{}", element.suffix());
        modules.kernel("activation.cu", &name).map(Self)
    }

    /// Computes `out[T, width]` from `gate_up[T, 2 * width]`, with the gate first.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        out: DevicePtr<Element>,
        gate_up: DevicePtr<Element>,
        [n_tokens, width]: [u32; 2],
    ) -> Result<(), DriverError> {
        let grid = Grid::new([n_tokens, width.div_ceil(ELEMENTS_PER_BLOCK), 1], THREADS);
        // SAFETY: guaranteed by the caller; arguments as in activation.cu.
        unsafe { self.0.launch(stream, grid, &(out, gate_up, width)) }
    }
}
