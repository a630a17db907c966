//! Launch of norm.cu: RMSNorm.

use super::super::driver::{DevicePtr, DriverError, Grid, Kernel, Stream};
use super::super::pack::Modules;
use super::super::params::{Element, ElementType};

/// Elements of a row per warp.
const WARP_WIDTH: u32 = 256;
const MAX_WARPS: u32 = 32;

#[derive(Clone, Debug)]
pub struct RmsNorm(Kernel);

impl RmsNorm {
    pub fn load(modules: &Modules, element: ElementType) -> Result<Self, DriverError> {
        let name = format!("rms_norm_{}", element.suffix());
        modules.kernel("norm.cu", &name).map(Self)
    }

    /// Normalises row `rows[i]` of `x[*, width]` (row `i` if `rows` is null) into row `i` of `out[n_rows, width]`.
    ///
    /// # Safety
    /// See the module.
    #[allow(clippy::too_many_arguments)] // those of the kernel
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        out: DevicePtr<Element>,
        x: DevicePtr<f32>,
        rows: DevicePtr<u32>,
        weight: DevicePtr<f32>,
        [n_rows, width]: [u32; 2],
        eps: f32,
    ) -> Result<(), DriverError> {
        let grid = Grid::new([n_rows, 1, 1], threads(width));
        let arguments = (out, x, rows, weight, width, eps);
        // SAFETY: guaranteed by the caller; arguments as in norm.cu.
        unsafe { self.0.launch(stream, grid, &arguments) }
    }
}

fn threads(width: u32) -> u32 {
    32 * width.div_ceil(WARP_WIDTH).clamp(1, MAX_WARPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_has_a_warp_per_256_elements_but_at_most_32() {
        let rows = [(1, 32), (256, 32), (257, 64), (4096, 512), (20_000, 1024)];
        for (width, expected) in rows {
            assert_eq!(threads(width), expected, "{width}");
        }
    }
}
