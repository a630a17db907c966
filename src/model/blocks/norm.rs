//! Root mean square norm.

use crate::error::LoadError;
use crate::kernels::Backend;
use crate::model::loader::Loader;

/// Root mean square norm.
pub struct Norm<B: Backend> {
    pub(super) weight: B::Vector,
    pub(super) eps: f32,
}

impl<B: Backend> Norm<B> {
    /// Loads `{name}.weight`.
    pub fn load(loader: &mut Loader<'_, B>, name: &str, width: usize) -> Result<Self, LoadError> {
        let eps = loader.config().rms_norm_eps;
        Ok(Self {
            weight: loader.norm(&format!("{name}.weight"), width)?,
            eps,
        })
    }

    /// Loads the factors of a norm that are each multiplied with a number, under their own name.
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

    /// Norms each row, for products with `reader`.
    pub fn forward(&self, backend: &mut B, x: &B::Tensor, reader: &B::Matrix) -> B::Operand {
        backend.rms_norm(x, &self.weight, self.eps, reader)
    }

    /// Norms each row of `x` and adds it to that of the residual stream.
    pub fn add(&self, backend: &mut B, residual: &mut B::Tensor, x: &B::Tensor) {
        backend.add_normed(residual, x, &self.weight, self.eps);
    }

    /// Norms each row.
    pub fn rows(&self, backend: &mut B, x: &B::Tensor) -> B::Tensor {
        backend.norm_rows(x, &self.weight, self.eps)
    }
}
