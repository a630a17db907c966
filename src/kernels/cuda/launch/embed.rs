//! Launches of embed.cu: embedding lookup, row gather, and RoPE factors of positions.

use super::super::driver::{DevicePtr, DriverError, Grid, Kernel, Stream};
use super::super::pack::Modules;
use super::super::params::{Element, ElementType};

const EMBED_THREADS: u32 = 256;
const ROTATION_THREADS: u32 = 64;

#[derive(Clone, Debug)]
pub struct Embed {
    embed: Kernel,
    /// Copies words of any type.
    pick: Kernel,
    rotations: Kernel,
}

impl Embed {
    pub fn load(modules: &Modules, element: ElementType) -> Result<Self, DriverError> {
        let name = format!("embed_{}", element.suffix());
        Ok(Self {
            embed: modules.kernel("embed.cu", &name)?,
            pick: modules.kernel("embed.cu", "embed_f32")?,
            rotations: modules.kernel("embed.cu", "rotations")?,
        })
    }

    /// Copies row `tokens[t]` of `table[V, hidden]` to row `t` of the residual stream `out[T, hidden]`.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn embed(
        &self,
        stream: &Stream,
        out: DevicePtr<f32>,
        table: DevicePtr<Element>,
        tokens: DevicePtr<u32>,
        [n_tokens, hidden]: [u32; 2],
    ) -> Result<(), DriverError> {
        let grid = Grid::new([n_tokens, 1, 1], EMBED_THREADS);
        // SAFETY: guaranteed by the caller; arguments as in embed.cu.
        unsafe {
            self.embed
                .launch(stream, grid, &(out, table, tokens, hidden))
        }
    }

    /// Copies row `tokens[i]` of `x[*, words]` to row `i` of `out[n, words]`.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn pick(
        &self,
        stream: &Stream,
        out: DevicePtr<f32>,
        x: DevicePtr<f32>,
        tokens: DevicePtr<u32>,
        [n, words]: [u32; 2],
    ) -> Result<(), DriverError> {
        let grid = Grid::new([n, 1, 1], EMBED_THREADS);
        // SAFETY: guaranteed by the caller; arguments as in embed.cu.
        unsafe { self.pick.launch(stream, grid, &(out, x, tokens, words)) }
    }

    /// Writes cosines, then sines, of `positions[t] * inv_freq[i]`, times `scale`, to row `t` of `out[T, 2 * half]`.
    ///
    /// # Safety
    /// See the module.
    pub unsafe fn rotations(
        &self,
        stream: &Stream,
        out: DevicePtr<f32>,
        inv_freq: DevicePtr<f32>,
        positions: DevicePtr<u32>,
        [n_tokens, half]: [u32; 2],
        scale: f32,
    ) -> Result<(), DriverError> {
        let grid = Grid::new([n_tokens, 1, 1], ROTATION_THREADS);
        let arguments = (out, inv_freq, positions, half, scale);
        // SAFETY: guaranteed by the caller; arguments as in embed.cu.
        unsafe { self.rotations.launch(stream, grid, &arguments) }
    }
}
