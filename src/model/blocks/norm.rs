//! RMSNorm with its weight.

use crate::loader::Loader;
use souffleur_base::error::LoadError;
use souffleur_kernels::Backend;

pub struct Norm<B: Backend> {
    pub(super) weight: B::Vector,
    pub(super) eps: f32,
}

impl<B: Backend> Norm<B> {
    pub fn load(loader: &mut Loader<'_, B>, name: &str, width: usize) -> Result<Self, LoadError> {
        let eps = loader.config().rms_norm_eps;
        Ok(Self {
            weight: loader.norm(&format!("{name}.weight"), width)?,
            eps,
        })
    }

    /// Loads the tensor `name`, times a factor.
    pub fn scaled(
        loader: &mut Loader<'_, B>,
        name: &str,
        width: usize,
        factor: f32,
    ) -> Result<Self, LoadError> {
        Ok(Self {
            weight: loader.scaled_norm(name, width, factor)?,
            eps: loader.config().rms_norm_eps,
        })
    }

    pub fn forward(&self, backend: &mut B, x: &B::Tensor, reader: &B::Matrix) -> B::Operand {
        backend.rms_norm(x, &self.weight, self.eps, reader)
    }

    /// Adds the normalised rows of `x` to the residual stream.
    pub fn add(&self, backend: &mut B, residual: &mut B::Tensor, x: &B::Tensor) {
        backend.add_normed(residual, x, &self.weight, self.eps);
    }

    pub fn rows(&self, backend: &mut B, x: &B::Tensor) -> B::Tensor {
        backend.norm_rows(x, &self.weight, self.eps)
    }
}
